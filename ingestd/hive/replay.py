"""Replays the transactions of a source on a target metastore: same write ids, other transaction ids.

Invariant: a write id of the source is allocated on the target exactly once, however often its events are replayed.

The metastore maps a pair of policy and source transaction to a transaction of its own until that ends (REPL_TXN_MAP).
Afterwards, opening the same source transaction opens another one, and allocating its write id again rewinds the table:
HMS removes the state of all write ids of the table, so rows of open transactions become visible (TxnHandler, seen with
4.2.0). It does the same for any id that is not the table's next one. So `Replay` allocates only ids that the target has
not allocated, and it knows which source transactions are open from the names of their agents.

The mapping may also outlive its transaction. If the database of HMS is slow, HMS deletes a transaction that it has just
opened, but not the mapping, and then answers with the id of the deleted one (metastore.txn.opentxn.timeout, seen with
4.2.0). No call removes such a mapping. So `Replay` verifies each id, and opens the transaction in further attempts,
under other policies. These contain a number that no earlier load has used, so they have no such mapping. Agents contain
it too, because later calls need the policy.

If somebody else ends a transaction, or it times out, HMS removes its mapping, marks the database (`repl.incompatible`),
and ignores its commit without an error.

One process at a time may replay into a database, so a `Replay` remembers what it has read or written itself.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from hashlib import sha256
from itertools import islice
from types import MappingProxyType
from typing import NamedTuple

from hive_metastore import ttypes

from ingestd.acid.visibility import ValidWriteIds
from ingestd.clock import Deadline, pause
from ingestd.errors import BootstrapRequired, MetastoreUnavailable, ReplicationError
from ingestd.hive.client import Metastore
from ingestd.hive.events import Write
from ingestd.hive.tables import WHOLE_TABLE, TableName
from ingestd.hive.transactions import (
    Transaction,
    Wait,
    WriteLock,
    describe_transactions,
    lock,
    register_partitions,
)
from ingestd.hive.write_ids import as_text, highest_write_id, read_snapshots, read_transactions
from ingestd.retry import Backoff

LAST_ID = "repl.last.id"
INCOMPATIBLE = "repl.incompatible"
AGENT = "ingestd-repl"
# The most characters of a transaction's host. The name of a database may have as many.
_AGENT_CHARACTERS = 128
_LOCK_SECONDS = 60.0
# How often a load opens a transaction that the metastore deletes. There is no pause before the second attempt, because
# the mapping that the first one has met may be that of an earlier load.
_ATTEMPTS = 8
_NUMBERS = 10**12
# After a load was killed, each id that it had allocated ahead costs some calls.
_AHEAD = 100
_REPL_CREATED = ttypes.TxnType.REPL_CREATED


class TargetChanged(ReplicationError):
    """Another client has written to a table of the target database."""


class Allocation(Enum):
    """The state of a source transaction on the target after `Replay.allocate`."""

    MAPPED = "mapped"
    """The transaction is open on the target and has the write id."""
    FINISHED = "finished"
    """The write id was allocated earlier, and its transaction has ended: in a replay, or before a bootstrap."""


class _Opened(NamedTuple):
    """A transaction on the target, and the number of its attempt, which is 0 for the first one; see the module."""

    id: int
    attempt: int


class Replay:
    """The replay into one target database.

    `accepts_gaps` tells whether a table was copied as a whole after the current event. Then its next write id may be
    above the target's next one: the table was recreated while it was copied, and events that follow recreate it on the
    target too. And the target may have the id already, although its transaction is open because of another table.
    """

    def __init__(self, metastore: Metastore, database: str, *, accepts_gaps: Callable[[TableName], bool]) -> None:
        self._metastore = metastore
        self._database = database
        self._accepts_gaps = accepts_gaps
        # The number of the next attempt to open a transaction whose first attempt has failed. It increases when an
        # attempt with it has failed, too.
        self._unused = 1 + secrets.randbelow(_NUMBERS)
        self._open: dict[int, _Opened] | None = None
        self._allocated: set[tuple[int, TableName, int]] = set()
        self._known: Mapping[str, str] | None = None

    @property
    def open_transactions(self) -> frozenset[int]:
        """The ids of the source transactions that are open on the target. Only the first use calls the metastore."""
        return frozenset(self._opened())

    def allocate(
        self, txn_id: int, table: TableName, write_id: int, following: Iterable[tuple[int, int]] = ()
    ) -> Allocation:
        """Give a source transaction its write id for a target table; open it on the target if it is not open.

        A repeated call has no effect, even if the transaction has ended since. The first id of a table may be any: a
        CREATE TABLE AS SELECT that fails leaves its id allocated. `following` are the next transactions and write ids
        of the table in the source's log, up to the next event that drops or renames it. The same call allocates those
        that it can, so that their own calls do nothing. Raises TargetChanged if ids are missing between the target's
        highest one and `write_id`, or if the id belongs to another transaction; BootstrapRequired if another client has
        ended a replicated transaction, or one has timed out; MetastoreUnavailable if the metastore deletes the
        transactions that it opens, because its database is slow.
        """
        is_open = txn_id in self._opened()
        if is_open and (txn_id, table, write_id) in self._allocated:
            return Allocation.MAPPED
        highest = self.highest_write_id(table)
        if write_id > highest + 1 > 1 and not self._accepts_gaps(table):
            raise self.changed(table, f"its next write id is {highest + 1}, but that of the source is {write_id}")
        if write_id <= highest and not is_open:
            return Allocation.FINISHED
        self._open_on_target(txn_id)
        if write_id <= highest and not self.has(txn_id, table, write_id):
            if self._accepts_gaps(table):
                return Allocation.FINISHED
            raise self.changed(table, f"its write id {write_id} does not belong to the source's transaction {txn_id}")
        if write_id > highest:
            self._allocate(table, self._run(txn_id, write_id, following))
        self._allocated.add((txn_id, table, write_id))
        return Allocation.MAPPED

    def forget(self) -> None:
        """Forget which write ids were allocated, and the properties of the database, after these may have changed."""
        self._allocated.clear()
        self._known = None

    def highest_write_id(self, table: TableName) -> int:
        """Return the highest write id that the target has allocated, or 0."""
        return highest_write_id(self._metastore, table)

    def commit(self, txn_id: int, writes: Sequence[Write], event_id: int) -> None:
        """Commit a source transaction on the target and store `event_id` as the last replayed event, atomically.

        `writes` name target tables and target files, which must be in place: the metastore adds them to its own event
        log with their checksums. If the transaction is not open on the target, only the id is stored. HMS does not
        store an id that another property of the database has as its value (seen with 4.2.0); then, which
        `is_ambiguous` tells, the id is stored by another call. Another client may set or remove such a property at any
        time, so the properties before and after the commit count.

        Raises BootstrapRequired if another client has ended a replicated transaction, or one has timed out.
        """
        if txn_id in self._opened():
            was_ambiguous = self.is_ambiguous(event_id)
            last = ttypes.ReplLastIdInfo(database=self._database, lastReplId=event_id)
            self._commit(txn_id, writes, last)
            if self._require_committed().get(LAST_ID) == str(event_id):
                return
            if not was_ambiguous and not self.is_ambiguous(event_id):
                raise transaction_ended(self._database)
        self.set_last_id(event_id)

    def abort(self, txn_id: int) -> None:
        """Abort a source transaction on the target. Does nothing if it is not open there."""
        if txn_id in self._opened():
            request = ttypes.AbortTxnRequest(txnid=txn_id, replPolicy=self._policy(txn_id), txn_type=_REPL_CREATED)
            self._metastore.call("abort_txn", request)
            del self._opened()[txn_id]

    def is_ambiguous(self, event_id: int) -> bool:
        """Return whether HMS may commit a transaction without storing `event_id`."""
        if self._known is None:
            self._known = self._properties()
        return any(value == str(event_id) for key, value in self._known.items() if key != LAST_ID)

    def set_last_id(self, event_id: int) -> None:
        """Store the id of the last replayed event."""
        database = self._metastore.call("get_database", self._database)
        database.parameters = {**(database.parameters or {}), LAST_ID: str(event_id)}
        self._metastore.call("alter_database", self._database, database)
        self._known = None  # the metastore adds an event id of its own

    def set_write_ids(
        self, table: TableName, ids: ValidWriteIds, written: Mapping[int, Sequence[str]] = MappingProxyType({})
    ) -> None:
        """Give a new target table the write ids of a snapshot, in which none is open. The call may be repeated.

        Aborted ids count as valid on the target, where none of their files is. HMS would forget them in any case: it
        forgets an aborted transaction without locks after some seconds, and its ids then count as valid.

        `written` contains the aborted ids whose rows are in files of the snapshot, because of transaction batches, and
        the partitions of these files; WHOLE_TABLE if the table has none. From the first of them on, the ids are
        allocated by transactions that end at once, and those in `written` abort with locks. So readers do not see their
        rows, until a compaction removes them. The source ids of these transactions are negative.

        Raises BootstrapRequired if another client has ended a replicated transaction.
        """
        stated = min([ids.high_watermark, *(written_id - 1 for written_id in written)])
        request = ttypes.ReplTblWriteIdStateRequest(
            validWriteIdlist=as_text(ValidWriteIds(str(table), stated)),
            user=self._metastore.user,
            hostName=self._metastore.host,
            dbName=table.database,
            tableName=table.table,
        )
        self._metastore.call("repl_tbl_writeid_state", request)
        for write_id in range(stated + 1, ids.high_watermark + 1):
            if self.allocate(-write_id, table, write_id) is Allocation.FINISHED:
                continue
            if write_id in written:
                self._lock(-write_id, table, write_id, written[write_id])
                self.abort(-write_id)
            else:
                self._commit(-write_id, (), None)
        if stated < ids.high_watermark:
            self._require_committed()

    def changed(self, table: TableName, what: str) -> ReplicationError:
        """Return the error for a table whose write ids are not those of the source; `what` says which.

        It is TargetChanged, or BootstrapRequired if another client has ended a replicated transaction.
        """
        if self._properties().get(INCOMPATIBLE) == "true":
            return transaction_ended(self._database)
        return TargetChanged(
            f"another client has written to the target: {what}",
            where=f"table {table}",
            hint="drop the table and bootstrap again; only the replication may write to the target database",
        )

    def sweep(self, has_ended: Callable[[int], bool]) -> list[int]:
        """Abort the open transactions whose source transaction has ended; return their source ids.

        The end of a source transaction may be absent from the event log (HIVE-27797). On the target it would time out
        after 11 days, and HMS then marks the database as unusable for replication (`repl.incompatible`).
        """
        ended = sorted(filter(has_ended, self.open_transactions))
        for txn_id in ended:
            self.abort(txn_id)
        return ended

    def _opened(self) -> dict[int, _Opened]:
        """Return the transactions on the target of the source transactions that are open there."""
        if self._open is None:
            self._open = self._list_open()
        return self._open

    def _list_open(self) -> dict[int, _Opened]:
        transactions = {}
        for described in describe_transactions(self._metastore):
            agent = described.hostname or ""
            name, _, rest = agent.partition("/")
            if name != AGENT or described.state != ttypes.TxnState.OPEN:
                continue
            txn_id, _, rest = rest.partition("/")
            attempt = rest.partition("/")[0]
            for number in (0, int(attempt) if attempt.isdecimal() else 0):
                if agent == self._agent(txn_id, number):
                    transactions[int(txn_id)] = _Opened(int(described.id), number)
        return transactions

    def _agent(self, txn_id: int | str, attempt: int) -> str:
        """Return the agent of an attempt to open a source transaction. A name that is too long ends with a hash."""
        agent = "/".join([AGENT, str(txn_id), *([str(attempt)] if attempt else []), self._database])
        if len(agent) <= _AGENT_CHARACTERS:
            return agent
        digest = sha256(agent.encode()).hexdigest()[:16]
        return f"{agent[: _AGENT_CHARACTERS - len(digest) - 1]}/{digest}"

    def _policy(self, txn_id: int) -> str:
        """Return the policy under which the metastore maps a source transaction that is open on the target."""
        return self._policy_of(self._opened()[txn_id].attempt)

    def _policy_of(self, attempt: int) -> str:
        return f"{self._database}.*{attempt or ''}"  # HMS expects the name of a database before the dot

    def _open_on_target(self, txn_id: int) -> _Opened:
        """Open a source transaction on the target, unless it is open."""
        if txn_id in self._opened():
            return self._opened()[txn_id]
        attempt, waits = 0, Backoff()
        for failed in range(_ATTEMPTS):
            if failed > 1:
                pause(waits.seconds())
            request = ttypes.OpenTxnRequest(
                num_txns=1,
                user=self._metastore.user,
                hostname=self._agent(txn_id, attempt),  # HMS lists a transaction's host, but not its agent
                agentInfo=self._agent(txn_id, attempt),
                replPolicy=self._policy_of(attempt),
                replSrcTxnIds=[txn_id],
                txn_type=_REPL_CREATED,
            )
            (opened,) = self._metastore.call("open_txns", request).txn_ids
            if self._is_open(opened):
                self._opened()[txn_id] = _Opened(opened, attempt)
                return self._opened()[txn_id]
            self._unused += attempt > 0
            attempt = self._unused
        raise MetastoreUnavailable(
            f"open_txns: the metastore does not keep the transactions that it opens, such as {opened}",
            where=f"database {self._database}",
            hint="its database is slow; see OpenTxnTimeOut in the metastore's log",
        )

    def _is_open(self, opened: int) -> bool:
        """Return whether a transaction of the target is open. `get_open_txns` lists one that was just deleted."""
        answer = self._metastore.call("heartbeat_txn_range", ttypes.HeartbeatTxnRangeRequest(min=opened, max=opened))
        return opened not in answer.nosuch and opened not in answer.aborted

    def _lock(self, txn_id: int, table: TableName, write_id: int, partitions: Sequence[str]) -> None:
        """Let a source transaction, which is open on the target, lock the partitions, or the table if WHOLE_TABLE."""
        opened = self._open_on_target(txn_id)
        target = Transaction(opened.id, self._agent(txn_id, opened.attempt))
        if WHOLE_TABLE in partitions:
            wait = Wait(Deadline.after(_LOCK_SECONDS), threading.Event())
            lock(self._metastore, target, [WriteLock(table)], wait=wait)
        else:
            register_partitions(self._metastore, target, table, write_id, partitions)

    def has(self, txn_id: int, table: TableName, write_id: int) -> bool:
        """Return whether a source transaction is open on the target and has the write id there."""
        if txn_id not in self._opened():
            return False
        if (txn_id, table, write_id) in self._allocated:
            return True
        valid = read_transactions(self._metastore)
        without = replace(valid, open=valid.open - {self._opened()[txn_id].id})
        actual, committed = (
            read_snapshots(self._metastore, [table], transactions.text)[table] for transactions in (valid, without)
        )
        return committed.is_valid(write_id) and not actual.is_valid(write_id)

    def _run(self, txn_id: int, write_id: int, following: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return the pair of source transaction and write id, and the next pairs that one call can allocate.

        HMS gives successive ids to the transactions in the order of their ids on the target. A call has one policy.
        """
        run, last = [(txn_id, write_id)], self._open_on_target(txn_id)
        for later, its_id in islice(following, _AHEAD - 1):
            if its_id != run[-1][1] + 1:
                break
            opened = self._open_on_target(later)
            if opened.attempt != last.attempt or opened.id <= last.id:
                break
            run.append((later, its_id))
            last = opened
        return run

    def _allocate(self, table: TableName, run: Sequence[tuple[int, int]]) -> None:
        """Allocate successive write ids. HMS does nothing if it maps one of the source transactions no longer."""
        request = ttypes.AllocateTableWriteIdsRequest(
            dbName=table.database,
            tableName=table.table,
            replPolicy=self._policy(run[0][0]),
            srcTxnToWriteIdList=[ttypes.TxnToWriteId(txnId=txn_id, writeId=write_id) for txn_id, write_id in run],
        )
        pairs = self._metastore.call("allocate_table_write_ids", request).txnToWriteIds
        made = {pair.writeId: pair.txnId for pair in pairs}
        if made != {write_id: self._opened()[txn_id].id for txn_id, write_id in run}:
            asked = [write_id for _, write_id in run]
            raise self.changed(table, f"the metastore allocated the write ids {sorted(made)} instead of {asked}")
        self._allocated |= {(txn_id, table, write_id) for txn_id, write_id in run}

    def _commit(self, txn_id: int, writes: Sequence[Write], last: ttypes.ReplLastIdInfo | None) -> None:
        request = ttypes.CommitTxnRequest(
            txnid=txn_id,
            replPolicy=self._policy(txn_id),
            txn_type=_REPL_CREATED,
            writeEventInfos=[_write_info(write) for write in writes] or None,
            replLastIdInfo=last,
        )
        self._metastore.call("commit_txn", request)
        del self._opened()[txn_id]

    def _require_committed(self) -> Mapping[str, str]:
        """Return the properties of the database. Raises BootstrapRequired if HMS may have ignored a commit."""
        self._known = self._properties()
        if self._known.get(INCOMPATIBLE) == "true":
            raise transaction_ended(self._database)
        return self._known

    def _properties(self) -> dict[str, str]:
        return dict(self._metastore.call("get_database", self._database).parameters or {})


def transaction_ended(database: str) -> BootstrapRequired:
    """Return the error for a target database that the metastore has marked as INCOMPATIBLE."""
    return BootstrapRequired(
        "a replicated transaction was ended by another client or timed out",
        where=f"database {database}",
        hint="bootstrap again; only the replication may end its transactions",
    )


def _write_info(write: Write) -> ttypes.WriteEventInfo:
    entries = ("#".join((file.uri, file.checksum, file.archive, file.folder)) for file in write.files)
    return ttypes.WriteEventInfo(
        writeId=write.write_id,
        database=write.table.database,
        table=write.table.table,
        files="]".join(entries),
        partition=write.partition or None,
        tableObj=write.table_object or None,
        partitionObj=write.partition_object or None,
    )
