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

    `weights` contains the bytes between items, each with the most values of such an item with one item in each array
    inside of it, and `first_values` is the most values of a field without any of these bytes.
    """

    weights: tuple[tuple[int, int], ...]
    first_values: int

    @classmethod
    def of(cls, kind: HiveType, syntax: FieldSyntax) -> FieldLimit | None:
        """Return the limit of a column; None if its items are not more values than bytes."""
        weights: dict[int, int] = {}
        for separator, collection in _separators(kind, syntax.separators, 1):
            weights[separator] = max(weights.get(separator, 0), _item_values(collection))
        first_values = sum(map(_item_values, _outer(kind)))
        return cls(tuple(weights.items()), first_values) if max(weights.values(), default=0) > 1 else None

    def of_size(self, size: int) -> int:
        """Return a number that is not below those of all fields of this size."""
        return self.first_values + size * max(weight for _, weight in self.weights)

    def of_field(self, field: bytes | None) -> int:
        """Return the most values in a field, None or empty if it has none."""
        if not field:
            return 0
        return self.first_values + sum(field.count(separator) * weight for separator, weight in self.weights)

    def of_fields(self, fields: pa.BinaryArray) -> Ints:
        """Return the same for many fields; null is a field without values."""
        values = pa.array([self.first_values] * len(fields), pa.int64())
        for separator, weight in self.weights:
            count = pc.count_substring(fields, bytes((separator,))).cast(pa.int64())
            values = pc.add(values, pc.multiply(count, weight))
        values = pc.if_else(pc.equal(pc.binary_length(fields), 0), 0, values).fill_null(0)
        counts: Ints = values.to_numpy(zero_copy_only=False)
        return counts


def _outer(kind: HiveType) -> Iterator[HiveType]:
    """Yield the arrays and maps of a type that are not inside of others."""
    if kind.kind in ("array", "map"):
        yield kind
    else:
        for child in kind.children:
            yield from _outer(child)


def _item_values(kind: HiveType) -> int:
    item = kind.children[-1]
    return width_of(item) + sum(map(_item_values, _outer(item)))


def _separators(kind: HiveType, by_level: bytes, level: int) -> Iterator[tuple[int, HiveType]]:
    """Yield the arrays and maps of a type with the byte between their items.

    `level` has the meaning that it has in `values.reader`.
    """
    if kind.kind in ("array", "map"):
        yield by_level[level], kind
    used = {"map": 2}.get(kind.kind, 1)
    for child in kind.children:
        yield from _separators(child, by_level, level + used)
