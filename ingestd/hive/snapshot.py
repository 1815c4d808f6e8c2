"""A consistent snapshot of many tables for a copy: one set of valid transactions, and the write ids of each table.

Invariant: every write id of a table up to its high watermark has committed or aborted, so a replica can take over the
list (`replay.Replay.set_write_ids`), which cannot represent open ids. Every later write id belongs to a transaction
whose event ALLOC_WRITE_ID follows the event that was current before the wait began.

A copy begins with the id of the current event, then opens the snapshot, then waits for the writers:

    first_event = EventLog(metastore).current_id()
    with ReadTransaction(metastore, "repl dump sales") as held:
        held.keep_files(tables)
        snapshot = wait_for_writers(metastore, tables, rule, stop)
        ...  # list the files
        held.check()

Source of the rule: ReplDumpTask.getValidTxnListForReplDump, which waits for every transaction without locks and for
those with a lock in the database. Here a transaction is waited for if it had a write id in one of the tables at the
beginning. This is exact, and a table that is written all the time does not delay the snapshot.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType, TracebackType

from hive_metastore import ttypes

from ingestd.acid.visibility import ValidWriteIds
from ingestd.clock import Deadline, pause
from ingestd.errors import IngestdError, MetastoreUnavailable, TransactionAborted
from ingestd.hive import leases, transactions
from ingestd.hive.client import Metastore
from ingestd.hive.partitions import by_call
from ingestd.hive.tables import TableName
from ingestd.hive.write_ids import ValidTransactions, highest_write_id, read_snapshots, read_transactions

_log = logging.getLogger(__name__)

_HEARTBEAT_SECONDS = 30.0
_RETRY_SECONDS = 2.0
_STOP_SECONDS = 5.0
# The cleaner skips compactions whose highest write id is not below that of a transaction: with this one, all.
_FIRST_WRITE_ID = 1


class WritersActive(MetastoreUnavailable):
    """Transactions that write to the tables did not end in time."""


@dataclass(frozen=True, slots=True)
class WriterRule:
    """How long to wait for transactions that write to the tables, and whether to abort them afterwards.

    The defaults are Hive's (`hive.repl.bootstrap.dump.open.txn.timeout`,
    `hive.repl.bootstrap.dump.abort.write.txn.after.timeout`). `poll_seconds` is the time between two checks.
    """

    timeout_seconds: float = 3600.0
    aborts: bool = True
    poll_seconds: float = 5.0


@dataclass(frozen=True, slots=True)
class TablesSnapshot:
    """The valid transactions, and the valid write ids of each table under them. No write id in a list is open."""

    transactions: ValidTransactions
    write_ids: Mapping[TableName, ValidWriteIds]


class ReadTransaction:
    """An open READ_ONLY transaction, which keeps the compaction cleaner from removing the files of tables.

    Until Hive 4.1, the cleaner waits for every transaction that is older than a compaction. With
    `metastore.txn.use.minhistorywriteid`, the default of Hive 4.2, it waits only for those that have registered the
    table, as `keep_files` does (ReadyToCleanHandler). The type of the transaction has the effect that it appears in no
    event, and that no snapshot waits for it. Closing it commits it. `agent` (≤ 128 characters) names its owner in SHOW
    TRANSACTIONS.
    """

    def __init__(self, metastore: Metastore, agent: str, heartbeat_seconds: float = _HEARTBEAT_SECONDS) -> None:
        self._metastore = metastore
        request = ttypes.OpenTxnRequest(
            num_txns=1,
            user=metastore.user,
            hostname=agent[:128],
            agentInfo=agent[:128],
            txn_type=ttypes.TxnType.READ_ONLY,
        )
        self.id: int = metastore.call("open_txns", request).txn_ids[0]
        self._interval = heartbeat_seconds
        self._has_ended = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="ingestd-snapshot-heartbeat", daemon=True)
        self._thread.start()

    def __enter__(self) -> ReadTransaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def keep_files(self, tables: Iterable[TableName], since: Mapping[TableName, int] = MappingProxyType({})) -> None:
        """Keep the files of write ids from `since` on, by default of all, until the transaction ends.

        Without effect on a metastore whose cleaner waits for all transactions. Raises MetastoreUnavailable.
        """
        first = [(str(table), since.get(table, _FIRST_WRITE_ID)) for table in tables]
        for some in by_call(first):
            self._metastore.call("add_write_ids_to_min_history", self.id, dict(some))

    def check(self) -> None:
        """Raise TransactionAborted if the transaction has ended, so that files may have been removed."""
        if self._has_ended or not leases.heartbeat_transaction(self._metastore, self.id):
            raise TransactionAborted(
                "the snapshot ended before the copy, because its transaction timed out or was aborted",
                where=f"transaction {self.id}",
                hint="take a new snapshot and list the files again",
            )

    def close(self) -> None:
        """End the transaction. It wrote nothing, so it does not matter if this fails: it then times out."""
        self._stopped.set()
        self._thread.join(timeout=_STOP_SECONDS)
        with suppress(IngestdError):
            self._metastore.call("commit_txn", ttypes.CommitTxnRequest(txnid=self.id))

    def _beat(self) -> None:
        wait = self._interval
        while not pause(wait, self._stopped) and not self._has_ended:
            wait = min(self._interval, _RETRY_SECONDS)
            with suppress(IngestdError):  # `check` reports an unavailable metastore
                self._has_ended = not leases.heartbeat_transaction(self._metastore, self.id)
                wait = self._interval


def wait_for_writers(
    metastore: Metastore, tables: Sequence[TableName], rule: WriterRule, stop: threading.Event
) -> TablesSnapshot:
    """Wait for the transactions that have a write id in `tables` now; return the snapshot of the moment they ended.

    Transactions that allocate a write id later are neither waited for nor aborted: their events follow, and the lists
    end below their ids. Nor is a table waited for that is renamed or dropped meanwhile; its list is that of the table
    that has its name then, or empty. The writers are logged once. At the deadline, they are aborted, or WritersActive
    is raised, as `rule` says. It is also raised if `stop` is set. Raises MetastoreUnavailable.
    """
    deadline = Deadline.after(rule.timeout_seconds)
    first = read_write_ids(metastore, tables, read_transactions(metastore))
    start = read_transactions(metastore)  # read after `first`, so it contains the transactions of all its open ids
    is_logged = False
    while True:
        snapshot = take_snapshot(metastore, tables)
        valid, settled = snapshot.transactions, snapshot.write_ids
        below = [table for table, ids in settled.items() if ids.high_watermark < first[table].high_watermark]
        waiting = [table for table in below if not _is_lost(metastore, first[table], table)]
        if not waiting:
            return snapshot
        is_late = deadline.passed
        if is_late or not is_logged:
            earlier = start.open & valid.open
            writers = list(_writers(metastore, {table: first[table] for table in waiting}, valid, earlier))
            names = ", ".join(map(str, writers))
        if not is_logged:
            _log.info("waiting for transactions that write to %s: %s", _names(waiting), names)
            is_logged = True
        if is_late and rule.aborts and not stop.is_set():
            _log.warning("aborting transactions that write to %s: %s", _names(waiting), names)
            transactions.abort_all(metastore, writers)
        elif is_late or pause(min(rule.poll_seconds, deadline.left), stop):
            raise _still_active(names, waiting, is_stopped=stop.is_set())


def _is_lost(metastore: Metastore, first: ValidWriteIds, table: TableName) -> bool:
    """Return whether a table with the write ids `first` was renamed or dropped, so that its name is free or reused.

    The metastore never decreases the highest id that it has allocated for a table. A table that reuses the name and has
    as many ids is not noticed: it is waited for instead.
    """
    return highest_write_id(metastore, table) < first.high_watermark


def take_snapshot(metastore: Metastore, tables: Sequence[TableName]) -> TablesSnapshot:
    """Return the snapshot of this moment. Each list ends below the first open id. Raises MetastoreUnavailable."""
    valid = read_transactions(metastore)
    settled = {table: _settled(ids) for table, ids in read_write_ids(metastore, tables, valid).items()}
    return TablesSnapshot(valid, settled)


def read_write_ids(
    metastore: Metastore, tables: Sequence[TableName], valid: ValidTransactions
) -> dict[TableName, ValidWriteIds]:
    """Return the states of all write ids of each table under a snapshot of the transactions.

    The high watermark is the highest id that has been allocated. In the list of `get_valid_write_ids`, it may be lower:
    HMS lowers it to the first invalid id if no valid id is recorded, which hides the other invalid ids
    (GetValidWriteIdsForTableFunction, seen with 4.2.0). So this function also requests the lists under snapshots in
    which the open transactions, or all, have committed.

    HMS forgets an aborted transaction without files or locks, or whose files were removed. Its ids then count as valid.
    """
    ended = replace(valid, open=frozenset())
    everything = replace(ended, aborted=frozenset())
    lists = [read_snapshots(metastore, tables, view.text) for view in (valid, ended, everything)]
    return {table: _all_ids(*(by_table[table] for by_table in lists)) for table in tables}


def _all_ids(actual: ValidWriteIds, ended: ValidWriteIds, everything: ValidWriteIds) -> ValidWriteIds:
    """Combine the three lists; the ids of transactions that are younger than the snapshot are open in each of them."""
    high = everything.high_watermark
    aborted = _invalid(ended, high) - everything.open
    return ValidWriteIds(actual.table, high, _invalid(actual, high) - aborted, aborted)


def _invalid(ids: ValidWriteIds, high: int) -> frozenset[int]:
    """Return the invalid ids up to `high`, including those that a lowered high watermark hides."""
    return (ids.open | ids.aborted).union(range(ids.high_watermark + 1, high + 1))


def _settled(ids: ValidWriteIds) -> ValidWriteIds:
    """Return the write ids below the first open one."""
    first_open = min(ids.open, default=ids.high_watermark + 1)
    return ValidWriteIds(
        ids.table, first_open - 1, frozenset(), frozenset(write_id for write_id in ids.aborted if write_id < first_open)
    )


def _writers(
    metastore: Metastore, first: Mapping[TableName, ValidWriteIds], valid: ValidTransactions, candidates: Iterable[int]
) -> Iterator[int]:
    """Yield the candidates that have a write id in the lists `first`; compares one pair of lists per candidate."""

    def invalid(view: ValidTransactions) -> dict[TableName, set[int]]:
        highs = {table: ids.high_watermark for table, ids in first.items()}
        found = read_snapshots(metastore, list(first), view.text)
        return {table: {w for w in _invalid(ids, highs[table]) if w <= highs[table]} for table, ids in found.items()}

    base = invalid(valid)
    for txn in sorted(candidates):
        if invalid(replace(valid, open=valid.open - {txn})) != base:
            yield txn


def _still_active(writers: str, tables: Sequence[TableName], *, is_stopped: bool) -> WritersActive:
    why = "stopped while waiting for transactions" if is_stopped else "transactions did not end in time"
    return WritersActive(
        f"{why}: {writers}",
        where=_names(tables),
        hint="end or abort them, or raise hive.repl.bootstrap.dump.open.txn.timeout",
    )


def _names(tables: Sequence[TableName]) -> str:
    return ", ".join(f"table {table}" for table in tables[:5])
