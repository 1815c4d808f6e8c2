"""What a writer of ACID insert events is, and which rows need which writer.

Invariant: row n of a file has rowId n, its write id as original and current transaction, and the bucket property of the
file; Hive reads every value as it was (two writers, because pyarrow cannot write all timestamps).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from ingestd.schema import Column, HiveType

Compression = Literal["zstd", "zlib", "snappy", "lz4", "none"]
STRIPE_BYTES = 16 << 20
DICTIONARY = 0.8  # Hive's orc.dictionary.key.threshold
BLOCK_BYTES = 64 << 10
_SECOND = 1_000_000_000
_MICROS = 2**63 // 1000 - 1  # beyond this a timestamp[us] does not fit timestamp[ns]


@dataclass(frozen=True, slots=True)
class Encoding:
    """How ORC stores a delta: an index entry every `index_stride` rows (0: none), and whether to try dictionaries.

    `bloom_columns` are top-level columns of the table that get bloom filters; they need an index.
    """

    compression: Compression = "zstd"
    index_stride: int = 10_000
    dictionaries: bool = False
    stripe_bytes: int = STRIPE_BYTES
    block_bytes: int = BLOCK_BYTES
    strategy: Literal["speed", "compression"] = "speed"
    bloom_columns: tuple[str, ...] = ()
    bloom_fpp: float = 0.01


STANDARD = Encoding()
_FIRST_FIELD = 7  # the ACID columns and `row` come before it


def bloom_ids(columns: Sequence[Column], encoding: Encoding) -> set[int]:
    """ORC's numbers of the columns with bloom filters: types are numbered depth first, and lie inside `row`."""
    ids, number = set(), _FIRST_FIELD
    for column in columns:
        if column.name in encoding.bloom_columns:
            ids.add(number)
        number += _types(column.type)
    return ids


def _types(kind: HiveType) -> int:
    return 1 + sum(map(_types, kind.children))


@dataclass(frozen=True, slots=True)
class Finished:
    """A closed file: its rows and its bytes."""

    rows: int
    bytes: int


class AcidWriter(Protocol):
    """Writes one file; after `close` it is complete, patched and on disk. All methods raise OSError."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows: the table's columns without partition columns, in table order."""
        ...

    def close(self) -> Finished:
        """Finish the file (footer patch, fsync)."""
        ...

    def abort(self) -> None:
        """Let go of the file and remove it; never raises."""
        ...


def exact_rows(batch: pa.RecordBatch) -> pa.BooleanArray | None:
    """Which rows only `ExactWriter` writes right; None if there are none.

    Those with a timestamp before 1970 that has a fraction (pyarrow writes negative nanoseconds, and Hive then fails
    every query of the column), or outside the range of timestamp[ns]. All rows if a column is complex: pyarrow puts the
    children of structs into wrong rows after a null struct inside a struct, as `row` is one.
    """
    if any(pa.types.is_nested(array.type) for array in batch.columns):
        return pa.repeat(pa.scalar(value=True), batch.num_rows)
    masks = [mask for array in batch.columns if (mask := _exact_values(array)) is not None]
    if not masks:
        return None
    mask = masks[0]
    for other in masks[1:]:
        mask = mask | other
    return pa.array(mask) if mask.any() else None


def _exact_values(array: pa.Array) -> Any:
    if not pa.types.is_timestamp(array.type) or array.null_count == len(array):
        return None
    numbers = array.view(pa.int64())
    limits = pc.min_max(numbers)
    micros = array.type.unit == "us"
    if limits["min"].as_py() >= 0 and (not micros or limits["max"].as_py() <= _MICROS):
        return None
    values = numbers.fill_null(0).to_numpy(zero_copy_only=False)
    mask = (values < 0) & (values % (1_000_000 if micros else _SECOND) != 0)
    return mask | (values > _MICROS) | (values < -_MICROS) if micros else mask


def discard(path: Path, *closers: Callable[[], object]) -> None:
    """Close what is open and remove the file; what fails here no longer matters."""
    steps: list[Callable[[], object]] = [*closers, partial(path.unlink, missing_ok=True)]
    for step in steps:
        with suppress(OSError, ValueError, RuntimeError, pa.ArrowException):
            step()
