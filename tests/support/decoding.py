"""What tests of all decoders use: columns, and the content of a `DecodeResult`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from ingestd.formats.decoder import DecodeResult
from ingestd.schema import Column, HiveType

T = TypeVar("T")


def columns_of(**types: str) -> tuple[Column, ...]:
    """Return columns of these names and types."""
    return tuple(Column(name, HiveType.parse(text)) for name, text in types.items())


def rows_of(decoded: DecodeResult) -> list[dict[str, Any]]:
    """Return all rows, each by the names of its columns."""
    return [row for batch in decoded.batches for row in batch.to_pylist()]


def in_order(decoded: DecodeResult, rows: Sequence[T]) -> list[T]:
    """Return the decoded rows in the order of their records, whichever batches they are in."""
    if decoded.records is None:
        return list(rows)
    assert len(rows) == len(decoded.records)
    return [rows[place] for place in np.argsort(decoded.records, kind="stable").tolist()]


def reasons(decoded: DecodeResult) -> list[tuple[int, str, str]]:
    """Return the index, the column and the reason of each reject."""
    return [(reject.row, reject.column, reject.reason) for reject in decoded.rejects]
