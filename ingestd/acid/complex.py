"""Prepares complex columns for pyarrow's ORC writer.

liborc writes the children of a struct to the wrong rows if a struct around it is null and the inner struct is not
(seen in Arrow 26). Every row is such a child, because Hive's events contain the struct `row`.

Invariant: an array that `push_nulls` returns equals its input, and the fields of a null struct in it are null.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Mask = npt.NDArray[np.bool_]


def push_nulls(array: pa.Array) -> pa.Array:
    """Return the array with the nulls of each struct repeated in all its fields, at any depth."""
    return _pushed(array, None) if _has_null_struct(array) else array


def rows_with(array: pa.Array, find: Callable[[pa.Array], Mask | None]) -> Mask | None:
    """Return a mask of the rows in which `find` finds a primitive value, at any depth; None if there are none.

    `find` gets an array of a primitive type and returns a mask of its values, or None.
    """
    if not pa.types.is_nested(array.type):
        return find(array)
    if pa.types.is_struct(array.type):
        return either([rows_with(field, find) for field in _fields(array)])
    values = [array.keys, array.items] if pa.types.is_map(array.type) else [array.values]
    mask = either([rows_with(part, find) for part in values])
    if mask is None:
        return None
    before = np.concatenate(([0], np.cumsum(mask)))
    offsets = array.offsets.to_numpy()
    rows: Mask = before[offsets[1:]] > before[offsets[:-1]]
    return rows if rows.any() else None


def either(masks: list[Mask | None]) -> Mask | None:
    """Return the union of the masks, None if there are none."""
    union: Mask | None = None
    for mask in masks:
        if mask is not None:
            union = mask if union is None else union | mask
    return union


def _has_null_struct(array: pa.Array) -> bool:
    if not pa.types.is_nested(array.type):
        return False
    if pa.types.is_struct(array.type):
        return bool(array.null_count) or any(map(_has_null_struct, _fields(array)))
    return _has_null_struct(array.items if pa.types.is_map(array.type) else array.values)


def _pushed(array: pa.Array, above: Mask | None) -> pa.Array:
    """Return the array with additional nulls where `above` is true."""
    kind = array.type
    if not pa.types.is_nested(kind):
        return array if above is None else pc.if_else(pa.array(above), pa.scalar(None, kind), array)
    nulls = _nulls(array, above)
    mask = None if nulls is None else pa.array(nulls)
    if pa.types.is_struct(kind):
        return pa.StructArray.from_arrays([_pushed(f, nulls) for f in _fields(array)], fields=list(kind), mask=mask)
    offsets = pa.array(array.offsets.to_numpy())  # a mask cannot be combined with the offsets of a slice
    if pa.types.is_map(kind):
        return pa.MapArray.from_arrays(offsets, array.keys, _pushed(array.items, None), type=kind, mask=mask)
    return pa.ListArray.from_arrays(offsets, _pushed(array.values, None), type=kind, mask=mask)


def _nulls(array: pa.Array, above: Mask | None) -> Mask | None:
    own: Any = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    return either([own, above])


def _fields(array: pa.StructArray) -> list[pa.Array]:
    """Return the fields of a struct, which may be valid where the struct is null."""
    return [array.field(index) for index in range(array.type.num_fields)]
