"""Protobuf messages of random schemas become the rows that Google's parser finds, or rejects if it finds none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet
from hypothesis import given, settings
from hypothesis import strategies as st

from ingestd.formats.decoder import DecodeResult
from ingestd.schema import Column, HiveType
from tests.support.protobuf import Field, class_of, decoder_of, file_of, message, options_of, row_of

HIVE = {
    **dict.fromkeys(("int32", "sint32", "sfixed32"), "int"),
    **dict.fromkeys(("uint32", "fixed32", "int64", "sint64", "sfixed64", ".google.protobuf.Int64Value"), "bigint"),
    **dict.fromkeys(("uint64", "fixed64"), "decimal(20,0)"),
    "float": "float",
    "double": "double",
    "bool": "boolean",
    "string": "string",
    "bytes": "binary",
    ".shop.Kind": "string",
    ".shop.Inner": "struct<a:int,s:string,r:array<bigint>,kind:string,next:struct<a:int>>",
}
KEYS = ("string", "int32", "sint64", "bool", "fixed32")
# The field `next` of `Inner` has fields without a column.
NUMBERS = st.integers(1, 6)
VARINTS = st.one_of(st.integers(0, 3), st.integers(0, 2**64 - 1))


def varint(number: int, extra: int = 0) -> bytes:
    """Encode an integer, in more bytes than necessary if `extra` is not 0."""
    groups = [number & 0x7F]
    while number := number >> 7:
        groups.append(number & 0x7F)
    groups += [0] * extra
    return bytes([*(group | 0x80 for group in groups[:-1]), groups[-1]])


def tag(number: int, wire: int, content: bytes) -> bytes:
    return varint(number << 3 | wire) + content


def block(content: bytes) -> bytes:
    return varint(len(content)) + content


def fields(content: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Return any fields, whose numbers and wire types may be those of the schema. `content` is that of blocks."""
    strategy = st.one_of(
        st.builds(lambda number, value, extra: tag(number, 0, varint(value, extra)), NUMBERS, VARINTS, st.just(0)),
        st.builds(lambda number, value: tag(number, 0, varint(value, 2)), NUMBERS, st.integers(0, 5)),
        st.builds(lambda number, value: tag(number, 5, value), NUMBERS, st.binary(min_size=4, max_size=4)),
        st.builds(lambda number, value: tag(number, 1, value), NUMBERS, st.binary(min_size=8, max_size=8)),
        st.builds(lambda number, value: tag(number, 2, block(value)), NUMBERS, content),
        st.builds(lambda number, value: tag(number, 3, value) + tag(number, 4, b""), NUMBERS, content),
    )
    return st.lists(strategy, max_size=6).map(b"".join)


PACKED = st.lists(VARINTS.map(varint), max_size=4).map(b"".join)
LEAVES = st.one_of(PACKED, st.text(max_size=4).map(str.encode), st.binary(max_size=16))
MESSAGES = fields(LEAVES | fields(LEAVES | fields(LEAVES)))


@st.composite
def schemas(draw: st.DrawFn) -> tuple[FileDescriptorProto, list[Column]]:
    syntax = draw(st.sampled_from(["proto2", "proto3"]))
    chosen: list[Field] = []
    columns = []
    for number in range(1, draw(st.integers(1, 6)) + 1):
        kind = draw(st.sampled_from(sorted(HIVE)))
        shape = draw(st.sampled_from(["single", "optional", "repeated", "oneof", "oneof", "map", "group"]))
        hive = HIVE[kind]
        options: dict[str, Any] = {"is_enum": kind == ".shop.Kind"}
        if shape == "map":
            options["key"] = draw(st.sampled_from(KEYS))
            hive = f"map<{HIVE[options['key']]},{hive}>"
        elif shape == "group" and syntax == "proto2":
            kind, options = ".shop.Inner", {"is_group": True, "label": draw(st.sampled_from(["optional", "repeated"]))}
            hive = f"array<{HIVE[kind]}>" if options["label"] == "repeated" else HIVE[kind]
        elif shape in ("optional", "repeated"):
            options["label"] = shape
            hive = f"array<{hive}>" if shape == "repeated" else hive
        elif shape == "oneof":
            options["oneof"] = draw(st.sampled_from(["x", "y"]))
        if kind == "int32" and syntax == "proto2" and shape == "single":
            options["default"] = "7"
        chosen.append(Field(f"f{number}", number, kind, **options))
        columns.append(Column(f"f{number}", HiveType.parse(hive)))
    innermost = message("Next", [Field("a", 1, "int32", "optional")], syntax=syntax)
    inner = message(
        "Inner",
        [
            Field("a", 1, "int32", "optional"),
            Field("s", 2, "string", oneof="either"),
            Field("r", 3, "int64", "repeated"),
            Field("kind", 4, ".shop.Kind", oneof="either", is_enum=True),
            Field("next", 5, ".shop.Next", oneof="either"),
        ],
        syntax=syntax,
    )
    row = message("Row", sorted(chosen, key=lambda field: field.oneof), syntax=syntax)
    return file_of(row, inner, innermost, syntax=syntax, Kind={"ZERO": 0, "ONE": 1, "MINUS": -1}), columns


def expected(kind: type[Message], columns: Sequence[Column], value: bytes) -> dict[str, Any] | None:
    """Return the row of a message, None if it is malformed or contains a text that is not UTF-8.

    A map is missing if Google's parser does not read an entry, because something besides a key and a value is in it.
    """
    try:
        found = kind.FromString(value)
        row = row_of(found)
    except (DecodeError, UnicodeDecodeError):
        return None
    unknown = {field.field_number for field in UnknownFieldSet(found)}
    numbers = kind.DESCRIPTOR.fields_by_name
    return {
        column.name: row[column.name]
        for column in columns
        if column.type.kind != "map" or numbers[column.name].number not in unknown
    }


def comparable(value: Any) -> Any:
    """Return a value in which maps are dicts, NaN equals itself, and the keys of structs have no order."""
    if isinstance(value, dict):
        return {key: comparable(item) for key, item in value.items()}
    if isinstance(value, list):
        if value and isinstance(value[0], tuple):
            return {key: comparable(item) for key, item in value}
        return [comparable(item) for item in value]
    return repr(value) if isinstance(value, float) else value


def rows_by_record(decoded: DecodeResult, count: int) -> list[Any]:
    rows = iter(row for batch in decoded.batches for row in batch.to_pylist())
    failed = {reject.row for reject in decoded.rejects}
    return [None if record in failed else next(rows) for record in range(count)]


def assert_as_google(file: FileDescriptorProto, columns: list[Column], records: list[bytes]) -> None:
    decoder = decoder_of(file, columns)
    decoded = decoder.decode(records)
    reasons = {reject.row: (reject.column, reject.reason) for reject in decoded.rejects}
    kind = class_of(file)
    references = {value: expected(kind, columns, value) for value in records}
    for number, (value, row) in enumerate(zip(records, rows_by_record(decoded, len(records)), strict=True)):
        reference = references[value]
        # Google's parser accepts the tag 0 inside groups of unknown fields.
        if row is None and "a tag is invalid" in reasons[number][1]:
            continue
        if row is None and "fields of the record are unknown" in reasons[number][1]:
            parsed = kind.FromString(value)
            assert len(UnknownFieldSet(parsed)) > 0
            assert not parsed.ListFields()
            continue
        compared = row and reference and {name: row[name] for name in reference}
        assert empty_as_dict(columns, compared) == empty_as_dict(columns, reference), value
        assert (row is None) == (reference is None), value
    alone = {value: decoder.decode([value]).rejects for value in references}
    rejects = [alone[value] for value in records]
    assert reasons == {row: (each[0].column, each[0].reason) for row, each in enumerate(rejects) if each}


def empty_as_dict(columns: list[Column], row: dict[str, Any] | None) -> Any:
    """Return a comparable row; an empty map is an empty list in Arrow's rows."""
    if row is None:
        return None
    maps = {column.name for column in columns if column.type.kind == "map"}
    return {name: {} if name in maps and not value else comparable(value) for name, value in row.items()}


@st.composite
def batches(draw: st.DrawFn, parts: Sequence[bytes], count: int) -> list[bytes]:
    """Return records, each of which consists of some of the parts in any order. They differ from each other.

    The parts of two messages in a row are a message, so records have the same fields at different places.
    """
    numbers = st.lists(st.integers(0, len(parts) - 1), max_size=3)
    random = draw(st.randoms(use_true_random=False))
    kinds = [b"".join(parts[number] for number in draw(numbers)) for _ in range(6)]
    return [*parts, *random.choices(kinds, k=count)]


@settings(max_examples=40, deadline=None)
@given(data=st.data(), schema=schemas(), count=st.sampled_from([0, 150]))
def test_decode_when_schema_is_random_then_rows_are_those_of_googles_parser(
    data: st.DataObject, schema: tuple[FileDescriptorProto, list[Column]], count: int
) -> None:
    file, columns = schema
    assert {*options_of(file).columns(None, [])} == {*columns}
    parts = data.draw(st.lists(MESSAGES, min_size=1, max_size=5))
    assert_as_google(file, columns, data.draw(batches(parts, count)))


@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_decode_when_records_have_groups_at_different_places_then_rows_are_those_of_googles_parser(
    data: st.DataObject,
) -> None:
    item = message("Item", [Field("x", 1, "int32")], syntax="proto2")
    chosen = [
        Field("a", 1, "int32", "optional"),
        Field("r", 2, "int64", "repeated"),
        Field("g", 3, ".shop.Item", "repeated", is_group=True),
        Field("o", 4, ".shop.Item", "optional", is_group=True),
    ]
    kinds = {"a": "int", "r": "array<bigint>", "g": "array<struct<x:int>>", "o": "struct<x:int>"}
    file = file_of(message("Row", chosen, syntax="proto2"), item, syntax="proto2")
    places = [(3, 1), (3, 2), (3, 3), (4, 4), (4, 5), (5, 6)]
    groups = [tag(number, 3, tag(1, 0, varint(x))) + tag(number, 4, b"") for number, x in places]
    parts = [tag(1, 0, varint(5)), tag(2, 0, varint(7)), *groups]
    columns = [Column(name, HiveType.parse(kind)) for name, kind in kinds.items()]
    assert_as_google(file, columns, data.draw(batches(parts, 100)))


@settings(max_examples=30, deadline=None)
@given(data=st.data(), schema=schemas(), value=MESSAGES, count=st.sampled_from([0, 150]))
def test_decode_when_messages_are_damaged_then_each_is_a_row_of_googles_parser_or_a_reject(
    data: st.DataObject, schema: tuple[FileDescriptorProto, list[Column]], value: bytes, count: int
) -> None:
    parts = [
        data.draw(st.binary(max_size=20)),
        value[: data.draw(st.integers(0, len(value)))],
        value + data.draw(st.binary(max_size=3)),
        *(_with_byte(value, data.draw(st.integers(0, 1000)), data.draw(st.integers(0, 255))) for _ in range(4)),
    ]
    assert_as_google(*schema, data.draw(batches(parts, count)))


def _with_byte(value: bytes, place: int, byte: int) -> bytes:
    place %= max(1, len(value))
    return value[:place] + bytes([byte]) + value[place + 1 :]
