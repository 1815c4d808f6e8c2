"""The contract of all decoders: they convert record values to Arrow batches, and reject what they cannot convert.

Invariant: each value passed to `Decoder.decode` becomes exactly one row, one reject, or one skipped tombstone. A column
contains exactly the value in the record, by the rules of its format. A value that a column cannot store is a reject.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast, overload

import numpy as np
import pyarrow as pa

HEAD_BYTES = 80
NEWLINE = 0x0A


class Lines(Sequence[bytes]):
    """Records stored in one buffer, `text`, separated by newlines.

    The buffer is split only when a record is accessed. `join_lines`, `total_bytes` and `without_tombstones` do not
    access records, so a decoder that reads the whole buffer never pays for the split.
    """

    def __init__(self, text: bytes) -> None:
        self.text = text
        self._count = 1 + int(np.count_nonzero(np.frombuffer(text, np.uint8) == NEWLINE))
        self._records: list[bytes] | None = None

    @property
    def is_split(self) -> bool:
        """Whether the buffer has been split into records."""
        return self._records is not None

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        return self._split()[index]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._split())

    def _split(self) -> list[bytes]:
        if self._records is None:
            self._records = self.text.split(b"\n")
        return self._records


def join_lines(values: Sequence[bytes]) -> bytes:
    """Return the values joined by newlines. A value may itself contain newlines, unless the values are `Lines`."""
    return values.text if isinstance(values, Lines) else b"\n".join(values)


def total_bytes(values: Sequence[bytes]) -> int:
    """Return the number of bytes in all values, without separators."""
    return len(values.text) + 1 - len(values) if isinstance(values, Lines) else sum(map(len, values))


def without_tombstones(values: Sequence[bytes | None]) -> Sequence[bytes]:
    """Return the values that are not None. A sequence that certainly contains no None is returned without a copy."""
    if isinstance(values, Lines):
        return values
    if all(values):  # the usual case, much faster than comparing with None; also false if a value is b""
        return cast(Sequence[bytes], values)
    return [value for value in values if value is not None]


def drop_rows(batch: pa.RecordBatch, rows: Iterable[int]) -> pa.RecordBatch:
    """Return the batch without the rows at the given indexes."""
    keep = np.ones(batch.num_rows, np.bool_)
    keep[list(rows)] = False
    return batch.filter(pa.array(keep))


class RejectError(ValueError):
    """Raised in decoders for a record that cannot become a row; `column` is '' when the record itself is malformed."""

    def __init__(self, column: str, reason: str) -> None:
        super().__init__(column, reason)
        self.column = column
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Reject:
    """A record that cannot become a row.

    `row` is the index of the record in the values passed to `decode`. `column` is the column that cannot store its
    value, or '' when the record itself is malformed. `head` is the first 80 bytes of the record. `record` is the whole
    record, or None when it has no value or was not retained. `index` is the position of the record in the caller's
    input when it differs from `row`; see `SerializationError`.
    """

    row: int
    column: str
    reason: str
    head: bytes
    record: bytes | None = field(default=None, repr=False)
    index: int | None = None

    @classmethod
    def of(cls, row: int, value: bytes | None, column: str, reason: str) -> Reject:
        """Create the reject of `value`, the record at index `row`."""
        return cls(row, column, reason, (value or b"")[:HEAD_BYTES], value)


@dataclass(frozen=True, slots=True)
class DecodeResult:
    """The result of `Decoder.decode`.

    The rows of all `batches` are in the order of the values; `rejects` are ordered by row. `skipped` is the number
    of tombstones that were skipped. All timestamp columns of one batch have the same unit, ns or us.
    """

    batches: list[pa.RecordBatch]
    rejects: list[Reject]
    skipped: int

    @property
    def rows(self) -> int:
        """The number of rows in all batches."""
        return sum(batch.num_rows for batch in self.batches)


class Decoder(Protocol):
    """Decodes record values into batches of a table's columns.

    A format normally extends `RecordDecoder` (record_decoder.py), which needs only a method that decodes many records
    and one that decodes a single record. A decoder may also have a method `check(value: bytes) -> Reject | None`, which
    returns the reject of one record faster than `decode` does.
    """

    def decode(self, values: Sequence[bytes | None]) -> DecodeResult:
        """Decode record values; None is a tombstone. A record that cannot be decoded is a reject, not an exception."""
        ...


FindViolations = Callable[[pa.RecordBatch], Mapping[int, tuple[str, str]]]


class ConstraintDecoder:
    """A decoder that also rejects rows that violate a constraint of the table.

    `find_violations` returns the violations in one batch: the column and the reason, by the index of the row.
    """

    def __init__(self, decoder: Decoder, find_violations: FindViolations) -> None:
        self._decoder = decoder
        self._find_violations = find_violations

    def decode(self, values: Sequence[bytes | None]) -> DecodeResult:
        """See `Decoder`."""
        decoded = self._decoder.decode(values)
        violations = [self._find_violations(batch) for batch in decoded.batches]
        if not any(violations):
            return decoded
        records = _records_of_rows(values, decoded)
        rejects, batches, start = list(decoded.rejects), [], 0
        for batch, found in zip(decoded.batches, violations, strict=True):
            for row, (column, reason) in found.items():
                record = records[start + row]
                rejects.append(Reject.of(record, values[record], column, reason))
            start += batch.num_rows
            batches.append(drop_rows(batch, found) if found else batch)
        return DecodeResult(batches, sorted(rejects, key=lambda reject: reject.row), decoded.skipped)


def _records_of_rows(values: Sequence[bytes | None], decoded: DecodeResult) -> list[int]:
    """Return, for each decoded row, the index of its record in `values`."""
    rejects = {reject.row for reject in decoded.rejects}
    return [
        index for index, value in enumerate(values) if index not in rejects and not (value is None and decoded.skipped)
    ]
