"""Repairs row counts in the background: checks partitions after their commits, and recounts those that are wrong.

Invariant: a partition that this writer committed to is checked a few seconds after its last commit and some minutes
after it, so that a number which ANALYZE reverted is recounted even if nothing is written there any longer.

After each compaction Hive runs ANALYZE, which writes back parameters that it read up to a few seconds before; a commit
in between loses its count. Usually the next commit to the partition detects that. The checks of this module detect it
where no commit follows, and recounts happen here only, in a thread that lives as long as something is due: a commit
never waits for them. A check costs one metastore call for 200 partitions and one listing of each directory.

A recount holds the counting lease for at most 2 s, and locks the table as a reader, so that no partition is recreated
between reading its files and writing its number.
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
from ingestd.hive.client import PARTITIONS_PER_CALL, Metastore
from ingestd.hive.parameters import Parameters, WriterView, change_parameters, read_parameters
from ingestd.hive.partitions import partition_names
from ingestd.hive.tables import WHOLE_TABLE, Table, TableName, load_acid_table
from ingestd.hive.transaction_leases import TransactionLease
from ingestd.hive.transactions import LockTimeout, Transaction, Wait
from ingestd.hive.write_ids import is_committed, read_snapshot
from ingestd.publish.row_count_parameters import Known, WriteIdRange, is_ours, is_right, recounted
from ingestd.retry import Backoff
from ingestd.storage.local import local_path

# Seconds after the last commit to a partition, or after a compaction of it, at which it is checked.
CHECKS = (3.0, 15.0, 60.0, 300.0, 1800.0)
# Partitions that are due within this time are checked together.
_TOGETHER_SECONDS = 1.0
# Partitions that are remembered; beyond that, those without a commit for the longest time are no longer checked.
_MAX_WATCHED = 20_000
# A pause of the survey and of long repairs.
_BETWEEN_SECONDS = 0.2
_MAX_BATCHES = 32
# A recount gives way to commits after this time and continues later.
_RECOUNT_SECONDS = 2.0


class Report(Protocol):
    """Callbacks for what happens to row counts; called from another thread."""

    def repaired(self, names: Sequence[str]) -> None:
        """These partitions were recounted (WHOLE_TABLE for an unpartitioned table)."""

    def delayed(self, error: IngestdError) -> None:
        """Row counts cannot be checked or recounted now; called once per series of failures."""


@dataclass(slots=True)
class _Watched:
    """One partition: when the next check is due, how many were done, and what the last one found."""

    due: float
    checks: int = 0
    committed: int = 0
    compactions: frozenset[str] | None = None


@dataclass(slots=True)
class _State:
    """What the threads share, under `RowCountRepair._changed`."""

    table_id: int = 0
    watched: dict[str, _Watched] = field(default_factory=dict)
    batches: dict[WriteIdRange, None] = field(default_factory=dict)
    survey_due: float | None = None
    thread: threading.Thread | None = None
    closing: bool = False


@dataclass(frozen=True, slots=True)
class _Check:
    """Whether the number of a partition is right, whether ingestd has counted it, and its compacted directories."""

    is_right: bool
    is_ours: bool
    compactions: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _Recount:
    """The names that were corrected, those that remain to be recounted, and those whose files are broken."""

    corrected: Sequence[str]
    remaining: Sequence[str]
    failed: Mapping[str, IngestdError]


class RowCountRepair:
    """Checks and repairs what one writer has counted in `table`; the arguments are those of `RowCounts`."""

    def __init__(
        self, metastore: Metastore, table: TableName, writer: str, report: Report, checks: Sequence[float]
    ) -> None:
        self._metastore = metastore
        self._table = table
        self._writer = writer
        self._report = report
        self._checks = checks
        self._state = _State()
        self._changed = threading.Condition()
        self._halt = threading.Event()
        self._backoff = Backoff(first_seconds=1.0)
        self._is_delayed = False

    def begin(self, table: Table, batch: WriteIdRange | None) -> None:
        """Remember the batch of a commit; forget everything if the table was recreated."""
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
        """What the writer knows about its own write ids in the partition of this name."""
        with self._changed:
            watched = self._state.watched.get(name)
            return Known(watched.committed if watched else 0, frozenset(self._state.batches))

    def watch(self, names: Iterable[str], write_id: int, names_in_doubt: Iterable[str]) -> None:
        """Schedule the checks of partitions that `write_id` committed to; those in doubt are due now.

        `write_id` is 0 when it is not known to have committed.
        """
        now = monotonic()
        with self._changed:
            watched = self._state.watched
            for name in names:
                before = watched.pop(name, None)  # the newest are last
                last = write_id or (before.committed if before else 0)
                compactions = before.compactions if before else None
                watched[name] = _Watched(now + self._checks[0], 0, last, compactions)
            for name in names_in_doubt:
                watched.setdefault(name, _Watched(now)).due = now
            while len(watched) > _MAX_WATCHED:
                del watched[next(iter(watched))]
            self._wake()

    def survey(self, seconds: float) -> None:
        """Check once all partitions that ingestd has counted, beginning `seconds` from now."""
        with self._changed:
            self._state.survey_due = monotonic() + seconds
            self._wake()

    def close(self, deadline: Deadline, stop: threading.Event) -> None:
        """Check immediately what is due soon, then end; waits until `deadline` or until `stop` is set."""
        with self._changed:
            self._state.closing = True
            self._changed.notify_all()
            thread = self._state.thread
        while thread and thread.is_alive() and not deadline.passed and not stop.is_set():
            thread.join(min(0.1, deadline.left))
        self._halt.set()

    def _wake(self) -> None:
        """Let the thread see what is due; the caller holds `_changed`."""
        if self._state.thread is None and not self._state.closing:
            self._state.thread = threading.Thread(target=self._run, name=f"row-counts-{self._writer}", daemon=True)
            self._state.thread.start()
        self._changed.notify_all()

    def _run(self) -> None:
        """Check what is due until nothing is left; the thread's own connection ends with it."""
        try:
            while (due := self._next_due()) is not None and self._work(due):
                pass
        finally:
            self._metastore.close()
            with self._changed:
                if self._state.thread is threading.current_thread():
                    self._state.thread = None

    def _next_due(self) -> dict[str, _Watched] | None:
        """Wait for the next check; returns what is due, by name, or None when nothing is left to do."""
        with self._changed:
            state = self._state
            while not self._halt.is_set():
                if state.closing:
                    due = {name: one for name, one in state.watched.items() if not one.checks}
                    if due or state.survey_due is not None:
                        return due
                    break
                times = [one.due for one in state.watched.values()]
                if state.survey_due is not None:
                    times.append(state.survey_due)
                if not times:
                    break
                seconds = min(times) - monotonic()
                if seconds <= 0:
                    until = monotonic() + _TOGETHER_SECONDS
                    return {name: one for name, one in state.watched.items() if one.due <= until}
                self._changed.wait(seconds)
            state.thread = None  # from here on a new one is started
            return None

    def _work(self, due: Mapping[str, _Watched]) -> bool:
        """Do what is due; False when that failed and the thread must end."""
        try:
            self._check_due(due)
            self._survey_if_due()
        except InvalidTable:  # the table is missing, or is no longer an ACID table
            with self._changed:
                self._state.watched.clear()
                self._state.survey_due = None
        except IngestdError as error:
            return self._wait_after(error)
        else:
            self._is_delayed = False
            self._backoff.reset()
        return True

    def _check_due(self, due: Mapping[str, _Watched]) -> None:
        """Check partitions that are due, and repair those that are wrong."""
        if not due:
            return
        table = load_acid_table(self._metastore, self._table)
        found = _check(self._metastore, table, list(due), self.known)
        self._repair(table, [name for name, one in found.items() if not one.is_right])
        with self._changed:
            for name, watched in due.items():
                if self._state.watched.get(name) is not watched:
                    continue  # there was a commit meanwhile
                if name in found:
                    self._schedule_next(name, watched, found[name].compactions)
                else:
                    del self._state.watched[name]

    def _schedule_next(self, name: str, watched: _Watched, compactions: frozenset[str]) -> None:
        """Schedule the next check; after a new compaction the checks start over. The caller holds `_changed`."""
        is_new = watched.compactions is not None and not compactions <= watched.compactions
        watched.compactions = compactions
        watched.checks = 0 if is_new else watched.checks + 1
        if watched.checks < len(self._checks):
            before = self._checks[watched.checks - 1] if watched.checks else 0.0
            watched.due = monotonic() + self._checks[watched.checks] - before
        else:
            del self._state.watched[name]

    def _survey_if_due(self) -> None:
        """Check every partition that ingestd has counted; numbers that only Hive wrote are left alone."""
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
            found = _check(self._metastore, table, names[start : start + PARTITIONS_PER_CALL], self.known)
            self._repair(table, [name for name, one in found.items() if one.is_ours and not one.is_right])
        with self._changed:
            self._state.survey_due = None

    def _repair(self, table: Table, names: Sequence[str]) -> None:
        """Recount in portions, between which commits take the lease."""
        while names and not self._halt.is_set():
            done = self._recount(table, names)
            if done.corrected:
                self._report.repaired(done.corrected)
            for error in done.failed.values():
                self._report.delayed(error)
            names = done.remaining
            pause(_BETWEEN_SECONDS if names else 0.0, self._halt)

    def _recount(self, table: Table, names: Sequence[str]) -> _Recount:
        """Recount those of these partitions that are wrong.

        Rows are counted from the footers of the ORC files, for at most 2 s, but at least one partition; commits of
        other writers wait meanwhile. Raises LockTimeout when the table or the lease is locked for longer than that.
        """
        txn = transactions.begin(self._metastore, f"ingestd/counting/{self._writer}")
        lease = counting_lease(table)
        try:
            # First the table, then the lease: a recount that waits for DDL must not delay commits.
            transactions.lock_reading(self._metastore, txn, table.name, lease.wait(self._halt))
            wait = lease.wait(self._halt)
            with lease.taken(self._metastore, txn, wait) as has_lease:
                if not has_lease:
                    raise LockTimeout("another writer holds the counting lease", where=f"table {table.name}")
                return self._recount_under_lease(table, names, txn, wait)
        finally:
            transactions.abort(self._metastore, txn.id)

    def _recount_under_lease(self, table: Table, names: Sequence[str], txn: Transaction, wait: Wait) -> _Recount:
        until = Deadline.after(_RECOUNT_SECONDS)
        snapshot = read_snapshot(self._metastore, table.name)
        rows: dict[str, int] = {}
        failed: dict[str, IngestdError] = {}
        remaining = set(names)
        for found in read_parameters(self._metastore, table, names):
            if (rows or failed) and until.passed:
                break
            remaining.discard(found.name)
            try:
                if not is_right(found.values, _content(found), snapshot, self.known(found.name)):
                    rows[found.name] = self._visible_rows(found, snapshot)
            except (InvalidTable, StorageUnavailable) as error:
                failed[found.name] = error
        else:
            remaining.clear()  # these do not exist
        if rows:
            self._write(table, rows, snapshot, txn, wait)
        return _Recount(sorted(rows), sorted(remaining), failed)

    def _write(
        self, table: Table, rows: Mapping[str, int], snapshot: ValidWriteIds, txn: Transaction, wait: Wait
    ) -> None:
        if not leases.heartbeat_transaction(self._metastore, txn.id):
            raise TransactionAborted("the transaction of the recount timed out", where=f"table {table.name}")
        # HiveServer2 keeps partitions as it read them, with their numbers, until the table's write ids change.
        own = transactions.allocate(self._metastore, txn, table.name)

        def change(found: Parameters) -> dict[str, str]:
            return recounted(found.values, rows[found.name], snapshot, own)

        change_parameters(self._metastore, table, list(rows), change, WriterView(own, snapshot), wait)
        transactions.commit(self._metastore, txn)

    def _visible_rows(self, found: Parameters, snapshot: ValidWriteIds) -> int:
        path = local_path(found.location)
        return visible_rows(path, snapshot, lambda txn_id: is_committed(self._metastore, txn_id))

    def _wait_after(self, error: IngestdError) -> bool:
        """Report a failure once, then wait before the retry; False when the thread must end instead."""
        if not self._is_delayed:
            self._report.delayed(error)
        self._is_delayed = True
        with self._changed:
            if self._state.closing or self._halt.is_set():
                return False
            self._changed.wait_for(lambda: self._state.closing, self._backoff.seconds())
            return True


def counting_lease(table: Table) -> TransactionLease:
    """The lease whose holder may change numRows of the table and its partitions."""
    return TransactionLease(TableName(table.name.database, f"{table.name.table}#ingestd.counting"))


def _check(
    metastore: Metastore, table: Table, names: Sequence[str], known: Callable[[str], Known]
) -> dict[str, _Check]:
    """Check the numbers of these partitions, or of the whole table; what does not exist is not in the result.

    This takes no lock, so a number that looks wrong must be checked again under the lease, as `_recount` does.
    Raises IngestdError when the metastore does not answer; a directory that cannot be listed counts as right.
    """
    snapshot = read_snapshot(metastore, table.name)
    checks = {}
    for found in read_parameters(metastore, table, names):
        try:
            content = _content(found)
        except (StorageUnavailable, InvalidTable):
            checks[found.name] = _Check(is_right=True, is_ours=is_ours(found.values))
            continue
        right = is_right(found.values, content, snapshot, known(found.name))
        checks[found.name] = _Check(right, is_ours(found.values), content.compactions)
    return checks


def _content(found: Parameters) -> Content:
    """What the directory holds now. Raises StorageUnavailable."""
    return read_content(local_path(found.location))
