"""The transport below Thrift: a TCP or TLS socket, with the SASL handshake and SASL frames on top.

Invariant: `open` returns after a successful login, or raises and leaves no socket open. A failure that a retry cannot
fix is a ConfigError or LoginFailed. No error message contains a password.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterable
from io import BytesIO
from typing import Protocol

from thrift.transport.TSocket import TSocket
from thrift.transport.TTransport import TBufferedTransport, TTransportBase, TTransportException

from ingestd.errors import ConfigError, IngestdError, LoginFailed, MetastoreUnavailable
from ingestd.hive.kerberos import KerberosExchange
from ingestd.hive.security import Plain, Security, Tls

# Thrift's TSaslTransport: a handshake message is a status byte, four bytes of length, and the body. After the
# handshake a frame is four bytes of length and the body.
_START, _OK, _BAD, _ERROR, _COMPLETE = 1, 2, 3, 4, 5
_HEADER = struct.Struct(">BI")
_LENGTH = struct.Struct(">I")
_MAX_HANDSHAKE_BYTES = 1 << 20
_MAX_FRAME_BYTES = 1 << 30
_CHUNK_BYTES = 1 << 20

ADDRESS_HINT = "check that the metastore is running and that metastore.uri is correct"
_PROBE_SECONDS = 5.0
# A call of fb303's getName in Thrift's strict binary protocol: version and type, the method's name, sequence 0, then a
# struct. A metastore without SASL answers it.
GET_NAME = struct.pack(">II7sIB", 0x80010001, 7, b"getName", 0, 0)
# The first message of a SASL login with a mechanism that no server supports.
_UNKNOWN_LOGIN = _HEADER.pack(_START, 1) + b"?"
_THRIFT_REPLY, _TLS_ALERT = 0x80, 0x15


def create_transport(host: str, port: int, security: Security, timeout_seconds: float) -> TTransportBase:
    """Create an unopened transport to one address. Its `open` raises ConfigError, LoginFailed, MetastoreUnavailable."""
    plain = _Socket(host, port, security.tls)
    plain.setTimeout(timeout_seconds * 1000)
    if security.login is None:
        return TBufferedTransport(plain)
    login = security.login
    exchange = PlainExchange(login) if isinstance(login, Plain) else KerberosExchange(login, host)
    return SaslTransport(plain, exchange, f"metastore {host}:{port}")


class Exchange(Protocol):
    """The client side of one SASL mechanism: one login, and the protection of the bytes that follow."""

    @property
    def mechanism(self) -> bytes:
        """The mechanism's name in the handshake."""

    @property
    def hint(self) -> str:
        """How to fix a rejected login."""

    @property
    def complete(self) -> bool:
        """Whether the client has nothing left to send or to verify."""

    def answer(self, challenge: bytes) -> bytes:
        """Return the response to a challenge, or the initial response if `challenge` is `b""`."""

    def frames(self, data: bytes) -> Iterable[bytes]:
        """Return `data` as frames that the server accepts. Raises OSError."""

    def unwrap(self, frame: bytes) -> bytes:
        """Return the content of one frame. Raises OSError if its integrity check fails."""


class PlainExchange:
    """SASL PLAIN: sends user name and password in the first message (RFC 4616), and does not protect later ones."""

    mechanism = b"PLAIN"
    complete = True

    def __init__(self, login: Plain) -> None:
        self._login = login

    @property
    def hint(self) -> str:
        """How to fix a rejected login. Hive decodes UTF-8 credentials byte by byte (MetaStorePlainSaslServer)."""
        if not (self._login.username + self._login.password).isascii():
            return "use only ASCII in metastore.plain.username and metastore.plain.password; Hive supports nothing else"
        return "check metastore.plain.username and metastore.plain.password"

    def answer(self, challenge: bytes) -> bytes:
        """Return the credentials."""
        return f"\0{self._login.username}\0{self._login.password}".encode()

    def frames(self, data: bytes) -> Iterable[bytes]:
        """Return `data` as one frame."""
        return [data]

    def unwrap(self, frame: bytes) -> bytes:
        """Return `frame` unchanged."""
        return frame


class _Socket(TSocket):  # type: ignore[misc]
    """Thrift's socket with our own TLS, because the host name check of Thrift's TLS class varies between releases."""

    def __init__(self, host: str, port: int, tls: Tls | None) -> None:
        super().__init__(host, port)
        self._tls = tls

    def open(self) -> None:
        self.setHandle(_connect(self.host, self.port, self._tls, self._timeout))


def _connect(host: str, port: int, tls: Tls | None, timeout_seconds: float) -> socket.socket:
    where = f"metastore {host}:{port}"
    # Load the CA file before connecting, so that a missing file is not reported as a network failure.
    context = _context(tls) if tls else None
    try:
        connected = socket.create_connection((host, port), timeout_seconds)
    except (OSError, UnicodeError) as error:  # UnicodeError: not a valid host name
        raise MetastoreUnavailable(f"cannot connect: {error}", where=where, hint=ADDRESS_HINT) from error
    if context is None:
        return connected
    try:
        # The TLS socket inherits the timeout. On failure the plain socket is closed below.
        return context.wrap_socket(connected, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        connected.close()
        raise ConfigError(
            f"the metastore's certificate was rejected: {error.verify_message}",
            where=where,
            hint="metastore.tls.ca_file must contain the CA that signed it, and metastore.uri must use its host name",
        ) from error
    except BaseException:
        connected.close()
        raise


def _context(tls: Tls) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
    except ssl.SSLError:
        raise ConfigError(
            "the file contains no PEM certificate", where=f"metastore.tls.ca_file {tls.ca_file}"
        ) from None
    except OSError as error:
        raise ConfigError(
            f"the file cannot be read: {error.strerror}", where=f"metastore.tls.ca_file {tls.ca_file}"
        ) from None
    context.check_hostname = tls.verify_hostname
    return context


class SaslTransport(TTransportBase):  # type: ignore[misc]
    """Thrift's SASL transport for any mechanism (TSaslTransport in Java)."""

    def __init__(self, below: TTransportBase, exchange: Exchange, where: str) -> None:
        self._below = below
        self._exchange = exchange
        self._where = where
        self._read = BytesIO()
        self._written = bytearray()

    def isOpen(self) -> bool:  # noqa: N802  # Thrift's name
        """Return whether the socket is open."""
        return bool(self._below.isOpen())

    def open(self) -> None:
        """Connect and log in."""
        self._below.open()
        try:
            self._log_in()
        except BaseException:
            self._below.close()
            raise

    def close(self) -> None:
        """Close the socket."""
        self._below.close()

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes of the current frame, or of the next frame if the current one is exhausted."""
        while not (content := self._read.read(size)):
            (length,) = _LENGTH.unpack(self._below.readAll(_LENGTH.size))
            _check_length(length, _MAX_FRAME_BYTES)
            self._read = BytesIO(self._exchange.unwrap(self._below.readAll(length)))
        return content

    def write(self, data: bytes) -> None:
        """Buffer `data` until `flush`."""
        self._written += data

    def flush(self) -> None:
        """Send the buffered data."""
        data, self._written = bytes(self._written), bytearray()
        for start in range(0, len(data), _CHUNK_BYTES):
            for frame in self._exchange.frames(data[start : start + _CHUNK_BYTES]):
                self._below.write(_LENGTH.pack(len(frame)) + frame)
        self._below.flush()

    def _log_in(self) -> None:
        # Computed before anything is sent, because it fails if there are no credentials.
        first = self._exchange.answer(b"")
        self._send(_START, self._exchange.mechanism)
        self._send(_OK, first)
        while (challenge := self._receive()) is not None:
            self._send(_OK, self._exchange.answer(challenge))
        if not self._exchange.complete:
            raise LoginFailed("the metastore ended the login without authenticating itself", where=self._where)

    def _receive(self) -> bytes | None:
        """Return the server's next challenge; None if the server has accepted the login."""
        status, length = _HEADER.unpack(self._below.readAll(_HEADER.size))
        if status not in (_OK, _BAD, _ERROR, _COMPLETE):
            raise TTransportException(message="the response to the login is not a SASL message")
        _check_length(length, _MAX_HANDSHAKE_BYTES)
        body: bytes = self._below.readAll(length)
        if status in (_BAD, _ERROR):
            raise _rejection(body.decode(errors="replace"), self._exchange, self._where)
        return body if status == _OK else None

    def _send(self, status: int, body: bytes) -> None:
        self._below.write(_HEADER.pack(status, len(body)) + body)
        self._below.flush()


def _rejection(message: str, exchange: Exchange, where: str) -> IngestdError:
    if "unsupported mechanism" in message.lower():
        return ConfigError(
            f"the metastore does not support SASL {exchange.mechanism.decode()}: {message}",
            where=where,
            hint="use metastore.kerberos if hive.metastore.sasl.enabled is true, or metastore.plain for LDAP or CUSTOM",
        )
    what = f"the metastore rejected the login: {message or 'no reason given'}"
    return LoginFailed(what, where=where, hint=exchange.hint)


def _check_length(length: int, limit: int) -> None:
    if length > limit:
        text = f"a frame of {length} bytes exceeds the limit of {limit} bytes"
        raise TTransportException(TTransportException.SIZE_LIMIT, text)


def diagnose(host: str, port: int, security: Security, timeout_seconds: float) -> ConfigError | None:
    """Return the mismatch between the security settings of client and metastore.

    Returns None if there is no mismatch or no answer. Call this after a failed connect. With different settings, client
    and metastore misread each other's first bytes, and both wait or close the connection without an error. This
    function sends a Thrift call and a SASL login, without and with TLS, and examines the first byte of the response
    (verified with Hive 4.0.1 on Java 17).
    """
    first_byte = _probe(host, port, None, timeout_seconds)
    where = f"metastore {host}:{port}"
    if first_byte == _TLS_ALERT and security.tls is None:
        return ConfigError("the metastore requires TLS", where=where, hint="set metastore.tls")
    if first_byte == _TLS_ALERT:
        first_byte = _probe(host, port, security.tls, timeout_seconds)
    elif first_byte is not None and security.tls is not None:
        return ConfigError("the metastore does not use TLS", where=where, hint="remove metastore.tls")
    if first_byte == _THRIFT_REPLY and security.login is not None:
        kind = "plain" if isinstance(security.login, Plain) else "kerberos"
        return ConfigError("the metastore does not use SASL", where=where, hint=f"remove metastore.{kind}")
    if first_byte in (_BAD, _ERROR) and security.login is None:
        return ConfigError(
            "the metastore requires a SASL login", where=where, hint="set metastore.kerberos or metastore.plain"
        )
    return None


def _probe(host: str, port: int, tls: Tls | None, timeout_seconds: float) -> int | None:
    """Return the first byte of the response to a Thrift call or a SASL login; None if there is no response.

    The login is sent, over a new connection, only if the server closes the connection after the Thrift call.
    """
    for request in (GET_NAME, _UNKNOWN_LOGIN):
        try:
            with _connect(host, port, tls, min(timeout_seconds, _PROBE_SECONDS)) as connected:
                connected.sendall(request)
                answer = connected.recv(1)
        except (OSError, IngestdError):
            return None
        if answer:
            return answer[0]
    return None
