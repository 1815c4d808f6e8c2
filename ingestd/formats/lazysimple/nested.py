"""Decodes whole columns of arrays, maps and structs, one level after the other.

All elements of a level are one column, which is split and converted like a column of fields.

Invariant: every value equals the result of the type's `values.reader` for the same field, and the reason of a field is
that of its first element which makes the record a reject.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ingestd.formats.lazysimple.primitives import Reasons, bytes_of, each, primitive_column
from ingestd.formats.lazysimple.values import TEXT_KINDS, FieldSyntax, reader
from ingestd.formats.record_decoder import MixedTimestamps, NotColumnar
from ingestd.formats.row_batches import has_timestamp
from ingestd.schema import INTEGER_BITS, HiveType

ReadColumn = Callable[[pa.Array], tuple[pa.Array, Reasons]]
"""Converts a binary column, whose nulls are NULL, and returns the reasons of rejects.

Timestamps inside complex values are in nanoseconds. Raises NotColumnar if that, or one unit, does not fit all.
"""
Places = npt.NDArray[np.int64]

_KEYS = (*TEXT_KINDS, *INTEGER_BITS, "boolean", "date")  # Arrow finds equal keys of these types as Python does


def column_reader(kind: HiveType, syntax: FieldSyntax, level: int = 1) -> ReadColumn:
    """Return a function that converts columns as `values.reader` converts fields; `level` has the same meaning."""
    read = reader(kind, syntax, level)
    if not kind.is_complex:
        return lambda array: primitive_column(kind, array, read, syntax.escape)
    used = 2 if kind.kind == "map" else 1
    children = [_nullable(column_reader(child, syntax, level + used), syntax.null) for child in kind.children]
    separators = syntax.separators[level : level + used]
    by_level = {"array": _array, "map": _map, "struct": _struct}[kind.kind](kind, children, separators)
    has_other_keys = kind.kind == "map" and kind.children[0].kind not in _KEYS

    def convert(array: pa.Array) -> tuple[pa.Array, Reasons]:
        if has_other_keys or (syntax.escape is not None and syntax.escape in bytes_of(array)):
            if has_timestamp(kind):
                raise NotColumnar
            return each(kind, array, read)
        return by_level(array)

    return convert


def _nullable(convert: ReadColumn, null: bytes | None) -> ReadColumn:
    """Return a conversion of elements: the NULL text is NULL, and timestamps are in nanoseconds."""

    def convert_elements(array: pa.Array) -> tuple[pa.Array, Reasons]:
        if null is not None and null in bytes_of(array):
            array = pc.if_else(pc.equal(array, pa.scalar(null, pa.binary())), pa.scalar(None, pa.binary()), array)
        try:
            values, reasons = convert(array)
        except MixedTimestamps:  # it names elements, not records
            raise NotColumnar from None
        if pa.types.is_timestamp(values.type) and values.type.unit != "ns":
            raise NotColumnar
        return values, reasons

    return convert_elements


def _array(kind: HiveType, children: Sequence[ReadColumn], separators: bytes) -> ReadColumn:
    (convert_element,) = children

    def convert(array: pa.Array) -> tuple[pa.Array, Reasons]:
        elements, owners, offsets = _elements(array, separators[0])
        values, reasons = convert_element(elements)
        lists = pa.ListArray.from_arrays(offsets, values, type=kind.arrow, mask=_mask(array))
        return lists, _first(owners, reasons)

    return convert


def _struct(kind: HiveType, children: Sequence[ReadColumn], separators: bytes) -> ReadColumn:
    def convert(array: pa.Array) -> tuple[pa.Array, Reasons]:
        parts = pc.split_pattern(array, bytes(separators))
        offsets = parts.offsets.to_numpy()
        fields, reasons = [], Reasons()
        for index, convert_field in enumerate(children):
            places = offsets[:-1] + index
            field = parts.values.take(pa.array(places, mask=places >= offsets[1:]))
            values, of_field = convert_field(field)
            fields.append(values)
            reasons = of_field | reasons
        return pa.StructArray.from_arrays(fields, fields=list(kind.arrow), mask=_mask(array)), reasons

    return convert


def _map(kind: HiveType, children: Sequence[ReadColumn], separators: bytes) -> ReadColumn:
    convert_key, convert_value = children

    def convert(array: pa.Array) -> tuple[pa.Array, Reasons]:
        entries, owners, _ = _elements(array, separators[0])
        parts = pc.split_pattern(entries, separators[1:], max_splits=1)
        starts, ends = parts.offsets.to_numpy()[:-1], parts.offsets.to_numpy()[1:]
        keys, bad_keys = convert_key(parts.values.take(pa.array(starts)))
        kept = _first_of_equal(owners, keys)
        places = starts[kept] + 1
        values, bad_values = convert_value(parts.values.take(pa.array(places, mask=places >= ends[kept])))
        # The value of an entry is read after its key.
        reasons = {2 * entry: reason for entry, reason in bad_keys.items()}
        reasons |= {2 * int(kept[index]) + 1: reason for index, reason in bad_values.items()}
        offsets = _offsets(np.bincount(owners[kept], minlength=len(array)))
        maps = pa.MapArray.from_arrays(offsets, keys.take(pa.array(kept)), values, type=kind.arrow, mask=_mask(array))
        return maps, _first(np.repeat(owners, 2), reasons)

    return convert


def _elements(array: pa.Array, separator: int) -> tuple[pa.Array, Places, pa.Array]:
    """Return the elements of all fields, the index of the field of each, and the offsets; an empty field has none."""
    filled = pc.if_else(pc.equal(pc.binary_length(array), 0), pa.scalar(None, array.type), array)
    parts = pc.split_pattern(filled, bytes((separator,)))
    counts = np.diff(parts.offsets.to_numpy())
    return parts.flatten(), np.repeat(np.arange(len(array)), counts), _offsets(counts)


def _offsets(counts: npt.NDArray[np.integer]) -> pa.Array:
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    return pa.array(offsets)


def _mask(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def _first(owners: Places, reasons: Reasons) -> Reasons:
    """Return the reason of each field, which is that of its first element with one."""
    of_fields = Reasons()
    for element in sorted(reasons):
        of_fields.setdefault(int(owners[element]), reasons[element])
    return of_fields


def _first_of_equal(owners: Places, keys: pa.Array) -> Places:
    """Return the indexes of the entries that have a key and are the first of their field with that key."""
    valid = np.flatnonzero(keys.is_valid().to_numpy(zero_copy_only=False))
    codes = keys.dictionary_encode()
    pairs = owners[valid] * max(1, len(codes.dictionary)) + codes.indices.to_numpy(zero_copy_only=False)[valid]
    _, first = np.unique(pairs, return_index=True)
    return valid[np.sort(first)]
