"""The set of write ids that a row count accounts for, and whether it accounts for all rows that a reader sees.

Invariant: when `CountedIds.accounts_for` says yes, each visible row of the directory was written by a counted write id.

A row count alone cannot be checked: whoever writes old parameters back (ANALYZE does, after each compaction) reverts
the number together with everything that lies beside it. The set is reverted with it too, and then a visible delta is
not in the set, which anybody can find out at any time from the parameters, a snapshot and the names in the directory.

Why this is enough: let S be a snapshot taken before the directory is listed. Rows of S lie in directories that the
listing has, because files are placed before their transaction commits and the cleaner removes a delta only once a
compacted directory replaces it. If each write id that is valid in S and has a directory is counted, nothing visible is
missing from the number. The other way round, a counted id was committed, or aborted before it wrote, or is in flight
under a mark (`statistics.py`). Write ids that were open when the set was written are not in it, even below its
maximum: such a writer may be Hive itself, whose statistics and ours overwrite each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ingestd.acid.layout import Base, Content, DeleteDelta, Delta
from ingestd.acid.visibility import ValidWriteIds

_TEXT = re.compile(r"[0-9]+(:[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*)?")
# A parameter of a partition has at most 4,000 characters on some databases.
_MAX_RANGES = 80

WriteIdRange = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Known:
    """What a writer knows about its own write ids in one partition beyond what the metastore and storage tell.

    `committed` is the last write id that it committed there, 0 when there is none. `batches` are ranges of write ids
    of its own transaction batches: it knows by `committed` which of them wrote here.
    """

    committed: int = 0
    batches: frozenset[WriteIdRange] = frozenset()


NOTHING_KNOWN = Known()


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
        if text is None or not _TEXT.fullmatch(text):
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
    """Whether a directory holds the files of an own transaction batch."""
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
