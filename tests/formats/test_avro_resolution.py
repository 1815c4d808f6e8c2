"""Avro records are read as a reader schema, by the rules of schema resolution of the Avro specification."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingestd.formats.avro.decoder import AvroDecoder
from ingestd.formats.avro.options import AvroOptions
from ingestd.formats.registry import InvalidSchema
from ingestd.schema import Column
from tests.support.avro import SCALED_DECIMAL, encode, logical, schema_of, single_object
from tests.support.decoding import columns_of, reasons, rows_of

NO_FIELD = "the record does not have the field, and the reader schema has no default for it"


def record(*fields: dict[str, Any], name: str = "row") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "e", "symbols": list(symbols), **more}


def decoder_of(writer: Any, reader: Any, columns: Sequence[Column]) -> AvroDecoder:
    options = AvroOptions(framing="none", schemas=(json.dumps(writer),), reader_schema=json.dumps(reader))
    return options.decoder(columns)


PLACE = record(field("city", "string"), field("country", "string", default="IT"), name="p")
# Fields of a reader that have defaults, the Hive type of each, and the value of the default.
ABSENT: tuple[tuple[dict[str, Any], str, Any], ...] = (
    (
        field("price", logical("bytes", "decimal", precision=6, scale=2), default="\x04\xd2"),
        "decimal(6,2)",
        Decimal("12.34"),
    ),
    (field("tags", {"type": "array", "items": "string"}, default=["a", "b"]), "array<string>", ["a", "b"]),
    (field("limits", {"type": "map", "values": "int"}, default={"x": 1}), "map<string,int>", [("x", 1)]),
    (field("home", ["null", PLACE], default=None), "struct<city:string>", None),
    (field("work", [PLACE, "null"], default={"city": "Rome"}), "struct<country:string>", {"country": "IT"}),
    (field("kind", enum("A", "B"), default="B"), "string", "B"),
    (field("rate", "double", default=1), "double", 1.0),
    (field("at", logical("int", "date"), default=1), "date", date(1970, 1, 2)),
)


def test_decode_when_records_are_older_then_aliases_of_the_reader_apply() -> None:
    place = record(field("city", "string"), name="p")
    old = record(field("uid", "int"), field("secret", "string"), field("place", place))
    new = record(field("id", "long", aliases=["user", "uid"]), field("place", PLACE))
    columns = columns_of(id="bigint", secret="string", place="struct<city:string,country:string>", other="int")
    values = [{"uid": n, "secret": "s", "place": {"city": f"c{n}"}} for n in range(40)]

    found = rows_of(decoder_of(old, new, columns).decode([encode(json.dumps(old), value) for value in values]))

    places = [{"city": f"c{n}", "country": "IT"} for n in range(40)]
    assert found == [{"id": n, "secret": None, "place": places[n], "other": None} for n in range(40)]


@pytest.mark.parametrize("absent", ABSENT, ids=lambda absent: absent[0]["name"])
def test_decode_when_field_is_missing_then_is_the_default_of_the_reader(
    absent: tuple[dict[str, Any], str, Any],
) -> None:
    wanted, hive, expected = absent
    old, columns = record(field("id", "int")), columns_of(**{wanted["name"]: hive, "id": "int"})
    new = record(wanted, field("id", "int"))

    decoded = decoder_of(old, new, columns).decode([encode(json.dumps(old), {"id": n}) for n in range(3)])

    assert rows_of(decoded) == [{wanted["name"]: expected, "id": n} for n in range(3)]


@pytest.mark.parametrize(
    ("writer", "reader", "hive", "value", "expected"),
    [
        ("int", "long", "bigint", 7, 7),
        ("int", "double", "double", 7, 7.0),
        ("float", "double", "double", 0.5, 0.5),
        ("string", "bytes", "binary", "é", "é".encode()),
        ("bytes", "string", "string", "é".encode(), "é"),
        ("string", "int", "string", "7", "string cannot be read as int, the type of the reader schema"),
        ("long", "int", "bigint", 7, "long cannot be read as int, the type of the reader schema"),
        ("int", ["null", "string", "long"], "bigint", 7, 7),
        ("int", ["null", "string"], "bigint", 7, "int is not in the union of the reader schema"),
        (["int", "string"], "long", "bigint", 7, 7),
        (["int", "string"], "long", "bigint", "x", "string cannot be read as long, the type of the reader schema"),
        (["null", "int"], "int", "int", None, "null cannot be read as int, the type of the reader schema"),
        (enum("A", "B", "C"), enum("C", "B"), "string", "B", "B"),
        (enum("A", "B", "C"), enum("C", "B"), "string", "A", "the reader schema has no symbol A"),
        (enum("A", "B", "C"), enum("C", "B", default="C"), "string", "A", "C"),
        # The logical type of the reader, unless the writer has one.
        ("int", logical("int", "date"), "date", 1, 1),
        ("int", logical("long", "timestamp-millis"), "bigint", 5, 5),
        (logical("long", "timestamp-millis"), logical("long", "timestamp-micros"), "timestamp", 2, 2_000_000),
        (logical("bytes", "decimal", precision=5, scale=1), logical("bytes", "decimal", precision=6, scale=2),
         "decimal(6,2)", "1.5", "1.50"),
        (
            {"type": "fixed", "name": "f", "size": 2}, {"type": "fixed", "name": "f", "size": 3}, "binary", b"xy",
            "fixed f cannot be read as fixed f, the type of the reader schema",
        ),
        ({"type": "array", "items": "int"}, {"type": "array", "items": "long"}, "array<bigint>", [1, 2], [1, 2]),
        ({"type": "array", "items": "string"}, {"type": "array", "items": "int"}, "array<string>", ["x"],
         "[0]: string cannot be read as int, the type of the reader schema"),
    ],
)  # fmt: skip
def test_decode_when_types_differ_then_values_are_promoted_or_rejected(
    writer: Any, reader: Any, hive: str, value: Any, expected: Any
) -> None:
    written = record(field("a", writer), field("n", "int"))
    options = decoder_of(written, record(field("a", reader), field("n", "int")), columns_of(a=hive, n="int"))
    value = Decimal(value) if hive.startswith("decimal") else value

    decoded = options.decode([encode(json.dumps(written), {"a": value, "n": 3})])

    if decoded.rejects:
        assert reasons(decoded) == [(0, "a", expected)]
    else:
        [batch] = decoded.batches
        assert batch.column("n").to_pylist() == [3]
        found = batch.column("a")
        plain = found.cast("int64").to_pylist() if hive == "timestamp" else found.to_pylist()
        plain = found.cast("int32").to_pylist() if hive == "date" else plain
        assert (str(plain[0]) if hive.startswith("decimal") else plain[0]) == expected


@pytest.mark.parametrize("optional", [False, True])
def test_decode_when_only_the_reader_names_a_decimal_of_debezium_then_its_record_is_a_decimal(optional: bool) -> None:
    pair = record(field("value", "bytes"), field("places", "int"), name="pair")
    fields = [field("scale", "int", aliases=["places"]), field("value", "bytes")]
    reader = SCALED_DECIMAL | {"aliases": ["pair"], "fields": fields}
    old, new = record(field("d", pair)), record(field("d", ["null", reader] if optional else reader))
    data = encode(json.dumps(old), {"d": {"places": 1, "value": b"\x0f"}})
    columns = columns_of(d="decimal(3,1)")

    assert rows_of(decoder_of(old, new, columns).decode([data])) == [{"d": Decimal("1.5")}]
    # Other fields do not belong to a decimal.
    pair["fields"].append(field("more", "int"))
    [reject] = decoder_of(record(field("d", pair)), new, columns).decode([data + b"\0"]).rejects
    assert reject.reason == "a value of the Avro type record cannot be stored in decimal(3,1)"


def test_decode_when_field_has_neither_data_nor_default_then_only_a_column_of_it_rejects_the_record() -> None:
    old, new = record(field("id", "int")), record(field("id", "int"), field("name", "string"))
    data = encode(json.dumps(old), {"id": 1})

    assert rows_of(decoder_of(old, new, columns_of(id="int")).decode([data])) == [{"id": 1}]
    decoded = decoder_of(old, new, columns_of(id="int", name="string")).decode([data])
    assert reasons(decoded) == [(0, "name", NO_FIELD)]


def test_decode_when_record_contains_itself_then_each_level_is_resolved() -> None:
    def node(*fields: dict[str, Any]) -> dict[str, Any]:
        return record(*fields, field("next", ["null", "node"], default=None), name="node")

    old, new = node(field("v", "int")), node(field("value", "long", aliases=["v"]), field("w", "int", default=9))
    data = encode(json.dumps(old), {"v": 1, "next": {"v": 2, "next": None}})
    columns = columns_of(value="int", w="int", next="struct<value:int,w:int,u:int>")

    decoded = decoder_of(old, new, columns).decode([data])

    assert rows_of(decoded) == [{"value": 1, "w": 9, "next": {"value": 2, "w": 9, "u": None}}]


def test_decode_when_default_is_a_timestamp_then_all_timestamps_keep_their_digits() -> None:
    old = record(field("fine", logical("long", "timestamp-nanos")))
    micros = logical("long", "timestamp-micros")
    new = record(*old["fields"], field("far", ["null", micros], default=None), field("old", micros, default=-(10**16)))
    columns = columns_of(fine="timestamp", old="timestamp")
    data = [encode(json.dumps(old), {"fine": nanos}) for nanos in (1_000, 1_001)]

    decoded = decoder_of(old, new, columns).decode(data)

    assert [batch.column("old").cast("int64").to_pylist() for batch in decoded.batches] == [[-(10**16)]]
    assert [(row, column) for row, column, _ in reasons(decoded)] == [(1, "fine")]


def test_decode_when_schemas_are_named_by_records_then_each_is_resolved() -> None:
    old, new = schema_of({"id": "int"}), schema_of({"name": "string", "id": "long"})
    reader = json.dumps(record(field("id", "long"), field("name", "string", default="-"), name="other"))
    options = AvroOptions(framing="single_object", schemas=(old, new), reader_schema=reader)
    data = [
        single_object(old, encode(old, {"id": 1})),
        single_object(new, encode(new, {"id": 2, "name": "x"})),
    ]

    decoder = options.decoder(columns_of(id="bigint", name="string"))

    assert rows_of(decoder.decode(data)) == [{"id": 1, "name": "-"}, {"id": 2, "name": "x"}]
    columns = columns_of(id="bigint", name="string")
    assert options.columns(None, ["t"]) == columns
    assert set(decoder.needed_columns(data, ())) == set(columns)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (field("a", "int", default="x"), "the default of a is not a value of the type int"),
        (field("a", "int", default=2**31), "the default of a is not a value of the type int"),
        (field("a", "int", default=True), "the default of a is not a value of the type int"),
        (field("a", "float", default=1e300), "the default of a is not a value of the type float"),
        (field("a", ["null", "string"], default=1), "the default of a is not a value of the type union"),
        (field("a", "bytes", default="\u0100"), "the default of a is not a value of the type bytes"),
        (field("a", enum("A"), default="B"), "the default of a is not a value of the type enum"),
        (field("a", "string", default="\ud800"), "the default of a is not a value of the type string"),
        (
            field("a", {"type": "array", "items": record(field("b", "int", default=None), name="i")}),
            "the default of b is not a value of the type int",
        ),
        (
            field("a", record(field("b", "int"), name="i"), default={}),
            "the default of a is not a value of the type record",
        ),
    ],
)
def test_decoder_when_a_default_of_the_reader_is_not_valid_then_raises_with_its_field(
    fault: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidSchema, match=f"^{reason}$"):
        decoder_of(record(field("a", "int")), record(fault), columns_of(a="int"))


KINDS: tuple[Any, ...] = (
    *("int", "long", "float", "double", "string", "bytes", "boolean"),
    *(["null", "int"], ["null", "string", "long"], ["int", "string"]),
    *({"type": "array", "items": "int"}, {"type": "map", "values": "long"}, enum("A", "B"), enum("B", "C")),
)
DEFAULTS: dict[str, Any] = {
    "int": 5, "long": -5, "float": 0.5, "double": 1.5, "string": "d", "bytes": "\u00ff", "boolean": True,
}  # fmt: skip
HIVE = {"int": "int", "long": "bigint", "string": "string", "bytes": "binary", "boolean": "boolean", "enum": "string"}
VALUES: dict[str, Any] = {
    "int": st.integers(-9, 9), "long": st.integers(-9, 9), "float": st.sampled_from([0.5, -2.0]),
    "double": st.sampled_from([0.25, 3.0]), "string": st.text("ab", max_size=3), "bytes": st.binary(max_size=0),
    "boolean": st.booleans(), "null": st.none(),
}  # fmt: skip


def hive_of(kind: Any) -> str:
    """Return a Hive type that stores what an Avro type is read as."""
    if isinstance(kind, list):
        return hive_of(kind[-1])
    name = kind["type"] if isinstance(kind, dict) else kind
    if name == "array":
        return f"array<{hive_of(kind['items'])}>"
    return f"map<string,{hive_of(kind['values'])}>" if name == "map" else HIVE.get(name, "double")


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    if isinstance(kind, list):
        return st.one_of([values_of(branch) for branch in kind])
    if not isinstance(kind, dict):
        found: st.SearchStrategy[Any] = VALUES[kind]
        return found
    if kind["type"] == "enum":
        return st.sampled_from(kind["symbols"])
    if kind["type"] == "array":
        return st.lists(values_of(kind["items"]), max_size=2)
    return st.dictionaries(st.text("xy", max_size=1), values_of(kind["values"]), max_size=2)


def read_by_fastavro(writer: Any, reader: Any, data: bytes) -> Any:
    try:
        return fastavro.schemaless_reader(
            io.BytesIO(data), fastavro.parse_schema(writer), fastavro.parse_schema(reader)
        )
    except Exception as error:  # noqa: BLE001 - it raises several errors for types that do not match
        return error


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_decode_when_schemas_are_random_then_rows_are_those_of_another_library(data: st.DataObject) -> None:
    kinds = st.sampled_from(KINDS)
    written, wanted = data.draw(kinds), data.draw(kinds)
    writer = record(field("f", written), field("g", "int"))
    more = {"default": DEFAULTS[wanted]} if isinstance(wanted, str) else {}
    name = data.draw(st.sampled_from(["f", "h"])) if more else "f"
    reader = record(field("g", "long"), field(name, wanted, aliases=data.draw(st.sampled_from([[], ["f"]])), **more))
    value = {"f": data.draw(values_of(written)), "g": 7}
    encoded = encode(json.dumps(writer), value)
    expected = read_by_fastavro(writer, reader, encoded)

    decoded = decoder_of(writer, reader, columns_of(**{name: hive_of(wanted)}, g="bigint")).decode([encoded] * 3)

    if isinstance(expected, Exception):
        assert len(decoded.rejects) == 3
    elif not decoded.rejects:
        found = rows_of(decoded)[0]
        as_dict = dict(found[name]) if isinstance(expected[name], dict) else found[name]
        # That library returns defaults of bytes as text.
        is_text = wanted == "bytes" and isinstance(expected[name], str)
        assert (as_dict, found["g"]) == (expected[name].encode("latin-1") if is_text else expected[name], 7)
        assert decoded.rows == 3
    else:  # a value of a union that its column does not store
        assert isinstance(wanted, list)
