"""The metastore client, which borrows a connection for each call, fails over and translates Thrift errors.

Invariant: a call that may have reached a metastore is sent again only if `repeatable.py` permits it. For any other call
a broken connection raises MetastoreUnavailable, and the caller must find out whether the call took effect. A call that
was answered is not sent again, with one exception: Hive's own client repeats a call after an internal error, and so do
repeatable calls and `open_txns` here, once. After a broken connection the next address of the list is tried first.
Every connect logs in again. An address that rejects the login is treated like one that is unavailable.
Transactions and locks belong to their ids, not to a connection, so any connection can continue them.
"""

from __future__ import annotations

import copy
import getpass
import os
import re
import socket
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

from hive_metastore import ThriftHiveMetastore
from hmsclient.hmsclient import HMSClient
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.protocol.TProtocol import TProtocolException
from thrift.Thrift import TException
from thrift.transport.TTransport import TTransportException

from ingestd.clock import monotonic, pause
from ingestd.errors import ConfigError, IngestdError, MetastoreUnavailable, Unavailable
from ingestd.hive.answers import is_internal, shortened, translated
from ingestd.hive.kerberos import ticket_owner
from ingestd.hive.newer_calls import NewerCalls
from ingestd.hive.pool import Pool, Slot
from ingestd.hive.repeatable import is_repeatable
from ingestd.hive.security import Kerberos, Security
from ingestd.hive.transport import ADDRESS_HINT, create_transport, diagnose

_DEFAULT_PORT = 9083
# The default of `metastore.connections`. A metastore starts a thread for each connection.
CONNECTIONS = 16
# Partition names per call. A metastore on Derby overflows its stack at 380 to 600 names; one on PostgreSQL accepts
# thousands, but larger calls are hardly faster.
PARTITIONS_PER_CALL = 200
_TIMED_OUT = TTransportException.TIMED_OUT
# How long to wait before a call is repeated that the metastore answered with an internal error.
_REPEAT_SECONDS = 1.0
# HMS returns and accepts ACID tables only for clients that declare these capabilities (MetastoreDefaultTransformer).
CAPABILITIES = [
    "EXTWRITE", "EXTREAD", "HIVEBUCKET2", "HIVEFULLACIDREAD", "HIVEFULLACIDWRITE", "HIVEMANAGESTATS",
    "HIVEMANAGEDINSERTWRITE", "HIVEMANAGEDINSERTREAD", "HIVESQL", "ACCEPTS_UNMODIFIED_METADATA",
]  # fmt: skip
# The catalog of all objects that a request names without a catalog.
CATALOG = "hive"
# Without this property, HMS replaces statistics by those that it computes from the file system.
KEEP_STATISTICS = {"DO_NOT_UPDATE_STATS": "true"}

# Called after each call with its method, its duration in seconds, and `ok` or the class of its error.
OnCall = Callable[[str, float, str], None]

# Calls for which one connection is reserved, because other daemons take over from a daemon whose heartbeats are late.
_HEARTBEATS = ("heartbeat", "heartbeat_txn_range")


def ignore_call(_method: str, _seconds: float, _outcome: str) -> None:
    """Ignore a call. This is the default observer of calls."""


class _Connection(NewerCalls, ThriftHiveMetastore.Client, HMSClient):  # type: ignore[misc]
    """Combines hmsclient's connection handling with the calls of Hive 4; hmsclient itself has those of Hive 2.3."""

    def __init__(self, protocol: TBinaryProtocol) -> None:
        HMSClient.__init__(self, protocol)

    def is_open(self) -> bool:
        """Return False if the peer has closed the connection, which is detected only without TLS. Sends nothing."""
        return bool(self._oprot.trans.isOpen())

    def __del__(self) -> None:
        """Close the socket if its client is garbage collected without a call of `Metastore.close`."""
        self.close()


class Metastore:
    """A client of one metastore service that may have several addresses; safe for use from any thread.

    `uris` is a comma-separated list of `thrift://host:port`. `timeout_seconds` bounds each call to one address, and the
    wait for one of the `connections` that the client opens at most. `security` specifies the login and the encryption
    of each connection. `on_call` observes the calls, in the threads that make them. The constructor does not connect.
    Raises ConfigError for an invalid address.
    """

    def __init__(
        self,
        uris: str,
        *,
        timeout_seconds: float = 60.0,
        security: Security | None = None,
        connections: int = CONNECTIONS,
        on_call: OnCall = ignore_call,
    ) -> None:
        self.addresses = addresses(uris)
        self.timeout_seconds = timeout_seconds
        self.security = security or Security()
        # Whether the metastore's database can compare a table parameter; the first attempt shows it (parameters.py).
        self.compares_parameters = True
        # The number of calls sent by all threads; Hive Streaming reports it in its statistics.
        self.calls = 0
        self.host = socket.gethostname()[:128]
        self._owner: str | None = None
        self._on_call = on_call
        self._pool: Pool[_Connection] = Pool(connections)
        self._preferred = 0  # index of the address to try first
        self._check: Callable[[], None] = lambda: None  # see `guarded`

    @property
    def user(self) -> str:
        """The user name that the metastore sees: that of the login or, without one, the name sent with `set_ugi`.

        Raises ConfigError if there is no login, and the user of this process has no name.
        """
        if self._owner is None and isinstance(self.security.login, Kerberos) and not self.security.user:
            self._owner = ticket_owner()
        return self.security.user or self._owner or _process_user()

    @property
    def preferred_address(self) -> tuple[str, int]:
        """The host and port of the address to which the next connection is opened, if it accepts."""
        return self.addresses[self._preferred]

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a metastore method and return its Thrift value. Only hive/ and publish/ use Thrift values.

        If the connection breaks, a repeatable call is sent again to the next address that accepts a connection. With n
        addresses, the call is sent at most n + 1 times, or n times if the last attempt timed out.

        Raises MetastoreUnavailable when no address answered; LoginFailed or ConfigError when every address rejects the
        connection permanently; and what `answers.translated` makes of an error that a metastore answered with:
        TransactionAborted when the transaction has ended, InvalidTable when an object is missing, MetastoreDeclined or
        MetastoreDenied when the metastore says no, MetastoreUnavailable when it failed, and MetastoreRefusal when the
        call can never succeed.
        """
        began, outcome = monotonic(), "interrupted"
        try:
            answer = self._call(method, arguments)
            outcome = "ok"
            return answer
        except IngestdError as error:
            outcome = type(error).__name__
            raise
        finally:
            self._on_call(method, monotonic() - began, outcome)

    def guarded(self, check: Callable[[], None]) -> Metastore:
        """Return a client with the same connections, which calls `check` each time before it sends a call.

        `check` raises an error if the call may not be sent any more. It must not use the returned client.
        """
        made = copy.copy(self)
        made._check = check
        return made

    def close(self) -> None:
        """Close all connections; those in use when their calls have ended. The next call reconnects."""
        self._pool.close()

    def _call(self, method: str, arguments: Sequence[Any]) -> Any:
        """Send a call over a connection of the pool."""
        with self._pool.borrowed(self.timeout_seconds, is_urgent=method in _HEARTBEATS) as slot:
            if slot is None:
                raise MetastoreUnavailable(
                    f"{method}: all {self._pool.size} connections were in use for {self.timeout_seconds:.0f} s",
                    where=_where(*self.preferred_address),
                    hint="check whether the metastore is overloaded, or raise metastore.connections",
                )
            may_repeat = is_repeatable(method, arguments)
            if not may_repeat and slot.connection is not None and self.security.tls is not None:
                # A closed TLS connection is detected only by reading from it, so send a harmless call first.
                self._send(slot, "getName", (), may_repeat=True)
            return self._send(slot, method, arguments, may_repeat=may_repeat)

    def _send(self, slot: Slot[_Connection], method: str, arguments: Sequence[Any], *, may_repeat: bool) -> Any:
        """Send a call over the connection of the slot, or a new one, and repeat it if that is safe."""
        failures, is_repeated = 0, False
        while True:
            connection = self._connection(slot)
            self._check()
            self.calls += 1
            try:
                return getattr(connection, method)(*arguments)
            except (TTransportException, OSError, EOFError) as error:
                where = _where(*self.addresses[slot.address])
                self._fail_over(slot)
                failures += 1
                if not may_repeat or failures + _is_timeout(error) > len(self.addresses):
                    raise MetastoreUnavailable(f"{method}: {_message(error)}", where=where) from error
            except TException as error:
                if isinstance(error, TProtocolException):
                    slot.close()  # part of the answer is unread
                if is_internal(error) and (may_repeat or method == "open_txns") and not is_repeated:
                    is_repeated = True
                    pause(_REPEAT_SECONDS)
                    continue
                where = _where(*self.addresses[slot.address])
                raise translated(method, arguments, error, where=where, user=self.user) from error
            except BaseException:
                # An answer that cannot be decoded, Ctrl-C, or a raising signal handler: the next call over this
                # connection would read the rest of this answer.
                slot.close()
                raise

    def _connection(self, slot: Slot[_Connection]) -> _Connection:
        """Return the slot's connection, or a new one if there is none or the peer has closed it while it was idle."""
        if slot.connection is not None and self.security.tls is None and not slot.connection.is_open():
            self._fail_over(slot)
        if slot.connection is None:
            self._connect(slot)
        assert slot.connection is not None
        return slot.connection

    def _connect(self, slot: Slot[_Connection]) -> None:
        """Connect and log in to the first address that accepts, starting with the last one that did.

        A rejection is permanent only if every address rejects, because an unavailable address may accept later.
        """
        failures: list[IngestdError] = []
        first = self._preferred  # another thread may change it meanwhile
        for step in range(len(self.addresses)):
            index = (first + step) % len(self.addresses)
            try:
                slot.connection = self._open(*self.addresses[index])
            except IngestdError as error:
                failures.append(error)
                continue
            slot.address = self._preferred = index
            return
        is_permanent = all(not isinstance(failure, Unavailable) for failure in failures)
        if is_permanent or len(failures) == 1:
            raise failures[0]
        raise MetastoreUnavailable("no metastore answers", where="; ".join(map(str, failures)), hint=ADDRESS_HINT)

    def _open(self, host: str, port: int) -> _Connection:
        """Connect and log in to one address. Raises MetastoreUnavailable, LoginFailed or ConfigError."""
        # HMS creates partition directories as this user when metastore.execute.setugi is on (TUGIBasedProcessor).
        # With a login it uses the authenticated user.
        user = self.user if self.security.login is None else None
        connection = _Connection(TBinaryProtocol(create_transport(host, port, self.security, self.timeout_seconds)))
        try:
            connection.open()
            if user is not None:
                connection.set_ugi(user, [user])
        except (TException, OSError, EOFError) as error:
            connection.close()
            unavailable = MetastoreUnavailable(_message(error), where=_where(host, port), hint=ADDRESS_HINT)
            raise diagnose(host, port, self.security, self.timeout_seconds) or unavailable from error
        return connection

    def _fail_over(self, slot: Slot[_Connection]) -> None:
        """Close a broken connection and the idle ones to its address, which is tried last from now on.

        If another thread has already done so, the preferred address stays as it is.
        """
        slot.close()
        self._pool.close_idle(slot.address)
        if self._preferred == slot.address:
            self._preferred = (slot.address + 1) % len(self.addresses)


def _process_user() -> str:
    """Return the name of the user of this process. Raises ConfigError if it has none, as in some containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError) as error:
        raise ConfigError(
            f"the user id {os.getuid()} of this process has no name, and the metastore needs one",
            where="metastore",
            hint="add the id to /etc/passwd, because Hadoop and Spark need a name, too; programs without Spark can set "
            "the environment variable LOGNAME instead",
        ) from error


def addresses(uris: str) -> Sequence[tuple[str, int]]:
    """Return the host and port of each address in `metastore.uri`. Raises ConfigError for an invalid address."""
    given = [uri.strip() for uri in uris.split(",") if uri.strip()] or [""]
    parsed = [(uri, _address(uri)) for uri in given]
    for uri, address in parsed:
        if address is None:
            raise ConfigError(
                f"{re.sub('//[^/]*@', '//***@', uri)!r} is not a metastore address",
                where="metastore.uri",
                hint="write thrift://host:9083, with a port up to 65535; separate several addresses with commas",
            )
    return [address for _, address in parsed if address is not None]


def _address(uri: str) -> tuple[str, int] | None:
    try:
        parsed = urlsplit(uri)
        port = _DEFAULT_PORT if parsed.port is None else parsed.port
    except ValueError:
        return None
    return (parsed.hostname, port) if parsed.scheme == "thrift" and parsed.hostname and port else None


def _where(host: str, port: int) -> str:
    return f"metastore {host}:{port}"


def _is_timeout(error: BaseException) -> bool:
    """Return whether the call timed out. An address that did not answer is not tried again in the same call."""
    kinds = (error, getattr(error, "inner", None))
    return any(isinstance(kind, TimeoutError) for kind in kinds) or getattr(error, "type", None) == _TIMED_OUT


def _message(error: BaseException) -> str:
    """Return the error's message, or its class, because many errors of broken connections have no message."""
    return shortened(str(error)) or type(error).__name__
