"""A metastore connection per thread, with fail-over on use and every Thrift error translated.

Invariant: a call is never repeated here. A broken connection raises MetastoreUnavailable and the next call dials anew,
the next address of the list first: whether a call may be repeated is known only to the caller. The login is part of
dialling, so it is made anew each time and an address that cannot be logged in to counts as one that fails.
"""

from __future__ import annotations

import getpass
import socket
import threading
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from hive_metastore import ThriftHiveMetastore, ttypes
from hmsclient.hmsclient import HMSClient
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.Thrift import TApplicationException, TException
from thrift.transport.TTransport import TTransportException

from ingestd.errors import (
    ConfigError,
    IngestdError,
    InvalidTable,
    MetastoreUnavailable,
    TransactionAborted,
    Unavailable,
)
from ingestd.hive.security import Security
from ingestd.hive.wire import AWAY, mismatch, wire

_DEFAULT_PORT = 9083
# HMS answers and accepts ACID tables only for a client that names what it can do (MetastoreDefaultTransformer).
CAPABILITIES = [
    "EXTWRITE", "EXTREAD", "HIVEBUCKET2", "HIVEFULLACIDREAD", "HIVEFULLACIDWRITE", "HIVEMANAGESTATS",
    "HIVEMANAGEDINSERTWRITE", "HIVEMANAGEDINSERTREAD", "HIVESQL", "ACCEPTS_UNMODIFIED_METADATA",
]  # fmt: skip


class _Connection(ThriftHiveMetastore.Client, HMSClient):  # type: ignore[misc]
    """hmsclient's handling of a connection with the calls of Hive 4 (its own stubs are Hive 2.3)."""

    def __init__(self, protocol: TBinaryProtocol) -> None:
        HMSClient.__init__(self, protocol)


class Metastore:
    """The calls of one metastore, by any of its addresses, from any thread.

    `uris`: `thrift://host:port`, comma-separated; `timeout_seconds` bounds each call; `security` is how each
    connection is protected and logged in.
    """

    def __init__(self, uris: str, *, timeout_seconds: float = 60.0, security: Security | None = None) -> None:
        self.addresses = addresses(uris)
        self.timeout_seconds = timeout_seconds
        self.security = security or Security()
        # Whether its database can compare a table parameter, found out at the first try (`statistics.py`).
        self.compares_parameters = True
        # Calls so far, over all threads (Hive Streaming's statistics tell it).
        self.calls = 0
        self.user = self.security.user or getpass.getuser()
        self.host = socket.gethostname()[:128]
        self._local = threading.local()
        self._first = 0

    def call(self, method: str, *arguments: object) -> Any:
        """Call a metastore method once; the answer is a Thrift value, so only this package may use it.

        Raises MetastoreUnavailable when nobody answered or the server failed, LoginFailed or ConfigError when every
        address refuses us for good, TransactionAborted when the transaction is gone, InvalidTable when an object is
        missing, `MetastoreRefusal` for every other declared exception.
        """
        connection = self._connection()
        self.calls += 1
        try:
            return getattr(connection, method)(*arguments)
        except (TTransportException, OSError, EOFError) as error:
            where = self._where()
            self._leave_address()
            raise MetastoreUnavailable(f"{method}: {_words(error)}", where=where) from error
        except TException as error:
            raise _translated(method, error, self._where()) from error

    def close(self) -> None:
        """Drop this thread's connection; the next call dials anew."""
        connection = getattr(self._local, "connection", None)
        self._local.connection = None
        if connection is not None:
            connection.close()

    def _connection(self) -> _Connection:
        connection = getattr(self._local, "connection", None)
        return connection if connection is not None else self._dial()

    def _dial(self) -> _Connection:
        """Log in at the first address that takes us, beginning with the one that did so last.

        A refusal is final only when every address refuses: one that is away now may take us when it is back.
        """
        failures: list[IngestdError] = []
        for step in range(len(self.addresses)):
            index = (self._first + step) % len(self.addresses)
            try:
                connection = self._open(*self.addresses[index])
            except IngestdError as error:
                failures.append(error)
                continue
            self._local.connection = connection
            self._local.index = self._first = index
            return connection
        final = all(not isinstance(failure, Unavailable) for failure in failures)
        if final or len(failures) == 1:
            raise failures[0]
        raise MetastoreUnavailable("no metastore answers", where="; ".join(map(str, failures)), hint=AWAY)

    def _open(self, host: str, port: int) -> _Connection:
        """A connection to one address, logged in. Raises MetastoreUnavailable, LoginFailed, ConfigError."""
        connection = _Connection(TBinaryProtocol(wire(host, port, self.security, self.timeout_seconds)))
        try:
            connection.open()
            if self.security.login is None:
                # HMS makes partition directories as this user when metastore.execute.setugi is on
                # (TUGIBasedProcessor); after a login it knows who we are.
                connection.set_ugi(self.user, [self.user])
        except (TException, OSError, EOFError) as error:
            connection.close()
            where = f"metastore {host}:{port}"
            known = mismatch(host, port, self.security, self.timeout_seconds)
            raise known or MetastoreUnavailable(_words(error), where=where, hint=AWAY) from error
        return connection

    def _leave_address(self) -> None:
        """Drop this thread's broken connection; the next dial begins behind it, unless another thread saw to that."""
        if self._first == self._local.index:
            self._first = (self._local.index + 1) % len(self.addresses)
        self.close()

    def _where(self) -> str:
        host, port = self.addresses[self._local.index]
        return f"metastore {host}:{port}"


class MetastoreRefusal(IngestdError):
    """The metastore understood the call and said no; `what` holds its words."""


def addresses(uris: str) -> Sequence[tuple[str, int]]:
    """Host and port of each address of `metastore.uri`. Raises ConfigError."""
    given = [uri.strip() for uri in uris.split(",") if uri.strip()] or [""]
    found = [(uri, _address(uri)) for uri in given]
    for uri, address in found:
        if address is None:
            raise ConfigError(
                f"{uri!r} is not a metastore address",
                where="metastore.uri",
                hint="thrift://host:9083, several separated by commas",
            )
    return [address for _, address in found if address is not None]


def _address(uri: str) -> tuple[str, int] | None:
    try:
        parsed = urlsplit(uri)
        port = parsed.port or _DEFAULT_PORT
    except ValueError:
        return None
    return (parsed.hostname, port) if parsed.scheme == "thrift" and parsed.hostname else None


def _words(error: BaseException) -> str:
    """What the error says; many that end a connection say nothing."""
    return str(error) or type(error).__name__


def _translated(method: str, error: TException, where: str) -> IngestdError:
    text = f"{method}: {getattr(error, 'message', None) or error}"
    if isinstance(error, (ttypes.NoSuchTxnException, ttypes.TxnAbortedException, ttypes.NoSuchLockException)):
        return TransactionAborted(text, where=where)
    if isinstance(error, ttypes.NoSuchObjectException):
        return InvalidTable(text, where=where)
    # The server's own trouble, such as its database being away, comes as MetaException or as an undeclared exception.
    if isinstance(error, (ttypes.MetaException, TApplicationException)):
        return MetastoreUnavailable(text, where=where, hint="see the metastore's log")
    return MetastoreRefusal(text, where=where)
