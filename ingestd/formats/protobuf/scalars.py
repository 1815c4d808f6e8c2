"""Reads the values of fields that are not messages, from the bytes that a scan has found.

Invariant: a value is the one that Google's parsers read. Integers are truncated to the bits of their type.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ingestd.formats.conversions import (
    TEXTS,
    Convert,
    after,
    as_it_is,
    integer_to_decimal,
    sized,
    to_boolean,
    to_float,
    to_integer,
    to_text,
)
from ingestd.formats.protobuf.scan import BYTES, FIXED32, FIXED64, GROUP, VARINT, Place, Tokens
from ingestd.formats.protobuf.schema import ProtoEnum, ProtoField, Scalar
from ingestd.formats.values import MAX_VARINT, Bits, Ints, Records, Values
from ingestd.schema import INTEGER_BITS, HiveType

_WORD = np.uint64(2**32 - 1)
_ONE = np.uint64(1)
_WORDS = {"fixed32": "<u4", "sfixed32": "<i4", "float": "<f4", "fixed64": "<u8", "sfixed64": "<i8", "double": "<f8"}
_FLOATS = ("float", "double")
_CUT = "a packed field ends inside a value"


def _int32(bits: Bits) -> Ints:
    return bits.view(np.int64).astype(np.int32).astype(np.int64)


def _zigzag(bits: Bits) -> Ints:
    numbers: Ints = ((bits >> _ONE) ^ (~(bits & _ONE) + _ONE)).view(np.int64)
    return numbers


_INTEGERS: dict[str, Callable[[Bits], Any]] = {
    "int32": _int32,
    "int64": lambda bits: bits.view(np.int64),
    "uint32": lambda bits: (bits & _WORD).view(np.int64),
    "uint64": lambda bits: bits,
    "sint32": lambda bits: _zigzag(bits & _WORD),
    "sint64": _zigzag,
    "bool": lambda bits: (bits != 0).astype(np.uint8),
    "enum": _int32,
}


@dataclass(frozen=True, slots=True)
class Leaf:
    """How values of one type of fields are read: the wire type, and the conversion to the Hive type.

    `numbers` are those of a closed enum; a field with another number is as if it were unknown.
    """

    kind: str
    wire: int
    convert: Convert
    default: Scalar
    numbers: Ints | None

    @property
    def wires(self) -> tuple[int, ...]:
        """The wire types of a repeated field: numbers may be packed, whatever the schema says."""
        return (self.wire,) if self.wire == BYTES else (self.wire, BYTES)

    def known(self, tokens: Tokens) -> Tokens:
        """Return the occurrences whose numbers a closed enum has; all for other types."""
        return _known(tokens, self.numbers)

    def read(self, records: Records, tokens: Tokens) -> Any:
        """Return the values: a numpy array of numbers, or an array of bytes."""
        if self.wire == BYTES:
            return records.slices(tokens.starts, tokens.ends)
        if self.kind in _INTEGERS:
            return _INTEGERS[self.kind](tokens.bits)
        words = records.words(_WORDS[self.kind], tokens.starts)
        kind = words.dtype.newbyteorder("=") if self.kind in (*_FLOATS, "fixed64") else np.dtype(np.int64)
        return words.astype(kind, copy=False)

    def filled(self, values: Any, owners: Ints, count: int) -> Any:
        """Return `count` values: those of `owners`, and the default elsewhere."""
        if isinstance(values, np.ndarray):
            numbers = np.full(count, self.default, values.dtype)
            numbers[owners] = values
            return numbers
        sources = np.full(count, len(values))
        sources[owners] = np.arange(len(values))
        return pa.concat_arrays([values, pa.array([self.default], values.type)]).take(pa.array(sources))

    def unpacked(self, place: Place, tokens: Tokens) -> Tokens:
        """Return an occurrence for each value of packed fields. `place` are the messages."""
        if (tokens.wires == self.wire).all():
            return tokens
        return (
            _varints(place, tokens) if self.wire == VARINT else _fixed(place, tokens, 8 if self.wire == FIXED64 else 4)
        )


def leaf_of(field: ProtoField, hive: HiveType) -> Leaf | None:
    """Return how a field is read that is not a message; None if the Hive type cannot store it."""
    convert = _conversion(field.kind, field.enum, hive)
    if convert is None or field.message:
        return None
    default = 0 if field.default is None else field.default  # a repeated field has none, and needs none
    return Leaf(field.kind, wire_of(field), convert, default, _numbers(field.enum))


def wire_of(field: ProtoField) -> int:
    """Return the wire type of a single value of a field."""
    if field.message or field.kind in ("string", "bytes"):
        return GROUP if field.kind == "group" else BYTES
    if field.kind in _WORDS:
        return FIXED32 if _WORDS[field.kind].endswith("4") else FIXED64
    return VARINT


def wires_of(field: ProtoField) -> tuple[int, ...]:
    """Return the wire types of a field: repeated numbers may be packed, whatever the schema says."""
    wire = wire_of(field)
    return (wire, BYTES) if field.is_repeated and wire not in (BYTES, GROUP) else (wire,)


def usable(field: ProtoField, tokens: Tokens) -> Tokens:
    """Return the occurrences of a field that is not repeated which parsers do not skip as unknown fields."""
    return _known(tokens.of_wires(wire_of(field)), _numbers(field.enum))


def _numbers(enum: ProtoEnum | None) -> Ints | None:
    """Return the numbers of a closed enum, None for all other types."""
    return np.array(list(enum.names), np.int64) if enum and enum.is_closed else None


def _known(tokens: Tokens, numbers: Ints | None) -> Tokens:
    if numbers is None:
        return tokens
    known = np.isin(_int32(tokens.bits), numbers)
    return tokens if known.all() else tokens.only(known)


def _conversion(kind: str, enum: ProtoEnum | None, hive: HiveType) -> Convert | None:
    if kind in ("string", "bytes"):
        return as_it_is if hive.kind == "binary" else to_text(hive) if hive.kind in TEXTS else None
    if kind == "bool":
        return to_boolean if hive.kind == "boolean" else None
    if kind in _FLOATS:
        return to_float(hive) if hive.kind in _FLOATS else None
    if enum and hive.kind not in INTEGER_BITS:
        return after(_names(enum), sized(hive)) if hive.kind in TEXTS else None
    return _of_integer(hive, is_unsigned=kind in ("uint64", "fixed64"))


def _of_integer(hive: HiveType, *, is_unsigned: bool) -> Convert | None:
    """Return the conversion of integers; `is_unsigned` says that they have 64 bits and no sign."""
    if hive.kind in INTEGER_BITS:
        return _signed(hive) if is_unsigned else to_integer(hive)
    if hive.kind in _FLOATS:
        return to_float(hive)
    return integer_to_decimal(hive) if hive.kind == "decimal" else None


def _signed(hive: HiveType) -> Convert:
    """Return the conversion of unsigned integers of 64 bits to integers."""
    convert = to_integer(hive)

    def signed(numbers: Bits, place: Values) -> pa.Array:
        integers = numbers.view(np.int64)
        bad = integers < 0
        if bad.any():
            place.reject(bad, lambda index: f"{numbers[index]} is out of range for {hive}")
            integers = np.where(bad, 0, integers)
        return convert(integers, place)

    return signed


def _names(enum: ProtoEnum) -> Convert:
    """Return the conversion of the numbers of an enum to its names; to text for numbers without a name."""
    numbers = np.array(sorted(enum.names), np.int64)
    names = pa.array([enum.names[number] for number in numbers.tolist()], pa.string())

    def convert(values: Ints, _place: Values) -> pa.Array:
        places = np.minimum(np.searchsorted(numbers, values), len(numbers) - 1)
        unnamed = numbers[places] != values
        texts = names.take(pa.array(places))
        return pc.if_else(pa.array(unnamed), pc.cast(pa.array(values), pa.string()), texts) if unnamed.any() else texts

    return convert


def _varints(place: Place, tokens: Tokens) -> Tokens:
    """Find the integers of variable length in fields; one that is not packed is a field of a single integer."""
    records = place.records
    sizes = tokens.ends - tokens.starts
    bounds = np.cumsum(sizes)
    at = np.repeat(tokens.starts - (bounds - sizes), sizes) + np.arange(sizes.sum())
    is_last = records.data[at] < 0x80
    filled = sizes > 0
    cut = np.zeros(len(tokens), np.bool_)
    cut[filled] = ~is_last[bounds[filled] - 1]
    if cut.any():
        _fail(place, tokens, cut)
        return _varints(place, tokens.only(~cut))
    sources = np.repeat(np.arange(len(tokens)), sizes)[is_last]
    ends = at[is_last] + 1
    starts = np.empty_like(ends)
    starts[1:] = ends[:-1]
    is_first = np.ones(len(ends), np.bool_)
    is_first[1:] = sources[1:] != sources[:-1]
    starts[is_first] = tokens.starts[sources[is_first]]
    bits, found_sizes = records.varints(starts)
    long = found_sizes > MAX_VARINT
    if long.any():
        bad = np.zeros(len(tokens), np.bool_)
        bad[sources[long]] = True
        _fail(place, tokens, bad, "an integer has more than 10 bytes")
    return Tokens(tokens.owners[sources], np.full(len(ends), VARINT), bits, starts, ends)


def _fixed(place: Place, tokens: Tokens, size: int) -> Tokens:
    """Find the numbers of a fixed size in fields."""
    sizes = tokens.ends - tokens.starts
    cut = sizes % size != 0
    if cut.any():
        _fail(place, tokens, cut)
    counts = sizes // size
    sources = np.repeat(np.arange(len(tokens)), counts)
    ranks = np.arange(len(sources)) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = tokens.starts[sources] + ranks * size
    wire = FIXED64 if size == 8 else FIXED32
    bits = np.zeros(len(sources), np.uint64)
    return Tokens(tokens.owners[sources], np.full(len(sources), wire), bits, starts, starts + size)


def _fail(place: Place, tokens: Tokens, bad: np.ndarray[Any, Any], reason: str = _CUT) -> None:
    messages = np.zeros(len(place), np.bool_)
    messages[tokens.owners[bad]] = True
    place.malformed(messages, reason)
