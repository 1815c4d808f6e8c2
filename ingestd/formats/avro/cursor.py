"""Reads the parts of Avro's binary encoding from many records at once.

A `Cursor` has one position per value. Each of its methods reads one part of all values and moves all positions behind
it, so the cost of a call is shared by all records.

Invariant: no position is outside its record. A part that does not lie in its record makes the record fail, and moves
its position to the end of the record; what has been read for a failed record is undefined.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ingestd.formats.values import MAX_VARINT, Ints, Mask, Path, Records, Values

MAX_DEPTH = 200
TOO_DEEP = f"values nest deeper than {MAX_DEPTH} levels"


class Cursor(Values):
    """The positions of values in `records`."""

    schema_kind = "Avro"

    def __init__(self, records: Records, at: Ints, record: Ints, column: str, path: Path, depth: int = 0) -> None:
        super().__init__(records, record, column, path)
        self.at = at
        self.depth = depth
        self._ends = records.ends[record]

    @classmethod
    def of_records(cls, records: Records, at: Ints, record: Ints) -> Cursor:
        """Return the positions of whole records."""
        return cls(records, at, record, "", lambda _index: "")

    @property
    def remaining(self) -> Ints:
        """The number of bytes from each position to the end of its record."""
        left: Ints = self._ends - self.at
        return left

    def only(self, indexes: Ints) -> Cursor:
        """Return a cursor of some of the values, which moves independently."""
        return Cursor(
            self.records,
            self.at[indexes],
            self.record[indexes],
            self.column,
            lambda index: self.path(int(indexes[index])),
            self.depth + 1,
        )

    def field(self, name: str) -> Cursor:
        """Return a cursor of the field of these values that begins at the positions."""
        return Cursor(self.records, self.at, self.record, *self.path_of_field(name), self.depth + 1)

    def constants(self, data: bytes) -> Cursor:
        """Return a cursor of the same values whose records consist of the given data."""
        records = self.records.constants(data)
        return Cursor(records, np.zeros(len(self), np.int64), self.record, self.column, self.path, self.depth)

    def items(self, at: Ints, owners: Ints) -> Cursor:
        """Return a cursor of the items of arrays or maps; `owners` are the indexes of their arrays, in order."""
        return Cursor(self.records, at, self.record[owners], self.column, self.path_of_items(owners), self.depth + 1)

    def malformed(self, bad: Mask, what: str) -> None:
        """Let the records of these values fail, and move to their ends; see `Values.malformed`."""
        super().malformed(bad, what)
        self.at = np.where(bad, self._ends, self.at)

    def advance(self, sizes: Ints | int) -> Mask | None:
        """Move behind parts of the given sizes, in bytes; return which values end before, None if none does."""
        self.at = self.at + sizes
        short: Mask = self.at > self._ends
        if not short.any():
            return None
        self.malformed(short, "the record ends")
        return short

    def varints(self) -> Ints:
        """Read a variable-length zigzag integer of each value."""
        bits, sizes = self.records.varints(self.at)
        overflows = sizes >= MAX_VARINT
        if overflows.any():
            # A record that ends before the tenth byte does not say whether there are more.
            overflows &= self.remaining >= MAX_VARINT
            overflows &= self.records.data[self.at + overflows * (MAX_VARINT - 1)] > 1
            self.malformed(overflows, "an integer has more than 10 bytes")
            sizes = np.where(overflows, 0, sizes)
        self.advance(sizes)
        numbers: Ints = ((bits >> np.uint64(1)) ^ (~(bits & np.uint64(1)) + np.uint64(1))).view(np.int64)
        return numbers

    def branches(self, count: int) -> list[Ints]:
        """Read the branch of each union; return the indexes of the values of each of its `count` branches.

        Values of malformed records are in no branch: the bytes behind their end could be read as nested values forever.
        """
        if self.depth > MAX_DEPTH:
            self.malformed(np.ones(len(self), np.bool_), TOO_DEEP)
            return [np.zeros(0, np.int64)] * count
        branches = self.varints()
        unknown = (branches < 0) | (branches >= count)
        if unknown.any():
            self.malformed(unknown, "a union has no such branch")
        if self.records.failures:
            branches = np.where(self.records.malformed[self.record], -1, branches)
        return [np.flatnonzero(branches == branch) for branch in range(count)]

    def lengths(self) -> Ints:
        """Read the length of a text, in bytes. What follows in the record is at least as long."""
        sizes = self.varints()
        negative = sizes < 0
        if negative.any():
            self.malformed(negative, "a length is negative")
            sizes = np.where(negative, 0, sizes)
        return np.minimum(sizes, self.remaining + 1)  # enough to fail, and too small to overflow

    def slices(self, sizes: Ints | int) -> pa.BinaryArray:
        """Read bytes of the given sizes."""
        starts = self.at
        short = self.advance(sizes)
        if short is not None:
            starts = np.where(short, self.at, starts)
        return self.records.slices(starts, self.at)
