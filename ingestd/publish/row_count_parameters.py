"""The parameters of a row count, and whether it is right: Hive answers `select count(*)` from numRows.

Invariant: after a commit, numRows of a table or partition is the number of its visible rows or the parameters say that
it may not be, and the flag COLUMN_STATS_ACCURATE is absent after every change of the number. The flag alone is not
enough: Hive's compaction sets it again and trusts the numRows that it finds (Updater's `analyze … noscan`), and so does
StatsOptimizer.

The parameters alongside numRows:

- `ingestd.rows`: numRows as ingestd wrote it, or `unknown`. Hive's INSERT, UPDATE, DELETE and ANALYZE change numRows
  only, so a difference shows that another writer changed it.
- `ingestd.counted`: the write ids that numRows accounts for (`CountedIds`).
- `ingestd.added.WRITER` = `writeId rows files bytes`: a mark. The rows of a transaction that aborted after it was
  counted are found and subtracted by it.

A number is right (`is_right`) when numRows equals `ingestd.rows`, every visible directory is accounted for, and no mark
is of a write id that aborted, or that the metastore may have forgotten after it aborted. This needs no memory: any
writer detects a wrong number, even after a restart, and instead of adding to it leaves `unknown` until it is recounted.

Why the set of write ids is needed: ANALYZE, which runs after each compaction, writes back all parameters as it read
them, and so reverts number, mark and set together. Then a visible delta is not in the set, which any reader of
parameters, snapshot and directory names can detect at any time. Why it is enough: let S be a snapshot taken before the
directory is listed. The listing has all directories with rows of S, because files are placed before their transaction
commits and the cleaner removes a delta only once a compacted directory replaces it. If each write id that is valid in S
and has a directory is counted, nothing visible is missing from the number. Conversely, a counted write id has
committed, or aborted before it wrote, or is in flight under a mark. Write ids that were open when the set was written
are not in it, even below its maximum: such a writer may be Hive, whose statistics overwrite these parameters.
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
# A parameter of a partition has at most 4,000 characters on some databases.
_MAX_RANGES = 80

WriteIdRange = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Increment:
    """What a transaction adds to one table or partition."""

    rows: int = 0
    files: int = 0
    bytes: int = 0

    def __add__(self, other: Increment) -> Increment:
        return Increment(self.rows + other.rows, self.files + other.files, self.bytes + other.bytes)


@dataclass(frozen=True, slots=True)
class Mark:
    """A writer's last increment: `writer` is the name of a mapping or of a streaming client."""

    writer: str
    write_id: int
    increment: Increment

    @property
    def key(self) -> str:
        """The name of its parameter."""
        return f"{_MARK}{self.writer}"

    def text(self) -> str:
        """The value of its parameter."""
        more = self.increment
        return f"{self.write_id} {more.rows} {more.files} {more.bytes}"


@dataclass(frozen=True, slots=True)
class Known:
    """What a writer knows about its own write ids in one partition beyond what the metastore and storage tell.

    `committed` is the last write id that it committed there, 0 when there is none. `batches` are ranges of write ids
    of its own transaction batches: it knows by `committed` which of them wrote here.
    """

    committed: int = 0
    batches: frozenset[WriteIdRange] = frozenset()


def is_ours(parameters: Mapping[str, str]) -> bool:
    """Whether ingestd has counted here."""
    return ROWS_WRITTEN in parameters


def is_right(parameters: Mapping[str, str], content: Content, snapshot: ValidWriteIds, known: Known) -> bool:
    """Whether numRows is known to be what `snapshot` sees, apart from transactions that are in flight.

    `snapshot` must be older than the parameters, and these older than the listing of `content`.
    """
    if any(mark.write_id in snapshot.aborted for mark in _marks(parameters)):
        return False
    if is_empty(content, snapshot, known):
        return parameters.get(_ROWS) == "0" or _has_marks_in_flight(parameters, snapshot)
    return _accounts_for(parameters, content, snapshot, known)


def incremented(
    before: Mapping[str, str], mark: Mark, content: Content, snapshot: ValidWriteIds, known: Known
) -> tuple[dict[str, str], bool]:
    """The parameters after an increment under its mark, and whether the number was known to be right before it.

    If it was not, the caller must mark the sum as `doubtful`.
    """
    parameters = dict(before)
    if is_empty(content, snapshot, known):
        # Whatever the parameters say: they may be those of a partition that was recreated.
        _drop_marks(parameters)
        parameters |= {_ROWS: "0", "numFiles": "0", "totalSize": "0"}
        is_known = True
    else:
        _subtract_aborted(parameters, snapshot)
        # Only a writer that could not get the counting lease can have a mark in flight now.
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
    """The parameters with a number that must be recounted."""
    return {key: value for key, value in parameters.items() if key != _COUNTED} | {ROWS_WRITTEN: _UNKNOWN}


def recounted(before: Mapping[str, str], rows: int, snapshot: ValidWriteIds, own: int) -> dict[str, str]:
    """The parameters with the rows that `snapshot` sees; the flag is dropped where numRows was different.

    The marks are removed: what was in flight is not in the number, and not in its set of write ids. `own` is the
    write id of the recount, which writes no rows.
    """
    parameters = dict(before)
    if parameters.get(_ROWS) != str(rows):
        parameters.pop(_ACCURATE, None)
    _drop_marks(parameters)
    return parameters | {_ROWS: str(rows), ROWS_WRITTEN: str(rows), _COUNTED: CountedIds.of(snapshot, own).text()}


def _marks(parameters: Mapping[str, str]) -> list[Mark]:
    """Every valid mark; a parameter of that name with any other text is ignored."""
    found = []
    for key, value in parameters.items():
        numbers = value.split()
        if key.startswith(_MARK) and len(numbers) == 4 and all(number.isdecimal() for number in numbers):
            write_id, rows, files, size = map(int, numbers)
            found.append(Mark(key.removeprefix(_MARK), write_id, Increment(rows, files, size)))
    return found


def _accounts_for(parameters: Mapping[str, str], content: Content, snapshot: ValidWriteIds, known: Known) -> bool:
    """As `is_right`, for a directory that is not empty and without marks of aborted write ids."""
    if parameters.get(ROWS_WRITTEN) != parameters.get(_ROWS):
        return False
    counted = CountedIds.parse(parameters.get(_COUNTED))
    if counted is None or not counted.accounts_for(content, snapshot, known):
        return False
    return all(
        _has_committed(mark.write_id, content, known) for mark in _marks(parameters) if snapshot.is_valid(mark.write_id)
    )


def _has_committed(write_id: int, content: Content, known: Known) -> bool:
    """Whether a write id that a snapshot calls valid has certainly committed.

    Once the metastore has cleaned up after an aborted write id it forgets it, and snapshots call it valid; its delta is
    gone then. So is that of a committed one after a compaction: then only its writer knows.
    """
    return write_id == known.committed or any(
        isinstance(one, Delta) and not one.visibility_txn and one.min_write_id <= write_id <= one.max_write_id
        for one in content.directories
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
    """All write ids up to `high`, without the ranges `missing`, which are ascending, disjoint and not above it."""

    high: int
    missing: tuple[WriteIdRange, ...] = ()

    @classmethod
    def of(cls, snapshot: ValidWriteIds, own: int = 0) -> CountedIds:
        """What a count accounts for that was right for `snapshot` and then had the rows of write id `own` added.

        With more open ranges than fit into a parameter the set ends before the first that does not fit.
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
        """Read what `text` wrote; None for anything else."""
        if text is None or not _COUNTED_TEXT.fullmatch(text):
            return None
        high, _, rest = text.partition(":")
        parts = [part.partition("-") for part in rest.split(",") if part]
        return cls(int(high), tuple((int(first), int(last or first)) for first, _, last in parts))

    def text(self) -> str:
        """`high` or `high:first-last,one,…` with what is missing."""
        parts = [str(first) if first == last else f"{first}-{last}" for first, last in self.missing]
        return f"{self.high}:{','.join(parts)}" if parts else str(self.high)

    def __contains__(self, write_id: int) -> bool:
        return write_id <= self.high and not any(first <= write_id <= last for first, last in self.missing)

    def has_all(self, first: int, last: int, valid: ValidWriteIds) -> bool:
        """Whether every valid write id of first..last is counted."""
        if valid.valid_in(max(first, self.high + 1), last):
            return False
        return not any(valid.valid_in(max(first, start), min(last, end)) for start, end in self.missing)

    def accounts_for(self, content: Content, valid: ValidWriteIds, known: Known) -> bool:
        """Whether every row that `valid` sees in the directory was written by a counted write id.

        `valid` must be older than the listing. The name of a compacted or shared directory does not tell which ids of
        its range wrote into it; one that may have, but is not counted, makes the answer no.
        """
        if known.committed and known.committed not in self:
            return False
        for one in content.directories:
            if not _is_shared(one, known) and not self.has_all(*write_id_range(one), valid):
                return False
        return True


def write_id_range(one: Base | Delta | DeleteDelta) -> WriteIdRange:
    """First and last write id that may have rows in a directory."""
    if not isinstance(one, Base):
        return one.min_write_id, one.max_write_id
    return (1 if one.visibility_txn else one.write_id), one.write_id


def is_empty(content: Content, valid: ValidWriteIds, known: Known) -> bool:
    """Whether `valid` sees no row there, as far as names and the writer tell."""
    if content.has_originals:
        return False
    return not any(
        (isinstance(one, Base) and one.write_id < 1) or valid.valid_in(*write_id_range(one))
        for one in content.directories
        if known.committed or not _is_shared(one, known)
    )


def _is_shared(one: Base | Delta | DeleteDelta, known: Known) -> bool:
    """Whether a directory holds the files of one of the writer's own transaction batches."""
    return isinstance(one, Delta) and not one.visibility_txn and write_id_range(one) in known.batches


def _ranges(write_ids: Iterable[int]) -> Iterable[WriteIdRange]:
    """The fewest ranges that hold these ids, ascending."""
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
