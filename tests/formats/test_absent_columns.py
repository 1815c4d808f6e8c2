"""Columns for which no record has a field: what each format can tell from the records alone."""

from __future__ import annotations

import json

import pytest

from ingestd.formats.avro.options import AvroOptions
from ingestd.formats.csv import CsvOptions
from ingestd.formats.delimited import DelimitedOptions
from ingestd.formats.json.options import JsonOptions
from ingestd.formats.options import FormatOptions, decoder_of
from ingestd.formats.protobuf.options import ProtobufOptions
from ingestd.formats.regex import RegexOptions
from ingestd.formats.whole_value import TextOptions
from tests.support.avro import encode, schema_of
from tests.support.decoding import columns_of
from tests.support.protobuf import Field, class_of, file_of, message, set_of

COLUMNS = columns_of(id="int", name="string", note="string")
NARROW, WIDE = schema_of({"ID": "int", "x": "int"}), schema_of({"id": "int", "note": ["null", "string"]})
ROW = file_of(message("Row", [Field("id", 1, "int32"), Field("x", 2, "string")]))
PROTOBUF = ProtobufOptions(framing="none", descriptor_set=set_of(ROW), message="shop.Row")
DEFAULTED = json.loads(schema_of({"id": "int", "note": ["null", "string"]}))
DEFAULTED["fields"][1]["default"] = None


def _event(**event: object) -> bytes:
    return json.dumps(event).encode()


@pytest.mark.parametrize(
    ("options", "values", "absent"),
    [
        (JsonOptions(), [b'{"id":1}', b'{"NAME":null,"x":1}', b"cut {"], {"note"}),
        (JsonOptions(), [b'{"x":{"name":1,"note":1},"id":1}'] * 300, {"name", "note"}),
        (JsonOptions(), [b"{}", b"[]", b""], {"id", "name", "note"}),
        (JsonOptions(), [], {"id", "name", "note"}),
        (JsonOptions(lenient=True), [b'{"id":null}'], {"name", "note"}),
        (JsonOptions(fields={"note": "$.a[1].b"}), [b'{"id":1,"note":1,"a":[0,{"b":null}]}'], {"name"}),
        (JsonOptions(fields={"note": "$.a[1].b"}), [b'{"id":1,"note":1,"a":[{"b":null}]}'], {"name", "note"}),
        (JsonOptions(fields={"note": "$"}), [b'{"id":1}'], {"name"}),
        (JsonOptions(envelope="connect"), [b'{"id":1,"payload":{"name":"a"}}'], {"id", "note"}),
        (
            JsonOptions(envelope="debezium", deletes="row", fields={"note": "$.op"}),
            [_event(op="c", after={"x": 1}), _event(op="d", before={"name": "a"}, after={"id": 1})],
            {"id"},
        ),
        (JsonOptions(records="array"), [b'[{"id":1},{"name":null}]', b"[]"], {"note"}),
        (JsonOptions(records="lines"), [b'{"id":1}\n{"name":null}\n'], {"note"}),
        (JsonOptions(records="array"), [b"[]", b"1"], {"id", "name", "note"}),
        (DelimitedOptions(fields=("id", "name", "note"), field_delimiter=","), [b"1,a", b"2"], {"note"}),
        (DelimitedOptions(fields=("note", "", "id"), field_delimiter=","), [b"a,b,1"], {"name"}),
        (CsvOptions(fields=("id", "name", "note")), [b'1,"a,b"', b'"cut'], {"note"}),
        (CsvOptions(fields=("id", "note")), [b"1,"], {"name"}),
        (RegexOptions(pattern="(.*) (.*)", fields=("id", "")), [b"1 2"], {"name", "note"}),
        (TextOptions(column="note"), [b"a"], {"id", "name"}),
        (AvroOptions(framing="none", schemas=(NARROW,)), [encode(NARROW, {"ID": 1, "x": 1})], {"name", "note"}),
        (AvroOptions(framing="none", schemas=(WIDE,)), [encode(WIDE, {"id": 1, "note": None})], {"name"}),
        (
            AvroOptions(framing="none", schemas=(NARROW.replace("ID", "id"),), reader_schema=json.dumps(DEFAULTED)),
            [encode(NARROW, {"ID": 1, "x": 1})],
            {"name", "note"},
        ),
        (PROTOBUF, [class_of(ROW)(x="a").SerializeToString()], {"name", "note"}),
    ],
)
def test_columns_when_no_record_has_a_field_for_them_then_are_absent(
    options: FormatOptions, values: list[bytes], absent: set[str]
) -> None:
    decoder = decoder_of(options, COLUMNS, None)
    assert decoder.absent_columns(values) == absent
    decoder.decode(values)
    assert decoder.absent_columns(values) == absent
