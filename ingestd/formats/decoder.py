"""The contract of all decoders: they convert record values to Arrow batches, and reject what they cannot convert.

Invariant: each value passed to `Decoder.decode` becomes rows (one, unless its format has records of any number of
rows), one reject, or one skipped tombstone. A column contains exactly the value in the record, by the rules of its
format. If a column cannot store its value, the record is a reject, and none of its rows remains.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import eq
from typing import Protocol, TypeVar, cast, overload, runtime_checkable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ingestd.errors import IngestdError, encodable
from ingestd.schema import Column

HEAD_BYTES = 80
NEWLINE = 0x0A
# The most values in the rows of a part of a batch, unless it is one record; they need about 64 MiB.
VALUES_OF_PART = 1 << 23
_TOO_MANY = "the record has too many values"

T = TypeVar("T")
V = TypeVar("V")


class Lines(Sequence[bytes]):
    """Records stored in one buffer, `text`, separated by newlines.

    The buffer is split only when a record is accessed. `join_lines`, `total_bytes` and `without_tombstones` do not
    access records, so a decoder that reads the whole buffer never pays for the split.
    """

    def __init__(self, text: bytes) -> None:
        self.text = text
        self._count = 1 + int(np.count_nonzero(np.frombuffer(text, np.uint8) == NEWLINE))
        self._records: list[bytes] | None = None

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


def is_utf8(value: bytes) -> bool:
    """Return whether the bytes are a text in UTF-8."""
    try:
        return value.isascii() or bool(value.decode())
    except UnicodeDecodeError:
        return False


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
        self.reason = encodable(reason)


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
        return cls(row, column, encodable(reason), (value or b"")[:HEAD_BYTES], value)


class FalseReject(IngestdError):
    """A decoder has rejected a record of a batch that has a row if it is decoded alone; a defect of the decoder."""

    @classmethod
    def of(cls, value: bytes, where: str = "") -> FalseReject:
        """Create the error of a record."""
        return cls(
            f"the record, which starts with {value[:HEAD_BYTES]!r}, is a reject in its batch, but not alone",
            where=where,
            hint="this is a defect of ingestd: please report it with the record and the columns of the table",
        )


class LazyRejects(Sequence[Reject]):
    """Rejects that are created when they are read, each time anew.

    `rows` are the indexes of their records, in ascending order, and `create` returns the reject of one of them. If all
    records of a topic are rejects, their reasons cost more than decoding them, and most are never read.
    """

    def __init__(self, rows: NDArray[np.int64], create: Callable[[int], Reject]) -> None:
        self.rows = rows
        self._create = create

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> Reject: ...
    @overload
    def __getitem__(self, index: slice) -> list[Reject]: ...
    def __getitem__(self, index: int | slice) -> Reject | list[Reject]:
        if isinstance(index, slice):
            return list(map(self._create, self.rows[index].tolist()))
        return self._create(int(self.rows[index]))

    def __iter__(self) -> Iterator[Reject]:
        return map(self._create, self.rows.tolist())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(eq, self, other))

    __hash__ = None  # type: ignore[assignment]  # like that of a list

    def __repr__(self) -> str:
        return repr(list(self))


def with_places(rejects: Sequence[Reject], place_of: Callable[[int], str]) -> Sequence[Reject]:
    """Return rejects whose FalseReject, raised when one is read, says where its record is; `place_of` gets the row."""
    if not isinstance(rejects, LazyRejects):
        return rejects
    rows = rejects.rows

    def create(row: int) -> Reject:
        try:
            return rejects[int(np.searchsorted(rows, row))]
        except FalseReject as error:
            raise FalseReject(error.what, where=place_of(row), hint=error.hint) from None

    return LazyRejects(rows, create)


def rejected_rows(rejects: Sequence[Reject]) -> NDArray[np.int64]:
    """Return the indexes of the records of rejects."""
    if isinstance(rejects, LazyRejects):
        return rejects.rows
    return np.fromiter((reject.row for reject in rejects), np.int64, len(rejects))


@dataclass(frozen=True, slots=True)
class DecodeResult:
    """The result of `Decoder.decode`.

    `rejects` are ordered by record. `skipped` is the number of tombstones that were skipped. All timestamp columns of
    one batch have the same unit, ns or us. `records` contains, for each row of all `batches`, the index of its record
    in the values. None means that the rows are in the order of the values, one for each that is neither a reject nor
    skipped.
    """

    batches: list[pa.RecordBatch]
    rejects: Sequence[Reject]
    skipped: int
    records: NDArray[np.int64] | None = None

    @property
    def rows(self) -> int:
        """The number of rows in all batches."""
        return sum(batch.num_rows for batch in self.batches)

    def records_of_rows(self, values: Sequence[bytes | None]) -> NDArray[np.int64]:
        """Return, for each row, the index of its record in `values`, the values passed to `decode`."""
        if self.records is not None:
            return self.records
        remains = np.ones(len(values), np.bool_)
        remains[rejected_rows(self.rejects)] = False
        if self.skipped:
            remains[[index for index, value in enumerate(values) if value is None]] = False
        return np.flatnonzero(remains)

    def without(self, rejects: Collection[Reject], values: Sequence[bytes | None]) -> DecodeResult:
        """Return the result without the rows of these records, which become rejects; `values` were passed to `decode`.

        None of the records may already be a reject.
        """
        if not rejects:
            return self
        added = {reject.row: reject for reject in rejects}
        batches, records = self._rows_without(np.fromiter(added, np.int64, len(added)), values)
        return DecodeResult(batches, self._rejects_with(added), self.skipped, None if self.records is None else records)

    def with_rejects(self, rejects: LazyRejects, values: Sequence[bytes | None]) -> DecodeResult:
        """Return the result with these rejects only, and without the rows of their records."""
        batches, records = self._rows_without(rejects.rows, values)
        return DecodeResult(batches, rejects, self.skipped, records)

    def _rows_without(
        self, refused: NDArray[np.int64], values: Sequence[bytes | None]
    ) -> tuple[list[pa.RecordBatch], NDArray[np.int64]]:
        """Return the rows of all other records, and the records of these rows."""
        records = self.records_of_rows(values)
        is_kept = np.ones(len(values), np.bool_)
        is_kept[refused] = False
        kept = is_kept[records]
        batches, start = [], 0
        for batch in self.batches:
            mask = kept[start : start + batch.num_rows]
            start += batch.num_rows
            if mask.any():
                batches.append(batch if mask.all() else batch.filter(pa.array(mask)))
        return batches, records[kept]

    def _rejects_with(self, added: Mapping[int, Reject]) -> Sequence[Reject]:
        """Return the rejects and those that are added, by their records."""
        rejects = self.rejects  # and not the batches, which would be kept as long as the rejects
        before = rejected_rows(rejects)

        def create(row: int) -> Reject:
            return added[row] if row in added else rejects[int(np.searchsorted(before, row))]

        return LazyRejects(np.union1d(before, np.fromiter(added, np.int64, len(added))), create)


class TooManyValues(Exception):
    """Raised by `Decoder.decode` for several records whose rows have so many values that they must be decoded in parts.

    A few bytes of a record can be as many values as a table, or a struct in it, has columns. `counts` contains the
    number of values of each record, or a higher number.
    """

    def __init__(self, counts: NDArray[np.int64]) -> None:
        super().__init__()
        self.counts = counts

    def parts(self) -> Iterator[slice]:
        """Divide the records into parts of at most VALUES_OF_PART values, or of one record."""
        totals = np.cumsum(self.counts)
        first, before = 0, 0
        while first < len(totals):
            end = max(first + 1, int(np.searchsorted(totals, before + VALUES_OF_PART, side="right")))
            yield slice(first, end)
            first, before = end, int(totals[end - 1])


def in_parts(count: int, decode: Callable[[slice], T]) -> Iterator[T]:
    """Decode `count` records in parts whose memory is limited, and yield the result of each part, in order.

    `decode` decodes one part, at first all records. It may raise TooManyValues for several records.
    """
    waiting = [slice(0, count)]
    while waiting:
        part = waiting.pop()
        try:
            decoded = decode(part)
        except TooManyValues as many:
            waiting += reversed(_smaller(part, many))
        else:
            yield decoded


def _smaller(part: slice, many: TooManyValues) -> list[slice]:
    """Return the parts of a part: halves if the counts, which may be those of a custom decoder, do not divide it.

    Raises TooManyValues if the part is one record.
    """
    size = part.stop - part.start
    if size <= 1:
        raise many
    parts = list(many.parts()) if len(many.counts) == size else []
    if len(parts) < 2:
        parts = [slice(0, size // 2), slice(size // 2, size)]
    return [slice(part.start + inner.start, part.start + inner.stop) for inner in parts]


def decode_or_reject(decode: Callable[[Sequence[V]], DecodeResult], values: Sequence[V]) -> DecodeResult:
    """Decode values with `Decoder.decode`. One record for which it raises TooManyValues is a reject.

    Raises TooManyValues for several records.
    """
    try:
        return decode(values)
    except TooManyValues:
        if len(values) != 1:
            raise
    return DecodeResult([], [Reject.of(0, cast(bytes | None, values[0]), "", _TOO_MANY)], 0)


def decode_in_parts(
    decode: Callable[[Sequence[V]], DecodeResult], values: Sequence[V]
) -> Iterator[tuple[int, Sequence[V], DecodeResult]]:
    """Decode values with `Decoder.decode`; yield the index of the first value of each part, its values, the result."""

    def decode_part(part: slice) -> tuple[int, Sequence[V], DecodeResult]:
        of_part = values if part == slice(0, len(values)) else values[part]  # `Lines` remain what they are
        return part.start, of_part, decode_or_reject(decode, of_part)

    return in_parts(len(values), decode_part)


class Decoder(Protocol):
    """Decodes record values into batches of a table's columns.

    A format normally extends `RecordDecoder` (record_decoder.py), which needs only a method that decodes many records
    and one that decodes a single record. A decoder may also have a method `check(value: bytes) -> Reject | None`, which
    returns the reject of one record faster than `decode` does.
    """

    def decode(self, values: Sequence[bytes | None]) -> DecodeResult:
        """Decode record values; None is a tombstone. A record that cannot be decoded is a reject, not an exception.

        May raise TooManyValues for several values (`decode_in_parts`).
        """
        ...


@runtime_checkable
class Evolving(Protocol):
    """A decoder that knows the fields of the records that it has decoded, from their schemas or from their values."""

    def needed_columns(self, values: Sequence[bytes], others: Collection[str]) -> tuple[Column, ...]:
        """Return the columns that can store all fields of these records and of those of earlier calls.

        All of them have been decoded. The columns are in the order of the fields, and a name may occur repeatedly. A
        type may be incomplete; see `HiveType.known`.

        `others` are the columns of the table that are not decoded: fields with their names need no column.
        Raises InvalidTable for a field without a column that no column can store.
        """
        ...


# Returns the violations in one batch: the column and the reason, by the index of the row.
FindViolations = Callable[[pa.RecordBatch], Mapping[int, tuple[str, str]]]


def without_violations(
    decoded: DecodeResult, values: Sequence[bytes | None], find_violations: FindViolations
) -> DecodeResult:
    """Return the result of decoding `values` without the records that have a violation, which become rejects.

    The reject of a record names its first violation.
    """
    violations = [find_violations(batch) for batch in decoded.batches]
    if not any(violations):
        return decoded
    records = decoded.records_of_rows(values)
    rejects: dict[int, Reject] = {}
    start = 0
    for batch, of_batch in zip(decoded.batches, violations, strict=True):
        for row in sorted(of_batch):
            record = int(records[start + row])
            rejects.setdefault(record, Reject.of(record, values[record], *of_batch[row]))
        start += batch.num_rows
    return decoded.without(rejects.values(), values)


class ConstraintDecoder:
    """A decoder that also rejects records with a row that violates a constraint of the table."""

    def __init__(self, decoder: Decoder, find_violations: FindViolations) -> None:
        self._decoder = decoder
        self._find_violations = find_violations

    def decode(self, values: Sequence[bytes | None]) -> DecodeResult:
        """See `Decoder`."""
        return without_violations(self._decoder.decode(values), values, self._find_violations)
