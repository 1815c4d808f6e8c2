"""A record none of whose fields is a column is a reject, or a row of NULLs with `unmatched: null`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingestd.formats.avro.options import AvroOptions
from ingestd.formats.csv import CsvOptions
from ingestd.formats.decoder import Decoder
from ingestd.formats.delimited import DelimitedOptions
from ingestd.formats.json.decoder import JsonDecoder
from ingestd.formats.json.options import JsonOptions
from ingestd.formats.protobuf.options import ProtobufOptions
from ingestd.formats.regex import RegexOptions
from tests.support.avro import encode, schema_of
from tests.support.decoding import columns_of, in_order, reasons, rows_of
from tests.support.protobuf import Field, class_of, file_of, message, set_of

COLUMNS = columns_of(id="int", name="string")
NESTED = columns_of(id="int", name="string", tags="array<struct<a:int>>")
CONNECT = (
    b'{"schema":{"type":"struct","fields":[{"field":"id","type":"int32"},{"field":"name","type":"string"}]},'
    b'"payload":{"id":1,"name":"a"}}'
)
CHANGE = b'{"before":null,"after":{"id":2,"name":"b"},"op":"c","ts_ms":1700000000000}'
UNKNOWN = "no field of the record is a column (fields: x; columns: id, name)"
ORDINARY = [b'{"id":%d,"name":"a"}' % number for number in range(400)]


@pytest.mark.parametrize("columns", [COLUMNS, NESTED], ids=["primitive", "nested"])
@pytest.mark.parametrize(
    "others", [[], ORDINARY, [b'{"id":1,"z":2}', *ORDINARY]], ids=["alone", "mixed", "other field"]
)
@pytest.mark.parametrize(
    ("value", "is_row"),
    [
        (b'{"x":1}', False), (b'{"x":null}', False), (b'{"x":{"id":1}}', False),
        (b'{"x":"\\"id\\":","y":[{"id":1}]}', False),
        (b'{"\\"id":1}', False), (b'{"identity":1}', False), (b'{"":1}', False), (CONNECT, False), (CHANGE, False),
        (b"{}", True), (b" { }\n", True), (b'{"id":null}', True), (b'{"x":1,"id":null}', True),
        (b'{"x":{"y":1},"NAME" : null}', True), (b'{"\\u0069d":null}', True),
    ],
)  # fmt: skip
def test_decode_when_json_has_no_field_of_a_column_then_it_is_a_reject(
    columns: Any, others: list[bytes], value: bytes, is_row: bool
) -> None:
    for values in ([value, *others], [value] * 20 + others):
        count = len(values) - len(others)
        decoder = JsonOptions().decoder(columns)
        for _ in range(2):  # it learns how the fields are spelled
            decoded = decoder.decode(values)
            assert [reject.row for reject in decoded.rejects] == ([] if is_row else list(range(count)))
            assert decoded.rows == len(others) + (count if is_row else 0)
        assert (decoder.check(value) is None) == is_row

        stored = JsonOptions(unmatched="null").decoder(columns).decode(values)
        assert (stored.rejects, stored.rows) == ([], len(values))
        first = in_order(stored, rows_of(stored))[0]
        assert first == dict.fromkeys(first)


def test_decode_when_the_record_is_in_an_envelope_then_the_reason_names_the_option_that_unwraps_it() -> None:
    both = b'{"schema":null,"payload":' + CHANGE + b"}"
    decoded = JsonOptions().decoder(COLUMNS).decode([CONNECT, CHANGE, both, b'{"OP":"d","Before":{}}'])
    assert [reject.reason.removeprefix("no field of the record is a column: it is ") for reject in decoded.rejects] == [
        "in the envelope of Kafka Connect (schema, payload); set format.envelope: connect",
        "a change event of Debezium (before, after, op); set format.envelope: debezium",
        "a change event of Debezium in the envelope of Kafka Connect (schema, payload); set format.envelope: debezium",
        "a change event of Debezium (before, op); set format.envelope: debezium",
    ]
    assert rows_of(JsonOptions(envelope="connect").decoder(COLUMNS).decode([CONNECT])) == [{"id": 1, "name": "a"}]
    assert (
        rows_of(JsonOptions(envelope="debezium").decoder(COLUMNS).decode([CHANGE, both]))
        == [{"id": 2, "name": "b"}] * 2
    )
    connect = JsonOptions(envelope="connect").decoder(COLUMNS).decode([both])
    assert connect.rejects[0].reason.endswith("set format.envelope: debezium")


EVENTS = [CHANGE, b'{"schema":null,"payload":' + CHANGE + b"}", b'{"OP":"d","Before":{},"ts_ms":null}', CONNECT]


@pytest.mark.parametrize("others", [[], ORDINARY, [b'{"name":1,"z":2}', *ORDINARY]], ids=["alone", "mixed", "other"])
@pytest.mark.parametrize("more", [{}, {"tags": "array<int>"}], ids=["primitive", "nested"])
@pytest.mark.parametrize("lenient", [False, True], ids=["strict", "lenient"])
def test_decode_when_only_what_describes_an_envelope_is_stored_then_the_record_is_a_reject(
    others: list[bytes], more: dict[str, str], *, lenient: bool
) -> None:
    columns = columns_of(id="int", name="string", op="string", ts_ms="bigint", source="string", schema="string", **more)
    rows = [
        b'{"op":"c"}', b'{"op":"c","ts_ms":1}', b'{"op":"c","before":null,"id":null}', b'{"op":"c","after":{},"x":1}',
        b'{"payload":1,"op":"x"}', b'{"op":null,"NAME":"a"}',
    ]  # fmt: skip
    for options in (JsonOptions(lenient=lenient), JsonOptions(lenient=lenient, fields={"ts_ms": "$.ts_ms"})):
        decoder = options.decoder(columns)
        for values in ([*EVENTS, *rows, *others], [*EVENTS * 100, *rows, *others]):
            decoded = decoder.decode(values)
            count = len(values) - len(rows) - len(others)
            assert [reject.row for reject in decoded.rejects] == list(range(count))
            assert decoded.rows == len(rows) + len(others)
        envelopes = [reject.reason.rpartition("format.envelope: ")[2] for reject in decoded.rejects[:4]]
        assert envelopes == ["debezium"] * 3 + ["connect"]
        assert decoded.rejects[0].reason.startswith("no field of the row in the record is a column: it is a change")
        assert [decoder.check(value) is None for value in (*EVENTS, *rows)] == [False] * 4 + [True] * 6
        assert replace(options, unmatched="null").decoder(columns).decode(EVENTS).rows == 4


@pytest.mark.parametrize("columns", [{"op": "string", "after": "string"}, {"op": "string", "ts_ms": "bigint"}])
def test_decode_when_the_columns_are_those_of_an_envelope_then_it_is_a_row(columns: dict[str, str]) -> None:
    assert JsonOptions().decoder(columns_of(**columns)).decode([CHANGE] * 300).rows == 300
    options = JsonOptions(fields={"id": "$.after.id"})
    assert rows_of(options.decoder(columns_of(id="int", op="string")).decode([CHANGE])) == [{"id": 2, "op": "c"}]
    whole = JsonOptions(fields={"id": "$"})
    assert whole.decoder(columns_of(id="string", op="string")).decode([CHANGE]).rows == 1


def test_decode_when_a_connect_envelope_contains_a_change_event_then_its_operation_is_no_row() -> None:
    columns = columns_of(id="int", op="string")
    decoded = JsonOptions(envelope="connect").decoder(columns).decode(EVENTS[1:2])
    assert decoded.rejects[0].reason.endswith("set format.envelope: debezium")
    unwrapped = JsonOptions(envelope="debezium", fields={"op": "$.op"}).decoder(columns)
    assert rows_of(unwrapped.decode(EVENTS[:2])) == [{"id": 2, "op": "c"}] * 2


def test_decode_when_the_record_has_many_or_strange_fields_then_the_reason_names_a_few() -> None:
    columns = columns_of(**{f"c{number}": "int" for number in range(12)})
    value = json.dumps({"a": 1, "b c": 2, "\ud800": 3, "d" * 100: 4, "ä": 5, "f": 6}).encode()
    [(_, _, reason)] = reasons(JsonOptions().decoder(columns).decode([value]))
    assert reason == (
        f"no field of the record is a column (fields: a, 'b c', '\\ud800', {'d' * 37}..., 'ä', ...;"
        f" columns: {', '.join(f'c{number}' for number in range(10))}, ...)"
    )


@pytest.mark.parametrize(
    ("options", "rows", "rejected"),
    [
        (JsonOptions(envelope="connect"), [{"id": None}, {"ID": 1}, {}], {"x": 1}),
        (
            JsonOptions(envelope="connect", fields={"name": "$.user.name"}),
            [{"user": {}}, {"user": None}],
            {"name": "a"},
        ),
    ],
    ids=["names", "paths"],
)
def test_decode_when_the_row_in_an_envelope_has_no_field_of_a_column_then_it_is_a_reject(
    options: JsonOptions, rows: list[object], rejected: object
) -> None:
    values = [json.dumps({"schema": {}, "payload": row}).encode() for row in [*rows, rejected]]
    decoded = options.decoder(COLUMNS).decode(values)
    assert decoded.rows == len(rows)
    assert [reject.row for reject in decoded.rejects] == [len(rows)]
    assert decoded.rejects[0].reason.startswith("no field of the row in the connect envelope is a column (fields: ")


@pytest.mark.parametrize("others", [[], [b'{"data":{"id":1}}'] * 400], ids=["alone", "mixed"])
def test_decode_when_columns_have_paths_then_the_fields_of_objects_on_these_paths_count(others: list[bytes]) -> None:
    options = JsonOptions(fields={"id": "$.data.id", "name": "$.data.user.name", "tag": "$.tags[1]"})
    columns = columns_of(id="int", name="string", tag="string")
    rejected = {
        b'{"data":{"x":1}}': "data.x",
        b'{"data":{"user":{"y z":1}},"z":2}': "'data.user.y z', z",
        b'{"data":{"id":1},"Data":{"x":1}}': "Data.x",  # the last spelling of a name wins
        b'{"tag":"a"}': "tag",
    }
    rows = [
        b"{}", b'{"data":{}}', b'{"data":null}', b'{"data":{"ID":null}}', b'{"x":1,"data":{"user":{}}}',
        b'{"Data":{"x":1},"data":{"id":null}}', b'{"data":{"x":1},"tags":[]}',
    ]  # fmt: skip
    decoder = options.decoder(columns)
    decoded = decoder.decode([*rejected, *rows, *others])
    assert decoded.rows == len(rows) + len(others)
    assert reasons(decoded) == [
        (row, "", f"no field of the record is a column (fields: {fields}; columns: id, name, tag)")
        for row, fields in enumerate(rejected.values())
    ]
    assert [decoder.check(value) is None for value in (*rejected, *rows)] == [False] * 4 + [True] * 7


@pytest.mark.parametrize("others", [[], [b'{"users":[{"id":1}]}'] * 400], ids=["alone", "mixed"])
def test_decode_when_columns_have_paths_through_arrays_then_the_elements_on_them_count(others: list[bytes]) -> None:
    options = JsonOptions(fields={"id": "$.users[0].id", "name": "$.users[1]['full name']"})
    rejected = {
        b'{"users":[{"x":1}]}': "users[0].x",
        b'{"users":[{"x":1},{"y":2}],"z":3}': "users[0].x, users[1].y, z",
    }
    rows = [
        b'{"users":[]}', b'{"users":[{}]}', b'{"users":[null]}', b'{"users":[{"ID":null}]}', b'{"users":null,"z":1}',
        b'{"users":[{"x":1},{"full name":null}]}', b'{"users":[{"x":1},{}]}',
    ]  # fmt: skip
    decoded = options.decoder(COLUMNS).decode([*rejected, *rows, *others])
    assert decoded.rows == len(rows) + len(others)
    assert [reason for _, _, reason in reasons(decoded)] == [
        f"no field of the record is a column (fields: {fields}; columns: id, name)"
        for fields in ("'users[0].x'", "'users[0].x', 'users[1].y', z")
    ]


def test_decode_when_the_row_of_a_change_event_has_no_field_of_a_column_then_the_reason_names_its_fields() -> None:
    event = b'{"op":"c","before":{"id":1},"after":{"op":1,"before":2}}'
    decoded = JsonOptions(envelope="debezium").decoder(COLUMNS).decode([event])
    reason = "no field of the row in the debezium envelope is a column (fields: op, before; columns: id, name)"
    assert reasons(decoded) == [(0, "", reason)]


def test_decode_when_a_change_event_has_columns_at_paths_then_only_the_fields_of_its_row_count() -> None:
    options = JsonOptions(envelope="debezium", deletes="row", fields={"op": "$.op", "name": "$.source.name"})
    columns = columns_of(id="int", name="string", op="string")
    events: list[tuple[dict[str, object], bool]] = [
        ({"op": "c", "after": {"id": None}}, True),
        ({"op": "c", "after": {}}, True),
        ({"op": "c", "after": {"x": 1}, "source": {"name": "a"}}, False),
        ({"op": "c", "after": {"x": 1}, "before": {"id": 1}}, False),
        ({"op": "d", "before": {"id": 1}}, True),
        ({"op": "d", "before": {"x": 1}, "after": {"id": 1}}, False),
    ]
    decoded = options.decoder(columns).decode([json.dumps(event).encode() for event, _ in events])
    assert [reject.row for reject in decoded.rejects] == [i for i, (_, is_row) in enumerate(events) if not is_row]
    assert {reject.reason for reject in decoded.rejects} == {
        "no field of the row in the debezium envelope is a column (fields: x; columns: id, name, op)"
    }


def test_decode_when_a_column_stores_the_record_then_no_record_is_a_reject() -> None:
    decoder = JsonOptions(fields={"name": "$"}).decoder(COLUMNS)
    assert rows_of(decoder.decode([b'{"x":1}'])) == [{"id": None, "name": '{"x":1}'}]


def test_decode_when_the_values_are_lenient_then_positions_are_fields_and_null_is_a_row() -> None:
    decoded = JsonOptions(lenient=True).decoder(COLUMNS).decode([b'{"_col0":null}', b"null", b"{}", b'{"x":1} text'])
    assert decoded.rows == 3
    assert reasons(decoded) == [(3, "", UNKNOWN)]


@pytest.mark.parametrize(
    ("records", "values", "place"),
    [("array", [b'[{"id":1},{"x":1}]', b'[{"id":2}]', b"[]"], "element [1]"),
     ("lines", [b'{"id":1}\n{"x":1}', b'{"id":2}'], "line 2")],
)  # fmt: skip
def test_decode_when_one_of_several_objects_has_no_field_of_a_column_then_the_record_is_a_reject(
    records: Any, values: list[bytes], place: str
) -> None:
    decoded = JsonOptions(records=records).decoder(COLUMNS).decode(values)
    assert rows_of(decoded) == [{"id": 2, "name": None}]
    assert reasons(decoded) == [(0, "", f"{place}: {UNKNOWN}")]


def test_decode_when_a_record_has_no_value_then_a_row_of_nulls_is_no_reject() -> None:
    decoded = JsonOptions(tombstones="null_row").decoder(COLUMNS).decode([None, b'{"x":1}'])
    assert (decoded.rows, reasons(decoded)) == (1, [(1, "", UNKNOWN)])


NAMES = ["id", "ID", "name", "k", "\u212a", "x", 'a"id', "after", "op", "payload", "schema", "_col0"]
VALUES: st.SearchStrategy[object] = st.sampled_from(
    [None, None, 1, "c", {"id": 1}, {"x": None}, [], "1970-01-01 00:00:00", "soon"]
)
OBJECTS = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=3)
TYPES = [
    {"id": "int", "op": "string", "schema": "string"},
    {"id": "int"},
    {"id": "string", "name": "map<string,int>"},
    {"k": "int", "at": "timestamp", "a b": "string"},
]


@settings(deadline=None, max_examples=200)
@given(
    objects=st.lists(OBJECTS, min_size=1, max_size=12),
    repeated=st.sampled_from([1, 30]),
    types=st.sampled_from(TYPES),
    lenient=st.booleans(),
    ordinary=st.integers(0, 60),
)
def test_decode_when_records_are_arbitrary_then_outcome_is_that_of_the_record_alone_and_of_its_names(
    objects: list[dict[str, Any]], repeated: int, types: dict[str, str], lenient: bool, ordinary: int
) -> None:
    columns = columns_of(**types)
    values = [json.dumps(object_).encode() for object_ in objects] * repeated
    values += [json.dumps({next(iter(types)): 1}).encode()] * ordinary
    options = JsonOptions(lenient=lenient)
    decoder = options.decoder(columns)

    for _ in range(2):
        rejects = {reject.row: (reject.column, reject.reason) for reject in decoder.decode(values).rejects}
        alone = {value: _alone(options.decoder(columns), value) for value in set(values)}
        assert rejects == {row: alone[value] for row, value in enumerate(values) if alone[value] is not None}

    stored = _rejected(replace(options, unmatched="null").decoder(columns), values)
    known = {column.name for column in columns} | ({"_col0"} if lenient else set())
    unmatched = {
        row
        for row, one in enumerate(objects * repeated)
        if one
        and row not in stored
        and (known.isdisjoint(map(str.lower, one)) or ("op" in known and _is_envelope(set(map(str.lower, one)))))
    }
    assert rejects.keys() == stored | unmatched


def _is_envelope(names: set[str]) -> bool:
    return names <= {"after", "op", "payload", "schema"} and (
        {"op", "after"} <= names or {"schema", "payload"} <= names
    )


def _alone(decoder: JsonDecoder, value: bytes) -> tuple[str, str] | None:
    reject = decoder.check(value)
    return None if reject is None else (reject.column, reject.reason)


def _rejected(decoder: Decoder, values: Sequence[bytes]) -> set[int]:
    return {reject.row for reject in decoder.decode(values).rejects}


DELIMITED = DelimitedOptions(fields=("id", "", "name"), field_delimiter=",")
CSV = CsvOptions(fields=("id", "", "name"))
ONE_FIELD = "record has only one field, because it has no field_delimiter ',' (columns: id, name)"


@pytest.mark.parametrize("options", [DELIMITED, replace(DELIMITED, escape="\\"), CSV], ids=["plain", "escape", "csv"])
@pytest.mark.parametrize("others", [[], [b"1,,a"] * 300, [b"2,,b", b"1,"]], ids=["alone", "mixed", "uneven"])
def test_decode_when_a_text_has_several_fields_but_no_delimiter_then_it_is_a_reject(
    options: DelimitedOptions | CsvOptions, others: list[bytes]
) -> None:
    values = [b"1;x;a", b"", b"1", *others]
    decoder = options.decoder(COLUMNS)
    decoded = decoder.decode(values)
    assert reasons(decoded) == [(0, "", ONE_FIELD), (2, "", ONE_FIELD)]
    assert in_order(decoded, rows_of(decoded))[0] == {"id": None, "name": None}
    assert decoder.decode([b"1;x;a"] * 300).rows == 0
    for value in values:
        assert (decoder.check(value) is None) == (value in {b"", *others})

    stored = replace(options, unmatched="null", bad_values="null").decoder(COLUMNS).decode(values)
    assert (stored.rejects, stored.rows) == ([], len(values))


def test_decode_when_a_text_has_one_field_and_that_is_all_then_it_is_a_row() -> None:
    for options in (replace(DELIMITED, fields=("name",)), replace(CSV, fields=("name",))):
        assert rows_of(options.decoder(COLUMNS).decode([b"a;b"])) == [{"id": None, "name": "a;b"}]
    escaped = replace(DELIMITED, escape="\\", bad_values="null").decoder(COLUMNS)
    assert escaped.check(b"1\\,2") is not None
    assert _rejected(escaped, [b"1\\,2", b"1,2"]) == {0}
    assert _rejected(CSV.decoder(COLUMNS), [b'"1,2"', b'"",', b"\n"]) == {0}


def test_decode_when_a_pattern_does_not_match_then_the_key_decides() -> None:
    options = RegexOptions(pattern="([0-9]+) (.*)", fields=("id", "name"))
    assert _rejected(options.decoder(COLUMNS), [b"1 a", b"a"]) == {1}
    assert rows_of(replace(options, unmatched="null").decoder(COLUMNS).decode([b"a"])) == [{"id": None, "name": None}]


def test_decode_when_a_pattern_matches_without_any_group_then_the_record_is_a_reject() -> None:
    options = RegexOptions(pattern="(?:([0-9]+)|([a-z]*)=|.*)", fields=("id", "name"))
    values = [b"1", b"=", b"", b"a;b"]
    decoded = options.decoder(COLUMNS).decode(values)
    assert rows_of(decoded) == [{"id": 1, "name": None}, {"id": None, "name": ""}, {"id": None, "name": None}]
    assert reasons(decoded) == [(3, "", "no group of the regular expression has matched a part of the record")]
    assert replace(options, unmatched="null").decoder(COLUMNS).decode(values).rows == 4


def test_decode_when_no_field_of_an_avro_schema_is_a_column_then_its_records_are_rejects() -> None:
    schema, other = schema_of({"x": "int", "y": "string"}), schema_of({"ID": ["null", "int"], "x": "int"})
    reason = "no field of the record is a column (fields: x, y; columns: id, name)"
    options = AvroOptions(framing="none", schemas=(schema,))
    values = [encode(schema, {"x": 1, "y": "a"})] * 2
    assert reasons(options.decoder(COLUMNS).decode(values)) == [(0, "", reason), (1, "", reason)]
    assert replace(options, unmatched="null").decoder(COLUMNS).decode(values).rows == 2
    known = replace(options, schemas=(other,)).decoder(COLUMNS).decode([encode(other, {"ID": None, "x": 1})])
    assert rows_of(known) == [{"id": None, "name": None}]
    empty = schema_of({})
    assert replace(options, schemas=(empty,)).decoder(COLUMNS).decode([encode(empty, {})]).rows == 1


def test_decode_when_an_avro_union_has_records_without_a_column_then_only_these_are_rejects() -> None:
    kinds = [json.loads(schema_of({field: "int"})) | {"name": name} for name, field in (("A", "id"), ("B", "x"))]
    schema = json.dumps(kinds)
    options = AvroOptions(framing="none", schemas=(schema,))
    values = [encode(schema, record) for record in (("A", {"id": 1}), ("B", {"x": 1}))]
    decoded = options.decoder(COLUMNS).decode(values)
    assert reasons(decoded) == [(1, "", UNKNOWN)]
    assert rows_of(decoded) == [{"id": 1, "name": None}]
    assert replace(options, unmatched="null").decoder(COLUMNS).decode(values).rows == 2


def test_decode_when_only_defaults_of_the_avro_reader_schema_are_columns_then_the_records_are_rejects() -> None:
    schema = schema_of({"x": "int"})
    target = json.loads(schema_of({"id": "int"}))
    target["fields"][0]["default"] = 7
    options = AvroOptions(framing="none", schemas=(schema,), reader_schema=json.dumps(target))
    value = encode(schema, {"x": 1})
    assert reasons(options.decoder(COLUMNS).decode([value])) == [(0, "", UNKNOWN)]
    stored = replace(options, unmatched="null").decoder(COLUMNS).decode([value])
    assert rows_of(stored) == [{"id": 7, "name": None}]
    target["fields"][0]["aliases"] = ["x"]
    known = replace(options, reader_schema=json.dumps(target)).decoder(COLUMNS).decode([value])
    assert rows_of(known) == [{"id": 1, "name": None}]


def test_decode_when_the_schema_is_that_of_a_change_event_then_the_reason_says_how_to_unwrap_it() -> None:
    schema = schema_of({"before": ["null", "int"], "after": ["null", "int"], "op": "string"})
    value = encode(schema, {"before": None, "after": 1, "op": "c"})
    [(_, _, reason)] = reasons(AvroOptions(framing="none", schemas=(schema,)).decoder(COLUMNS).decode([value]))
    assert reason.startswith("no field of the record is a column: it is a change event of Debezium (before, after, op)")
    assert "ExtractNewRecordState" in reason

    decoder = AvroOptions(framing="none", schemas=(schema,)).decoder(columns_of(id="int", op="string"))
    assert [other for _, _, other in reasons(decoder.decode([value]))] == [reason]
    assert decoder.needed_columns((), ()) == ()
    for columns in (columns_of(after="int", op="string"), columns_of(op="string")):
        assert AvroOptions(framing="none", schemas=(schema,)).decoder(columns).decode([value]).rows == 1
    file = file_of(message("Row", [Field("op", 1, "string"), Field("after", 2, "string")]))
    options = ProtobufOptions(framing="none", descriptor_set=set_of(file), message="shop.Row")
    values = [class_of(file)(op="c").SerializeToString()]
    assert options.decoder(columns_of(id="int", op="string")).decode(values).rows == 0
    assert options.decoder(columns_of(after="string", op="string")).decode(values).rows == 1


def test_decode_when_no_field_of_a_protobuf_type_is_a_column_then_its_messages_are_rejects() -> None:
    file = file_of(message("Row", [Field("x", 1, "int32"), Field("y", 2, "string")]))
    options = ProtobufOptions(framing="none", descriptor_set=set_of(file), message="shop.Row")
    values = [class_of(file)(x=1).SerializeToString(), b""]
    reason = "no field of the record is a column (fields: x, y; columns: id, name)"
    assert reasons(options.decoder(COLUMNS).decode(values)) == [(0, "", reason), (1, "", reason)]
    assert replace(options, unmatched="null").decoder(COLUMNS).decode(values).rows == 2
    assert options.decoder(columns_of(id="int", y="string")).decode(values).rows == 2


def test_decode_when_all_fields_of_a_protobuf_message_are_unknown_to_its_type_then_it_is_a_reject() -> None:
    row = file_of(
        message("Row", [Field("id", 1, "int32"), Field("name", 2, "string"), Field("more", 3, "int32", "repeated")])
    )
    options = ProtobufOptions(framing="none", descriptor_set=set_of(row), message="shop.Row")
    kind = class_of(row)
    rejected = [
        b"\x20\x05",  # field 4
        b"\x0a\x01a",  # field 1, but with the wire type of a text
        b"\x1b\x08\x01\x1c",  # field 3, but as a group
    ]
    rows = [
        b"", kind(id=1).SerializeToString(), kind(more=[1, 2]).SerializeToString(), b"\x18\x01",
        kind(name="a").SerializeToString() + rejected[0],
    ]  # fmt: skip
    reason = "all fields of the record are unknown to the type shop.Row, so the record probably has another type"
    for columns in (COLUMNS, columns_of(name="string"), columns_of(id="int", z="int")):
        for repeated in (1, 100):
            values = rejected * repeated + rows
            decoded = options.decoder(columns).decode(values)
            assert reasons(decoded) == [(place, "", reason) for place in range(3 * repeated)]
            assert decoded.rows == len(rows)
    assert options.decoder(COLUMNS).decode([b"\x20"]).rejects[0].reason.startswith("record does not match its Protobuf")
    stored = replace(options, unmatched="null").decoder(COLUMNS).decode(rejected)
    assert rows_of(stored) == [{"id": 0, "name": ""}] * 3


def test_needed_columns_when_no_field_of_a_schema_is_a_column_then_its_records_need_none() -> None:
    foreign = schema_of({"x": "int", "y": "string"})
    decoder = AvroOptions(framing="none", schemas=(foreign,)).decoder(COLUMNS)
    assert decoder.decode([encode(foreign, {"x": 1, "y": "a"})]).rows == 0
    assert decoder.needed_columns((), ()) == ()

    kinds = [json.loads(schema_of({key: "int", f"{key}2": "long"})) | {"name": key} for key in ("id", "x")]
    decoder = AvroOptions(framing="none", schemas=(json.dumps(kinds),)).decoder(COLUMNS)
    assert decoder.decode([encode(json.dumps(kinds), ("x", {"x": 1, "x2": 2}))]).rows == 0
    assert {column.name for column in decoder.needed_columns((), ())} == {"id", "id2", "name"}

    strict = AvroOptions(framing="none", schemas=(foreign,), reader_schema=foreign)
    for options, names in ((strict, set()), (replace(strict, unmatched="null"), {"x", "y"})):
        decoder = options.decoder(COLUMNS)
        decoder.decode([encode(foreign, {"x": 1, "y": "a"})])
        assert {column.name for column in decoder.needed_columns((), ())} == names
