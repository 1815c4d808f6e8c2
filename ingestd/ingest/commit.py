"""Commits one staged transaction to Hive, exactly once. This is the central module of ingestd.

Invariant: rows become readable in the same metastore commit that stores the offsets they came from, or neither happens.
Killing the process between any two lines below does not change this.

The steps of a transaction:

 1. plan             choose the offset ranges to read                                      `plan.py`
 2. open             open a transaction, allocate a write id and start heartbeats          `ledger.py`
 3. stage            read and decode the records, write files into a hidden directory      `stage/`
 4. lock and fence   lock the table and the lease; check that the offsets are unchanged    here
 5. register         create the partitions, before a file appears in them                  `publish/protocol.py`
 6. place            move each delta into the table by one rename
 7. announce         report the files to a metastore that keeps an event log
 8. count            update numRows, from which Hive answers `count(*)`
 9. commit           make rows and offsets visible at once
10. mirror           copy the offsets to Kafka, for lag tools only                         `ledger.py`
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ingestd.acid.writer_pool import StagingFile
from ingestd.clock import Deadline
from ingestd.errors import CommitOutcomeUnknown, IngestdError, OwnershipLost, TableChanged
from ingestd.hive import transactions
from ingestd.hive.control import ControlTable, read_state
from ingestd.hive.tables import Table, TableName, load_acid_table
from ingestd.hive.transactions import Transaction, Wait, WriteLock
from ingestd.ingest.letters.rejects import Rejects
from ingestd.ingest.options import MappingOptions, OnError
from ingestd.ingest.plan import Plan
from ingestd.ingest.state import MappingState
from ingestd.ingest.steps import StepWatch
from ingestd.kafka.timestamps import FirstRecord
from ingestd.publish.deltas import StagedFiles
from ingestd.publish.outcome import CommitRequest
from ingestd.publish.protocol import Publication, TableWrite, publish
from ingestd.publish.row_counts import RowCounts
from ingestd.publish.staging import Staging
from ingestd.publish.warehouse import Warehouse

LOCK_SECONDS = 120.0
# How long a commit waits for the lock that excludes TRUNCATE. After a commit that did not acquire this lock, because a
# long UPDATE locked the table, the next commits wait for a shorter time.
_PATIENCE_SECONDS = 1.0
_LITTLE_PATIENCE_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Target:
    """A table that a transaction writes, and once it is staged, its staged files.

    `table` is the definition of the table when the transaction was planned, and `staging` the directory of the files.
    """

    table: Table
    write_id: int
    staging: Staging
    files: tuple[StagingFile, ...] = ()

    @property
    def lock(self) -> WriteLock:
        """The lock under which a transaction publishes the files."""
        return WriteLock(self.table.name, dynamic=bool(self.table.partition_columns))

    def table_write(self, counts: RowCounts, *, excludes_overwrites: bool) -> TableWrite:
        """Return what to publish. `counts` are the table's; the lock decides `excludes_overwrites`."""
        files = StagedFiles(self.files, self.staging)
        return TableWrite(self.table, self.write_id, self.staging.location, files, counts, excludes_overwrites)


@dataclass(frozen=True, slots=True)
class PendingTransaction:
    """A transaction with its plan and, once it is staged, the output of its stage.

    `target` is the mapping's table, and `letters` that of its dead letters, if the transaction may write there.
    `records` counts the records that were read, `decoded` their rows before `where` and `transform`, `skipped` the
    tombstones that were skipped, and `bytes` the bytes of all record values. The `rejects` were skipped or became dead
    letters, as `on_error` says. `firsts` contains the first records of its ranges.
    `throttled_seconds` is the longest time that one of its tasks has waited because brokers delayed their answers.
    `watch` measures the steps and reports each step to the observer.
    """

    plan: Plan
    txn: Transaction
    target: Target
    watch: StepWatch = field(compare=False)
    letters: Target | None = None
    records: int = 0
    decoded: int = 0
    skipped: int = 0
    bytes: int = 0
    firsts: tuple[FirstRecord, ...] = ()
    throttled_seconds: float = 0.0
    rejects: Rejects = field(default_factory=Rejects)
    on_error: OnError = "stop"

    @property
    def targets(self) -> tuple[Target, ...]:
        """The tables that the transaction may write, that of the mapping first."""
        return (self.target,) if self.letters is None else (self.target, self.letters)

    @property
    def table(self) -> Table:
        """The mapping's table."""
        return self.target.table

    @property
    def write_id(self) -> int:
        """The write id of the transaction in the mapping's table."""
        return self.target.write_id

    @property
    def files(self) -> tuple[StagingFile, ...]:
        """The staged files of the mapping's table."""
        return self.target.files

    @property
    def rows(self) -> int:
        """Number of rows that the commit adds to the mapping's table."""
        return sum(file.rows for file in self.files)


@dataclass(frozen=True, slots=True)
class CommitResult:
    """A committed transaction and the state that its commit stored.

    For each table with hidden rows, `hidden` maps each partition (or WHOLE_TABLE) with hidden rows to the base
    directory of the concurrent TRUNCATE that hides them, or the name of the table to `unknown: REASON`.
    """

    transaction: PendingTransaction
    state: MappingState
    hidden: Mapping[TableName, Mapping[str, str]] = field(default_factory=dict)


class Committer:
    """Commits the staged transactions of one mapping, one after the other. `counts` are the row counts of its tables.

    While the outcome of a commit is unknown, `on_wait(error, seconds)` is called before each wait. Setting `stop` ends
    all waits.
    """

    def __init__(
        self,
        warehouse: Warehouse,
        options: MappingOptions,
        control: ControlTable,
        counts: Mapping[TableName, RowCounts],
        stop: threading.Event,
        on_wait: Callable[[IngestdError, float], None],
    ) -> None:
        self._warehouse = warehouse
        self._metastore = warehouse.metastore
        self._options = options
        self._control = control
        self._counts = counts
        self._stop = stop
        self._on_wait = on_wait
        self._patience_seconds = _PATIENCE_SECONDS

    def commit(self, pending: PendingTransaction, before: MappingState, after: MappingState) -> CommitResult:
        """Commit `pending`, if `before` is the stored state. On return, its rows are readable and `after` is stored.

        Raises TableChanged, TransactionAborted or an Unavailable error, or OwnershipLost if another daemon has
        committed since the plan was made. After these errors, no row of `pending` is or will become visible, and its
        deltas have been removed. After CommitOutcomeUnknown, its deltas stay in place, because they may be visible.
        """
        # 4. Lock and fence. From here on no other daemon can commit for the mapping before this transaction has ended.
        text, excludes_overwrites = self._lock_and_fence(pending, before)
        # 5. Register, 6. place, 7. announce, 8. count and 9. commit.
        writes = [
            target.table_write(self._counts[target.table.name], excludes_overwrites=excludes_overwrites)
            for target in pending.targets
        ]
        request = self._request(pending, text, after)
        done = publish(self._warehouse, pending.txn, writes, request, pending.watch.lap)
        hidden = {name: _hidden(name, publication) for name, publication in done.items()}
        return CommitResult(pending, after, {name: bases for name, bases in hidden.items() if bases})

    def _lock_and_fence(self, pending: PendingTransaction, before: MappingState) -> tuple[str, bool]:
        """Acquire the locks, then check that neither the state nor a table has changed since the plan was made.

        The table of dead letters, which other mappings write too, is locked only if there are any.
        The check is final because it runs under the lease: another daemon can acquire the lease only after this
        transaction has ended, and an ended transaction cannot commit. Returns the text of the stored state, and whether
        the lock excludes TRUNCATE.
        """
        targets = [target for target in pending.targets if target is pending.target or target.files]
        excludes_overwrites = transactions.lock_against_overwrites(
            self._metastore,
            pending.txn,
            [target.lock for target in targets],
            wait=Wait(Deadline.after(LOCK_SECONDS), self._stop, self._patience_seconds),
            lease=self._options.commit_lease,
        )
        self._patience_seconds = _PATIENCE_SECONDS if excludes_overwrites else _LITTLE_PATIENCE_SECONDS
        text = read_state(self._metastore, self._control)
        stored = MappingState.parse(text) or MappingState(before.table)
        if stored != before or stored.position != pending.plan.before:
            raise OwnershipLost(
                "another daemon has committed since this transaction was planned",
                where=f"mapping {self._options.name}",
            )
        for table in (target.table for target in targets):
            if load_acid_table(self._metastore, table.name) != table:
                raise TableChanged(
                    "the definition of the table changed after this transaction was planned",
                    where=f"table {table.name}",
                )
        pending.watch.lap("locked")
        return text, excludes_overwrites

    def _request(self, pending: PendingTransaction, before: str, after: MappingState) -> CommitRequest:
        """Return the request to store `after` with the commit, and to read the control table if the answer is lost.

        After a commit by another daemon, the control table no longer shows whether this transaction has committed. Its
        deltas must then stay, because they may be visible.
        """
        text = after.text()

        def has_committed() -> bool:
            stored = read_state(self._metastore, self._control)
            if stored not in (before, text):
                raise CommitOutcomeUnknown(
                    "the answer to the commit was lost, and another daemon has committed since",
                    where=f"mapping {self._options.name}, transaction {pending.txn.id}",
                    hint="no action is needed: the mapping continues at the committed position, and no record is lost",
                )
            return stored == text

        def on_wait(error: IngestdError, seconds: float) -> None:
            error.txn = pending.txn.id
            self._on_wait(error, seconds)

        return CommitRequest(has_committed, on_wait, self._stop, self._control.key_value(text))


def _hidden(name: TableName, done: Publication) -> Mapping[str, str]:
    return {str(name): f"unknown: {done.unchecked}"} if done.unchecked else done.hidden
