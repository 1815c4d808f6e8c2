"""The columns that store the messages of Protobuf types."""

from __future__ import annotations

import pytest

from ingestd.formats.protobuf.columns import needed_columns
from ingestd.formats.protobuf.schema import read_set
from ingestd.formats.registry import InvalidSchema
from tests.support.decoding import columns_of, reasons, rows_of
from tests.support.protobuf import Field, class_of, decoder_of, file_of, message, set_of

PART = message("Part", [Field("X", 1, "uint32"), Field("note", 2, "string"), Field("part", 3, ".shop.Row")])


def _needed(*fields: Field, others: frozenset[str] = frozenset(), **stored: str) -> dict[str, str]:
    kind = read_set(set_of(file_of(PART, message("None", ()), message("Row", fields))), "shop.Row")
    return {column.name: str(column.type) for column in needed_columns(kind, columns_of(**stored), others)}


@pytest.mark.parametrize(
    ("kind", "hive"),
    [
        ("bool", "boolean"),
        ("sint32", "int"),
        ("sfixed64", "bigint"),
        ("fixed32", "bigint"),
        ("uint64", "decimal(20,0)"),
        ("float", "float"),
        ("bytes", "binary"),
        (".google.protobuf.UInt64Value", "decimal(20,0)"),
        (".google.protobuf.Timestamp", "timestamp"),
        (".google.protobuf.Struct", "string"),
    ],
)
def test_field_when_a_column_stores_every_value_then_has_its_type_also_in_arrays_and_maps(kind: str, hive: str) -> None:
    fields = (Field("One", 1, kind), Field("many", 2, kind, "repeated"), Field("named", 3, kind, key="uint64"))
    assert _needed(*fields) == {"one": hive, "many": f"array<{hive}>", "named": f"map<bigint,{hive}>"}


def test_messages_when_new_columns_are_added_then_no_value_is_lost() -> None:
    flat = message("Flat", [Field("X", 1, "fixed64"), Field("size", 2, ".shop.Size", is_enum=True)])
    row = message("Row", [Field("id", 1, "int32"), Field("flat", 2, ".shop.Flat", "repeated")])
    file = file_of(flat, row, Size={"SMALL": 0})
    value = class_of(file)(id=1, flat=[{"X": 2**64 - 1}]).SerializeToString()
    decoder = decoder_of(file, columns_of(id="int"))
    assert rows_of(decoder.decode([value])) == [{"id": 1}]
    columns = decoder.needed_columns([value], ())
    assert {c.name: str(c.type) for c in columns} == {"id": "int", "flat": "array<struct<x:decimal(20,0),size:string>>"}
    assert rows_of(decoder_of(file, columns).decode([value])) == [
        {"id": 1, "flat": [{"x": 2**64 - 1, "size": "SMALL"}]}
    ]


def test_messages_when_their_type_has_no_field_of_a_column_then_they_need_none() -> None:
    decoder = decoder_of(file_of(message("Row", [Field("other", 1, "int32")])), columns_of(id="int"))
    assert reasons(decoder.decode([b"\x08\x01"]))
    assert decoder.needed_columns([b"\x08\x01"], ()) == ()


def test_fields_when_they_have_columns_then_only_what_these_lack_is_added() -> None:
    found = _needed(
        Field("id", 1, "int64"),
        Field("part", 2, ".shop.Part"),
        Field("kept", 3, ".shop.Part"),
        Field("dt", 4, ".shop.Part"),
        Field("text", 5, ".google.protobuf.Timestamp"),
        others=frozenset({"dt"}),
        id="int",
        part="struct<note:string,part:struct<id:int>>",
        kept="string",
        text="string",
        absent="date",
    )
    assert found == {
        "id": "bigint",
        "part": "struct<note:string,part:struct<id:bigint,text:timestamp>,x:bigint>",
        "kept": "string",
        "text": "timestamp",  # which a string column keeps as its text
    }


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ((Field("part", 1, ".shop.Part"),), r"part\.part: a message that contains itself has no column type"),
        ((Field("e", 1, ".shop.None", "repeated"),), r"e\[\]: the message shop.None has no fields"),
        ((Field("id", 1, "int32"), Field("ID", 2, "string")), "ID: the name of another field differs only in case"),
    ],
)
def test_field_when_no_column_stores_it_then_refused_with_its_path(fields: tuple[Field, ...], reason: str) -> None:
    with pytest.raises(InvalidSchema, match=reason):
        _needed(*fields)


def test_messages_when_they_contain_themselves_then_the_stored_levels_follow_and_deeper_ones_are_named() -> None:
    file = file_of(message("Row", [Field("id", 1, "int32"), Field("new", 2, "string"), Field("next", 3, ".shop.Row")]))
    value = class_of(file)(id=1, new="a", next={"id": 2, "new": "b", "next": {"id": 3}}).SerializeToString()
    decoder = decoder_of(file, columns_of(id="int", next="struct<id:int>"))
    decoder.decode([value])
    assert decoder.unstored_fields([value], ()) == ("new", "next.new", "next.next")
    columns = decoder.needed_columns([value], ())
    assert {column.name: str(column.type) for column in columns} == {
        "id": "int",
        "next": "struct<id:int,new:string>",
        "new": "string",
    }
    evolved = decoder_of(file, columns)
    assert rows_of(evolved.decode([value])) == [{"id": 1, "next": {"id": 2, "new": "b"}, "new": "a"}]
    assert evolved.needed_columns([value], ()) == columns
    assert evolved.unstored_fields([value], ()) == ("next.next",)
    assert decoder_of(file, columns_of(id="int")).unstored_fields([value], ()) == ("new", "next")


def test_unstored_fields_then_are_those_without_a_column_at_any_depth() -> None:
    part = message("Part", [Field("X", 1, "int32"), Field("Y", 2, "int32")])
    many, named = Field("Many", 2, ".shop.Part", "repeated"), Field("m", 3, ".shop.Part", key="string")
    others = [Field("at", 4, ".google.protobuf.Timestamp"), Field("dt", 5, "string")]
    file = file_of(part, message("Row", [Field("id", 1, "int32"), many, named, *others]))
    decoder = decoder_of(file, columns_of(many="array<struct<x:int>>", m="map<string,struct<y:int>>", at="timestamp"))
    assert decoder.unstored_fields([class_of(file)(id=1).SerializeToString()], {"dt"}) == ("id", "Many.Y", "m.X")
