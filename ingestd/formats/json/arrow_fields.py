"""What is requested from pyarrow's JSON reader for the fields of records, and the conversion of what it has read.

Invariant: a converted value equals the result of `nested.converter`, or is reported as not converted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ingestd.formats.json.nested import primitive
from ingestd.formats.json.types import where
from ingestd.formats.record_decoder import NotColumnar
from ingestd.formats.row_batches import arrow_of
from ingestd.schema import Column, HiveType

Mask = npt.NDArray[np.bool_]

_ELEMENT = "[]"  # the name of the elements of an array in pyarrow's messages


class ArrowField:
    """A column, a field of a struct, or the elements of an array. `spelling` is its name in the records.

    A map is requested as a struct without fields, because pyarrow's reader has no maps.
    """

    def __init__(self, name: str, kind: HiveType) -> None:
        self.name = self.spelling = name
        self.kind = kind
        names = {"struct": kind.names, "array": (_ELEMENT,)}.get(kind.kind, ())
        self.fields = tuple(map(ArrowField, names, kind.children))
        self._leaf = None if kind.is_complex else primitive(kind)
        self._is_quoted = False

    @classmethod
    def of(cls, columns: Sequence[Column]) -> ArrowField:
        """Return the field that stands for a record with these columns."""
        kinds, names = tuple(column.type for column in columns), tuple(column.name for column in columns)
        return cls("", HiveType("struct", children=kinds, names=names))

    @property
    def arrow(self) -> pa.DataType:
        """The type that is requested from pyarrow."""
        if self._leaf:
            return pa.string() if self._leaf.read_as_text or self._is_quoted else self.kind.arrow
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

    def switch_quotes(self, *, quoted: bool) -> bool:
        """Request the field as text, or as its own type; return False if that does not help."""
        if self._leaf is None or self._leaf.read_as_text or quoted == self._is_quoted:
            return False
        self._is_quoted = quoted
        return True

    def count(self, array: pa.Array, names: Collection[str]) -> int:
        """Return how many values other than null the fields of these names have, among this field and those inside.

        `names` are in lower case, and `array` is what pyarrow has read for this field.
        """
        count = len(array) - array.null_count if self.spelling.lower() in names else 0
        if self.kind.kind == "array":
            return count + self.fields[0].count(array.values, names)
        return count + sum(field.count(array.field(place), names) for place, field in enumerate(self.fields))

    def convert(self, array: pa.Array, unit: str) -> tuple[pa.Array, Mask | None]:
        """Convert values that pyarrow has read; timestamps get the unit, ns or us.

        Also returns which of the values contain one that was not converted; None if there are none. Raises NotColumnar.
        """
        if self._leaf:
            converted = self._primitive(array, unit)
            if converted.null_count == array.null_count:
                return converted, None
            lost: Mask = pc.and_(array.is_valid(), converted.is_null()).to_numpy(zero_copy_only=False)
            return converted, lost
        mask = array.is_null() if array.null_count else None
        arrow = arrow_of(self.kind, unit)
        if self.kind.kind == "struct":
            pairs = [field.convert(array.field(place), unit) for place, field in enumerate(self.fields)]
            losses = [loss for _, loss in pairs if loss is not None]
            struct = pa.StructArray.from_arrays([part for part, _ in pairs], fields=list(arrow), mask=mask)
            return struct, np.logical_or.reduce(losses) if losses else None
        values, loss = self.fields[0].convert(array.values, unit)
        if loss is not None:
            before, offsets = np.concatenate(([0], np.cumsum(loss))), array.offsets.to_numpy()
            loss = before[offsets[1:]] > before[offsets[:-1]]
        return pa.ListArray.from_arrays(array.offsets, values, type=arrow, mask=mask), loss

    def _primitive(self, array: pa.Array, unit: str) -> pa.Array:
        """Convert primitive values. One that is not converted becomes null."""
        assert self._leaf is not None
        if self.kind.kind == "timestamp":
            return self._leaf.decided(array, unit)
        try:
            return self._leaf.column(array)
        except (NotColumnar, pa.ArrowInvalid):
            if pa.types.is_string(array.type):
                return self._leaf.decided(array, unit)
            if pa.types.is_floating(array.type):
                return where(pc.is_finite(array), array)
            raise NotColumnar from None
