"""A client of the daemon's HTTP server.

Invariant: a call ends within its time limit and reads a bounded number of bytes. The token is sent only with a change,
only to a server that has answered as a daemon, and over a network only with TLS. A call follows no redirect and uses no
proxy, because both could send the token elsewhere.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import socket
import ssl
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from ingestd.clock import Deadline
from ingestd.config.http import is_loopback, read_token
from ingestd.errors import ConfigError, IngestdError, LoginFailed
from ingestd.http_connections import LimitedConnections

_ANSWER_SECONDS = 10.0
# How long the daemon may take to carry out a request. It answers before that if the request takes longer.
_CHANGE_SECONDS = 60.0
_MAX_BYTES = 64 << 20
_CHUNK = 1 << 16
_HINT = "check --url, or the key http.listen of the daemon"
_LOST_HINT = "the daemon may have carried out the request: see `ingestd offsets show` before you repeat it"
# The first HTTP status that is not a success: a redirect is not followed.
_FIRST_ERROR = 300
# The version of the documents of the daemon that the commands understand.
_VERSION = 1
# All but the line feed, which separates the faults of a configuration.
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")


class DaemonUnreachable(IngestdError):
    """No daemon of ingestd answers at the address."""

    exit_code = 69


class OtherDaemon(DaemonUnreachable):
    """The server at the address is not the daemon of the configuration."""


class DaemonRefused(IngestdError):
    """The daemon answered with an error."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a daemon listens: a URL without a path, the file with its token, and the certificates that are trusted.

    With `certificate`, the server must have the first certificate of this file, and its name does not matter. Otherwise
    the name must be that of `url`, and the certificate issued by a CA of `ca_file` or, by default, of the system.
    """

    url: str
    token_file: Path | None = None
    ca_file: Path | None = None
    certificate: Path | None = None

    def __post_init__(self) -> None:
        if not _is_url(self.url):
            raise ConfigError("is not the URL of a daemon", where="--url", hint="write http://HOST:PORT")

    @property
    def is_private(self) -> bool:
        """Whether the connection is encrypted, or does not leave this machine."""
        parsed = urlsplit(self.url)
        return parsed.scheme == "https" or is_loopback(parsed.hostname or "")


class Daemon:
    """The daemon at an endpoint, which answers GET within `answer_seconds`.

    Every method raises DaemonUnreachable, DaemonRefused or LoginFailed.
    """

    def __init__(self, endpoint: Endpoint, *, answer_seconds: float = _ANSWER_SECONDS) -> None:
        self._endpoint = endpoint
        self._seconds = answer_seconds
        self._url = endpoint.url.rstrip("/")
        self._where = f"daemon {self._url}"
        self._token = read_token(endpoint.token_file, "--token-file") if endpoint.token_file else ""
        self._tls = _tls(endpoint)
        self._is_known = False

    def status(self) -> dict[str, Any]:
        """Return the document of GET /status."""
        document = self._call("GET", "/status", None, self._seconds)
        forms = {"version": int, "daemon": dict, "mappings": list}
        if not all(isinstance(document.get(key), form) for key, form in forms.items()):
            raise self._no_daemon()
        if document["version"] != _VERSION:
            raise DaemonUnreachable(
                f"the daemon's documents have version {document['version']}, but this command knows version {_VERSION}",
                where=self._where,
                hint="use the release of ingestd that the daemon runs",
            )
        self._is_known = True
        return document

    def change(self, mapping: str, action: str, fields: Mapping[str, Any]) -> bool:
        """Request pause, resume, flush or offsets. Return False if the daemon accepted the request and is not done yet.

        An error in the daemon is raised as DaemonRefused. Raises ConfigError if the token would be sent over a network
        without TLS.
        """
        if self._token and not self._endpoint.is_private:
            raise ConfigError(
                "the token is not sent over a network without TLS",
                where=self._where,
                hint="use an https URL, or forward the port to this machine: ssh -L 8080:127.0.0.1:8080 HOST",
            )
        if not self._is_known:
            self.status()
        path = f"/mappings/{quote(mapping, safe='')}/{action}"
        body = {**fields, "wait_seconds": _CHANGE_SECONDS}
        try:
            answer = self._call("POST", path, body, _CHANGE_SECONDS + self._seconds)
        except DaemonUnreachable as error:
            raise type(error)(error.what, where=error.where, hint=_LOST_HINT) from error
        if answer.get("result") not in ("done", "accepted"):
            raise self._no_daemon()
        return bool(answer["result"] == "done")

    def _call(self, method: str, path: str, body: object | None, seconds: float) -> dict[str, Any]:
        headers = {"Accept": "application/json", "Content-Type": "application/json", "Connection": "close"}
        if self._token and method == "POST":
            headers["Authorization"] = f"Bearer {self._token}"
        data = None if body is None else json.dumps(body).encode()
        code, text = self._exchange(method, path, data, headers, seconds)
        document = _parsed(text)
        if code >= _FIRST_ERROR:
            raise self._refused(code, document)
        if document is None:
            raise self._no_daemon()
        return document

    def _exchange(
        self, method: str, path: str, data: bytes | None, headers: Mapping[str, str], seconds: float
    ) -> tuple[int, bytes]:
        """Return the HTTP status and the body of the answer. Raises DaemonUnreachable."""
        limit = Deadline.after(seconds)
        try:
            with (
                LimitedConnections(limit) as connections,
                closing(self._connection(connections, seconds)) as connection,
            ):
                connection.request(method, path, data, headers)
                with connection.getresponse() as answer:
                    return answer.status, _body(answer, limit)
        except ssl.SSLCertVerificationError as error:
            what = f"the certificate of the server is not trusted: {error.verify_message}"
            raise OtherDaemon(what, where=self._where, hint="check --ca-file, or the key http.tls") from error
        except (HTTPException, OSError) as error:
            what = "the answer took too long" if limit.passed else str(error) or type(error).__name__
            raise DaemonUnreachable(what, where=self._where, hint=_HINT) from error

    def _connection(self, connections: LimitedConnections, seconds: float) -> HTTPConnection:
        parsed = urlsplit(self._url)
        host = parsed.hostname or ""
        if parsed.scheme == "https":
            return connections.secure(host, port=parsed.port, timeout=seconds, context=self._tls)
        return connections.plain(host, port=parsed.port, timeout=seconds)

    def _refused(self, code: int, answer: dict[str, Any] | None) -> IngestdError:
        """Return the error that the daemon describes in an answer."""
        if not answer or "error" not in answer:
            return self._no_daemon()
        what, where, hint = (str(answer.get(key) or "") for key in ("error", "where", "hint"))
        place = ", ".join(part for part in (self._where, where) if part)
        if code in (401, 403):
            return LoginFailed(what, where=place, hint=f"use --token-file; {hint}")
        return DaemonRefused(what, where=place, hint=hint)

    def _no_daemon(self) -> DaemonUnreachable:
        return DaemonUnreachable("the server at this address is not ingestd", where=self._where, hint=_HINT)


def user() -> str:
    """Return the name, or the id, of the user who runs this command."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run as a user without a name
        return str(os.getuid())


def author() -> str:
    """Return who runs this command, for the record of a change."""
    return f"{user()}@{socket.gethostname()}"


def _is_url(text: str) -> bool:
    """Return whether a text is a URL of a server: without a path, a query, or a user and password."""
    try:
        parsed = urlsplit(text)
        host = (parsed.hostname or "").encode("idna")
        is_complete = parsed.scheme in ("http", "https") and bool(host) and parsed.port != 0
    except ValueError:
        return False
    return is_complete and parsed.path in ("", "/") and not re.search(r"[@?#\s]", text)


def _tls(endpoint: Endpoint) -> ssl.SSLContext:
    """Return what is required of the certificate of the server. Raises ConfigError."""
    file = endpoint.certificate or endpoint.ca_file
    try:
        if endpoint.certificate is None:
            context = ssl.create_default_context(cafile=file)
        else:
            # The name of the server is in no certificate if the daemon listens on a loopback address.
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.load_verify_locations(cadata=_first_certificate(endpoint.certificate))
    except (OSError, ValueError) as error:
        where = "http.tls.certificate" if endpoint.certificate else "--ca-file"
        raise ConfigError(f"{file} contains no certificates: {error}", where=where) from error
    # A certificate is also trusted if its issuer is not in the file.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def _first_certificate(file: Path) -> str:
    """Return the certificate that a server sends as its own. Raises OSError or ValueError."""
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    text = file.read_text(encoding="latin-1")  # comments may be in any encoding
    return text[text.index(begin) : text.index(end) + len(end)]


def _body(answer: HTTPResponse, limit: Deadline) -> bytes:
    """Read the whole body. Raises OSError if it is too long or takes too long."""
    body = bytearray()
    while part := answer.read1(_CHUNK):  # `read` waits for as many bytes
        body += part
        if len(body) > _MAX_BYTES:
            raise OSError(f"the answer is longer than {_MAX_BYTES >> 20} MiB")
    if limit.passed:
        raise TimeoutError
    return bytes(body)


def _parsed(text: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return _printable(document) if isinstance(document, dict) else None


def _printable(value: Any) -> Any:
    """Return a JSON value without control characters in its texts, because a terminal would execute them."""
    if isinstance(value, dict):
        return {_printable(key): _printable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_printable(item) for item in value]
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", value) if isinstance(value, str) else value
