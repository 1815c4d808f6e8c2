"""A metastore connection per thread, with fail-over on use and every Thrift error translated.

Invariant: a call that may have reached a metastore is repeated only if it is in `_REPEATABLE`; for any other a broken
connection raises MetastoreUnavailable, and what that means is known only to the caller. What a metastore has answered,
errors included, is never asked again. After a broken connection the next address of the list is dialled first. The
login is part of dialling, so it is made anew each time and an address that cannot be logged in to counts as one that
fails.
"""

from __future__ import annotations

import getpass
import re
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
from ingestd.hive.kerberos import ticket_owner
from ingestd.hive.security import Kerberos, Security
from ingestd.hive.transport import AWAY, mismatch, wire

_DEFAULT_PORT = 9083
# Partitions named in one call. On Derby a metastore overflows its stack at some 380 to 600 names; PostgreSQL takes
# thousands, and a call of 200 costs nothing much more than one of all.
PARTITIONS_PER_CALL = 200
# Characters of a metastore's own text that go into an error; the statements that it quotes can have many thousands.
_TEXT_HEAD, _TEXT_TAIL = 350, 150
# Causes that no repetition cures, as the metastore's file system and its databases word them.
_NEVER_PASSES = re.compile(
    "File name too long|PathComponentTooLong|path component name limit|Pathname too long"
    "|Invalid partition key|InvalidObjectException|StackOverflowError"
    "|value too long for type|truncation error was encountered|Data too long for column|ORA-12899"
    "|invalid byte sequence for encoding"
)
_TIMED_OUT = TTransportException.TIMED_OUT
# HMS answers and accepts ACID tables only for a client that names what it can do (MetastoreDefaultTransformer).
CAPABILITIES = [
    "EXTWRITE", "EXTREAD", "HIVEBUCKET2", "HIVEFULLACIDREAD", "HIVEFULLACIDWRITE", "HIVEMANAGESTATS",
    "HIVEMANAGEDINSERTWRITE", "HIVEMANAGEDINSERTREAD", "HIVESQL", "ACCEPTS_UNMODIFIED_METADATA",
]  # fmt: skip

_READS = (
    "getName", "getVersion", "get_all_databases", "get_config_value", "get_database", "get_open_txns",
    "get_not_null_constraints", "get_open_txns_info", "get_partition_names", "get_partitions_by_names_req",
    "get_table_req", "get_valid_write_ids", "partition_name_to_vals", "show_locks",
)  # fmt: skip
# Calls that leave the same behind whether the metastore carries them out once or twice, and why:
_REPEATABLE = {
    **dict.fromkeys(_READS, "changes nothing"),
    "heartbeat": "sets a time",
    "heartbeat_txn_range": "sets a time",
    "check_lock": "asks for a lock's state, and sets a time",
    "allocate_table_write_ids": "a transaction has one write id for a table: the second time it is told again",
    "lock": "in a transaction: its locks do not stop each other, and end with it (see `_is_repeatable`)",
    "unlock": "the second time there is no such lock, which is what was wanted (`leases.release`)",
    **dict.fromkeys(("abort_txn", "abort_txns"), "an aborted transaction may be aborted again"),
    "add_partitions_req": "with ifNotExists: the second time they are there",
    "add_dynamic_partitions": "registers the names again: more rows in TXN_COMPONENTS that say the same",
    "add_write_notification_log": "the event log keeps a file once",
    "add_write_notification_log_in_batch": "the event log keeps a file once",
}
# Not among them, though some would do little harm:
# commit_txn            who asks must know whether it happened, and has better ways to find out (ending.py)
# open_txns             each makes new transactions; those of a lost answer stay open, until they time out
# alter_table_req, alter_partitions_req   write back what was read: they would undo what others changed in between, and
#                       where HMS compares first, the second is refused though the first has happened
# create_table_req, create_database   the second is refused, though the first has happened
# lock outside a transaction   the second waits for the first, whose id nobody has


class _Connection(ThriftHiveMetastore.Client, HMSClient):  # type: ignore[misc]
    """hmsclient's handling of a connection with the calls of Hive 4 (its own stubs are Hive 2.3)."""

    def __init__(self, protocol: TBinaryProtocol) -> None:
        HMSClient.__init__(self, protocol)

    def is_open(self) -> bool:
        """False when the other side has closed a plain connection: Thrift looks at the socket, and sends nothing."""
        return bool(self._oprot.trans.isOpen())

    def __del__(self) -> None:
        """A connection belongs to a thread: when the thread ends without a call of `close`, the socket is closed."""
        self.close()


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
        self.host = socket.gethostname()[:128]
        self._owner: str | None = None
        self._local = threading.local()
        self._first = 0

    @property
    def user(self) -> str:
        """Who we are to the metastore: of the login, else the name that it is told."""
        if self._owner is None and isinstance(self.security.login, Kerberos) and not self.security.user:
            self._owner = ticket_owner()
        return self.security.user or self._owner or getpass.getuser()

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a metastore method; the answer is a Thrift value, so only this package may use it.

        When the connection breaks, a call that may be repeated is, each time at the next address that can be dialled;
        there is one try more than there are addresses, and one less after a silence.

        Raises MetastoreUnavailable when nobody answered or the server failed, LoginFailed or ConfigError when every
        address refuses us for good, TransactionAborted when the transaction is gone, InvalidTable when an object is
        missing, `MetastoreRefusal` for every other declared exception and for failures whose cause never passes.
        """
        repeatable = _is_repeatable(method, arguments)
        connection = self._connection(surely=not repeatable)
        failures = 0
        while True:
            self.calls += 1
            try:
                return getattr(connection, method)(*arguments)
            except (TTransportException, OSError, EOFError) as error:
                where = self._where()
                self._leave_address()
                failures += 1
                if not repeatable or failures + _is_silence(error) > len(self.addresses):
                    raise MetastoreUnavailable(f"{method}: {_words(error)}", where=where) from error
            except TException as error:
                raise _translated(method, error, self._where()) from error
            except BaseException:
                self.close()  # Ctrl-C, or a signal handler that raises: the next call would read this one's answer
                raise
            connection = self._dial()

    def close(self) -> None:
        """Drop this thread's connection; the next call dials anew."""
        connection = getattr(self._local, "connection", None)
        self._local.connection = None
        if connection is not None:
            connection.close()

    def _connection(self, *, surely: bool) -> _Connection:
        """This thread's connection; with `surely`, one of which we know that it was not cut while it was idle."""
        connection: _Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            return self._dial()
        if self.security.tls is None and not connection.is_open():
            self._leave_address()
            return self._dial()
        if surely and self.security.tls is not None:
            # Through TLS the end of a connection cannot be seen without reading: something harmless is asked.
            self.call("getName")
            return self._connection(surely=False)
        return connection

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
            self._local.index = self._first = index
            self._local.connection = connection
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
    """The metastore understood the call and said no, or can never carry it out; `what` holds its words."""

    exit_code = 65


class UnknownCall(MetastoreRefusal):
    """The metastore does not have the method: it is older than the call."""


def addresses(uris: str) -> Sequence[tuple[str, int]]:
    """Host and port of each address of `metastore.uri`. Raises ConfigError."""
    given = [uri.strip() for uri in uris.split(",") if uri.strip()] or [""]
    found = [(uri, _address(uri)) for uri in given]
    for uri, address in found:
        if address is None:
            raise ConfigError(
                f"{re.sub('//[^/]*@', '//***@', uri)!r} is not a metastore address",
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


def _is_repeatable(method: str, arguments: Sequence[Any]) -> bool:
    return method in _REPEATABLE and (method != "lock" or bool(arguments[0].txnid))


def _is_silence(error: BaseException) -> bool:
    """Whether a time-out ended the call: whoever did not answer then is not asked again."""
    kinds = (error, getattr(error, "inner", None))
    return any(isinstance(one, TimeoutError) for one in kinds) or getattr(error, "type", None) == _TIMED_OUT


def _words(error: BaseException) -> str:
    """What the error says; many that end a connection say nothing."""
    return _cut(str(error)) or type(error).__name__


def _cut(text: str) -> str:
    """A text of bounded length: what happened stands at its beginning, the root cause at its end."""
    if len(text) <= _TEXT_HEAD + _TEXT_TAIL:
        return text
    return f"{text[:_TEXT_HEAD]} … {text[-_TEXT_TAIL:]}"


def _translated(method: str, error: TException, where: str) -> IngestdError:
    full = str(getattr(error, "message", None) or error)
    text = f"{method}: {_cut(full)}"
    if isinstance(error, (ttypes.NoSuchTxnException, ttypes.TxnAbortedException, ttypes.NoSuchLockException)):
        return TransactionAborted(text, where=where)
    if isinstance(error, ttypes.NoSuchObjectException):
        return InvalidTable(text, where=where)
    if isinstance(error, TApplicationException) and error.type == TApplicationException.UNKNOWN_METHOD:
        return UnknownCall(text, where=where, hint="use a newer metastore")
    # The server's own trouble, such as its database being away, comes as MetaException or as an undeclared exception,
    # and so does what is wrong with the request itself.
    if isinstance(error, (ttypes.MetaException, TApplicationException)):
        if _NEVER_PASSES.search(full):
            return MetastoreRefusal(text, where=where, hint="see the metastore's log; to try again does not help")
        return MetastoreUnavailable(text, where=where, hint="see the metastore's log")
    return MetastoreRefusal(text, where=where)
