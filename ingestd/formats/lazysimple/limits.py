"""How many values the arrays and maps of a field may have, which is known before it is decoded.

Invariant: arrays and maps have at most the number of values that `FieldLimit` returns, and it depends only on the bytes
of the field.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from ingestd.formats.lazysimple.values import FieldSyntax
from ingestd.formats.values import Ints, width_of
from ingestd.schema import HiveType


@dataclass(frozen=True, slots=True)
class FieldLimit:
    """Counts the items in fields of a column, each of which may be one byte and a struct of many columns.

    `separators` are the bytes between items. `first_items` is the number of items in a field without any, and
    `item_values` the most values of an item with one item in each array inside of it.
    """

    separators: bytes
    first_items: int
    item_values: int

    @classmethod
    def of(cls, kind: HiveType, syntax: FieldSyntax) -> FieldLimit | None:
        """Return the limit of a column; None if its items are not more values than bytes."""
        item_values = max(map(_item_values, _collections(kind)), default=0)
        separators = bytes(sorted(set(_separators(kind, syntax.separators, 1))))
        return cls(separators, len(list(_outer(kind))), item_values) if item_values > 1 else None

    def of_size(self, size: int) -> int:
        """Return a number that is not below those of all fields of this size."""
        return (self.first_items + size) * self.item_values

    def of_field(self, field: bytes | None) -> int:
        """Return the most values in a field, None or empty if it has none."""
        return self.of_size(sum(map(field.count, self.separators))) if field else 0

    def of_fields(self, fields: pa.BinaryArray) -> Ints:
        """Return the same for many fields; null is a field without values."""
        items = pa.array([self.first_items] * len(fields), pa.int64())
        for separator in self.separators:
            items = pc.add(items, pc.count_substring(fields, bytes((separator,))))
        items = pc.if_else(pc.equal(pc.binary_length(fields), 0), 0, items).fill_null(0)
        counts: Ints = items.to_numpy(zero_copy_only=False) * self.item_values
        return counts


def _outer(kind: HiveType) -> Iterator[HiveType]:
    """Yield the arrays and maps of a type that are not inside of others."""
    if kind.kind in ("array", "map"):
        yield kind
    else:
        for child in kind.children:
            yield from _outer(child)


def _collections(kind: HiveType) -> Iterator[HiveType]:
    """Yield all arrays and maps of a type."""
    if kind.kind in ("array", "map"):
        yield kind
    for child in kind.children:
        yield from _collections(child)


def _item_values(kind: HiveType) -> int:
    item = kind.children[-1]
    return width_of(item) + sum(map(_item_values, _outer(item)))


def _separators(kind: HiveType, by_level: bytes, level: int) -> Iterator[int]:
    """Yield the separators of items; `level` has the meaning that it has in `values.reader`."""
    if kind.kind in ("array", "map"):
        yield by_level[level]
    used = {"map": 2}.get(kind.kind, 1)
    for child in kind.children:
        yield from _separators(child, by_level, level + used)
