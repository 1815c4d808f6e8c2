"""Names of ACID directories and files, and which directories a reader sees.

Invariant: the same names and the same choice as Hive's AcidUtils, BucketCodec V1 and ValidReaderWriteIdList.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

ORC_ACID_VERSION_FILE = "_orc_acid_version"
ORC_ACID_VERSION = b"2"
SIDE_FILE = "_flush_length"  # of a bucket file that grows: how much of it readers may read
MAX_BUCKET = 4095
MAX_STATEMENT = 4095
_BASE = re.compile(r"base_(-?[0-9]+)(?:_v([0-9]+))?")
_DELTA = re.compile(r"(delete_)?delta_(-?[0-9]+)_(-?[0-9]+)(?:_([0-9]+))?(?:_v([0-9]+))?")


def delta_name(write_id: int, statement: int) -> str:
    """Directory of one statement of one write: `delta_0000007_0000007_0000` (AcidUtils.deltaSubdir)."""
    _check("statement", statement, MAX_STATEMENT)
    return f"delta_{write_id:07d}_{write_id:07d}_{statement:04d}"


def shared_delta_name(first: int, last: int, statement: int) -> str:
    """Directory that the write ids first..last of a transaction batch share: `delta_0000007_0000009_0000`.

    It must have rows of more than one write id's range: for `first` = `last` readers ignore side files.
    """
    _check("statement", statement, MAX_STATEMENT)
    return f"delta_{first:07d}_{last:07d}_{statement:04d}"


def bucket_name(bucket: int) -> str:
    """File of one bucket: `bucket_00000`; its number must be the one inside the rows (AcidUtils.createBucketFile)."""
    _check("bucket", bucket, MAX_BUCKET)
    return f"bucket_{bucket:05d}"


def bucket_property(bucket: int, statement: int) -> int:
    """The value of the ACID column `bucket`: bits 31-29 version 1, 27-16 bucket, 11-0 statement (BucketCodec V1)."""
    _check("bucket", bucket, MAX_BUCKET)
    _check("statement", statement, MAX_STATEMENT)
    return 1 << 29 | bucket << 16 | statement


def _check(what: str, number: int, limit: int) -> None:
    if not 0 <= number <= limit:
        raise ValueError(f"{what} {number} is not in 0..{limit}")


@dataclass(frozen=True, slots=True)
class Base:
    """`base_N`: all rows up to write id N; `visibility_txn` is the compaction that made it, 0 for INSERT OVERWRITE."""

    name: str
    write_id: int
    visibility_txn: int = 0


@dataclass(frozen=True, slots=True)
class Delta:
    """`delta_min_max[_statement]`: rows inserted by these write ids; `statement` is -1 when the name has none."""

    name: str
    min_write_id: int
    max_write_id: int
    statement: int = -1
    visibility_txn: int = 0


@dataclass(frozen=True, slots=True)
class DeleteDelta:
    """`delete_delta_min_max[_statement]`: delete events of these write ids."""

    name: str
    min_write_id: int
    max_write_id: int
    statement: int = -1
    visibility_txn: int = 0


def parse_directory(name: str) -> Base | Delta | DeleteDelta | None:
    """The meaning of a directory's name; None for any other directory (AcidUtils.ParsedDeltaLight, ParsedBaseLight)."""
    if match := _BASE.fullmatch(name):
        return Base(name, int(match[1]), int(match[2] or 0))
    if match := _DELTA.fullmatch(name):
        kind = DeleteDelta if match[1] else Delta
        return kind(name, int(match[2]), int(match[3]), int(match[4]) if match[4] else -1, int(match[5] or 0))
    return None


@dataclass(frozen=True, slots=True)
class Content:
    """The ACID directories of one location, visible or not, and whether original files lie beside them."""

    directories: tuple[Base | Delta | DeleteDelta, ...]
    has_originals: bool = False

    @property
    def compactions(self) -> frozenset[str]:
        """Names of the directories that compactions made."""
        return frozenset(one.name for one in self.directories if one.visibility_txn)


@dataclass(frozen=True, slots=True)
class ValidWriteIds:
    """A reader's snapshot of one table: write ids up to the high watermark, without the open and aborted ones."""

    table: str
    high_watermark: int
    open: frozenset[int] = field(default_factory=frozenset)
    aborted: frozenset[int] = field(default_factory=frozenset)
    _hidden: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hidden", tuple(sorted(self.open | self.aborted)))

    def is_valid(self, write_id: int) -> bool:
        """Whether rows of this write id are visible (ValidReaderWriteIdList.isWriteIdValid)."""
        return write_id <= self.high_watermark and write_id not in self.open and write_id not in self.aborted

    def valid_in(self, first: int, last: int) -> int:
        """How many ids of first..last are valid (the count behind isWriteIdRangeValid)."""
        end = min(last, self.high_watermark)
        if end < first:
            return 0
        return end - first + 1 - (bisect_right(self._hidden, end) - bisect_left(self._hidden, first))

    def has_ended(self, write_id: int) -> bool:
        """Whether the transaction of this write id has committed or aborted."""
        return write_id <= self.high_watermark and write_id not in self.open

    def is_settled(self, write_id: int) -> bool:
        """Whether every id up to this one has ended (ValidReaderWriteIdList.isValidBase)."""
        return write_id <= self.high_watermark and all(write_id < waiting for waiting in self.open)


@dataclass(frozen=True, slots=True)
class VisibleDirectories:
    """What a reader opens; original files directly under the location count only when `base` is None."""

    base: Base | None
    deltas: tuple[Delta, ...]
    delete_deltas: tuple[DeleteDelta, ...]


def visible_directories(
    names: Iterable[str], valid: ValidWriteIds, txn_is_valid: Callable[[int], bool]
) -> VisibleDirectories:
    """Choose base and deltas as AcidUtils.getAcidState does.

    `txn_is_valid` judges the transaction of a compaction (suffix `_v`): only a committed one made its directory real.
    """
    parsed = [one for name in names if (one := parse_directory(name)) is not None]
    usable = [one for one in parsed if one.visibility_txn == 0 or txn_is_valid(one.visibility_txn)]
    bases = [one for one in usable if isinstance(one, Base) and _base_is_valid(one, valid)]
    base = max(bases, key=lambda one: one.write_id, default=None)
    working = [
        one for one in usable if not isinstance(one, Base) and valid.valid_in(one.min_write_id, one.max_write_id) > 0
    ]
    chosen = _best_deltas(working, base, valid)
    return VisibleDirectories(
        base,
        tuple(one for one in chosen if isinstance(one, Delta)),
        tuple(one for one in chosen if isinstance(one, DeleteDelta)),
    )


def _base_is_valid(base: Base, valid: ValidWriteIds) -> bool:
    """A compacted base needs all its ids settled, an overwritten one only its own id (AcidUtils.isValidBase)."""
    if base.write_id == -(2**63):  # first compaction of a table that was not ACID before
        return True
    return valid.is_settled(base.write_id) if base.visibility_txn else valid.is_valid(base.write_id)


def _best_deltas(
    working: list[Delta | DeleteDelta], base: Base | None, valid: ValidWriteIds
) -> list[Delta | DeleteDelta]:
    """Drop what a wider or compacted delta already holds (AcidUtils.findBestWorkingDeltas)."""
    current = base.write_id if base else -(2**63)
    statement = -1
    previous: Delta | DeleteDelta | None = None
    chosen: list[Delta | DeleteDelta] = []
    for delta in sorted(working, key=lambda one: (one.min_write_id, -one.max_write_id, one.statement, one.name)):
        if delta.max_write_id > current:
            if valid.valid_in(current + 1, delta.max_write_id) == 0:
                continue
            current, statement = delta.max_write_id, delta.statement
        elif not (delta.max_write_id == current and statement >= 0) and not _same_range(delta, previous):
            continue
        chosen.append(delta)
        previous = delta
    return chosen


def _same_range(delta: Delta | DeleteDelta, previous: Delta | DeleteDelta | None) -> bool:
    """`delta_x_y` and `delete_delta_x_y` of the same statement belong together."""
    return previous is not None and (delta.min_write_id, delta.max_write_id, delta.statement) == (
        previous.min_write_id,
        previous.max_write_id,
        previous.statement,
    )
