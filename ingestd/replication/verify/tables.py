"""Compares a copy with its source: the definitions, the write ids, the files, and the rows of its tables.

Invariant: both sides are compared in the state that the target has, so a target that lags behind its source is not
different. A table is reported as equal only if every location was compared (`content.py`). It is reported as not
comparable if the state of the target is not found on the source any more: if the source was compacted beyond it, or if
events that the target has not replayed yet change the definition or the partitions (`lag.py`).

The lists of aborted write ids are not compared, only their effect on files and rows: the target has few of them
(`Replay.set_write_ids`), and a metastore forgets an aborted transaction whose files it has removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ingestd.acid.visibility import ValidWriteIds
from ingestd.errors import IngestdError
from ingestd.hive.client import Metastore
from ingestd.hive.objects import TableKind, TableObject, find_database, find_table, table_names
from ingestd.hive.snapshot import ReadTransaction, read_write_ids
from ingestd.hive.tables import TableName
from ingestd.hive.write_ids import ValidTransactions, as_text, read_transactions
from ingestd.replication.cluster import Cluster
from ingestd.replication.lag import UnreplayedChanges, compare_definitions
from ingestd.replication.load.table_load import is_loading_name
from ingestd.replication.marks import last_event
from ingestd.replication.statements.scope import Scope
from ingestd.replication.verify.checksum_jobs import ColumnChecks
from ingestd.replication.verify.content import Compared, Verdict, View, compare_locations
from ingestd.storage.storages import is_of_location

_WITHOUT_FILES = (TableKind.VIEW, TableKind.MATERIALIZED_VIEW, TableKind.STORAGE_HANDLER)
_NAMED_IDS = 10
_UNREPLAYED = "the target has not replayed all changes of the source yet"


@dataclass(frozen=True, slots=True)
class TableReport:
    """The comparison of one table.

    `findings` has a sentence for each difference, or for the reason why the table cannot be compared. `behind` is the
    number of write ids that the source has and the target has not, or of files of an external table that have changed
    on the source since the last cycle. `locations` and `files` were compared. `rows` is the
    number of rows of the source in the state of the target, and `target_rows` that of the target; they are None if the
    table was not compared to the end, or if its files are neither ORC nor Parquet files. `write_ids` and
    `target_write_ids` are all write ids (`write_ids.as_text`), '' for a table without transactions.
    """

    table: str
    verdict: Verdict
    findings: tuple[str, ...] = ()
    behind: int = 0
    locations: int = 0
    files: int = 0
    rows: int | None = None
    target_rows: int | None = None
    write_ids: str = ""
    target_write_ids: str = ""


def verify(
    source: Cluster, target: Cluster, scope: Scope, database: str, columns: ColumnChecks | None = None
) -> Iterator[TableReport]:
    """Yield a report for each table of `scope` and of the target database, by name; materialized views are left out.

    With `columns`, the values of all columns are compared as well, which reads all files. Both sides are kept from
    removing files. Raises the errors of the metastores, of the storages and of `ColumnChecks.run`.
    """
    with (
        ReadTransaction(source.metastore, f"ingestd repl verify {scope.database}") as before,
        ReadTransaction(target.metastore, f"ingestd repl verify {database}") as after,
    ):
        changes = UnreplayedChanges(source.metastore, scope.database, _last_event(target.metastore, database))
        there = {name for name in table_names(target.metastore, database) if not is_loading_name(name)}
        here = {name for name in table_names(source.metastore, scope.database) if scope.contains(name)}
        before.keep_files(TableName(scope.database, name) for name in here)
        after.keep_files(TableName(database, name) for name in there)
        for name in sorted(here | there):
            pair = _Pair(source, target, TableName(scope.database, name), TableName(database, name), changes, columns)
            report = pair.compare()
            if report is not None:
                yield report
        before.check()
        after.check()


def _last_event(target: Metastore, name: str) -> int | None:
    """Return the last event of a target; None if it is not the target of a replication."""
    database = find_database(target, name)
    return last_event(database.parameters) if database else None


@dataclass(frozen=True, slots=True)
class _Pair:
    """A table on both sides."""

    source: Cluster
    target: Cluster
    here: TableName
    there: TableName
    changes: UnreplayedChanges
    columns: ColumnChecks | None

    def compare(self) -> TableReport | None:
        """Compare the tables; None for a table that is not replicated."""
        # The target first: whatever it has, the source has as well.
        copy, original = find_table(self.target.metastore, self.there), find_table(self.source.metastore, self.here)
        if original is not None and original.kind is TableKind.MATERIALIZED_VIEW:
            return None
        if original is None or copy is None:
            side = "target" if copy is None else "source"
            return self._different([f"the {side} has no such table"])
        if findings := compare_definitions(original, copy):
            return self._different(findings)
        if original.kind in _WITHOUT_FILES:
            return TableReport(self.there.table, Verdict.EQUAL)
        if not original.kind.is_transactional:
            return self._compare_content(_view(self.source, original), _view(self.target, copy))
        return self._compare_writes(original, copy)

    def _different(self, findings: Sequence[str]) -> TableReport:
        """Report that a table as a whole differs."""
        if self.changes.concern_definition(self.here.table):
            return TableReport(self.there.table, Verdict.NOT_COMPARABLE, (*findings, _UNREPLAYED))
        return TableReport(self.there.table, Verdict.DIFFERENT, tuple(findings))

    def _compare_writes(self, original: TableObject, copy: TableObject) -> TableReport:
        """Compare the write ids of transactional tables, and then what readers see of those that both have."""
        copied_txns, copied = _write_ids(self.target, self.there)
        txns, current = _write_ids(self.source, self.here)
        if findings := compare_write_ids(current, copied):
            report = self._different(findings)
        else:
            report = self._compare_content(
                View(self.source, original, _shared(current, copied), txns.is_committed),
                View(self.target, copy, _shared(copied, current), copied_txns.is_committed),
            )
        behind = max(0, current.high_watermark - copied.high_watermark)
        return replace(report, behind=behind, write_ids=as_text(current), target_write_ids=as_text(copied))

    def _compare_content(self, before: View, after: View) -> TableReport:
        try:
            comparisons = [self._excused(compared) for compared in compare_locations(before, after, self.columns)]
        except IngestdError as error:
            if not is_of_location(error):
                raise
            return TableReport(self.there.table, Verdict.NOT_COMPARABLE, (str(error),))
        verdicts = {compared.verdict for compared in comparisons}
        order = (Verdict.DIFFERENT, Verdict.NOT_COMPARABLE)
        return TableReport(
            self.there.table,
            next((verdict for verdict in order if verdict in verdicts), Verdict.EQUAL),
            tuple(compared.finding for compared in comparisons if compared.finding),
            locations=len(comparisons),
            behind=sum(compared.behind for compared in comparisons),
            files=sum(compared.files for compared in comparisons),
            rows=_sum(compared.rows for compared in comparisons),
            target_rows=_sum(compared.target_rows for compared in comparisons),
        )

    def _excused(self, comparison: Compared) -> Compared:
        """Return the comparison of a location, which is not different if its definition was changed since."""
        is_different = comparison.verdict is Verdict.DIFFERENT and comparison.is_of_definition
        if is_different and self.changes.concern_partitions(self.here.table):
            return replace(comparison, verdict=Verdict.NOT_COMPARABLE, finding=f"{comparison.finding}; {_UNREPLAYED}")
        return comparison


def _view(cluster: Cluster, table: TableObject) -> View:
    """Return what readers see of a table without transactions."""
    return View(cluster, table, ValidWriteIds(str(table.name), 0), lambda _: True)


def _sum(numbers: Iterable[int | None]) -> int | None:
    """Return the sum, None if a number is unknown."""
    total = 0
    for number in numbers:
        if number is None:
            return None
        total += number
    return total


def _write_ids(cluster: Cluster, table: TableName) -> tuple[ValidTransactions, ValidWriteIds]:
    """Return the current snapshot of one side, and the states of all write ids of a table under it."""
    transactions = read_transactions(cluster.metastore)
    return transactions, read_write_ids(cluster.metastore, [table], transactions)[table]


def compare_write_ids(source: ValidWriteIds, target: ValidWriteIds) -> list[str]:
    """Return what a replay of the source cannot have done to the target, whose write ids were read first."""
    findings = []
    if added := range(source.high_watermark + 1, target.high_watermark + 1):
        findings.append(f"the target has write ids that the source has not allocated: {_shown(added)}")
    if ended := sorted(write_id for write_id in source.open - target.open if write_id <= target.high_watermark):
        findings.append(f"write ids that are open on the source have ended on the target: {_shown(ended)}")
    return findings


def _shown(ids: Sequence[int]) -> str:
    more = f" and {len(ids) - _NAMED_IDS} more" if len(ids) > _NAMED_IDS else ""
    return ", ".join(map(str, ids[:_NAMED_IDS])) + more


def _shared(one_side: ValidWriteIds, other: ValidWriteIds) -> ValidWriteIds:
    """Return the write ids of one side, up to the last that both have; those that are open on either side are open."""
    high = min(one_side.high_watermark, other.high_watermark)
    opened, aborted = (
        frozenset(write_id for write_id in ids if write_id <= high)
        for ids in (one_side.open | other.open, one_side.aborted)
    )
    return ValidWriteIds(one_side.table, high, opened, aborted)
