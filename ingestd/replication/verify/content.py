"""What a reader of one side sees of a table, and whether a location contains the same on both sides.

Invariant: a location is equal only if it has the same files by directory, name and length, or if compactions explain
which directories differ (`compacted.py`) and it has the same number of rows. A partition is equal only if it has the
same definition as well. With checksums, it has the same values in each column, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial

from ingestd.acid.layout import Base, DeleteDelta, Delta, parse_directory
from ingestd.acid.rows import FileFormat, RowFile, count_rows, row_files
from ingestd.acid.visibility import ValidWriteIds, visible_directories, visible_rows
from ingestd.errors import InvalidTable
from ingestd.hive.objects import (
    PartitionObject,
    TableKind,
    TableObject,
    all_partition_names,
    find_partitions,
    find_table,
)
from ingestd.hive.partitions import by_call
from ingestd.hive.tables import WHOLE_TABLE
from ingestd.replication.cluster import Cluster
from ingestd.replication.copying.mirror import Mirror, Version, copied_versions
from ingestd.replication.dump.table_files import ListedFile, all_files, visible_files
from ingestd.replication.lag import compare_partitions
from ingestd.replication.verify.checksum_jobs import ColumnChecks, Layout, Outcome
from ingestd.replication.verify.claimed_rows import Described, wrong_claim
from ingestd.replication.verify.compacted import Directory, unexplained
from ingestd.storage.contract import NotFound
from ingestd.storage.parallel import run_all

_THREADS = 16
_NAMED_FILES = 3


class Verdict(Enum):
    """The result of a comparison."""

    EQUAL = "equal"
    NOT_COMPARABLE = "not comparable"
    DIFFERENT = "different"


_File = tuple[str, str, int]
"""Directory, name and length."""


@dataclass(frozen=True, slots=True)
class _Files:
    """The visible files of a location, and of each delta how many of its write ids are valid.

    They are not all valid in the delta of a transaction batch, if one of its transactions was aborted.
    """

    files: frozenset[_File]
    valid: frozenset[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Compared:
    """The comparison of one location: the number of its files, and that of its rows on both sides if it is known.

    `behind` is the number of files of an external table that have changed on the source since the last cycle.
    `is_of_definition` says that nothing else may differ than the definition of a partition, or that only one side has
    it.
    """

    name: str
    verdict: Verdict
    files: int
    rows: int | None = None
    target_rows: int | None = None
    finding: str = ""
    behind: int = 0
    is_of_definition: bool = False


@dataclass(frozen=True, slots=True)
class View:
    """What a reader of one side sees of a table: of the write ids that both sides have, those that are not open.

    For a table without transactions, `ids` are none.
    """

    cluster: Cluster
    table: TableObject
    ids: ValidWriteIds
    is_committed: Callable[[int], bool]

    @property
    def file_format(self) -> FileFormat | None:
        """The format of the files; None if their rows cannot be read."""
        known = {format_.value: format_ for format_ in FileFormat}
        return known.get(self.table.input_format or "")

    @property
    def layout(self) -> Layout | None:
        """How the rows are read; None if they cannot be read."""
        ids = self.ids if self.table.kind is TableKind.FULL_ACID else None
        return Layout(self.file_format, len(self.table.columns), ids) if self.file_format else None

    def partitions(self) -> list[str]:
        """Return the names of the partitions; only WHOLE_TABLE if the table is not partitioned."""
        if not self.table.partition_columns:
            return [WHOLE_TABLE]
        return all_partition_names(self.cluster.metastore, self.table.name)

    def objects(self, names: Sequence[str]) -> dict[str, Described]:
        """Return the partitions in `names` that exist, by name, or the table."""
        if not self.table.partition_columns:
            return {WHOLE_TABLE: self.table}
        partitions = find_partitions(self.cluster.metastore, self.table.name, names)
        return {self.table.partition_name(partition.values): partition for partition in partitions}

    def objects_now(self, names: Sequence[str]) -> dict[str, Described]:
        """Return the same as `objects`, but read the table again as well."""
        table = find_table(self.cluster.metastore, self.table.name)
        return replace(self, table=table).objects(names) if table else {}

    def files(self, location: str | None) -> _Files:
        """Return the files of a location; none if it does not exist."""
        listed = self._listed(location)
        names = {file.directory.partition("/")[0] for file in listed} if self.table.kind is TableKind.FULL_ACID else ()
        return _Files(
            frozenset((file.directory, file.name, file.length) for file in listed),
            frozenset((name, self._valid_in(name)) for name in names),
        )

    def versions(self, location: str) -> dict[str, Version]:
        """Return the versions of the files of a location, by their relative paths."""
        listed = self._listed(location)
        return {f"{file.directory}/{file.name}".lstrip("/"): Version(file.length, file.version) for file in listed}

    def directories(self, location: str | None) -> list[Directory]:
        """Return the directories of a transactional table that readers open; none if the location does not exist."""
        try:
            entries = self.cluster.storages.at(location).entries(location) if location else []
        except NotFound:
            return []
        names = (entry.name for entry in entries if entry.is_directory)
        seen = visible_directories(names, self.ids, self.is_committed)
        return [*filter(None, [seen.base]), *seen.deltas, *seen.delete_deltas]

    def has_rows(self, location: str | None, directories: Collection[str]) -> bool:
        """Return whether directories, as they are copied, have rows; True if these cannot be counted."""
        listed = [file for file in self._listed(location) if file.directory.partition("/")[0] in directories]
        known = self.file_format
        if known is None:
            return bool(listed)
        files = ((self.cluster.storages.at(file.uri), RowFile(file.uri, file.length)) for file in listed)
        return any(count_rows(storage, file, known) for storage, file in files)

    def _listed(self, location: str | None) -> list[ListedFile]:
        if location is None:
            return []
        storage = self.cluster.storages.at(location)
        try:
            if self.table.kind.is_transactional:
                return list(visible_files(storage, location, self.ids, self.is_committed))
            return list(all_files(storage, location))
        except NotFound:
            return []

    def _valid_in(self, directory: str) -> int:
        """Return how many write ids of a delta are valid."""
        delta = parse_directory(directory)
        if not isinstance(delta, Delta | DeleteDelta):
            return 0
        return self.ids.valid_in(delta.min_write_id, delta.max_write_id)

    def rows(self, location: str | None) -> int | None:
        """Return the number of rows of a location, 0 if it does not exist; None if they cannot be counted."""
        if self.file_format is None:
            return None
        if self.table.kind is TableKind.FULL_ACID:
            return self._visible_rows(location)
        storages, file_format = self.cluster.storages, self.file_format
        return sum(count_rows(storages.at(file.uri), file, file_format) for file in self.row_files(location))

    def _visible_rows(self, location: str | None) -> int:
        if location is None:
            return 0
        try:
            return visible_rows(self.cluster.storages.at(location), location, self.ids, self.is_committed)
        except NotFound:
            return 0

    def row_files(self, location: str | None) -> list[RowFile]:
        """Return the files with the rows of a location; none if it does not exist."""
        if self.table.kind is not TableKind.FULL_ACID:
            return [RowFile(file.uri, file.length) for file in self._listed(location)]
        try:
            storage = self.cluster.storages.at(location) if location else None
            return row_files(storage, location, self.ids, self.is_committed) if storage and location else []
        except NotFound:
            return []

    def is_compacted_beyond(self, location: str) -> bool:
        """Return whether a committed base contains write ids after the high watermark."""
        parsed = (parse_directory(entry.name) for entry in self.cluster.storages.at(location).entries(location))
        bases = [base for base in parsed if isinstance(base, Base) and base.visibility_txn]
        return any(base.write_id > self.ids.high_watermark and self.is_committed(base.visibility_txn) for base in bases)


def compare_locations(before: View, after: View, columns: ColumnChecks | None) -> list[Compared]:
    """Compare the partitions, or the table, of the source and the target; with `columns`, also their values.

    A partition that only one side has is different unless it is empty: the source has partitions whose transactions the
    target has not replayed.
    """
    comparisons: list[Compared] = []
    for names in by_call(sorted({*before.partitions(), *after.partitions()})):
        originals, copies = before.objects(names), after.objects(names)
        here, there = (
            {name: known_object.location for name, known_object in known.items()} for known in (originals, copies)
        )
        calls = [partial(_compare, name, before, after, here.get(name), there.get(name)) for name in names]
        some = run_all(calls, _THREADS)
        some = _compare_claims(some, after, originals, copies)
        some = [_compare_definition(compared, originals, copies) for compared in some]
        if columns is not None:
            some = _compare_columns(some, before, after, (here, there), columns)
        comparisons += some
    return comparisons


def _compare_claims(
    comparisons: Sequence[Compared], after: View, originals: Mapping[str, Described], copies: Mapping[str, Described]
) -> list[Compared]:
    """Compare the numbers of rows with those of the statistics that the target's readers trust."""
    if not after.table.kind.is_transactional:
        return list(comparisons)
    again = after.objects_now([comparison.name for comparison in comparisons])
    known = originals.keys() & copies.keys() & again.keys()
    compared = []
    for comparison in comparisons:
        wrong = ""
        if comparison.verdict is Verdict.EQUAL and comparison.target_rows is not None and comparison.name in known:
            claims = copies[comparison.name], again[comparison.name]
            wrong = wrong_claim(comparison.target_rows, claims, originals[comparison.name], after.ids)
        compared.append(
            replace(comparison, verdict=Verdict.DIFFERENT, finding=_at(comparison.name, wrong)) if wrong else comparison
        )
    return compared


def _compare_definition(
    comparison: Compared, originals: Mapping[str, Described], copies: Mapping[str, Described]
) -> Compared:
    """Compare the definitions of a partition that both sides have."""
    original, copy = originals.get(comparison.name), copies.get(comparison.name)
    if not isinstance(original, PartitionObject) or not isinstance(copy, PartitionObject):
        return comparison
    findings = compare_partitions(original, copy)
    if not findings:
        return comparison
    text = "; ".join(filter(None, [_at(comparison.name, "; ".join(findings)), comparison.finding]))
    is_of_definition = comparison.verdict is not Verdict.DIFFERENT
    return replace(comparison, verdict=Verdict.DIFFERENT, finding=text, is_of_definition=is_of_definition)


def _compare(name: str, before: View, after: View, here: str | None, there: str | None) -> Compared:
    """Compare one location; None if it does not exist on a side."""
    try:
        if behind := _changed(before, after, here, there):
            count = len(after.files(there).files)
            return Compared(name, Verdict.EQUAL, count, target_rows=after.rows(there), behind=behind)
        return _compare_now(name, before, after, here, there)
    except (InvalidTable, NotFound) as error:  # damaged, or removed meanwhile
        return Compared(name, Verdict.NOT_COMPARABLE, 0, finding=_at(name, str(error)))


def _compare_now(name: str, before: View, after: View, here: str | None, there: str | None) -> Compared:
    files, copies = before.files(here), after.files(there)
    same, count = files == copies, len(files.files)
    if not same and here is not None and before.is_compacted_beyond(here):
        text = _at(name, "the source was compacted after the last write that the target has")
        return Compared(name, Verdict.NOT_COMPARABLE, count, finding=text)
    missing = _missing(files.files - copies.files, "target"), _missing(copies.files - files.files, "source")
    text = "; ".join(filter(None, missing))
    rows, copied_rows = before.rows(here), after.rows(there)
    is_one_sided = (here is None) != (there is None)
    compared = Compared(name, Verdict.EQUAL, count, rows, copied_rows, is_of_definition=is_one_sided)
    may_be_compacted = before.table.kind.is_transactional
    if rows != copied_rows:
        text = "; ".join(filter(None, [f"the source has {rows} rows, and the target {copied_rows}", text]))
    elif same:
        return compared
    elif may_be_compacted and not _is_removed(before, after, (here, there), (files, copies)):
        if rows is not None:
            return compared
        reason = f"{text}; perhaps one side was compacted, and the rows cannot be counted"
        return replace(compared, verdict=Verdict.NOT_COMPARABLE, finding=_at(name, reason))
    return replace(compared, verdict=Verdict.DIFFERENT, finding=_at(name, text))


def _is_removed(
    before: View, after: View, locations: tuple[str | None, str | None], files: tuple[_Files, _Files]
) -> bool:
    """Return whether one side lacks rows that no compaction has put elsewhere, although both have as many rows."""
    (here, there), (own, copies) = locations, files
    removed = unexplained(_directories(own.files - copies.files), after.directories(there))
    added = unexplained(_directories(copies.files - own.files), before.directories(here))
    return before.has_rows(here, removed) or after.has_rows(there, added)


def _directories(files: Iterable[_File]) -> Iterator[str]:
    return (directory.partition("/")[0] for directory, _, _ in files)


def _changed(before: View, after: View, here: str | None, there: str | None) -> int:
    """Return how many files of an external table have changed since they were copied; 0 if a copy has changed too."""
    if before.table.kind is not TableKind.EXTERNAL or here is None or there is None:
        return 0
    copied = copied_versions(after.cluster.storages, Mirror(here, there))
    lengths = {path: version.length for path, version in copied.items()}
    if not copied or lengths != {path: version.length for path, version in after.versions(there).items()}:
        return 0
    now = before.versions(here)
    return sum(now.get(path) != copied.get(path) for path in now.keys() | copied.keys())


def _missing(files: Collection[_File], side: str) -> str:
    if not files:
        return ""
    names = ", ".join(f"{directory}/{name}".lstrip("/") for directory, name, _ in sorted(files)[:_NAMED_FILES])
    more = f" and {len(files) - _NAMED_FILES} more" if len(files) > _NAMED_FILES else ""
    return f"{len(files)} files are missing on the {side}: {names}{more}"


def _at(name: str, text: str) -> str:
    return f"partition {name}: {text}" if name else text


def _compare_columns(
    comparisons: Sequence[Compared],
    before: View,
    after: View,
    locations: tuple[dict[str, str], dict[str, str]],
    columns: ColumnChecks,
) -> list[Compared]:
    """Compare the values of the locations that are equal so far."""
    equal = [comparison.name for comparison in comparisons if comparison.verdict is Verdict.EQUAL]
    sums, copied = (
        _columns_of(view, {name: known.get(name) for name in equal}, columns)
        for view, known in zip((before, after), locations, strict=True)
    )
    names = [field.name for field in before.table.columns]
    return [
        _with_columns(comparison, sums[comparison.name], copied[comparison.name], names)
        if comparison.name in sums
        else comparison
        for comparison in comparisons
    ]


def _columns_of(view: View, locations: Mapping[str, str | None], columns: ColumnChecks) -> dict[str, Outcome]:
    if view.layout is None:
        return dict.fromkeys(locations, "the values of the columns cannot be read, except in ORC and Parquet files")
    files = run_all([partial(view.row_files, location) for location in locations.values()], _THREADS)
    return columns.run(view.cluster.storages, view.layout, dict(zip(locations, files, strict=True)))


def _with_columns(comparison: Compared, sums: Outcome, copied: Outcome, names: Sequence[str]) -> Compared:
    if isinstance(sums, str) or isinstance(copied, str):
        text = sums if isinstance(sums, str) else str(copied)
        return replace(comparison, verdict=Verdict.NOT_COMPARABLE, finding=_at(comparison.name, text))
    if comparison.behind:
        text = f"{comparison.behind} files have changed on the source since they were copied"
        return replace(comparison, verdict=Verdict.NOT_COMPARABLE, finding=_at(comparison.name, text))
    comparison = replace(comparison, rows=sums.rows, target_rows=copied.rows)
    pairs = zip(names, sums.columns, copied.columns, strict=True)
    if different := [name for name, pair, other in pairs if pair != other]:
        text = f"the values of these columns are different: {', '.join(different)}"
        return replace(comparison, verdict=Verdict.DIFFERENT, finding=_at(comparison.name, text))
    return comparison
