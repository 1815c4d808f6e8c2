"""What every decoder takes and gives.

Invariant: each value of a block is a row of exactly one batch, or one reject, or one skipped tombstone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, overload

import numpy as np
import pyarrow as pa

HEAD_BYTES = 80
NEWLINE = 0x0A
MAX_BUFFER = 1 << 30  # bytes of a block that is read at once; Arrow's offsets have 31 bits


class Lines(Sequence[bytes]):
    """Values that lie one behind the other in `text`, with a newline between each two.

    A decoder that reads the text as it is need not take it apart: `joined`, `size` and `present` do not.
    """

    def __init__(self, text: bytes) -> None:
        self.text = text
        self._count = 1 + int(np.count_nonzero(np.frombuffer(text, np.uint8) == NEWLINE))
        self._values: list[bytes] | None = None

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> bytes: ...
    @overload
    def __getitem__(self, place: slice) -> list[bytes]: ...
    def __getitem__(self, place: int | slice) -> bytes | list[bytes]:
        return self._apart()[place]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._apart())

    def _apart(self) -> list[bytes]:
        if self._values is None:
            self._values = self.text.split(b"\n")
        return self._values


def joined(values: Sequence[bytes]) -> bytes:
    """The values with a newline between each two; one of them may have newlines of its own, unless they are `Lines`."""
    return values.text if isinstance(values, Lines) else b"\n".join(values)


def size(values: Sequence[bytes]) -> int:
    """Bytes of all values."""
    return len(values.text) + 1 - len(values) if isinstance(values, Lines) else sum(map(len, values))


def present(values: Sequence[bytes | None]) -> Sequence[bytes]:
    """The values without those that are None."""
    return values if isinstance(values, Lines) else [value for value in values if value is not None]


class BadRecord(ValueError):
    """A record that cannot become a row; `column` is '' when the record itself is broken."""

    def __init__(self, column: str, reason: str) -> None:
        super().__init__(column, reason)
        self.column = column
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Reject:
    """A record that cannot be stored: its index in the block, the column ('' = the record itself), why, its start.

    `record` is all of it, by reference (`head` its first 80 bytes); None where it had no value or is not kept. `index`
    is set by those who count otherwise than by blocks (`SerializationError`).
    """

    row: int
    column: str
    reason: str
    head: bytes
    record: bytes | None = field(default=None, repr=False)
    index: int | None = None

    @classmethod
    def of(cls, row: int, value: bytes | None, column: str, reason: str) -> Reject:
        """A reject of `value`."""
        return cls(row, column, reason, (value or b"")[:HEAD_BYTES], value)


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
