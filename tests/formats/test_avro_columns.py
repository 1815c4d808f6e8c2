"""The columns that store the records of Avro schemas."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ingestd.formats.avro.columns import columns_of, needed_columns, unstored_fields
from ingestd.formats.avro.schema import read_schema
from ingestd.formats.registry import InvalidSchema
from ingestd.schema import Column, HiveType
from tests.support.avro import ZONED_TIMESTAMP, logical, schema_of

INNER = {"type": "record", "name": "inner", "fields": [{"name": "X", "type": "int"}]}


def _columns(*schemas: dict[str, Any]) -> dict[str, str]:
    records = [read_schema(schema_of(fields)).record for fields in schemas]
    return {column.name: str(column.type) for column in columns_of(records)}


@pytest.mark.parametrize(
    ("avro", "hive"),
    [
        ("boolean", "boolean"),
        ("int", "int"),
        ("long", "bigint"),
        ("float", "float"),
        ("double", "double"),
        ("string", "string"),
        ("bytes", "binary"),
        ({"type": "fixed", "name": "f", "size": 4}, "binary"),
        ({"type": "enum", "name": "e", "symbols": ["A"]}, "string"),
        (logical("string", "uuid"), "string"),
        (ZONED_TIMESTAMP, "string"),
        (["null", ZONED_TIMESTAMP, {"type": "enum", "name": "e", "symbols": ["A"]}], "string"),
        (logical("bytes", "decimal", precision=20, scale=4), "decimal(20,4)"),
        (logical("int", "date"), "date"),
        (logical("long", "timestamp-micros"), "timestamp"),
        (logical("long", "local-timestamp-millis"), "timestamp"),
        ({"type": "array", "items": ["null", "int"]}, "array<int>"),
        ({"type": "map", "values": "long"}, "map<string,bigint>"),
        (INNER, "struct<x:int>"),
        (["null", "long", "int"], "bigint"),
        (["float", "double", "null"], "double"),
        (["int", logical("bytes", "decimal", precision=12, scale=2)], "decimal(12,2)"),
    ],
)
def test_field_when_a_column_stores_every_value_then_has_its_type(avro: Any, hive: str) -> None:
    assert _columns({"Field": avro}) == {"field": hive}


@pytest.mark.parametrize(
    ("avro", "reason"),
    [
        ("null", "field: a field that is always null has no column type"),
        (["string", "int"], "field: a union of string, int has no column type"),
        (["double", "long"], "field: a union of double, long has no column type"),
        (logical("bytes", "decimal", precision=39, scale=0), "field: a decimal of 39 digits"),
        ({"type": "record", "name": "empty", "fields": []}, "field: fields are missing"),
    ],
)
def test_field_when_no_column_stores_every_value_then_refused_with_its_path(avro: Any, reason: str) -> None:
    with pytest.raises(InvalidSchema, match=reason):
        _columns({"field": avro})


def test_schema_when_it_contains_itself_then_refused() -> None:
    tree = {"type": "record", "name": "tree", "fields": [{"name": "next", "type": ["null", "tree"]}]}
    with pytest.raises(InvalidSchema, match="next: a record that contains itself"):
        columns_of([read_schema(json.dumps(tree)).record])


def test_schema_when_a_short_one_describes_a_large_or_a_deep_row_then_refused() -> None:
    doubled: Any = {**INNER, "name": "x0"}
    for level in range(40):
        fields = [{"name": "a", "type": doubled}, {"name": "b", "type": f"x{level}"}]
        doubled = {"type": "record", "name": f"x{level + 1}", "fields": fields}
    deep: Any = "int"
    for _ in range(300):
        deep = {"type": "array", "items": deep}
    for avro, reason in ((doubled, "are more than 10,000"), (deep, "its types nest too deeply")):
        row = {"type": "record", "name": "row", "fields": [{"name": "field", "type": avro}]}
        record = read_schema(json.dumps(row)).record
        with pytest.raises(InvalidSchema, match=reason):
            columns_of([record])
        with pytest.raises(InvalidSchema, match=reason):
            needed_columns(record, [])


def test_schema_when_a_new_table_would_have_deep_or_large_structs_then_refused_with_the_path() -> None:
    deep: Any = "int"
    for level in range(9):
        deep = _record(f"r{level}", a={"type": "map", "values": deep})
    with pytest.raises(InvalidSchema, match=r"column field(\.a){8}: more than 8 structs would be inside each other"):
        _columns({"field": deep})
    wide = _record("wide", **{f"field_{number}": "long" for number in range(1_500)})
    assert _columns({"field": wide})["field"].count("bigint") == 1_500
    with pytest.raises(InvalidSchema, match=r"column field: the type would have .* the metastore declares 32,672"):
        _columns({"field": _record("longer", wide=wide, more={**wide, "name": "more"})})


def test_schemas_when_they_differ_then_columns_store_the_records_of_both() -> None:
    assert _columns({"a": "int", "b": "string"}, {"a": "long", "c": INNER}) == {
        "a": "bigint",
        "b": "string",
        "c": "struct<x:int>",
    }
    with pytest.raises(InvalidSchema, match="field a of several schemas"):
        _columns({"a": "int"}, {"a": "string"})


def test_schemas_when_a_text_is_a_timestamp_of_debezium_in_one_of_them_then_its_column_is_a_string() -> None:
    def fields(text: Any) -> dict[str, Any]:
        inner = {"type": "record", "name": "r", "fields": [{"name": "at", "type": text}]}
        return {"at": text, "s": inner, "a": {"type": "array", "items": text}, "m": {"type": "map", "values": text}}

    schemas = [fields(ZONED_TIMESTAMP), fields("string")]
    types = {"at": "string", "s": "struct<at:string>", "a": "array<string>", "m": "map<string,string>"}
    assert _columns(*schemas) == _columns(*schemas[::-1]) == types


def _needed(fields: dict[str, Any], **columns: str) -> dict[str, str]:
    stored = [Column(name, HiveType.parse(text)) for name, text in columns.items()]
    return {column.name: str(column.type) for column in needed_columns(read_schema(schema_of(fields)).record, stored)}


def test_needed_columns_when_fields_have_columns_then_keep_their_names_and_places() -> None:
    inner = {"type": "record", "name": "i", "fields": [{"name": "Y", "type": "long"}, {"name": "z", "type": "int"}]}
    fields = {"NEW": "string", "Tags": {"type": "array", "items": ["null", inner]}, "id": "long"}
    assert _needed(fields, id="int", tags="array<struct<z:int>>", other="date") == {
        "id": "bigint",
        "tags": "array<struct<z:int,y:bigint>>",
        "new": "string",
    }


def test_needed_columns_when_a_record_is_one_of_several_then_all_their_fields_have_columns() -> None:
    def record(name: str, **fields: Any) -> dict[str, Any]:
        return {"type": "record", "name": name, "fields": [{"name": k, "type": v} for k, v in fields.items()]}

    either = [record("a", x="int", y="string"), record("b", x="long", z="int")]
    row = json.dumps([record("c", id="int"), record("d", id="long", s=either)])
    stored = [Column("id", HiveType.parse("int")), Column("s", HiveType.parse("struct<x:date>"))]
    found = needed_columns(read_schema(row).record, stored)
    assert {column.name: str(column.type) for column in found} == {"id": "bigint", "s": "struct<x:date,y:string,z:int>"}


def test_needed_columns_when_a_field_has_an_alias_of_a_column_then_it_needs_no_other() -> None:
    schema = {"type": "record", "name": "r", "fields": [{"name": "new_name", "aliases": ["id"], "type": "int"}]}
    [column] = needed_columns(read_schema(json.dumps(schema)).record, [Column("id", HiveType.parse("int"))])
    assert column == Column("id", HiveType.parse("int"))


def test_needed_columns_when_a_field_has_no_column_type_then_only_an_existing_column_is_accepted() -> None:
    either = {"a": ["string", "int"]}
    assert _needed(either, a="date") == {"a": "date"}
    with pytest.raises(InvalidSchema, match="a: a union of string, int has no column type"):
        _needed(either, b="date")
    nested = {"s": {"type": "record", "name": "n", "fields": [{"name": "a", "type": ["string", "int"]}]}}
    with pytest.raises(InvalidSchema, match=r"s\.a: a union of string, int has no column type"):
        _needed(nested, s="struct<b:int>")


@pytest.mark.parametrize("stored", [{}, {"id": "int"}])
def test_needed_columns_when_names_differ_only_in_case_then_refused(stored: dict[str, str]) -> None:
    with pytest.raises(InvalidSchema, match=r"(id|ID): the name of another field differs only in case"):
        _needed({"id": "int", "ID": "string"}, **stored)


def _record(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": field, "type": kind} for field, kind in fields.items()]}


def _unstored(record: dict[str, Any], **columns: str) -> list[str]:
    kinds = tuple(map(HiveType.parse, columns.values()))
    row = HiveType("struct", children=kinds, names=tuple(columns))
    return list(unstored_fields(read_schema(json.dumps(record)).record, row))


def test_columns_when_a_record_contains_itself_then_the_stored_levels_follow_and_deeper_ones_are_named() -> None:
    items = {"type": "array", "items": "tree"}
    row = _record("row", t=["null", _record("tree", id="long", New="string", next=["null", "tree"], many=items)])

    def needed(column: str) -> str:
        [found] = needed_columns(read_schema(json.dumps(row)).record, [Column("t", HiveType.parse(column))])
        return str(found.type)

    evolved = (
        "struct<id:bigint,next:struct<next:struct<id:bigint,new:string>,id:bigint,new:string>,"
        "many:array<struct<id:bigint,new:string>>,new:string>"
    )
    assert needed("struct<id:int,next:struct<next:struct<id:int>>,many:array<struct<id:bigint>>>") == evolved
    assert needed(evolved) == evolved
    assert _unstored(row, t=evolved) == [
        *("t.next.next.next", "t.next.next.many", "t.next.many", "t.many.next", "t.many.many"),
    ]
    with pytest.raises(InvalidSchema, match=r"t\.next: a record that contains itself"):
        needed("struct<id:int>")


def test_unstored_fields_then_are_those_without_a_column_at_any_depth() -> None:
    either = ["null", _record("a", X="int"), _record("b", y="int")]
    items, values = {"type": "array", "items": INNER}, {"type": "map", "values": either}
    row = _record("row", ID="int", Many=items, m=values, s="inner", n="int")
    columns = {"id": "int", "many": "array<struct<y:int>>", "m": "map<string,struct<x:int>>", "s": "string"}
    assert _unstored(row, **columns) == ["Many.X", "m.y", "n"]
