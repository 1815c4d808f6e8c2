"""Values of many records at once: the records, why some of them fail, and the arrays that values become.

A binary format reads one part of all records in each of its steps, so that all records share the cost of the step.

Invariant: the retained cause of a record's failure does not depend on the order in which its parts are read: that it is
malformed, else the first column of the table that cannot store its value. What has been read for a failed record is
undefined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from typing import overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ingestd.formats.decoder import VALUES_OF_PART, TooManyValues
from ingestd.schema import HiveType

Ints = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]
Path = Callable[[int], str]
Reason = Callable[[int], str]

MAX_VARINT = 10  # bytes
# The values in arrays and maps of a record: as many as these, or as this many per byte of the record.
MAX_VALUES, MAX_VALUES_PER_BYTE = 1 << 24, 2
TOO_MANY_VALUES = f"arrays and maps of the record have more than {MAX_VALUES:,} values, most of which are empty"
_PADDING = 16  # a word may be read behind the last record
_HIGH_BITS = np.uint64(0x8080808080808080)
_LOW_BITS = np.uint64(0x7F7F7F7F7F7F7F7F)
# Joins groups of 7 bits to groups of 14, 28 and 56: the lower and the upper groups, and the distance between them.
_JOINS = tuple(
    (np.uint64(low), np.uint64(high), np.uint64(shift))
    for low, high, shift in (
        (0x007F007F007F007F, 0x7F007F007F007F00, 1),
        (0x00003FFF00003FFF, 0x3FFF00003FFF0000, 2),
        (0x000000000FFFFFFF, 0x0FFFFFFF00000000, 4),
    )
)


class Records:
    """The records of a batch in one buffer, the unit of their timestamps (ns or us), and the causes of failures.

    `failures` contains the column ('' for a malformed record) and the reason by the index of the record. The records in
    `malformed` cannot be read further; the others in `failed` can. `coarse` are the records that have a timestamp
    outside the range of nanoseconds; `has_fine` says that a record which is neither failed nor in `coarse` has a
    timestamp that microseconds cannot represent.
    """

    def __init__(self, values: Sequence[bytes], columns: Sequence[str] = (), before: Records | None = None) -> None:
        """`columns` are the names of the table's columns in their order.

        `before` are the same records after they were read in nanoseconds: their failures remain, and those that need
        microseconds are known.
        """
        self.text = b"".join([*values, bytes(_PADDING)])
        self.data = np.frombuffer(self.text, np.uint8)
        self.sizes: Ints = np.fromiter(map(len, values), np.int64, len(values))
        self.ends: Ints = np.cumsum(self.sizes)
        self.failures: dict[int, tuple[str, str]] = {} if before is None else dict(before.failures)
        self._ranks = {name: rank for rank, name in enumerate(("", *columns))}
        # The rank of the column of each record's failure, and a higher number without a failure.
        sound = len(self._ranks)
        self._causes: Ints = np.full(len(values), sound) if before is None else before._causes.copy()
        self.failed: Mask = self._causes < sound
        self.malformed: Mask = self._causes == 0
        self.unit = "ns" if before is None else "us"
        self.coarse: Mask = np.zeros(len(values), np.bool_) if before is None else before.coarse & ~before.failed
        self.has_fine = False
        # The number of values in arrays and maps that have been found in each record, and how many it may have.
        self.value_counts: Ints = np.zeros(len(values), np.int64)
        self.values_allowed = values_allowed(self.sizes)
        self._views: dict[str, npt.NDArray[np.generic]] = {}

    def constants(self, value: bytes) -> Records:
        """Return records that all have the same value, and share the failures, timestamps and limits of these."""
        constants = copy(self)
        constants.text = value + bytes(_PADDING)
        constants.data = np.frombuffer(constants.text, np.uint8)
        constants.sizes = constants.ends = np.full(len(self.ends), len(value), np.int64)
        constants._views = {}
        return constants

    def fail(self, record: int, column: str, reason: str) -> None:
        """Store a cause of a record's failure, unless there is one of the same or of an earlier column."""
        rank = self._ranks[column]
        if rank < self._causes[record]:
            self._causes[record] = rank
            self.failed[record] = True
            self.malformed[record] = not rank
            self.failures[record] = column, reason

    def without_cause(self, records: Ints, column: str) -> Mask:
        """Return which records have no failure of this or of an earlier column ('' is before all columns)."""
        without: Mask = self._causes[records] > self._ranks[column]
        return without

    def words(self, kind: str, at: Ints) -> npt.NDArray[np.generic]:
        """Return the words of 4 or 8 bytes that begin at the given positions; `kind` is the type for numpy."""
        view = self._views.get(kind)
        if view is None:
            size = np.dtype(kind).itemsize
            count = len(self.text) - size + 1
            view = self._views[kind] = np.ndarray((count,), np.dtype(kind), self.text, strides=(1,))
        return view[at]

    def varints(self, at: Ints) -> tuple[Bits, Ints]:
        """Read the integers of variable length (7 bits per byte, the lowest first) that begin at the given positions.

        Return their lowest 64 bits and their sizes in bytes; MAX_VARINT + 1 for one that is longer than MAX_VARINT.
        """
        first = self.data[at]
        if first.max(initial=0) < 0x80:  # the usual case of tags, lengths and small numbers
            return first.astype(np.uint64), np.ones(len(at), np.int64)
        word = self.words("<u8", at).astype(np.uint64, copy=False)
        stop = ~word & _HIGH_BITS
        last = stop & (~stop + np.uint64(1))  # the lowest bit: bit 8 k - 1 if the integer has k bytes
        sizes = (np.frexp(last.astype(np.float64))[1] >> 3).astype(np.int64)
        bits = word & (last - np.uint64(1)) & _LOW_BITS
        for low, high, shift in _JOINS:
            bits = (bits & low) | ((bits & high) >> shift)
        long = np.flatnonzero(sizes == 0)
        if len(long):  # the first 8 bytes are not the last
            ninth, tenth = self.data[at[long] + 8], self.data[at[long] + 9]
            has_tenth = ninth > 0x7F
            more = (ninth & np.uint8(0x7F)).astype(np.uint64) << np.uint64(56)
            most = np.where(has_tenth, tenth & np.uint8(1), np.uint8(0)).astype(np.uint64) << np.uint64(63)
            bits[long] |= more | most
            sizes[long] = 9 + has_tenth + (has_tenth & (tenth > 0x7F))
        return bits, sizes

    def slices(self, starts: Ints, ends: Ints) -> pa.BinaryArray:
        """Return the bytes between positions."""
        count = len(starts)
        if not count:
            return pa.array([], pa.binary())
        # The bounds of failed records can descend, but Arrow requires that the last one is not below the first.
        bounds = np.zeros(2 * count + 2, np.int32)
        bounds[1:-1:2], bounds[2:-1:2], bounds[-1] = starts, ends, len(self.text)
        parts = pa.BinaryArray.from_buffers(
            pa.binary(), 2 * count + 1, [None, pa.py_buffer(bounds), pa.py_buffer(self.text)]
        )
        # Every second part is what lies between two values.
        return parts.take(pa.array(np.arange(1, 2 * count, 2, dtype=np.int64)))


class Values:
    """Values in `records`. `record` contains the index of the record of each value.

    The values belong to one `column` ('' if they are whole records); `path` returns the path of a value inside its
    column, as it is shown in reasons. `schema_kind` is the name of the format in reasons.
    """

    schema_kind = ""

    def __init__(self, records: Records, record: Ints, column: str, path: Path) -> None:
        self.records = records
        self.record = record
        self.column = column
        self.path = path

    def __len__(self) -> int:
        return len(self.record)

    def path_of_field(self, name: str) -> tuple[str, Path]:
        """Return the column and the path of the field with this name of the values."""
        if not self.column:
            return name, self.path
        return self.column, lambda index: f"{self.path(index)}.{name}"

    def path_of_items(self, owners: Ints) -> Path:
        """Return the path of items; `owners` are the indexes of the values that contain them, in order."""

        def path(index: int) -> str:
            owner = int(owners[index])
            return f"{self.path(owner)}[{index - int(np.searchsorted(owners, owner))}]"

        return path

    def _firsts(self, bad: Mask) -> list[int]:
        """Return the index of the first of the bad values in each record, of which a record can contain millions."""
        indexes = np.flatnonzero(bad)
        _, firsts = np.unique(self.record[indexes], return_index=True)
        return indexes[firsts].tolist()  # type: ignore[no-any-return]

    def reject(self, bad: Mask, reason: Reason) -> None:
        """Let the records of these values fail: their column cannot store a value. `reason` gets a value's index."""
        for index in self._firsts(bad & self.records.without_cause(self.record, self.column)):
            self.reject_at(index, reason(index))

    def reject_at(self, index: int, reason: str) -> None:
        """Let the record of the value at this index fail: its column cannot store the value."""
        path = self.path(index).removeprefix(".")
        self.records.fail(int(self.record[index]), self.column, f"{path}: {reason}" if path else reason)

    def items_within_limits(self, owners: Ints, item: HiveType) -> Mask | None:
        """Count the items of these values, and return which of them are read; None if all are.

        A record of a megabyte can contain half a million items without content, each of which is a struct of many
        columns. A record with too many values fails, and its items are not read. `owners` are the indexes of the values
        that contain the items. Raises TooManyValues if several records have too many together.
        """
        records = self.records
        records.value_counts += np.bincount(self.record[owners], minlength=len(records.ends)) * width_of(item)
        excess: Mask = records.value_counts > records.values_allowed
        if len(excess) > 1:
            read = np.where(excess, 0, records.value_counts)
            if read.sum() > VALUES_OF_PART:
                raise TooManyValues(read)
        if not excess.any():
            return None
        bad: Mask = excess[self.record]
        self.reject(bad, lambda _index: TOO_MANY_VALUES)
        return ~bad[owners]

    def malformed(self, bad: Mask, what: str) -> None:
        """Let the records of these values fail, because they are not valid data of their schema."""
        for index in self._firsts(bad & ~self.records.malformed[self.record]):
            self.malformed_at(index, what)

    def malformed_at(self, index: int, what: str) -> None:
        """Let the record of the value at this index fail, because it is not valid data of its schema."""
        path = f"{self.column}{self.path(index)}".removeprefix(".")
        where = f" in {path}" if path else ""
        self.records.fail(
            int(self.record[index]), "", f"record does not match its {self.schema_kind} schema: {what}{where}"
        )


def width_of(kind: HiveType) -> int:
    """Return the number of values that one of a type consists of, without those in arrays and maps inside of it."""
    return max(1, sum(map(width_of, kind.children))) if kind.kind == "struct" else 1


@overload
def values_allowed(sizes: int) -> int: ...
@overload
def values_allowed(sizes: Ints) -> Ints: ...
def values_allowed(sizes: int | Ints) -> int | Ints:
    """Return how many values arrays and maps of a record of this size, in bytes, or of records may have."""
    return np.maximum(MAX_VALUES, MAX_VALUES_PER_BYTE * sizes)


def grouped(keys: npt.NDArray[np.generic]) -> Iterator[Ints]:
    """Yield the indexes of equal keys, which are numbers or the rows of an array, for each distinct key in order."""
    if not len(keys):
        return
    if (keys == keys[0]).all():
        yield np.arange(len(keys))
        return
    _, places = np.unique(keys, axis=0, return_inverse=True)
    places = places.reshape(-1)
    yield from np.split(np.argsort(places, kind="stable"), np.cumsum(np.bincount(places))[:-1])


def spread(arrays: Sequence[pa.Array], places: Sequence[Ints], count: int) -> pa.Array:
    """Return an array of `count` values: those of `arrays` at their places, and null elsewhere."""
    sources = np.zeros(count, np.int64)
    missing = np.ones(count, np.bool_)
    joined = np.concatenate(places)
    sources[joined] = np.arange(len(joined))
    missing[joined] = False
    return pa.concat_arrays(arrays).take(pa.array(sources, mask=missing if len(joined) < count else None))


def offsets_of(owners: Ints, count: int) -> pa.Array:
    """Return the offsets of `count` lists, given the list of each item."""
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(np.bincount(owners, minlength=count), out=offsets[1:])
    return pa.array(offsets)


def last_of_equal(owners: Ints, keys: pa.Array) -> Ints | None:
    """Return the indexes of the entries that no later entry of the same map replaces; None if these are all."""
    codes = keys.dictionary_encode()
    pairs = owners * max(1, len(codes.dictionary)) + codes.indices.to_numpy()
    _, last = np.unique(pairs[::-1], return_index=True)
    return None if len(last) == len(pairs) else np.sort(len(pairs) - 1 - last)
