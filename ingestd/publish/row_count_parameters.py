"""Computes the parameters of a row count and decides whether it is right. Hive answers `count(*)` from numRows.

Invariant: after a commit, numRows of a table or partition is the number of its visible rows, or the parameters show
that it may be wrong. Every change of the number removes the flag COLUMN_STATS_ACCURATE. The flag alone is not enough,
because Hive's compaction sets it again and, like StatsOptimizer, trusts the numRows that it finds (Updater's
`analyze … noscan`).

ingestd stores these parameters alongside numRows:

- `ingestd.rows` is numRows as ingestd wrote it, or `unknown`. Hive's INSERT, UPDATE, DELETE and ANALYZE change only
  numRows, so a difference shows that another writer changed it.
- `ingestd.counted` contains the write ids that numRows accounts for (`CountedIds`).
- `ingestd.added.WRITER` is a mark: the writer's last increment, as `writeId rows files bytes`. If its transaction
  aborts after it was counted, the mark shows what to subtract.

A number is right (`is_right`) if numRows equals `ingestd.rows`, every visible directory is accounted for, and no mark
belongs to a write id that aborted, or that the metastore may have forgotten after it aborted. The check needs no state
in memory, so any writer detects a wrong number, even after a restart. It then sets `ingestd.rows` to `unknown` until
the number is recounted.

The set of write ids is necessary: ANALYZE, which runs after each compaction, writes back all parameters as it read
them. This reverts the number, the marks and the set together, so that a visible delta is missing from the set. The
parameters, a snapshot and the directory names suffice to detect it. The set is also sufficient: let S be a
snapshot taken before the directory is listed. The listing contains all directories with rows of S, because files are
placed before their transaction commits, and the cleaner removes a delta only once a compacted directory has replaced
it. If every write id that is valid in S and has a directory is counted, no visible row is missing from the number.
Conversely, a counted write id has committed, or has aborted before it wrote, or is in flight and has a mark. Write ids
that were open when the set was written are not in it, even below its maximum, because their writer may be Hive, whose
statistics overwrite these parameters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ingestd.acid.layout import Base, Content, DeleteDelta, Delta
from ingestd.acid.visibility import ValidWriteIds
from ingestd.hive.partitions import ROWS_WRITTEN

_ACCURATE = "COLUMN_STATS_ACCURATE"
_ROWS = "numRows"
_UNKNOWN = "unknown"
_COUNTED = "ingestd.counted"
_MARK = "ingestd.added."
_COUNTED_TEXT = re.compile(r"[0-9]+(:[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*)?")
# Some metastore databases limit a partition parameter to 4,000 characters.
_MAX_RANGES = 80

WriteIdRange = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Increment:
    """The rows, files and bytes that a transaction adds to one table or partition."""

    rows: int = 0
    files: int = 0
    bytes: int = 0

    def __add__(self, other: Increment) -> Increment:
        return Increment(self.rows + other.rows, self.files + other.files, self.bytes + other.bytes)


@dataclass(frozen=True, slots=True)
class Mark:
    """A writer's last increment; `writer` is the name of a mapping or of a streaming client."""

    writer: str
    write_id: int
    increment: Increment

    @property
    def key(self) -> str:
        """The name of the parameter that stores the mark."""
        return f"{_MARK}{self.writer}"

    def text(self) -> str:
        """Return the value of that parameter."""
        more = self.increment
        return f"{self.write_id} {more.rows} {more.files} {more.bytes}"


@dataclass(frozen=True, slots=True)
class Known:
    """What a writer knows about its own write ids in one partition that metastore and storage do not show.

    `committed` is the last write id that it committed there, or 0 if there is none. `batches` contains the ranges of
    write ids of its own transaction batches; of their write ids, only those up to `committed` wrote to this partition.
    """

    committed: int = 0
    batches: frozenset[WriteIdRange] = frozenset()


def is_ours(parameters: Mapping[str, str]) -> bool:
    """Return whether ingestd has counted this table or partition."""
    return ROWS_WRITTEN in parameters


def is_right(parameters: Mapping[str, str], content: Content, snapshot: ValidWriteIds, known: Known) -> bool:
    """Return whether numRows is known to be the number of rows that `snapshot` sees, apart from rows in flight.

    `snapshot` must be older than the parameters, and the parameters must be older than `content`.
    """
    if any(mark.write_id in snapshot.aborted for mark in _marks(parameters)):
        return False
    if is_empty(content, snapshot, known):
        return parameters.get(_ROWS) == "0" or _has_marks_in_flight(parameters, snapshot)
    return _accounts_for(parameters, content, snapshot, known)


def incremented(
    before: Mapping[str, str], mark: Mark, content: Content, snapshot: ValidWriteIds, known: Known
) -> tuple[dict[str, str], bool]:
    """Return the parameters after the increment of `mark`, and whether the number was known to be right before it.

    If it was not, the caller must pass the parameters to `doubtful`.
    """
    parameters = dict(before)
    if is_empty(content, snapshot, known):
        # The old values do not matter: they may be those of a partition that was recreated.
        _drop_marks(parameters)
        parameters |= {_ROWS: "0", "numFiles": "0", "totalSize": "0"}
        is_known = True
    else:
        _subtract_aborted(parameters, snapshot)
        # Only a writer that could not acquire the counting lease can still have a mark in flight.
        is_known = not _has_marks_in_flight(parameters, snapshot)
        is_known = is_known and _accounts_for(parameters, content, snapshot, known)
        _drop_committed_marks(parameters, snapshot)
    _add(parameters, mark.increment, 1)
    parameters[mark.key] = mark.text()
    parameters[ROWS_WRITTEN] = parameters[_ROWS]
    parameters[_COUNTED] = CountedIds.of(snapshot, mark.write_id).text()
    parameters.pop(_ACCURATE, None)
    return parameters, is_known


def doubtful(parameters: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters, changed to show that the number must be recounted."""
    return {key: value for key, value in parameters.items() if key != _COUNTED} | {ROWS_WRITTEN: _UNKNOWN}


def recounted(before: Mapping[str, str], rows: int, snapshot: ValidWriteIds, own: int) -> dict[str, str]:
    """Return the parameters after a recount that found `rows`, the number of rows that `snapshot` sees.

    The flag COLUMN_STATS_ACCURATE is removed if numRows had another value. The marks are removed, because neither the
    number nor its set of write ids includes transactions in flight. `own` is the write id of the recount, which writes
    no rows.
    """
    parameters = dict(before)
    if parameters.get(_ROWS) != str(rows):
        parameters.pop(_ACCURATE, None)
    _drop_marks(parameters)
    return parameters | {_ROWS: str(rows), ROWS_WRITTEN: str(rows), _COUNTED: CountedIds.of(snapshot, own).text()}


def _marks(parameters: Mapping[str, str]) -> list[Mark]:
    """Return every mark; parameters with the prefix of a mark but an invalid value are ignored."""
    marks = []
    for key, value in parameters.items():
        numbers = value.split()
        if key.startswith(_MARK) and len(numbers) == 4 and all(number.isdecimal() for number in numbers):
            write_id, rows, files, size = map(int, numbers)
            marks.append(Mark(key.removeprefix(_MARK), write_id, Increment(rows, files, size)))
    return marks


def _accounts_for(parameters: Mapping[str, str], content: Content, snapshot: ValidWriteIds, known: Known) -> bool:
    """Return whether numRows is right, given that the directory has rows and no mark belongs to an aborted write id."""
    if parameters.get(ROWS_WRITTEN) != parameters.get(_ROWS):
        return False
    counted = CountedIds.parse(parameters.get(_COUNTED))
    if counted is None or not counted.accounts_for(content, snapshot, known):
        return False
    return all(
        _has_committed(mark.write_id, content, known) for mark in _marks(parameters) if snapshot.is_valid(mark.write_id)
    )


def _has_committed(write_id: int, content: Content, known: Known) -> bool:
    """Return whether a write id that is valid in a snapshot has certainly committed.

    Once the metastore has cleaned up after an aborted write id, it forgets the id. Snapshots then contain it as valid,
    but its delta has been removed. The delta of a committed write id is also removed, after a compaction. In that case
    only its writer knows that it has committed.
    """
    return write_id == known.committed or any(
        isinstance(directory, Delta)
        and not directory.visibility_txn
        and directory.min_write_id <= write_id <= directory.max_write_id
        for directory in content.directories
    )


def _has_marks_in_flight(parameters: Mapping[str, str], snapshot: ValidWriteIds) -> bool:
    ended = (snapshot.is_valid(mark.write_id) or mark.write_id in snapshot.aborted for mark in _marks(parameters))
    return not all(ended)


def _subtract_aborted(parameters: dict[str, str], snapshot: ValidWriteIds) -> None:
    was_ours = parameters.get(ROWS_WRITTEN) == parameters.get(_ROWS)
    for mark in _marks(parameters):
        if mark.write_id in snapshot.aborted:
            _add(parameters, mark.increment, -1)
            del parameters[mark.key]
    if was_ours and ROWS_WRITTEN in parameters:
        parameters[ROWS_WRITTEN] = parameters[_ROWS]


def _drop_committed_marks(parameters: dict[str, str], snapshot: ValidWriteIds) -> None:
    for mark in _marks(parameters):
        if snapshot.is_valid(mark.write_id):
            del parameters[mark.key]


def _drop_marks(parameters: dict[str, str]) -> None:
    for key in [key for key in parameters if key.startswith(_MARK)]:
        del parameters[key]


def _add(parameters: dict[str, str], more: Increment, sign: int) -> None:
    for key, amount in ((_ROWS, more.rows), ("numFiles", more.files), ("totalSize", more.bytes)):
        parameters[key] = str(max(0, int(parameters.get(key) or 0) + sign * amount))


@dataclass(frozen=True, slots=True)
class CountedIds:
    """All write ids up to `high`, except the ranges `missing`, which are ascending, disjoint and not above `high`."""

    high: int
    missing: tuple[WriteIdRange, ...] = ()

    @classmethod
    def of(cls, snapshot: ValidWriteIds, own: int = 0) -> CountedIds:
        """Return the write ids in a number that is right for `snapshot` and also includes the rows of write id `own`.

        If the open write ids form more ranges than fit into a parameter, the set ends before the first range that does
        not fit.
        """
        high = max(snapshot.high_watermark, own)
        missing = list(_ranges(snapshot.open - {own}))
        if own > snapshot.high_watermark + 1:
            missing.append((snapshot.high_watermark + 1, own - 1))
        if len(missing) > _MAX_RANGES:
            high = missing[_MAX_RANGES][0] - 1
            missing = missing[:_MAX_RANGES]
        return cls(high, tuple(missing))

    @classmethod
    def parse(cls, text: str | None) -> CountedIds | None:
        """Parse the format of `text`; return None for any other text."""
        if text is None or not _COUNTED_TEXT.fullmatch(text):
            return None
        high, _, rest = text.partition(":")
        parts = [part.partition("-") for part in rest.split(",") if part]
        return cls(int(high), tuple((int(first), int(last or first)) for first, _, last in parts))

    def text(self) -> str:
        """Return `high`, or `high:first-last,single,…` if ranges are missing."""
        parts = [str(first) if first == last else f"{first}-{last}" for first, last in self.missing]
        return f"{self.high}:{','.join(parts)}" if parts else str(self.high)

    def __contains__(self, write_id: int) -> bool:
        return write_id <= self.high and not any(first <= write_id <= last for first, last in self.missing)

    def has_all(self, first: int, last: int, valid: ValidWriteIds) -> bool:
        """Return whether every valid write id from `first` to `last` is counted."""
        if valid.valid_in(max(first, self.high + 1), last):
            return False
        return not any(valid.valid_in(max(first, start), min(last, end)) for start, end in self.missing)

    def accounts_for(self, content: Content, valid: ValidWriteIds, known: Known) -> bool:
        """Return whether every row that `valid` sees in the directory was written by a counted write id.

        `valid` must be older than `content`. The name of a compacted or shared directory does not show which write ids
        of its range wrote into it, so the result is False if any valid write id of the range is not counted.
        """
        if known.committed and known.committed not in self:
            return False
        for directory in content.directories:
            if not _is_shared(directory, known) and not self.has_all(*write_id_range(directory), valid):
                return False
        return True


def write_id_range(directory: Base | Delta | DeleteDelta) -> WriteIdRange:
    """Return the first and the last write id that may have rows in a directory."""
    if not isinstance(directory, Base):
        return directory.min_write_id, directory.max_write_id
    return (1 if directory.visibility_txn else directory.write_id), directory.write_id


def is_empty(content: Content, valid: ValidWriteIds, known: Known) -> bool:
    """Return whether `valid` sees no rows in `content`, judging by directory names and the writer's knowledge."""
    if content.has_originals:
        return False
    return not any(
        (isinstance(directory, Base) and directory.write_id < 1) or valid.valid_in(*write_id_range(directory))
        for directory in content.directories
        if known.committed or not _is_shared(directory, known)
    )


def _is_shared(directory: Base | Delta | DeleteDelta, known: Known) -> bool:
    """Return whether a directory contains the files of one of the writer's own transaction batches."""
    return isinstance(directory, Delta) and not directory.visibility_txn and write_id_range(directory) in known.batches


def _ranges(write_ids: Iterable[int]) -> Iterable[WriteIdRange]:
    """Yield the fewest ranges that consist of exactly these write ids, in ascending order."""
    first = last = 0
    for write_id in sorted(write_ids):
        if first and write_id == last + 1:
            last = write_id
            continue
        if first:
            yield first, last
        first = last = write_id
    if first:
        yield first, last
