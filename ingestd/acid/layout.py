"""Formats and parses the names of ACID directories and files, and computes the bucket property.

Invariant: names and numbers are the same as those of Hive's AcidUtils and BucketCodec V1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

ORC_ACID_VERSION_FILE = "_orc_acid_version"
ORC_ACID_VERSION = b"2"
SIDE_FILE_SUFFIX = "_flush_length"  # of the side file, which states how many bytes of a bucket file readers may read
MAX_BUCKET = 4095
MAX_STATEMENT = 4095
ALL_STATEMENTS = range(MAX_STATEMENT + 1)
_BASE = re.compile(r"base_(-?[0-9]+)(?:_v([0-9]+))?")
_DELTA = re.compile(r"(delete_)?delta_(-?[0-9]+)_(-?[0-9]+)(?:_([0-9]+))?(?:_v([0-9]+))?")


class FileLayout(Enum):
    """How the files of a transactional table store rows.

    In a full ACID table each row is the field `row` of an insert event. The files of an insert-only table contain the
    columns of the table and nothing else.
    """

    EVENTS = "events"
    PLAIN = "plain"


def delta_name(write_id: int, statement: int) -> str:
    """Return the delta name of a write id and a statement: `delta_0000007_0000007_0000` (AcidUtils.deltaSubdir)."""
    _check("statement", statement, MAX_STATEMENT)
    return f"delta_{write_id:07d}_{write_id:07d}_{statement:04d}"


def batch_delta_name(first: int, last: int, statement: int) -> str:
    """Return the directory name of the write ids of a transaction batch: `delta_0000007_0000009_0000`.

    An appendable file requires `first` < `last`, because readers ignore side files in the delta of one write id.
    """
    _check("statement", statement, MAX_STATEMENT)
    return f"delta_{first:07d}_{last:07d}_{statement:04d}"


def base_name(write_id: int) -> str:
    """Return the base name of an INSERT OVERWRITE: `base_0000007` (AcidUtils.baseDir)."""
    return f"base_{write_id:07d}"


def bucket_name(bucket: int, layout: FileLayout = FileLayout.EVENTS) -> str:
    """Return the file name of a bucket: `bucket_00000` (AcidUtils.createBucketFile), or `000000_0` for plain rows.

    `bucket` must be the number in the bucket property of the file's rows. Readers take the bucket of plain rows from
    the name of their file.
    """
    _check("bucket", bucket, MAX_BUCKET)
    return f"bucket_{bucket:05d}" if layout is FileLayout.EVENTS else f"{bucket:06d}_0"


def bucket_property(bucket: int, statement: int) -> int:
    """Return the value of the ACID column `bucket` (BucketCodec V1).

    Bits 31-29 contain the version, which is 1; bits 27-16 the bucket; and bits 11-0 the statement.
    """
    _check("bucket", bucket, MAX_BUCKET)
    _check("statement", statement, MAX_STATEMENT)
    return 1 << 29 | bucket << 16 | statement


def _check(what: str, number: int, limit: int) -> None:
    if not 0 <= number <= limit:
        raise ValueError(f"{what} {number} is not in the range 0 to {limit}")


@dataclass(frozen=True, slots=True)
class Base:
    """A directory `base_N`, which contains all rows up to write id N.

    `visibility_txn` is the transaction of the compaction that wrote it, or 0 if INSERT OVERWRITE wrote it.
    """

    name: str
    write_id: int
    visibility_txn: int = 0


@dataclass(frozen=True, slots=True)
class Delta:
    """A directory `delta_min_max[_statement]`, which contains the rows that these write ids inserted.

    `statement` is -1 if the name has none. `visibility_txn` is 0 unless a compaction wrote the directory.
    """

    name: str
    min_write_id: int
    max_write_id: int
    statement: int = -1
    visibility_txn: int = 0


@dataclass(frozen=True, slots=True)
class DeleteDelta:
    """A directory `delete_delta_min_max[_statement]`, which contains the delete events of these write ids."""

    name: str
    min_write_id: int
    max_write_id: int
    statement: int = -1
    visibility_txn: int = 0


def parse_directory(name: str) -> Base | Delta | DeleteDelta | None:
    """Parse a directory name (AcidUtils.ParsedDeltaLight, ParsedBaseLight); return None if it is not an ACID name."""
    if match := _BASE.fullmatch(name):
        return Base(name, int(match[1]), int(match[2] or 0))
    if match := _DELTA.fullmatch(name):
        kind = DeleteDelta if match[1] else Delta
        return kind(name, int(match[2]), int(match[3]), int(match[4]) if match[4] else -1, int(match[5] or 0))
    return None


def without_visibility(name: str) -> str:
    """Return the name of an ACID directory without `_v` and the transaction of its compaction; other names as they are.

    A copy on another cluster has no such transaction, and is visible as soon as its write ids are (Hive: HIVE-21213).
    """
    return name.rpartition("_v")[0] if "_v" in name and parse_directory(name) else name


@dataclass(frozen=True, slots=True)
class Content:
    """The ACID directories of one location, visible or not, and whether it contains original (non-ACID) files."""

    directories: tuple[Base | Delta | DeleteDelta, ...]
    has_originals: bool = False

    @property
    def compactions(self) -> frozenset[str]:
        """The names of the directories that compactions wrote."""
        return frozenset(directory.name for directory in self.directories if directory.visibility_txn)
