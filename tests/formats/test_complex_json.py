"""Complex types: type names are parsed, and JSON values are decoded, or rejected with the path to the element."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingestd.errors import InvalidTable
from ingestd.formats import DecodeResult, JsonDecoder
from ingestd.formats.json.record import RecordReader
from ingestd.formats.row_batches import Value
from ingestd.schema import Column, HiveType
from tests.support.decoding import in_order

NESTED = "map<string,array<struct<a:int,b:decimal(10,2),c:varchar(3)>>>"
DAY = 86_400 * 10**9


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (NESTED, NESTED),
        ("array<int>", "array<int>"),
        (" Map< String , Array<Struct<A B:Char( 3 ),c$:map<date,timestamp>>> > ",
         "map<string,array<struct<a b:char(3),c$:map<date,timestamp>>>>"),
        ("struct<größe:decimal,x.y:varchar>", "struct<größe:decimal(10,0),x.y:varchar(65535)>"),
        ("array<array<array<binary>>>", "array<array<array<binary>>>"),
    ],
)  # fmt: skip
def test_parse_when_type_is_complex_then_str_returns_its_normal_form(text: str, expected: str) -> None:
    kind = HiveType.parse(text)
    assert str(kind) == expected
    assert HiveType.parse(expected) == kind
    assert kind.is_complex


def test_parse_when_type_is_complex_then_children_and_names_are_set() -> None:
    kind = HiveType.parse("struct<a:int,b:map<string,double>>")
    assert (kind.kind, kind.names) == ("struct", ("a", "b"))
    assert kind.children[1].children == (HiveType("string"), HiveType("double"))
    assert kind.arrow == pa.struct([("a", pa.int32()), ("b", pa.map_(pa.string(), pa.float64()))])
    assert HiveType.parse("array<date>").arrow == pa.list_(pa.date32())
    assert not HiveType.parse("int").is_complex


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("uniontype<int,string>", "type uniontype<int,string> is not supported: except in Avro, a record does not say"),
        ("array<uniontype<int>>", "type uniontype<int> is not supported: except in Avro, a record does not say"),
        ("struct<a:timestamp with local time zone>", "Hive loses its values and cannot read them (HIVE-30020)"),
        ("array<interval_day_time>", "type interval_day_time is not supported"),
        ("map<array<int>,int>", "has map keys that are not primitive"),
        ("struct<a:int,A:int>", "has fields without a name or with the same name"),
        ("struct<:int>", "has fields without a name or with the same name"), ("struct<>", "struct<>"),
        ("struct<a>", "struct<a>"),
        ("array<>", "array<>"), ("array<int,int>", "array<int,int>"), ("map<int>", "map<int>"),
        ("array<int>,array<int>", "not supported"), ("array<int", "array<int"), ("array<int>>", "int>"),
        ("struct<a:b:int>", "b:int"), ("array", "type array is not supported"),
    ],
)  # fmt: skip
def test_parse_when_type_is_not_supported_then_raises_invalid_table(text: str, reason: str) -> None:
    with pytest.raises(InvalidTable) as caught:
        HiveType.parse(text, column="c")
    assert reason in caught.value.what
    assert caught.value.where == "column c"


def one(type_text: str, text: str) -> Any:
    """Decode one JSON text in a column of this type; return its value or the reject reason."""
    decoded = JsonDecoder([Column("c", HiveType.parse(type_text))]).decode([b'{"c":' + text.encode() + b"}"])
    if decoded.rejects:
        assert [reject.column for reject in decoded.rejects] == ["c"]
        return decoded.rejects[0].reason
    assert len(decoded.batches) == 1
    return values(decoded.batches[0].column(0))[0]


def values(array: pa.Array) -> list[Any]:
    """Return the values in the form of `nested.converter`: nanoseconds, days, tuples, lists of pairs."""
    array.validate(full=True)
    if pa.types.is_struct(array.type):
        rows = zip(*map(values, array.flatten()), strict=True)
        return [row if valid else None for row, valid in zip(rows, array.is_valid().to_pylist(), strict=True)]
    if pa.types.is_nested(array.type):
        return [None if item is None else values(item) for item in (scalar.values for scalar in array)]
    if pa.types.is_timestamp(array.type):
        scale = 1000 if array.type.unit == "us" else 1
        return [None if stamp is None else stamp * scale for stamp in array.view(pa.int64()).to_pylist()]
    return list(array.view(pa.int32()).to_pylist() if pa.types.is_date(array.type) else array.to_pylist())


@pytest.mark.parametrize(
    ("type_text", "text", "expected"),
    [
        ("array<int>", "[]", []), ("array<int>", "null", None), ("array<int>", '[1,null,"3",4.0]', [1, None, 3, 4]),
        ("array<array<string>>", '[[],null,["a",null],[1.50,{"x":[1]}]]',
         [[], None, ["a", None], ["1.50", '{"x":[1]}']]),
        ("map<string,double>", "{}", []),
        ("map<string,double>", '{"a":1,"":null,"A":"NaN"}', [("a", 1.0), ("", None), ("A", float("nan"))]),
        ("map<int,string>", '{"1":"a","2.0":"b"}', [(1, "a"), (2, "b")]),
        ("map<int,string>", '{"1":"a","2":"b","1.0":"c"}', [(2, "b"), (1, "c")]),
        ("map<int,string>", '{"1":"a","1.0":"b","1":"c"}', [(1, "c")]),
        ("map<double,int>", '{"0":1,"-0.0":2}', [(-0.0, 2)]),
        ("map<char(2),int>", '{"a":1,"a ":2}', [("a", 2)]),
        ("map<boolean,map<date,int>>", '{"TRUE":{"1970-01-02":1},"false":null}', [(True, [(1, 1)]), (False, None)]),
        ("map<timestamp,int>", '{"1970-01-02T00:00:00Z":1}', [(DAY, 1)]),
        ("map<binary,int>", '{"AAH/":1}', [(b"\0\x01\xff", 1)]),
        ("struct<a:int,b:string>", "{}", (None, None)), ("struct<a:int,b:string>", "null", None),
        ("struct<a:int,b:string>", '{"B":"x","A":1,"other":[{}]}', (1, "x")),
        ("struct<a:int>", '{"a":1,"A":2}', (2,)), ("struct<a:int>", '{"a":1,"A":2,"a":3}', (3,)),
        ("struct<a:int>", '{"a":1,"A":null}', (None,)), ("struct<k:int>", '{"\u212a":1}', (1,)),
        ("struct<s:struct<t:struct<u:int>>,v:int>", '{"s":{"t":null},"v":1}', ((None,), 1)),
        ("struct<s:struct<t:struct<u:int>>,v:int>", '{"s":null,"v":1}', (None, 1)),
        ("array<struct<a:int,d:date>>", '[null,{"a":1},{"d":"0001-01-01"}]', [None, (1, None), (None, -719162)]),
        ("array<timestamp>", '["0001-01-01 00:00:00.000001","9999-12-31 23:59:59.999999",null]',
         [-719162 * DAY + 1000, 2932897 * DAY - 1000, None]),
        ("struct<t:timestamp>", '{"t":"1970-01-02 00:00:00.000000001"}', (DAY + 1,)),
        # rejects
        ("array<int>", "{}", "{} is not an array, but the type is array<int>"),
        ("array<int>", '"[1]"', "'[1]' is not an array, but the type is array<int>"),
        ("map<string,int>", "[]", "[] is not an object, but the type is map<string,int>"),
        ("struct<a:int>", "5", "'5' is not an object, but the type is struct<a:int>"),
        ("struct<a:int>", '"x"', "'x' is not an object, but the type is struct<a:int>"),
        ("array<int>", "[1,2,1.5]", "[2]: '1.5' is not a whole number, but the type is int"),
        ("struct<tags:array<struct<name:int>>>", '{"tags":[{},null,{},{"name":"x"}]}',
         "tags[3].name: 'x' is not a number, but the type is int"),
        ("map<string,struct<a:tinyint>>", '{"k":{"a":128}}', "['k'].a: '128' is out of range for tinyint"),
        ("map<int,int>", '{"x":1}', "['x']: 'x' is not a number, but the type is int"),
        ("array<varchar(2)>", '["abc"]', "[0]: text of 3 characters is longer than varchar(2)"),
        ("array<timestamp>", '["9999-12-31","2026-01-01 00:00:00.123456789"]',
         "nanoseconds can be stored only if every timestamp of the record is in the years 1678 to 2261"),
    ],
)  # fmt: skip
def test_decode_when_value_is_complex_then_is_exact_or_reject_has_the_path(
    type_text: str, text: str, expected: Any
) -> None:
    assert repr(one(type_text, text)) == repr(expected)


def decode(columns: dict[str, str], records: list[dict[str, Any]]) -> DecodeResult:
    decoder = JsonDecoder([Column(name, HiveType.parse(text)) for name, text in columns.items()])
    return decoder.decode([json.dumps(record).encode() for record in records])


def test_decode_when_timestamps_are_nested_then_each_batch_has_one_unit() -> None:
    near, far, fine = "2026-01-01", "9999-12-31", "2026-01-01 00:00:00.123456789"
    records = [{"t": near, "m": {"k": {"u": text}}} for text in (near, fine, far, near, fine)]
    decoded = decode({"t": "timestamp", "m": "map<string,struct<u:timestamp,n:int>>"}, records)
    assert decoded.rejects == []
    units = [(str(batch.schema.field("t").type), batch.num_rows) for batch in decoded.batches]
    assert units == [("timestamp[ns]", 4), ("timestamp[us]", 1)]
    for batch in decoded.batches:
        assert batch.schema.field("m").type.item_type.field("u").type == batch.schema.field("t").type


def test_decode_when_plain_and_nested_timestamps_need_two_units_then_rejects() -> None:
    record = {"t": "9999-12-31", "m": [{"u": "2026-01-01 00:00:00.123456789"}]}
    decoded = decode({"t": "timestamp", "m": "array<struct<u:timestamp>>"}, [record])
    assert [(reject.row, reject.column) for reject in decoded.rejects] == [(0, "m")]


def test_decode_when_there_are_many_records_then_rows_and_rejects_are_in_order() -> None:
    records: list[dict[str, Any]] = [{"id": n, "a": [n, None]} for n in range(3000)]
    records[1500]["a"] = ["x"]
    decoded = decode({"id": "int", "a": "array<int>"}, records)
    assert [(reject.row, reject.reason) for reject in decoded.rejects] == [
        (1500, "[0]: 'x' is not a number, but the type is int")
    ]
    table = pa.Table.from_batches(decoded.batches)
    assert table.to_pylist() == [record for n, record in enumerate(records) if n != 1500]
    assert table.schema == pa.schema([("id", pa.int32()), ("a", pa.list_(pa.int32()))])


PRIMITIVES = ["int", "string", "boolean", "double", "decimal(10,2)", "date", "timestamp", "binary"]
TYPES = st.recursive(
    st.sampled_from(PRIMITIVES),
    lambda inner: st.one_of(
        inner.map(lambda text: f"array<{text}>"),
        st.tuples(st.sampled_from(PRIMITIVES), inner).map(lambda pair: f"map<{pair[0]},{pair[1]}>"),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda parts: "struct<" + ",".join(f"f{index}:{part}" for index, part in enumerate(parts)) + ">"
        ),
    ),
    max_leaves=6,
)
SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "int": st.integers(-(2**31), 2**31 - 1),
    "string": st.text(max_size=4),
    "boolean": st.booleans(),
    "double": st.floats(allow_nan=False, allow_infinity=False),
    "decimal": st.decimals(-(10**7), 10**7, places=2).map(str),
    "date": st.dates().map(str),
    "timestamp": st.datetimes().map(str),
    "binary": st.text("ab", max_size=5),
}


def json_of(kind: HiveType) -> st.SearchStrategy[Any]:
    children = [st.none() | json_of(child) for child in kind.children]
    if kind.kind == "array":
        return st.lists(children[0], max_size=3)
    if kind.kind == "map":
        return st.dictionaries(json_of(kind.children[0]).map(str), children[1], max_size=3)
    if kind.kind == "struct":
        return st.fixed_dictionaries({}, optional=dict(zip(kind.names, children, strict=True)))
    return SCALARS[kind.kind]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_decode_when_type_is_arbitrary_then_arrow_has_the_converted_values(data: st.DataObject) -> None:
    kind = HiveType.parse(data.draw(TYPES.filter(lambda text: "<" in text)))
    assert HiveType.parse(str(kind)) == kind
    records = [{"c": item} for item in data.draw(st.lists(st.none() | json_of(kind), max_size=5))]
    texts = [json.dumps(record).encode() for record in records]
    column = Column("c", kind)
    decoded = JsonDecoder([column]).decode(texts)
    assert decoded.rejects == []
    reader = RecordReader([column])
    expected: list[Value] = [reader.row(text)[0] for text in texts]
    found = [value for batch in decoded.batches for value in values(batch.column(0))]
    assert repr(in_order(decoded, found)) == repr(expected)
    for batch in decoded.batches:
        assert str(batch.schema.field("c").type).replace("[us]", "[ns]") == str(kind.arrow)
