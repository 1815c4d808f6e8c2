"""What every decoder takes and gives.

Invariant: each value of a block is a row of exactly one batch, or one reject, or one skipped tombstone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

HEAD_BYTES = 80
MAX_BUFFER = 1 << 30  # bytes of a block that is read at once; Arrow's offsets have 31 bits


class BadRecord(ValueError):
    """A record that cannot become a row; `column` is '' when the record itself is broken."""

    def __init__(self, column: str, reason: str) -> None:
        super().__init__(column, reason)
        self.column = column
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Reject:
    """A record that cannot be stored: its index in the block, the column ('' = the record itself), why, its start."""

    row: int
    column: str
    reason: str
    head: bytes

    @classmethod
    def of(cls, row: int, value: bytes | None, column: str, reason: str) -> Reject:
        """A reject of `value`, which keeps its first 80 bytes only."""
        return cls(row, column, reason, (value or b"")[:HEAD_BYTES])


@dataclass(frozen=True, slots=True)
class Decoded:
    """A decoded block: rows in input order over the concatenation of `batches`; `rejects` ordered by row.

    `skipped` counts tombstones that were left out. All timestamp columns of one batch have one unit, ns or us.
    """

    batches: list[pa.RecordBatch]
    rejects: list[Reject]
    skipped: int

    @property
    def rows(self) -> int:
        """Rows over all batches."""
        return sum(batch.num_rows for batch in self.batches)


class Decoder(Protocol):
    """Turns record values into batches of a table's columns."""

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        """Decode a block; a `None` value is a tombstone. Raises nothing for bad records: they are rejects."""
        ...
