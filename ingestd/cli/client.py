"""A client of the daemon's HTTP server.

Invariant: a call ends within its time limit and reads a bounded number of bytes. It follows no redirect and uses no
proxy, because both could send the token elsewhere.
"""

from __future__ import annotations

import getpass
import json
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, OpenerDirector, ProxyHandler, Request, build_opener

from ingestd.clock import Deadline
from ingestd.errors import ConfigError, IngestdError, LoginFailed

_ANSWER_SECONDS = 10.0
# How long the daemon may take to carry out a request. It answers before that if the request takes longer.
_CHANGE_SECONDS = 60.0
_MAX_BYTES = 64 << 20
_CHUNK = 1 << 16
_HINT = "check --url, or the key http.listen of the daemon"


class DaemonUnreachable(IngestdError):
    """No daemon of ingestd answers at the address."""

    exit_code = 69


class OtherDaemon(DaemonUnreachable):
    """The daemon at the address does not run the mappings of the configuration."""


class DaemonRefused(IngestdError):
    """The daemon answered, and did not do what was asked."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a daemon listens: a URL without a path, the file with its token, and the CA certificates that it needs."""

    url: str
    token_file: Path | None = None
    ca_file: Path | None = None

    def __post_init__(self) -> None:
        parsed = urlsplit(self.url)
        if parsed.scheme not in ("http", "https") or not parsed.hostname or parsed.path not in ("", "/"):
            raise ConfigError("is not the URL of a daemon", where="--url", hint="write http://HOST:PORT")


class Daemon:
    """The daemon at an endpoint. Every method raises DaemonUnreachable, DaemonRefused or LoginFailed."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._url = endpoint.url.rstrip("/")
        self._where = f"daemon {self._url}"
        self._token = _read(endpoint.token_file) if endpoint.token_file else ""
        self._opener = _opener(endpoint.ca_file)

    def status(self) -> dict[str, Any]:
        """Return the document of GET /status."""
        return self._call("GET", "/status", None, _ANSWER_SECONDS)

    def change(self, mapping: str, action: str, fields: Mapping[str, Any]) -> bool:
        """Ask for pause, resume, flush or offsets. Return False if the daemon accepted the request and is not done.

        An error that prevents the request in the daemon is raised as DaemonRefused.
        """
        path = f"/mappings/{quote(mapping, safe='')}/{action}"
        body = {**fields, "wait_seconds": _CHANGE_SECONDS}
        return bool(self._call("POST", path, body, _CHANGE_SECONDS + _ANSWER_SECONDS)["result"] == "done")

    def _call(self, method: str, path: str, body: object | None, seconds: float) -> dict[str, Any]:
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        data = None if body is None else json.dumps(body).encode()
        request = Request(self._url + path, data, headers, method=method)  # noqa: S310 - Endpoint checks the scheme
        limit = Deadline.after(seconds)
        try:
            with self._opener.open(request, timeout=seconds) as answer:
                text = _body(answer, limit)
        except HTTPError as error:
            with error:
                raise self._refused(error.code, _body(error, limit)) from None
        except (URLError, HTTPException, OSError) as error:
            reason = getattr(error, "reason", None) or error
            raise DaemonUnreachable(str(reason) or type(error).__name__, where=self._where, hint=_HINT) from error
        document = _parsed(text)
        if document is None:
            raise self._no_daemon()
        return document

    def _refused(self, code: int, text: bytes) -> IngestdError:
        """Return the error that the daemon describes in the body of an answer."""
        found = _parsed(text)
        if not found or "error" not in found:
            return self._no_daemon()
        what, where, hint = (str(found.get(key) or "") for key in ("error", "where", "hint"))
        place = ", ".join(part for part in (self._where, where) if part)
        if code in (401, 403):
            return LoginFailed(what, where=place, hint=f"use --token-file; {hint}")
        return DaemonRefused(what, where=place, hint=hint)

    def _no_daemon(self) -> DaemonUnreachable:
        return DaemonUnreachable("the server at this address is not ingestd", where=self._where, hint=_HINT)


def author() -> str:
    """Return who runs this command, for the record of a change."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *_arguments: Any, **_more: Any) -> None:
        """Return None, so that a redirect is an error."""


def _opener(ca_file: Path | None) -> OpenerDirector:
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{ca_file} contains no certificates: {error}", where="--ca-file") from error
    return build_opener(ProxyHandler({}), HTTPSHandler(context=context), _NoRedirects)


def _read(token_file: Path) -> str:
    try:
        return token_file.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        what = getattr(error, "strerror", None) or "it is not ASCII text"
        raise ConfigError(f"{token_file} cannot be read: {what}", where="--token-file") from error


def _body(answer: HTTPResponse | HTTPError, limit: Deadline) -> bytes:
    """Read the whole body. Raises OSError if it is too long or takes too long."""
    body = bytearray()
    while part := answer.read(_CHUNK):
        body += part
        if len(body) > _MAX_BYTES or limit.passed:
            raise OSError(f"the answer is longer than {_MAX_BYTES >> 20} MiB or took too long")
    return bytes(body)


def _parsed(text: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(text)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None
