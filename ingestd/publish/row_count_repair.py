"""Repairs row counts in the background: checks partitions after commits, and recounts those that are wrong.

Invariant: a partition that this writer committed to is checked a few seconds and again some minutes after its last
commit, so that a number which ANALYZE reverted is recounted even if no commit follows.

After each compaction Hive runs ANALYZE, which writes back parameters that it read up to a few seconds earlier, so the
count of a commit in between is lost. Usually the next commit to the partition detects this; if no commit follows, the
checks of this module detect it. Recounts happen only here, in a few threads that all tables of the process share, so a
commit never has to recount. A check costs one metastore call per 200 partitions and one listing of each directory.

A recount holds the counting lease for about 2 s at a time. It locks the table as a reader, so that no partition is
recreated after its files were read and before its number is written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ingestd.acid.layout import Content
from ingestd.acid.visibility import ValidWriteIds, read_content, visible_rows
from ingestd.clock import Deadline, monotonic, pause
from ingestd.errors import IngestdError, InvalidTable, StorageUnavailable, TransactionAborted
from ingestd.hive import leases, transactions
from ingestd.hive.answers import MetastoreDenied
from ingestd.hive.client import PARTITIONS_PER_CALL
from ingestd.hive.parameters import Parameters, WriterView, change_parameters, read_parameters, read_settled
from ingestd.hive.partitions import partition_names
from ingestd.hive.statistics import distrust_counts
from ingestd.hive.tables import WHOLE_TABLE, Table, TableName, load_acid_table, require_writable_database
from ingestd.hive.transaction_leases import counting_lease
from ingestd.hive.transactions import LockTimeout, Transaction, Wait
from ingestd.hive.write_ids import is_committed, read_snapshot
from ingestd.publish.agenda import Agenda
from ingestd.publish.row_count_parameters import Known, WriteIdRange, is_ours, is_right, recounted
from ingestd.publish.warehouse import Warehouse
from ingestd.retry import Backoff

# Seconds after the last commit to a partition, or after a compaction of it, at which it is checked.
_CHECKS = (3.0, 15.0, 60.0, 300.0, 1800.0)
# Partitions that are due within this time are checked together.
_TOGETHER_SECONDS = 1.0
# The maximum number of partitions to check. Beyond it, those with the oldest commits are no longer checked.
_MAX_WATCHED = 20_000
# The pause between the portions of a survey or of a long repair.
_BETWEEN_SECONDS = 0.2
_MAX_BATCHES = 32
# After this time a recount releases the lease to let commits proceed, and continues later.
_RECOUNT_SECONDS = 2.0
_RETRIED = "no action is needed: the recount is retried"
# The checks and recounts that run at the same time, for all tables of the process.
_AT_ONCE = 4
_agenda = Agenda(_AT_ONCE)


class Report(Protocol):
    """Callbacks for repairs of row counts; called from another thread."""

    def repaired(self, table: TableName, names: Sequence[str]) -> None:
        """Report that these partitions of a table were recounted (WHOLE_TABLE for an unpartitioned table)."""

    def delayed(self, table: TableName, error: IngestdError) -> None:
        """Report that row counts of a table cannot be checked or recounted now; called once per series of failures."""


@dataclass(slots=True)
class _Watched:
    """The checks of one partition: when the next is due, how many are done, and the compactions that the last one saw.

    `committed` is the last write id that this writer committed to the partition, or 0 if there is none.
    """

    due: float
    checks: int = 0
    committed: int = 0
    compactions: frozenset[str] | None = None


@dataclass(slots=True)
class _State:
    """The state that threads share, protected by `RowCountRepair._changed`.

    `is_denied` says that the metastore does not let this user change row counts.
    """

    table_id: int = 0
    watched: dict[str, _Watched] = field(default_factory=dict)
    batches: dict[WriteIdRange, None] = field(default_factory=dict)
    survey_due: float | None = None
    running: bool = False
    closing: bool = False
    is_denied: bool = False


@dataclass(frozen=True, slots=True)
class _Check:
    """The result of the check of one partition; `compactions` contains the names of its compacted directories."""

    is_right: bool
    is_ours: bool
    compactions: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _Recount:
    """The result of a recount: the names that were corrected, that remain, and whose files cannot be read."""

    corrected: Sequence[str]
    remaining: Sequence[str]
    failed: Mapping[str, IngestdError]


class RowCountRepair:
    """Checks and repairs the row counts of `table` for one writer; the arguments are those of `RowCounts`."""

    def __init__(self, warehouse: Warehouse, table: TableName, writer: str, report: Report) -> None:
        self._warehouse = warehouse
        self._metastore = warehouse.metastore
        self._table = table
        self._writer = writer
        self._report = report
        self._state = _State()
        self._changed = threading.Condition()
        self._halt = threading.Event()
        self._backoff = Backoff(first_seconds=1.0)
        self._is_delayed = False

    def begin(self, table: Table, batch: WriteIdRange | None) -> None:
        """Record the transaction batch of a commit; discard the whole state if the table was recreated."""
        with self._changed:
            state = self._state
            if state.table_id not in (0, table.id):  # the new table numbers its write ids from 1
                state.watched.clear()
                state.batches.clear()
            state.table_id = table.id
            if batch is not None:
                state.batches[batch] = None
            while len(state.batches) > _MAX_BATCHES:
                del state.batches[next(iter(state.batches))]

    def known(self, name: str) -> Known:
        """Return what the writer knows about its own write ids in the partition `name`."""
        with self._changed:
            watched = self._state.watched.get(name)
            return Known(watched.committed if watched else 0, frozenset(self._state.batches))

    def watch(self, names: Iterable[str], write_id: int, names_in_doubt: Iterable[str]) -> None:
        """Schedule checks of the partitions that `write_id` wrote to; those in `names_in_doubt` are due immediately.

        `write_id` is 0 if the transaction is not known to have committed.
        """
        now = monotonic()
        with self._changed:
            watched = self._state.watched
            for name in names:
                before = watched.pop(name, None)  # the newest are last
                last = write_id or (before.committed if before else 0)
                compactions = before.compactions if before else None
                watched[name] = _Watched(now + _CHECKS[0], 0, last, compactions)
            for name in names_in_doubt:
                watched.setdefault(name, _Watched(now)).due = now
            while len(watched) > _MAX_WATCHED:
                del watched[next(iter(watched))]
            self._wake()

    def denied(self, error: MetastoreDenied) -> None:
        """Note that the metastore does not let this user change row counts, and report it once."""
        with self._changed:
            is_new = not self._state.is_denied
            self._state.is_denied = True
        if is_new:
            self._report.delayed(self._table, error)

    def permitted(self) -> None:
        """Note that the metastore lets this user change row counts."""
        with self._changed:
            self._state.is_denied = False

    def distrust(self, table: Table, names: Sequence[str], write_id: int) -> None:
        """Make Hive ignore row counts that this user may not change. If that fails, report why; never raises."""
        try:
            distrust_counts(self._metastore, table, names, write_id)
        except IngestdError as error:
            self._report.delayed(self._table, error)

    def survey(self, seconds: float) -> None:
        """Schedule one check of all partitions that ingestd has counted, `seconds` from now."""
        with self._changed:
            self._state.survey_due = monotonic() + seconds
            self._wake()

    def close(self, deadline: Deadline, stop: threading.Event) -> None:
        """Run checks that are due soon immediately, then stop. Waits until `deadline` or until `stop` is set."""
        with self._changed:
            self._state.closing = True
            self._wake()
            while self._state.running or self._next_time() is not None:
                if deadline.passed or stop.is_set():
                    break
                self._changed.wait(min(0.1, deadline.left))
        self._halt.set()

    def _wake(self) -> None:
        """Plan the next check; the caller holds `_changed`."""
        at = self._next_time()
        if at is not None:
            _agenda.plan(self._run, at)

    def _next_time(self) -> float | None:
        """Return when the next check is due (monotonic seconds), None if there is none; the caller holds `_changed`."""
        state = self._state
        if self._halt.is_set():
            return None
        if state.closing:
            is_due = state.survey_due is not None or any(not watched.checks for watched in state.watched.values())
            return monotonic() if is_due else None
        times = [watched.due for watched in state.watched.values()]
        if state.survey_due is not None:
            times.append(state.survey_due)
        return min(times, default=None)

    def _run(self) -> float | None:
        """Run the checks that are due, and return when the next ones are due; None if nothing is left to do."""
        with self._changed:
            until = monotonic() + _TOGETHER_SECONDS
            is_closing = self._state.closing
            due = {
                name: watched
                for name, watched in self._state.watched.items()
                if (not watched.checks if is_closing else watched.due <= until)
            }
            self._state.running = self._next_time() is not None
            if not self._state.running:
                return None
        pause_seconds = 0.0
        try:
            pause_seconds = self._work(due)
        finally:
            with self._changed:
                self._state.running = False
                self._changed.notify_all()
                again = self._next_time()
                if pause_seconds and self._state.closing:
                    self._halt.set()
        return None if again is None else max(again, monotonic() + pause_seconds)

    def _work(self, due: Mapping[str, _Watched]) -> float:
        """Run the checks that are due. Returns 0, or if they failed, the seconds to wait before the retry."""
        try:
            self._check_due(due)
            self._survey_if_due()
        except InvalidTable:  # the table is missing, is no longer an ACID table, or must not be written
            with self._changed:
                self._state.watched.clear()
                self._state.survey_due = None
        except IngestdError as error:
            if not self._is_delayed:
                self._report.delayed(self._table, error)  # only the first failure of a series
            self._is_delayed = True
            return self._backoff.seconds()
        else:
            self._is_delayed = False
            self._backoff.reset()
        return 0.0

    def _check_due(self, due: Mapping[str, _Watched]) -> None:
        """Check the partitions that are due, and recount those that are wrong."""
        if not due:
            return
        table = load_acid_table(self._metastore, self._table)
        checks = _check(self._warehouse, table, list(due), self.known)
        self._repair(table, [name for name, check in checks.items() if not check.is_right])
        with self._changed:
            for name, watched in due.items():
                if self._state.watched.get(name) is not watched:
                    continue  # a commit has rescheduled the partition
                if name in checks:
                    self._schedule_next(name, watched, checks[name].compactions)
                else:
                    del self._state.watched[name]

    def _schedule_next(self, name: str, watched: _Watched, compactions: frozenset[str]) -> None:
        """Schedule the next check; a new compaction restarts the series of checks. The caller holds `_changed`."""
        is_new = watched.compactions is not None and not compactions <= watched.compactions
        watched.compactions = compactions
        watched.checks = 0 if is_new else watched.checks + 1
        if watched.checks < len(_CHECKS):
            before = _CHECKS[watched.checks - 1] if watched.checks else 0.0
            watched.due = monotonic() + _CHECKS[watched.checks] - before
        else:
            del self._state.watched[name]

    def _survey_if_due(self) -> None:
        """If a survey is due, check every partition that ingestd has counted; ignore numbers that only Hive wrote."""
        with self._changed:
            due = self._state.survey_due
            if due is None or not (self._state.closing or due <= monotonic()):
                return
        table = load_acid_table(self._metastore, self._table)
        names: Sequence[str] = (WHOLE_TABLE,)
        if table.partition_columns:
            names = partition_names(self._metastore, table)
        for start in range(0, len(names), PARTITIONS_PER_CALL):
            if pause(_BETWEEN_SECONDS if start else 0.0, self._halt):
                return
            checks = _check(self._warehouse, table, names[start : start + PARTITIONS_PER_CALL], self.known)
            self._repair(table, [name for name, check in checks.items() if check.is_ours and not check.is_right])
        with self._changed:
            self._state.survey_due = None

    def _repair(self, table: Table, names: Sequence[str]) -> None:
        """Recount partitions a few at a time, and pause in between so that commits can acquire the lease."""
        with self._changed:
            is_denied = self._state.is_denied
        if names and is_denied:
            self._distrust(table, names)
            return
        while names and not self._halt.is_set():
            try:
                done = self._recount(table, names)
            except MetastoreDenied as denial:
                self.denied(denial)
                self._distrust(table, names)
                return
            if done.corrected:
                self._report.repaired(self._table, done.corrected)
            for error in done.failed.values():
                self._report.delayed(self._table, error)
            names = done.remaining
            pause(_BETWEEN_SECONDS if names else 0.0, self._halt)

    def _distrust(self, table: Table, names: Sequence[str]) -> None:
        """Make Hive ignore row counts, for example because a compaction has made it trust them again."""
        txn = transactions.begin(self._metastore, f"ingestd/counting/{self._writer}")
        try:
            self.distrust(table, names, transactions.allocate(self._metastore, txn, table.name))
            transactions.commit(self._metastore, txn)
        finally:
            transactions.abort(self._metastore, txn.id)

    def _recount(self, table: Table, names: Sequence[str]) -> _Recount:
        """Recount the partitions in `names` that are wrong.

        Rows are counted from the footers of the ORC files. Commits of other writers wait meanwhile, so the recount ends
        after 2 s, but not before it has counted one partition. Raises LockTimeout if the table or the lease stays
        locked for too long, and InvalidTable if the table must not be written.
        """
        require_writable_database(self._metastore, table.name)
        lease = counting_lease(table.name)
        if not table.partition_columns:
            # The ANALYZE that made the count wrong may be less than a second old. Commits must not wait for that, too.
            read_settled(self._metastore, table, lease.wait(self._halt))
        txn = transactions.begin(self._metastore, f"ingestd/counting/{self._writer}")
        try:
            # First the table, then the lease: a recount that waits for DDL must not delay commits.
            transactions.lock_reading(self._metastore, txn, table.name, lease.wait(self._halt))
            wait = lease.wait(self._halt)
            with lease.taken(self._metastore, txn, wait) as has_lease:
                if not has_lease:
                    raise LockTimeout(
                        "another writer holds the counting lease", where=f"table {table.name}", hint=_RETRIED
                    )
                return self._recount_under_lease(table, names, txn, wait)
        finally:
            transactions.abort(self._metastore, txn.id)

    def _recount_under_lease(self, table: Table, names: Sequence[str], txn: Transaction, wait: Wait) -> _Recount:
        until = Deadline.after(_RECOUNT_SECONDS)
        snapshot = read_snapshot(self._metastore, table.name)
        rows: dict[str, int] = {}
        failed: dict[str, IngestdError] = {}
        remaining = set(names)
        for parameters in read_parameters(self._metastore, table, names):
            if (rows or failed) and until.passed:
                break
            remaining.discard(parameters.name)
            try:
                if not is_right(
                    parameters.values, _content(self._warehouse, parameters), snapshot, self.known(parameters.name)
                ):
                    rows[parameters.name] = self._visible_rows(parameters, snapshot)
            except (InvalidTable, StorageUnavailable) as error:
                failed[parameters.name] = error
        else:
            remaining.clear()  # the others do not exist
        if rows:
            self._write(table, rows, snapshot, txn, wait)
        return _Recount(sorted(rows), sorted(remaining), failed)

    def _write(
        self, table: Table, rows: Mapping[str, int], snapshot: ValidWriteIds, txn: Transaction, wait: Wait
    ) -> None:
        if not leases.heartbeat_transaction(self._metastore, txn.id):
            raise TransactionAborted(
                "the transaction of the recount timed out", where=f"table {table.name}", hint=_RETRIED
            )
        # HiveServer2 caches partitions with their row counts until the table's write ids change.
        own = transactions.allocate(self._metastore, txn, table.name)

        def change(stored: Sequence[Parameters]) -> list[dict[str, str]]:
            return [recounted(parameters.values, rows[parameters.name], snapshot, own) for parameters in stored]

        change_parameters(self._metastore, table, list(rows), change, WriterView(own, snapshot), wait)
        transactions.commit(self._metastore, txn)

    def _visible_rows(self, parameters: Parameters, snapshot: ValidWriteIds) -> int:
        storage = self._warehouse.storages.at(parameters.location)
        return visible_rows(
            storage, parameters.location, snapshot, lambda txn_id: is_committed(self._metastore, txn_id)
        )


def _check(
    warehouse: Warehouse, table: Table, names: Sequence[str], known: Callable[[str], Known]
) -> dict[str, _Check]:
    """Check the numbers of these partitions, or of the whole table; partitions that do not exist are omitted.

    The check does not acquire the lease, so a number that looks wrong must be checked again under the lease, as
    `_recount` does. Raises IngestdError if the metastore is unavailable. A partition whose directory cannot be listed
    counts as right.
    """
    snapshot = read_snapshot(warehouse.metastore, table.name)
    checks = {}
    for parameters in read_parameters(warehouse.metastore, table, names):
        try:
            content = _content(warehouse, parameters)
        except (StorageUnavailable, InvalidTable):
            checks[parameters.name] = _Check(is_right=True, is_ours=is_ours(parameters.values))
            continue
        right = is_right(parameters.values, content, snapshot, known(parameters.name))
        checks[parameters.name] = _Check(right, is_ours(parameters.values), content.compactions)
    return checks


def _content(warehouse: Warehouse, parameters: Parameters) -> Content:
    """Return the current content of the directory. Raises StorageUnavailable."""
    return read_content(warehouse.storages.at(parameters.location), parameters.location)
