"""The servers from which a container and a virtual machine obtain the keys of their role."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

# The answers of the instance metadata service, version 2. It provides keys only to those who have asked for a token.
_SESSION = b"session"
_ROLES = "/latest/meta-data/iam/security-credentials/"
# botocore does not use keys that expire within ten minutes if it can obtain others.
_LIFE = timedelta(minutes=1)


class RoleServer:
    """Answers each request with other keys, which expire soon. `given` contains the access keys and session tokens."""

    def __init__(self) -> None:
        self.given: list[tuple[str, str]] = []
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(b"ingestd" if self.path == _ROLES else owner.answer())

            def do_PUT(self) -> None:
                self._answer(_SESSION)

            def _answer(self, content: bytes) -> None:
                is_instance = self.command == "GET" and self.path.startswith(_ROLES)
                is_allowed = not is_instance or self.headers.get("x-aws-ec2-metadata-token") == _SESSION.decode()
                self.send_response(200 if is_allowed else 401)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                """Log nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        """The address that the container, or the virtual machine, knows."""
        return f"http://127.0.0.1:{self.server.server_address[1]}/"

    def answer(self) -> bytes:
        """Return new keys in JSON."""
        number = len(self.given)
        self.given.append((f"role{number}", f"token{number}"))
        expiration = (datetime.now(timezone.utc) + _LIFE).strftime("%Y-%m-%dT%H:%M:%SZ")
        keys = {
            "AccessKeyId": f"role{number}",
            "SecretAccessKey": "secret",
            "Token": f"token{number}",
            "Code": "Success",
        }
        return json.dumps(keys | {"Expiration": expiration}).encode()


@contextmanager
def role_server() -> Iterator[RoleServer]:
    """Run the server and stop it at the end of the `with` block."""
    made = RoleServer()
    thread = threading.Thread(target=made.server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.server.shutdown()
        made.server.server_close()
        thread.join()
