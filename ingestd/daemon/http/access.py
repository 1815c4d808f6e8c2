"""Access control: the rules that each request must satisfy.

- Anyone who can connect may read. The answers contain no secrets, and no records except the beginning of a reject.
- A request that changes the daemon needs the token if `http.token_file` is set. Otherwise it is accepted only if the
  server listens on a loopback address.
- A web page of another site must not act through the browser of an operator. On a loopback address, `Host` must be a
  loopback name, so that a name that was rebound to 127.0.0.1 is refused. A change needs the content type JSON, which a
  browser sends to another site only after a CORS preflight request, which this server does not grant.

Invariant: the token is compared in constant time and is never part of a message.
"""

from __future__ import annotations

import hmac
import re
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request

from ingestd.config.http import is_loopback, read_token
from ingestd.errors import ConfigError, IngestdError

_HOST = re.compile(r"(?:\[(.+)\]|([^:]*))(?::\d+)?")


class Refused(IngestdError):
    """A request that is not carried out. `status` is the HTTP status."""

    def __init__(self, status: int, what: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(what, where=where, hint=hint)
        self.status = status


@dataclass(frozen=True, slots=True)
class Access:
    """The rules of one server."""

    is_loopback: bool
    token_file: Path | None

    @property
    def changes(self) -> str:
        """How requests that change the daemon are accepted: `token`, `local` or `refused`."""
        if self.token_file is not None:
            return "token"
        return "local" if self.is_loopback else "refused"

    def check_host(self, host: str) -> None:
        """Check the header `Host` of any request. Raises Refused."""
        match = _HOST.fullmatch(host)
        if self.is_loopback and not (match and is_loopback(match[1] or match[2])):
            raise Refused(
                421,
                f"the host {host[:100]!r} is not a name of this server",
                where="header Host",
                hint="use localhost or 127.0.0.1; a proxy in front must send one of them as Host",
            )

    def check_change(self, request: Request) -> None:
        """Check a request that changes the daemon. Reads the token file. Raises Refused."""
        content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type != "application/json":
            raise Refused(
                415,
                "a request that changes the daemon must have the content type application/json",
                where="header Content-Type",
                hint="add: -H 'Content-Type: application/json'",
            )
        if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            raise Refused(403, "a web page of another site sent the request", where="header Sec-Fetch-Site")
        if self.token_file is not None:
            self._check_token(request, self.token_file)
        elif not self.is_loopback:
            raise Refused(
                403,
                "requests that change the daemon are refused, because it listens on a network without a token",
                where="http.token_file",
                hint="set http.token_file and restart the daemon",
            )

    def _check_token(self, request: Request, file: Path) -> None:
        try:
            expected = read_token(file, "http.token_file")
        except ConfigError as error:
            raise Refused(503, error.what, where=error.where, hint=error.hint) from error
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), expected.encode()):
            raise Refused(
                401,
                "the token is missing or wrong",
                where="header Authorization",
                hint="send 'Authorization: Bearer TOKEN' with the content of http.token_file",
            )
