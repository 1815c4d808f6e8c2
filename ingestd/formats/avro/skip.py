"""Finds the end of Avro values without reading their content, and the items of arrays and maps.

Invariant: the cost of a call is bounded by the size of the records, whatever counts they contain.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from ingestd.formats.avro.cursor import MAX_DEPTH, TOO_DEEP, Cursor
from ingestd.formats.avro.schema import AvroType
from ingestd.formats.values import Ints

_TOO_MANY = "a block has more items than the record can contain"
_ENDS = "the record ends"
_LARGER_THAN_ANY = 1 << 40  # more bytes than a record of Kafka can have, and few enough for sums of 64 bits
_NO_CONTENT = "an array has items without content"
_FIXED_SIZES = {"null": 0, "boolean": 1, "float": 4, "double": 8}
# Values are read one by one if there are fewer than this: numpy has a fixed cost per call.
_FEW = 16


class Malformed(ValueError):
    """A single value is not valid Avro data; the text is the reason."""


class Skip(ABC):
    """Moves behind values of one type."""

    @property
    def smallest(self) -> int:
        """The least number of bytes of a value."""
        return 1

    @property
    def size(self) -> int | None:
        """The number of bytes of a value if all values have the same, otherwise None."""
        return None

    @abstractmethod
    def skip(self, cursor: Cursor) -> None:
        """Move the cursor behind its values."""

    @abstractmethod
    def end(self, data: bytes, at: int, end: int, depth: int) -> int:
        """Return the end of one value that begins at `at`. Raises Malformed if it does not end before `end`."""


class _SkipFixed(Skip):
    def __init__(self, size: int) -> None:
        self._size = size

    @property
    def smallest(self) -> int:
        return self._size

    @property
    def size(self) -> int:
        return self._size

    def skip(self, cursor: Cursor) -> None:
        if self._size:
            cursor.advance(self._size)

    def end(self, data: bytes, at: int, end: int, depth: int) -> int:
        return _checked(at + self._size, end)


class _SkipInteger(Skip):
    def skip(self, cursor: Cursor) -> None:
        cursor.varints()

    def end(self, data: bytes, at: int, end: int, depth: int) -> int:
        return _integer(data, at, end)[1]


class _SkipText(Skip):
    def skip(self, cursor: Cursor) -> None:
        cursor.advance(cursor.lengths())

    def end(self, data: bytes, at: int, end: int, depth: int) -> int:
        size, at = _integer(data, at, end)
        if size < 0:
            raise Malformed("a length is negative")
        return _checked(at + size, end)


class _SkipRecord(Skip):
    def __init__(self) -> None:
        self.fields: Sequence[Skip] = ()  # set later, because a record can contain itself

    @cached_property
    def smallest(self) -> int:
        return min(sum(field.smallest for field in self.fields), _LARGER_THAN_ANY)

    @cached_property
    def size(self) -> int | None:
        sizes = [field.size for field in self.fields]
        return None if None in sizes else min(sum(size for size in sizes if size is not None), _LARGER_THAN_ANY)

    def skip(self, cursor: Cursor) -> None:
        if self.size is not None:
            cursor.advance(self.size)
            return
        short = cursor.remaining < self.smallest
        if short.any():  # a schema of a few lines can have more fields than any record has bytes
            cursor.malformed(short, _ENDS)
            if short.all():
                return
        for field in self.fields:
            levels = self._levels_to(field)
            cursor.depth += levels
            field.skip(cursor)
            cursor.depth -= levels

    def end(self, data: bytes, at: int, end: int, depth: int) -> int:
        if self.size is not None:
            return _checked(at + self.size, end)
        _checked(at + self.smallest, end)
        for field in self.fields:
            at = field.end(data, at, end, depth + self._levels_to(field))
        return at

    @staticmethod
    def _levels_to(field: Skip) -> int:
        """Return the levels of a field: a record in a record uses Python's stack as well; others count themselves."""
        return int(isinstance(field, _SkipRecord))


class _SkipUnion(Skip):
    def __init__(self, branches: Sequence[Skip]) -> None:
        self._branches = branches

    def skip(self, cursor: Cursor) -> None:
        if len(cursor) < _FEW:  # in a tree, each node is a call
            self._skip_each(cursor)
            return
        for branch, indexes in zip(self._branches, cursor.branches(len(self._branches)), strict=True):
            if len(indexes) and branch.size != 0:
                part = cursor.only(indexes)
                branch.skip(part)
                cursor.at[indexes] = part.at

    def end(self, data: bytes, at: int, end: int, depth: int) -> int:
        if depth > MAX_DEPTH:
            raise Malformed(TOO_DEEP)
        branch, at = _integer(data, at, end)
        if not 0 <= branch < len(self._branches):
            raise Malformed("a union has no such branch")
        return self._branches[branch].end(data, at, end, depth + 1)

    def _skip_each(self, cursor: Cursor) -> None:
        ends = cursor.records.ends[cursor.record]
        at = cursor.at.copy()
        for index in np.flatnonzero(~cursor.records.malformed[cursor.record]).tolist():
            try:
                at[index] = self.end(cursor.records.text, int(at[index]), int(ends[index]), cursor.depth)
            except Malformed as error:  # noqa: PERF203
                cursor.malformed(np.arange(len(cursor)) == index, str(error))
                at[index] = ends[index]
        cursor.at = at


class _SkipItems(Skip):
    def __init__(self, item: Skip, *, is_map: bool) -> None:
        self._items = ItemFinder(item, is_map=is_map)

    def skip(self, cursor: Cursor) -> None:
        self._items.find(cursor)

    def end(self, data: bytes, at: int, end: int, depth: int) -> int:
        return self._items.end(data, at, end, depth)


class ItemFinder:
    """Finds the items of arrays or maps. An item of a map begins with its key."""

    def __init__(self, item: Skip, *, is_map: bool) -> None:
        self._item: Skip = item
        if is_map:
            entry = _SkipRecord()
            entry.fields = (_SkipText(), item)
            self._item = entry

    def find(self, cursor: Cursor) -> tuple[Ints, Ints]:
        """Move the cursor behind its arrays; return the position of each item and the index of its array, in order."""
        cursor.at = cursor.at.copy()  # others may hold the array, and it is changed in place
        starts: list[Ints] = []
        owners: list[Ints] = []
        open_arrays = np.arange(len(cursor))
        if cursor.depth > MAX_DEPTH:
            cursor.malformed(np.ones(len(cursor), np.bool_), TOO_DEEP)
        while len(open_arrays):
            block = cursor.only(open_arrays)
            counts = self._counts(block)
            if self._item.size is None:
                self._walk(block, counts, open_arrays, starts, owners)
            else:
                self._stride(block, counts, open_arrays, starts, owners)
            cursor.at[open_arrays] = block.at
            open_arrays = open_arrays[(counts > 0) & ~cursor.records.malformed[block.record]]
        if not starts:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        all_owners = np.concatenate(owners)
        order = np.argsort(all_owners, kind="stable")
        return np.concatenate(starts)[order], all_owners[order]

    def end(self, data: bytes, at: int, end: int, depth: int) -> int:
        """See `Skip.end`."""
        if depth > MAX_DEPTH:
            raise Malformed(TOO_DEEP)
        count = 1
        while count:
            count, at = _integer(data, at, end)
            if count < 0:
                _, at = _integer(data, at, end)
                count = -count
            if count and not self._item.smallest:
                raise Malformed(_NO_CONTENT)
            if count and count > (end - at) // self._item.smallest:
                raise Malformed(_TOO_MANY)
            for _ in range(count):
                at = self._item.end(data, at, end, depth + 2)
        return at

    def _counts(self, block: Cursor) -> Ints:
        """Read the header of a block of each array; return the number of its items."""
        counts = block.varints()
        negative = np.flatnonzero(counts < 0)
        if len(negative):  # then the size of the block follows
            sized = block.only(negative)
            sized.varints()
            block.at[negative] = sized.at
            counts[negative] = -counts[negative]
        if self._item.smallest:
            # The smallest integer remains negative without its sign.
            block.malformed((counts > block.remaining // self._item.smallest) | (counts < 0), _TOO_MANY)
        else:
            block.malformed(counts != 0, _NO_CONTENT)
        counts[block.records.malformed[block.record]] = 0
        return counts

    def _stride(self, block: Cursor, counts: Ints, arrays: Ints, starts: list[Ints], owners: list[Ints]) -> None:
        """Find items of equal size."""
        size = self._item.smallest
        ranks = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        starts.append(np.repeat(block.at, counts) + ranks * size)
        owners.append(np.repeat(arrays, counts))
        block.advance(counts * size)

    def _walk(self, block: Cursor, counts: Ints, arrays: Ints, starts: list[Ints], owners: list[Ints]) -> None:
        """Find items of any size: the first ones of all arrays, then the second ones, and so on."""
        left = counts.copy()
        indexes = np.flatnonzero(left)
        while len(indexes) >= _FEW:
            part = block.only(indexes)
            starts.append(part.at)
            owners.append(arrays[indexes])
            self._item.skip(part)
            block.at[indexes] = part.at
            left[indexes] -= 1
            indexes = indexes[(left[indexes] > 0) & ~block.records.malformed[part.record]]
        for index in indexes.tolist():
            self._walk_one(block, index, int(left[index]), starts)
            owners.append(np.full(len(starts[-1]), arrays[index]))

    def _walk_one(self, block: Cursor, index: int, count: int, starts: list[Ints]) -> None:
        """Find the items of one array."""
        at, end = int(block.at[index]), int(block.records.ends[block.record[index]])
        items: list[int] = []
        try:
            for _ in range(count):
                items.append(at)
                at = self._item.end(block.records.text, at, end, block.depth + 1)
        except Malformed as error:
            block.malformed(np.arange(len(block)) == index, str(error))
            at = end
        block.at[index] = at
        starts.append(np.array(items, np.int64))


def skip_of(kind: AvroType, known: dict[AvroType, Skip] | None = None) -> Skip:
    """Return the `Skip` of a type. `known` contains those of records, which a type can contain several times."""
    known = {} if known is None else known
    if kind.kind in _FIXED_SIZES or kind.kind == "fixed":
        return _SkipFixed(_FIXED_SIZES.get(kind.kind, kind.size))
    if kind.kind in ("bytes", "string"):
        return _SkipText()
    if kind.kind in ("int", "long", "enum"):
        return _SkipInteger()
    if kind.kind == "union":
        return _SkipUnion([skip_of(branch, known) for branch in kind.children])
    if kind.kind in ("array", "map"):
        return _SkipItems(skip_of(kind.children[0], known), is_map=kind.kind == "map")
    if kind not in known:
        record = _SkipRecord()
        known[kind] = record
        record.fields = [skip_of(field.type, known) for field in kind.fields]
    return known[kind]


def _integer(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Read one variable-length zigzag integer; return it and its end."""
    bits = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        bits |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            if bits >> 64:
                break
            return (bits >> 1) ^ -(bits & 1), at
    raise Malformed(_ENDS if at >= end and shift < 70 else "an integer has more than 10 bytes")


def _checked(at: int, end: int) -> int:
    if at > end:
        raise Malformed(_ENDS)
    return at
