"""What is requested from pyarrow's JSON reader for the fields of records, and the conversion of what it has read.

Invariant: a converted value equals the result of `nested.converter`, or is reported as not converted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ingestd.formats.json.nested import primitive
from ingestd.formats.json.types import PrimitiveType, where
from ingestd.formats.record_decoder import NotColumnar
from ingestd.formats.row_batches import arrow_of
from ingestd.schema import Column, HiveType

Mask = npt.NDArray[np.bool_]

# What is requested for the values of each kind of JSON, by its name in pyarrow's messages.
_OTHERS = {"string": pa.string(), "number": pa.float64(), "boolean": pa.bool_()}
_MOST_DIGITS = 38
_ELEMENT = "[]"  # the name of the elements of an array in pyarrow's messages


@dataclass(frozen=True, slots=True)
class Converted:
    """Values of a field, and which of them contain one that was not converted or that cannot be stored; None for none.

    Those values are undefined.
    """

    array: pa.Array
    lost: Mask | None
    refused: Mask | None


class ArrowField:
    """A column, a field of a struct, or the elements of an array. `spelling` is its name in the records.

    A map is requested as a struct without fields, because pyarrow's reader has no maps. A field is requested as text,
    as numbers or as booleans if the values of a topic are, even if none of them can be stored: pyarrow then reads the
    other fields.
    """

    def __init__(self, name: str, kind: HiveType) -> None:
        self.name = self.spelling = name
        self.kind = kind
        names = {"struct": kind.names, "array": (_ELEMENT,)}.get(kind.kind, ())
        self.fields = tuple(map(ArrowField, names, kind.children))
        self._leaf = None if kind.is_complex else primitive(kind)
        self._requested_instead: pa.DataType | None = None

    @classmethod
    def of(cls, columns: Sequence[Column]) -> ArrowField:
        """Return the field that stands for a record with these columns."""
        kinds, names = tuple(column.type for column in columns), tuple(column.name for column in columns)
        return cls("", HiveType("struct", children=kinds, names=names))

    @property
    def arrow(self) -> pa.DataType:
        """The type that is requested from pyarrow."""
        if self._requested_instead is not None:
            return self._requested_instead
        if self._leaf:
            return pa.string() if self._leaf.read_as_text else self.kind.arrow
        fields = [pa.field(field.spelling, field.arrow) for field in self.fields]
        return pa.list_(fields[0].type) if self.kind.kind == "array" else pa.struct(fields)

    def leaves(self) -> Iterator[HiveType]:
        """Yield the primitive types of the field, at any depth."""
        if self._leaf:
            yield self.kind
        for field in self.fields:
            yield from field.leaves()

    def spellings(self) -> list[str]:
        """Return the names in the records of the fields inside of this one, at any depth."""
        names = [] if self.kind.kind == "array" else [field.spelling for field in self.fields]
        return names + [name for field in self.fields for name in field.spellings()]

    def spell(self, value: object) -> None:
        """Adopt the names in a JSON value of the field."""
        if self.kind.kind == "array":
            for item in value if isinstance(value, list) else ():
                self.fields[0].spell(item)
        elif isinstance(value, dict):
            # Not the Kelvin sign, whose lower case is ASCII: records with a "k" would have another spelling.
            spelled = {name.lower(): name for name in value if name.isascii() or not name.lower().isascii()}
            for field in self.fields:
                field.spelling = spelled.get(field.name, field.spelling)
                field.spell(value.get(field.spelling))

    def at(self, path: str) -> ArrowField | None:
        """Return the field at a path such as `items/[]/count` of pyarrow's messages, None if there is none."""
        name, _, rest = path.partition("/")
        inner = next((field for field in self.fields if field.spelling == name), None)
        return inner.at(rest) if inner and rest else inner

    def request(self, json_kind: str) -> bool:
        """Request values of the kind of JSON that pyarrow has found; return False if that does not help."""
        if self.kind.kind == "map" or (self._leaf and self._leaf.stores_json):
            return False
        is_own = json_kind == self._json_kind
        other = None if is_own else _OTHERS.get(json_kind)
        if other == self._requested_instead or (other is None and not is_own):
            return False
        self._requested_instead = other
        return True

    def request_floats(self) -> None:
        """Request the numbers of an integer or a decimal as floating-point numbers, because pyarrow refuses some."""
        self._requested_instead = _OTHERS["number"]

    def drop_floats(self) -> bool:
        """Undo all calls of `request_floats`, also those of the fields inside; return whether there were any."""
        dropped = [field.drop_floats() for field in self.fields]
        if self._requested_instead != _OTHERS["number"] or self._json_kind != "number":
            return any(dropped)
        self._requested_instead = None
        return True

    def numbers(self) -> Iterator[ArrowField]:
        """Yield the fields, at any depth, that are requested as integers or decimals."""
        if pa.types.is_integer(self.arrow) or pa.types.is_decimal(self.arrow):
            yield self
        for field in self.fields if self._requested_instead is None else ():
            yield from field.numbers()

    @property
    def _json_kind(self) -> str:
        if self._leaf is None:
            return "array" if self.kind.kind == "array" else "object"
        if self._leaf.read_as_text:
            return "string"
        return "boolean" if self.kind.kind == "boolean" else "number"

    @property
    def _refuses_all(self) -> bool:
        """Whether no value can be stored of those that are requested."""
        if self._requested_instead is None or pa.types.is_string(self._requested_instead):
            return self._requested_instead is not None and self._leaf is None
        return pa.types.is_boolean(self._requested_instead) or self._json_kind != "number"

    def count(self, array: pa.Array, names: Collection[str]) -> int:
        """Return how many values other than null the fields of these names have, among this field and those inside.

        `names` are in lower case, and `array` is what pyarrow has read for this field.
        """
        count = len(array) - array.null_count if self.spelling.lower() in names else 0
        if self._requested_instead is not None:
            return count
        if self.kind.kind == "array":
            return count + self.fields[0].count(array.values, names)
        return count + sum(field.count(array.field(place), names) for place, field in enumerate(self.fields))

    def convert(self, array: pa.Array, unit: str) -> Converted:
        """Convert values that pyarrow has read; timestamps get the unit, ns or us. Raises NotColumnar."""
        arrow = arrow_of(self.kind, unit)
        if self._refuses_all:
            return Converted(pa.nulls(len(array), arrow), None, _mask(array.is_valid()))
        if self._leaf:
            return self._convert_leaf(self._leaf, array, unit)
        mask = array.is_null() if array.null_count else None
        if self.kind.kind == "struct":
            parts = [field.convert(array.field(place), unit) for place, field in enumerate(self.fields)]
            struct = pa.StructArray.from_arrays([part.array for part in parts], fields=list(arrow), mask=mask)
            return Converted(struct, _any([part.lost for part in parts]), _any([part.refused for part in parts]))
        values, offsets = self.fields[0].convert(array.values, unit), array.offsets
        lost, refused = (_in_lists(mask, offsets.to_numpy()) for mask in (values.lost, values.refused))
        return Converted(pa.ListArray.from_arrays(offsets, values.array, type=arrow, mask=mask), lost, refused)

    def _convert_leaf(self, leaf: PrimitiveType, array: pa.Array, unit: str) -> Converted:
        if pa.types.is_floating(array.type) and not pa.types.is_floating(self.kind.arrow):
            # Each may be the nearest to several numbers that fit.
            refused = _mask(leaf.refused_floats(array))
            return Converted(pa.nulls(len(array), self.kind.arrow), _mask(array.is_valid()) & ~refused, refused)
        converted = self._primitive(leaf, array, unit)
        if converted.null_count == array.null_count:
            return Converted(converted, None, None)
        lost = _mask(pc.and_(array.is_valid(), converted.is_null()))
        if not pa.types.is_string(array.type):  # out of range, or NaN, which is not JSON
            return Converted(converted, None, lost)
        refused = lost & _mask(leaf.refused(array))
        return Converted(converted, lost & ~refused, refused)

    def _primitive(self, leaf: PrimitiveType, array: pa.Array, unit: str) -> pa.Array:
        """Convert primitive values. One that is not converted becomes null."""
        if self.kind.kind == "timestamp":
            return leaf.decided(array, unit)
        try:
            return leaf.column(array)
        except (NotColumnar, pa.ArrowInvalid):
            if pa.types.is_string(array.type):
                return leaf.decided(array, unit)
            if pa.types.is_floating(array.type):
                return where(pc.is_finite(array), array)
            if pa.types.is_decimal(array.type) and self.kind.precision < _MOST_DIGITS:
                wide = pa.decimal128(_MOST_DIGITS, self.kind.scale)
                limit = pa.scalar(Decimal(10) ** (self.kind.precision - self.kind.scale), wide)
                digits = pa.Array.from_buffers(wide, len(array), array.buffers(), offset=array.offset)
                return where(pc.less(pc.abs(digits), limit), array)
            raise NotColumnar from None


def _mask(values: pa.BooleanArray) -> Mask:
    mask: Mask = values.to_numpy(zero_copy_only=False)
    return mask


def _any(masks: Sequence[Mask | None]) -> Mask | None:
    given = [mask for mask in masks if mask is not None]
    return np.logical_or.reduce(given) if given else None


def _in_lists(mask: Mask | None, offsets: npt.NDArray[np.int32]) -> Mask | None:
    """Return which lists contain a value of the mask."""
    if mask is None:
        return None
    before = np.concatenate(([0], np.cumsum(mask)))
    inside: Mask = before[offsets[1:]] > before[offsets[:-1]]
    return inside
