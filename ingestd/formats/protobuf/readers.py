"""Reads Protobuf messages into Arrow arrays of Hive types; a reader is compiled for each pair of a field and a type.

Invariant: the cost of a reader is that of its numpy and Arrow calls. No value becomes a Python object, except JSON
text, and to tell why it is a reject.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from ingestd.formats.conversions import TEXTS
from ingestd.formats.protobuf.scalars import Leaf, leaf_of, usable, wire_of, wires_of
from ingestd.formats.protobuf.scan import BYTES, Messages, Place, Tokens, joined, scan
from ingestd.formats.protobuf.schema import ProtoField, ProtoType
from ingestd.formats.protobuf.well_known import (
    DATE,
    DECIMAL,
    TEXT_MESSAGES,
    TIMESTAMP,
    check_text,
    read_dates,
    read_decimals,
    read_text,
    read_timestamps,
)
from ingestd.formats.row_batches import arrow_of
from ingestd.formats.values import Ints, Mask, last_of_equal, offsets_of, spread
from ingestd.schema import INTEGER_BITS, HiveType

_KEYS = (*TEXTS, *INTEGER_BITS, "boolean")
_WRAPPED = ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
_WRAPPERS = frozenset(f"google.protobuf.{kind}Value" for kind in _WRAPPED)


class FieldReader(ABC):
    """Reads one field of messages into arrays of one Hive type."""

    @abstractmethod
    def read(self, tokens: Tokens, place: Place) -> pa.Array:
        """Return one value per message. `place` is the field of these messages, `tokens` are its occurrences."""

    def check(self, tokens: Tokens, place: Place) -> None:  # noqa: B027 - most values have no parts
        """Let the records fail in which messages are malformed: parsers read those as well that others replace."""


class MessageReader(ABC):
    """Reads messages of one type into arrays of one Hive type."""

    @abstractmethod
    def read(self, messages: Messages) -> pa.Array:
        """Return one value per message."""

    @abstractmethod
    def check(self, messages: Messages) -> None:
        """Let the records fail in which messages are malformed. Each message consists of one part."""


class _Unfit(FieldReader):
    """Rejects all values, because the Hive type cannot store the type of the field."""

    def __init__(self, field: ProtoField, hive: HiveType) -> None:
        self._field, self._hive = field, hive

    def read(self, tokens: Tokens, place: Place) -> pa.Array:
        bad = np.full(len(place), not self._field.nullable)
        bad[tokens.owners] = True
        reason = f"a value of the Protobuf type {self._field} cannot be stored in {self._hive}"
        place.reject(bad, lambda _index: reason)
        return pa.nulls(len(place), arrow_of(self._hive, place.records.unit))


class _Scalar(FieldReader):
    def __init__(self, leaf: Leaf, hive: HiveType, *, nullable: bool) -> None:
        self._leaf, self._hive, self._nullable = leaf, hive, nullable

    def read(self, tokens: Tokens, place: Place) -> pa.Array:
        tokens = self._leaf.known(tokens.of_wires(self._leaf.wire)).last()
        count = len(place)
        if not len(tokens) and self._nullable:
            return pa.nulls(count, arrow_of(self._hive, place.records.unit))
        values = self._leaf.read(place.records, tokens)
        if len(tokens) == count:
            return self._leaf.convert(values, place)
        if self._nullable:
            return spread([self._leaf.convert(values, place.only(tokens.owners))], [tokens.owners], count)
        return self._leaf.convert(self._leaf.filled(values, tokens.owners, count), place)


class _Scalars(FieldReader):
    """Reads repeated fields that are not messages."""

    def __init__(self, leaf: Leaf, hive: HiveType) -> None:
        self._leaf, self._hive = leaf, hive

    def read(self, tokens: Tokens, place: Place) -> pa.Array:
        tokens = self._leaf.known(self._leaf.unpacked(place, tokens.of_wires(*self._leaf.wires)))
        items = self._leaf.convert(self._leaf.read(place.records, tokens), place.items(tokens.owners))
        arrow = arrow_of(self._hive, place.records.unit)
        return pa.ListArray.from_arrays(offsets_of(tokens.owners, len(place)), items, type=arrow)


class _Message(FieldReader):
    """Reads a field that is a message; its occurrences in a message are merged.

    If it is `always` present, it is an empty message without an occurrence, otherwise NULL.
    """

    def __init__(self, wire: int, reader: MessageReader, hive: HiveType, *, always: bool = False) -> None:
        self._wire, self._reader, self._hive, self._always = wire, reader, hive, always

    def read(self, tokens: Tokens, place: Place) -> pa.Array:
        tokens = tokens.of_wires(self._wire)
        if self._always:
            return self._reader.read(Messages(place, tokens.starts, tokens.ends, tokens.owners))
        if not len(tokens):
            return pa.nulls(len(place), arrow_of(self._hive, place.records.unit))
        owners, parts = np.unique(tokens.owners, return_inverse=True)
        if len(owners) == len(place):
            return self._reader.read(Messages(place, tokens.starts, tokens.ends, parts))
        present = self._reader.read(Messages(place.only(owners), tokens.starts, tokens.ends, parts))
        return spread([present], [owners], len(place))

    def check(self, tokens: Tokens, place: Place) -> None:
        tokens = tokens.of_wires(self._wire)
        self._reader.check(_each(tokens, place.only(tokens.owners)))


class _Messages(FieldReader):
    """Reads repeated messages."""

    def __init__(self, wire: int, reader: MessageReader, hive: HiveType) -> None:
        self._wire, self._reader, self._hive = wire, reader, hive

    def read(self, tokens: Tokens, place: Place) -> pa.Array:
        tokens = _items(tokens.of_wires(self._wire), place, self._hive.children[0])
        items = Messages(place.items(tokens.owners), tokens.starts, tokens.ends, np.arange(len(tokens)))
        arrow = arrow_of(self._hive, place.records.unit)
        return pa.ListArray.from_arrays(offsets_of(tokens.owners, len(place)), self._reader.read(items), type=arrow)

    def check(self, tokens: Tokens, place: Place) -> None:
        tokens = tokens.of_wires(self._wire)
        self._reader.check(_each(tokens, place.items(tokens.owners)))


class _Map(FieldReader):
    """Reads maps, which are repeated messages with a key and a value. The last of equal keys wins."""

    def __init__(self, entry: ProtoType, key: FieldReader, value: FieldReader, hive: HiveType) -> None:
        self._entry, self._key, self._value, self._hive = entry, key, value, hive

    def read(self, tokens: Tokens, place: Place) -> pa.Array:
        tokens = _items(tokens.of_wires(BYTES), place, self._hive.children[1])
        entries = place.items(tokens.owners)
        fields = scan(Messages(entries, tokens.starts, tokens.ends, np.arange(len(tokens))), (1, 2))
        keys = self._key.read(fields[1], entries)
        values = self._value.read(fields[2], entries)
        owners = tokens.owners
        if keys.null_count:  # of failed records
            keys = keys.fill_null("")
        unknown = self._unknown(fields[2])
        if len(unknown):
            known = np.ones(len(entries), np.bool_)
            known[unknown] = False
            keys, values, owners = keys.filter(pa.array(known)), values.filter(pa.array(known)), owners[known]
        keep = last_of_equal(owners, keys)
        if keep is not None:
            keys, values, owners = keys.take(keep), values.take(keep), owners[keep]
        arrow = arrow_of(self._hive, place.records.unit)
        return pa.MapArray.from_arrays(offsets_of(owners, len(place)), keys, values, type=arrow)

    def check(self, tokens: Tokens, place: Place) -> None:
        tokens = tokens.of_wires(BYTES)
        entries = place.items(tokens.owners)
        self._value.check(scan(_each(tokens, entries), (1, 2))[2], entries)

    def _unknown(self, values: Tokens) -> Ints:
        """Return the entries that are unknown fields, because a value is not a number of a closed enum."""
        field = self._entry.fields[1]
        if not field.enum:
            return np.zeros(0, np.int64)
        values = values.of_wires(wire_of(field))
        unknown: Ints = np.setdiff1d(values.starts, usable(field, values).starts)
        return values.owners[np.isin(values.starts, unknown)]


class StructReader(MessageReader):
    """Reads the fields of a message that are fields of the struct."""

    def __init__(self, proto: ProtoType, hive: HiveType) -> None:
        self._hive = hive
        fields = [field_of(proto.fields, name) for name in hive.names]
        self._readers = [
            None if field is None else (field.number, field_reader(field, child))
            for field, child in zip(fields, hive.children, strict=True)
        ]
        oneofs = {field.oneof for field in fields if field and field.oneof}
        self._oneofs = [[field for field in proto.fields if field.oneof == oneof] for oneof in sorted(oneofs)]
        self._wanted = {field.number for field in fields if field}
        self._wanted |= {field.number for members in self._oneofs for field in members}

    @property
    def absent(self) -> frozenset[str]:
        """The fields of the struct that are no fields of the messages."""
        pairs = zip(self._hive.names, self._readers, strict=True)
        return frozenset(name for name, numbered in pairs if numbered is None)

    def read(self, messages: Messages) -> pa.StructArray:
        """See `MessageReader`."""
        return self.build(messages.place, self.find(messages))

    def find(self, messages: Messages) -> dict[int, Tokens]:
        """Return the occurrences of the fields that are read, by their numbers."""
        return scan(messages, self._wanted)

    def build(self, place: Place, tokens: dict[int, Tokens]) -> pa.StructArray:
        """Return one struct per message, from what `find` returned."""
        arrow = arrow_of(self._hive, place.records.unit)
        for members in self._oneofs:
            last = _only_last(members, tokens)
            self._check_replaced(tokens, last, place)
            tokens |= last
        arrays = [
            pa.nulls(len(place), field.type)
            if numbered is None
            else numbered[1].read(tokens[numbered[0]], place.field(name))
            for name, numbered, field in zip(self._hive.names, self._readers, arrow, strict=True)
        ]
        return pa.StructArray.from_arrays(arrays, fields=list(arrow))

    def check(self, messages: Messages) -> None:
        """See `MessageReader`."""
        self._check(self.find(messages), messages.place)

    def _check(self, tokens: Mapping[int, Tokens], place: Place) -> None:
        for name, numbered in zip(self._hive.names, self._readers, strict=True):
            if numbered is not None and numbered[0] in tokens:
                numbered[1].check(tokens[numbered[0]], place.field(name))

    def _check_replaced(self, tokens: Mapping[int, Tokens], last: Mapping[int, Tokens], place: Place) -> None:
        """Let the records fail in which a member of a oneof that is replaced is malformed."""
        replaced = {
            number: tokens[number].only(~np.isin(tokens[number].starts, remaining.starts))
            for number, remaining in last.items()
            if len(remaining) < len(tokens[number])
        }
        if replaced:
            self._check(replaced, place)


class _Wrapper(MessageReader):
    """Reads messages of which only the field with the number 1 is stored, such as google.protobuf.Int64Value."""

    def __init__(self, value: FieldReader) -> None:
        self._value = value

    def read(self, messages: Messages) -> pa.Array:
        return self._value.read(scan(messages, (1,))[1], messages.place)

    def check(self, messages: Messages) -> None:
        scan(messages, ())


class _WellKnown(MessageReader):
    """Reads messages of one value with a function of `well_known`."""

    def __init__(self, read: Callable[[Messages], pa.Array]) -> None:
        self._read = read

    def read(self, messages: Messages) -> pa.Array:
        return self._read(messages)

    def check(self, messages: Messages) -> None:
        scan(messages, ())


class _Text(MessageReader):
    def __init__(self, name: str, hive: HiveType) -> None:
        self._name, self._hive = name, hive

    def read(self, messages: Messages) -> pa.Array:
        return read_text(messages, self._name, self._hive)

    def check(self, messages: Messages) -> None:
        check_text(messages, self._name)


def _each(tokens: Tokens, place: Place) -> Messages:
    """Return each occurrence as a message; `place` are these occurrences."""
    return Messages(place, tokens.starts, tokens.ends, np.arange(len(tokens)))


def unknown_messages(proto: ProtoType, messages: Messages, tokens: Mapping[int, Tokens]) -> Ints:
    """Return the indexes of messages that have fields, all of which parsers skip as unknown fields of this type.

    `tokens` contains the occurrences of some of its fields. Each message consists of one part.
    """
    has_none = _without_fields(proto, tokens, len(messages.place))
    rest = np.flatnonzero(has_none & (messages.starts < messages.ends))
    if not len(rest):
        return rest
    parts = Messages(messages.place.only(rest), messages.starts[rest], messages.ends[rest], np.arange(len(rest)))
    numbers = [field.number for field in proto.fields]
    return rest[_without_fields(proto, scan(parts, numbers), len(rest))]


def _without_fields(proto: ProtoType, tokens: Mapping[int, Tokens], count: int) -> Mask:
    """Return which of `count` messages have none of the occurrences, or have them with the wire types of others."""
    has_none: Mask = np.ones(count, np.bool_)
    for field in proto.fields:
        if field.number in tokens:
            has_none[tokens[field.number].of_wires(*wires_of(field)).owners] = False
            if not has_none.any():
                break
    return has_none


def is_wrapper(proto: ProtoType) -> bool:
    """Return whether messages are stored as the value in them, such as google.protobuf.Int64Value."""
    return proto.name in _WRAPPERS


def message_reader(proto: ProtoType, hive: HiveType) -> MessageReader | None:
    """Return the reader of messages; None if the Hive type cannot store them."""
    if is_wrapper(proto) and not hive.is_complex:
        leaf = leaf_of(proto.fields[0], hive)
        return _Wrapper(_Scalar(leaf, hive, nullable=False)) if leaf else None
    if proto.name == TIMESTAMP and hive.kind == "timestamp":
        return _WellKnown(read_timestamps)
    if proto.name == DATE and hive.kind == "date":
        return _WellKnown(read_dates)
    if proto.name == DECIMAL and hive.kind == "decimal":
        return _WellKnown(partial(read_decimals, hive=hive))
    if proto.name in TEXT_MESSAGES and hive.kind in TEXTS:
        return _Text(proto.name, hive)
    return StructReader(proto, hive) if hive.kind == "struct" and not proto.is_map_entry else None


def field_reader(field: ProtoField, hive: HiveType) -> FieldReader:
    """Return the reader of a field; for types that do not fit, one that rejects all values."""
    if field.message and field.message.is_map_entry:
        return _map(field, field.message, hive) or _Unfit(field, hive)
    if field.is_repeated:
        return (_repeated(field, hive) if hive.kind == "array" else None) or _Unfit(field, hive)
    return _singular(field, hive, nullable=field.nullable) or _Unfit(field, hive)


def _singular(field: ProtoField, hive: HiveType, *, nullable: bool) -> FieldReader | None:
    if field.message:
        reader = message_reader(field.message, hive)
        return _Message(wire_of(field), reader, hive, always=not nullable) if reader else None
    leaf = leaf_of(field, hive)
    return _Scalar(leaf, hive, nullable=nullable) if leaf else None


def _repeated(field: ProtoField, hive: HiveType) -> FieldReader | None:
    if field.message:
        reader = message_reader(field.message, hive.children[0])
        return _Messages(wire_of(field), reader, hive) if reader else None
    leaf = leaf_of(field, hive.children[0])
    return _Scalars(leaf, hive) if leaf else None


def _map(field: ProtoField, entry: ProtoType, hive: HiveType) -> FieldReader | None:
    if hive.kind != "map" or hive.children[0].kind not in _KEYS:
        return None
    # In an entry, a key or a value that is absent has its default, whatever the presence of its field.
    key, value = (
        _singular(part, child, nullable=False) for part, child in zip(entry.fields, hive.children, strict=True)
    )
    return _Map(entry, key, value, hive) if key and value else None


def _items(tokens: Tokens, place: Place, item: HiveType) -> Tokens:
    """Return the items of repeated fields that are read."""
    read = place.items_within_limits(tokens.owners, item)
    return tokens if read is None else tokens.only(read)


def _only_last(members: Sequence[ProtoField], tokens: Mapping[int, Tokens]) -> dict[int, Tokens]:
    """Return the occurrences of the members of a oneof which no later occurrence of another member replaces."""
    parts = {field.number: usable(field, tokens[field.number]) for field in members}
    numbers = np.concatenate([np.full(len(part), number) for number, part in parts.items()])
    occurrences = joined(list(parts.values()))
    if not len(occurrences):
        return parts
    positions = np.concatenate([part.starts for part in parts.values()])
    numbers = numbers[np.argsort(positions, kind="stable")]
    changes = np.zeros(len(occurrences), np.int64)
    changes[1:] = (occurrences.owners[1:] != occurrences.owners[:-1]) | (numbers[1:] != numbers[:-1])
    runs: Ints = np.cumsum(changes)
    last = np.zeros(int(occurrences.owners.max()) + 1, np.int64)
    last[occurrences.owners] = runs  # the last assignment remains
    keep = runs == last[occurrences.owners]
    return {number: occurrences.only(keep & (numbers == number)) for number in parts}


def field_of(fields: Sequence[ProtoField], name: str) -> ProtoField | None:
    """Return the field with a lower-case name, ignoring case; one whose name is in lower case comes first."""
    exact = [field for field in fields if field.name == name]
    return next(iter(exact or [field for field in fields if field.name.lower() == name]), None)
