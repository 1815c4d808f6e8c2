"""Runs SQL statements on a HiveServer2 without authentication. No other module uses PyHive.

Invariant: sessions use the server's default settings, because tests use them to check what ingestd wrote.
"""

from __future__ import annotations

from contextlib import closing, suppress
from typing import Any

from ingestd.errors import SandboxError


def client() -> Any:
    """Return the module `pyhive.hive`. Raises SandboxError when the extra `sandbox` is not installed."""
    try:
        from pyhive import hive  # noqa: PLC0415  # an optional dependency
    except ImportError as error:
        raise SandboxError(f"{error.name} is not installed", hint="run: pip install 'ingestd[sandbox]'") from error
    return hive


def connect(address: str) -> Any:
    """Open a PyHive connection to "HOST:PORT" and return it. Raises SandboxError when it cannot be opened."""
    host, _, port = address.rpartition(":")
    hive = client()
    try:
        return hive.connect(host=host, port=int(port), auth="NOSASL")
    except Exception as error:  # thrift, socket and PyHive have no common base
        raise SandboxError(
            f"a HiveServer2 session could not be opened ({type(error).__name__})", where=address
        ) from error


class Session:
    """A session that runs one statement at a time and is not thread-safe. Raises SandboxError when opening fails."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._connection = connect(address)

    def query(self, sql: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Run one statement and return its column names and all rows. Both are empty when it has no result set.

        Raises SandboxError with Hive's message when the statement fails.
        """
        try:
            with closing(self._connection.cursor()) as cursor:
                cursor.execute(sql)
                if cursor.description is None:
                    return [], []
                return [column[0] for column in cursor.description], cursor.fetchall()
        except Exception as error:
            raise SandboxError(_message(error), where=f"HiveServer2 {self._address}") from error

    def close(self) -> None:
        """End the session. Errors are ignored: a server that lost the connection ends the session itself."""
        with suppress(Exception):
            self._connection.close()


def query(address: str, sql: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Run one statement in a new session; see `Session.query`."""
    with closing(Session(address)) as session:
        return session.query(sql)


def _message(error: Exception) -> str:
    """Return Hive's message from PyHive's OperationalError, whose only argument is the whole Thrift response."""
    status = getattr(error.args[0], "status", None) if error.args else None
    return str(getattr(status, "errorMessage", None) or error or type(error).__name__)
