"""What tests of all decoders use: columns, and the content of a `DecodeResult`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from ingestd.formats.decoder import DecodeResult
from ingestd.schema import Column, HiveType

T = TypeVar("T")


def columns_of(*types: str, **named: str) -> tuple[Column, ...]:
    """Return columns of these types, with the names c0, c1 …, or of these names and types."""
    numbered = {f"c{index}": text for index, text in enumerate(types)}
    return tuple(Column(name, HiveType.parse(text)) for name, text in {**numbered, **named}.items())


def rows_of(decoded: DecodeResult) -> list[dict[str, Any]]:
    """Return all rows, each by the names of its columns."""
    return [row for batch in decoded.batches for row in batch.to_pylist()]


def values_of(decoded: DecodeResult) -> list[tuple[Any, ...]]:
    """Return all rows, each by the positions of its columns."""
    return [row for batch in decoded.batches for row in zip(*(column.to_pylist() for column in batch), strict=True)]


def in_order(decoded: DecodeResult, rows: Sequence[T]) -> list[T]:
    """Return the decoded rows in the order of their records, whichever batches they are in."""
    if decoded.records is None:
        return list(rows)
    assert len(rows) == len(decoded.records)
    return [rows[place] for place in np.argsort(decoded.records, kind="stable").tolist()]


def reasons(decoded: DecodeResult) -> list[tuple[int, str, str]]:
    """Return the index, the column and the reason of each reject."""
    return [(reject.row, reject.column, reject.reason) for reject in decoded.rejects]
