"""Adds Hive's calendar and ACID metadata, which neither pyarrow nor pyorc can write, to a complete ORC file.

Invariant: only the footer and the PostScript change. Rows, stripes and statistics keep their offsets.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from ingestd.acid.orc_proto import bytes_field, encode_tail, fields, number, read_tail, varint_field

_PROLEPTIC_GREGORIAN = 2
# Field numbers of Footer, StripeInformation and UserMetadataItem in orc_proto.
_STRIPES, _METADATA, _CALENDAR = 3, 5, 11
_STRIPE_ROWS = 5
_ITEM_NAME, _ITEM_VALUE = 1, 2


@dataclass(frozen=True, slots=True)
class FileSize:
    """The number of rows and bytes of an ORC file, or of the part that one flush added to it."""

    rows: int
    bytes: int


def seal(path: Path, runs: Sequence[tuple[int, int]], bucket: int) -> FileSize:
    """Patch the footer of a closed ORC file in place and return its size. The file is not synced to disk.

    `runs` lists (write id, number of rows) of each transaction in file order; `bucket` is the bucket property of all
    rows.

    Adds the fields that OrcRecordUpdater writes: `calendar` = PROLEPTIC_GREGORIAN (without it Hive 4 shifts dates
    before 1582), `hive.acid.key.index` with the last key of each stripe, `hive.acid.stats` and `hive.acid.version`.
    Raises OSError, and ValueError if the file is not an ORC file or its compression is not none, zlib, snappy, lz4 or
    zstd.
    """

    def acid_metadata(stripes: Sequence[int]) -> bytes:
        return (
            _metadata("hive.acid.key.index", _key_index(stripes, runs, bucket))
            + _metadata("hive.acid.stats", f"{stripes[-1] if stripes else 0},0,0")
            + _metadata("hive.acid.version", "2")
        )

    return _sealed(path, acid_metadata)


def seal_plain(path: Path) -> FileSize:
    """Do the same as `seal` for a file of an insert-only table: add the calendar only."""
    return _sealed(path, lambda _stripes: b"")


def _sealed(path: Path, metadata: Callable[[Sequence[int]], bytes]) -> FileSize:
    """Add the calendar and the result of `metadata`, which gets the number of rows up to the end of each stripe."""
    with path.open("r+b") as file:
        post_script, footer, start = read_tail(file)
        stripes = _stripe_ends(footer)
        footer += varint_field(_CALENDAR, _PROLEPTIC_GREGORIAN) + metadata(stripes)
        tail = encode_tail(footer, post_script)
        file.seek(start)
        file.write(tail)
        file.truncate()
        return FileSize(stripes[-1] if stripes else 0, start + len(tail))


def _stripe_ends(footer: bytes) -> list[int]:
    """Return the number of rows up to the end of each stripe."""
    ends, rows = [], 0
    for key, value in fields(footer):
        if key == _STRIPES and isinstance(value, bytes):
            rows += number(dict(fields(value)), _STRIPE_ROWS)
            ends.append(rows)
    return ends


def _key_index(stripes: Sequence[int], runs: Sequence[tuple[int, int]], bucket: int) -> str:
    """Return `write id,bucket,row id;` of the last row of each stripe. Row ids start at 0 in each run."""
    ends = list(accumulate(rows for _, rows in runs))
    index = ""
    for end in stripes:
        run = bisect_right(ends, end - 1)
        first = ends[run - 1] if run else 0
        index += f"{runs[run][0]},{bucket},{end - 1 - first};"
    return index


def _metadata(name: str, value: str) -> bytes:
    return bytes_field(_METADATA, bytes_field(_ITEM_NAME, name.encode()) + bytes_field(_ITEM_VALUE, value.encode()))
