"""The HTTP server: a socket that is bound before mappings start, and a thread that serves it.

Invariant: the thread never ends the process. It installs no signal handler, its errors are logged, and `serving` ends
within a few seconds, whatever clients do.
"""

from __future__ import annotations

import errno
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from anyio import to_thread

from ingestd.config.http import Address, HttpOptions, TlsFiles, read_token
from ingestd.daemon.http.access import Access
from ingestd.daemon.http.app import RenderMetrics, application
from ingestd.daemon.http.connections import (
    ACCEPTS_PER_TURN,
    MAX_HEADER_BYTES,
    Connection,
    Listener,
    end_overdue,
)
from ingestd.daemon.http.fleet import Fleet
from ingestd.daemon.http.history import History
from ingestd.daemon.http.live import Live
from ingestd.errors import ConfigError
from ingestd.ingest.monitoring import events

# How long responses that are being sent may take when the server stops, and how long the thread may take to end.
_GRACE_SECONDS = 2
_END_SECONDS = 4.0
_BIND_HINTS = {
    errno.EADDRINUSE: "another process listens there, perhaps another ingestd: set another port, or off",
    errno.EACCES: "ports below 1024 require privileges: use a higher port",
    errno.EADDRNOTAVAIL: "use an address of this machine, 0.0.0.0 or [::]",
}


class AddressInUse(ConfigError):
    """Another process listens at the address."""


def open_server(options: HttpOptions) -> HttpServer | None:
    """Return a server that is bound to the address of `options`; None if there is none.

    There is none if `listen` is off, or if it is not set and the default address is in use, which is then logged.
    Raises ConfigError.
    """
    if options.address is None:
        return None
    try:
        return HttpServer(options.address, options)
    except AddressInUse as error:
        if options.listen is not None:
            raise
        events.http_unavailable(str(options.address), error.what, "set http.listen to a free address, or to off")
        return None


class HttpServer:
    """A server that is bound to `listen`.

    The constructor binds the socket and reads the certificate and the token. It raises ConfigError if one of these
    fails. Connections wait until `serving` begins.
    """

    def __init__(self, listen: Address, options: HttpOptions) -> None:
        self._token_file = options.token_file
        if options.token_file is not None:
            read_token(options.token_file, "http.token_file")
        self._certificate = None if options.tls is None else _Certificate(options.tls)
        self._listener = _bound(listen)
        self.address = Address(listen.host, self._listener.getsockname()[1])

    @property
    def url(self) -> str:
        """The address of the status page."""
        return f"http{'s' if self._certificate else ''}://{self.address}/"

    @contextmanager
    def serving(self, fleet: Fleet, metrics: RenderMetrics, history: History | None = None) -> Iterator[None]:
        """Serve requests in a thread while the block runs, and close the socket after it."""
        history = history or History()
        live = Live(fleet, history)
        access = Access(self.address.is_loopback, self._token_file)
        config = _config(application(fleet, access, history, live, metrics))
        config.ssl = None if self._certificate is None else self._certificate.context
        server = _Server(config, live)

        async def tick() -> None:
            end_overdue(server.server_state.connections)
            history.observe(fleet.monitors)
            live.publish()
            if self._certificate is not None:
                await to_thread.run_sync(self._certificate.refresh)

        config.callback_notify = tick
        thread = threading.Thread(target=self._serve, args=(server,), name="http", daemon=True)
        thread.start()
        events.http_listening(self.url, access.changes)
        try:
            yield
        finally:
            server.should_exit = True
            thread.join(_END_SECONDS)
            self.close()

    def close(self) -> None:
        """Close the socket, if `serving` never began."""
        self._listener.close()

    def _serve(self, server: uvicorn.Server) -> None:
        try:
            server.run([self._listener])
        except BaseException as error:  # noqa: BLE001 - the last frame of the thread: no error may be lost here
            events.http_failed(f"{type(error).__name__}: {error}")


class _Server(uvicorn.Server):
    """A server that ends its streams of events first when it stops."""

    def __init__(self, config: uvicorn.Config, live: Live) -> None:
        super().__init__(config)
        self._live = live

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop (see `uvicorn.Server.shutdown`)."""
        self._live.close()
        await super().shutdown(sockets)


def _config(app: object) -> uvicorn.Config:
    config = uvicorn.Config(
        app,  # type: ignore[arg-type]  # Starlette and uvicorn declare the types of ASGI separately
        http=Connection,
        loop="asyncio",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=ACCEPTS_PER_TURN,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        timeout_graceful_shutdown=_GRACE_SECONDS,
        timeout_notify=0,  # call `callback_notify` every second
    )
    config.load()
    return config


def _bound(listen: Address) -> Listener:
    """Return a listening socket. Raises ConfigError."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            listen.host, listen.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise ConfigError(f"{listen.host} cannot be resolved: {error.strerror}", where="http.listen") from error
    listener = Listener(family, kind)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(address)
        # Linux lets two sockets bind one port until one of them listens.
        listener.listen()
    except OSError as error:
        listener.close()
        hint = _BIND_HINTS.get(error.errno or 0, "")
        kind_of_error = AddressInUse if error.errno == errno.EADDRINUSE else ConfigError
        raise kind_of_error(f"cannot listen on {listen}: {error.strerror}", where="http.listen", hint=hint) from error
    return listener


class _Certificate:
    """A TLS context whose certificate is read again when its file changes."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            self._stamp = self._modified()
            self._load()
        except OSError as error:
            raise ConfigError(
                f"the certificate or its key cannot be used: {error.strerror or error}",
                where="http.tls",
                hint="both must be readable PEM files that belong together; the key must not have a password",
            ) from error

    def refresh(self) -> None:
        """Read the files again if they changed. A certificate that cannot be used is logged, and the old one stays."""
        try:
            stamp = self._modified()
            if stamp != self._stamp:
                self._stamp = stamp
                self._load()
        except OSError as error:
            events.http_failed(f"the new certificate cannot be used: {error.strerror or error}")

    def _modified(self) -> tuple[int, int]:
        return self._files.certificate.stat().st_mtime_ns, self._files.key.stat().st_mtime_ns

    def _load(self) -> None:
        # Without a callback, OpenSSL would ask for the password of an encrypted key on the terminal.
        self.context.load_cert_chain(self._files.certificate, self._files.key, password=lambda: "")
