"""JSON paths, envelopes and timestamp formats: the value of each column, and the same result for whole batches."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from random import Random
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingestd.errors import ConfigError
from ingestd.formats import DecodeResult, JsonDecoder
from ingestd.formats.json.envelope import AFTER, BEFORE, INSERTS
from ingestd.formats.json.layout import Layout, Path, Place, parse_path
from ingestd.formats.json.options import JsonOptions
from ingestd.formats.json.tape_reader import TapeReader
from ingestd.formats.json.timestamp_formats import parse_format
from ingestd.schema import Column
from tests.formats.test_tape import Generator, assert_equal, decoded_alone
from tests.support.decoding import columns_of, reasons, rows_of

STAMPS = {
    "iso": ["2026-02-01T03:04:05", "2026-02-01T03", "1600-01-01"],
    "epoch_s": ["1700000000", "-1", "0", "1700000000.5", "1e9", "-62135596800", "253402300799.999999999"],
    "epoch_ms": ["1700000000123", "1700000000123.25", "1.5e3", "9223372036854"],
    "epoch_us": ["1700000000123456", "1700000000123456.789", "9223372036854775"],
    "dd/MM/yyyy HH:mm:ss.SSSXX": ["02/01/2026 03:04:05.678Z", "02/01/2026 03:04:05.678+0530"],
    "yyyyMMdd": ["20260102", "19691231", "00010101"],
    "yyyy-dd-MM'T'HH": ["2026-02-01T03", "2026-31-12T23"],
    "": [
        "2026-13-01T03",
        "31/02/2026 00:00:00.000Z",
        "19691332",
        "",
        "x",
        "-",
        "1e400",
        "1" * 40,
        "0." + "0" * 200 + "1",
    ],
}


NUMBERS = ["0", "-0", "0.0", '"0"', "0e5"]
TEXTS = ['"a"', '"\\u00e4"', '"x y"', '""']
USUAL = {
    **dict.fromkeys(["int", "bigint", "tinyint", "double", "float", "decimal"], NUMBERS),
    **dict.fromkeys(["string", "varchar", "char", "binary"], TEXTS),
    "date": ['"2026-01-02"', '"0001-01-01"'],
}


class PlacedGenerator(Generator):
    """Generates records whose values are at the places of a layout."""

    def layout(self, columns: Sequence[Column]) -> Layout:
        random = self._random
        paths: dict[str, Path] = {}
        for column in columns:
            if random.random() < 0.6:
                names: list[str | int] = ["a", "b", "ä", "x y"]
                inner = [random.choice([*names, 0, 1, 2]) for _ in range(random.choice([0, 0, 0, 1, 2]))]
                paths[column.name] = (random.choice(names), *inner) if random.random() < 0.95 else ()
        self._formats = tuple(random.sample([*STAMPS][:-1], random.randint(1, 3)))
        operations = random.choice([INSERTS, ("c", "r", "u", "d"), ("c", "r", "d")])
        return Layout(
            paths,
            random.choice(["none", "connect", "debezium"]),
            self._formats,
            operations=operations,
            rejects_unmatched=random.random() < 0.5,
        )

    def placed(self, layout: Layout, columns: Sequence[Column]) -> bytes:
        random = self._random
        if random.random() < 0.05:
            return self.record(columns)
        event = self._place(layout.tree(columns, random.choice([AFTER, AFTER, BEFORE])), columns)
        if layout.envelope == "debezium" and event.startswith("{") and event.endswith("}"):
            operation = random.choice(['"c"', '"d"'] * 10 + ['"r"', '"u"', "null", "5", '"\\u0063"', '"cc"'])
            after = '"after":{},' if '"after"' not in event and random.random() < 0.9 else ""
            event = event.replace("{", f'{{{after}"x":0,{self._string("op")}:{operation},', 1).replace(",}", "}")
        if layout.envelope == "connect" or random.random() < 0.3 * (layout.envelope == "debezium"):
            name = random.choice(["payload"] * 18 + ["Payload", "x"])
            event = self._object([("schema", random.choice(["null", '{"type":"struct"}'])), (name, event)])
        return self._mutated(bytearray(event.encode())) if random.random() < 0.05 else event.encode()

    def _place(self, place: Place, columns: Sequence[Column]) -> str:
        random, chance = self._random, self._random.random()
        if chance < 0.04:
            return self._any(1)
        if chance < 0.08:
            return "null"
        if place.elements and (not place.members or chance < 0.3):
            return self._list(
                [
                    self._place(place.elements[index], columns) if index in place.elements else self._any(2)
                    for index in range(random.randint(0, max(place.elements) + 2))
                ]
            )
        if not place.members:
            kind = columns[place.columns[0]].type
            return self._value(kind, 1)
        members = [
            (random.choice([name] * 5 + [name.upper()]), self._place(inner, columns))
            for name, inner in place.members.items()
            if random.random() < 0.9
        ]
        if random.random() < 0.1:
            members.append((random.choice([*place.members, "other"]), self._any(2)))
        random.shuffle(members)
        return self._object(members)

    def _stamp(self) -> str:
        known = STAMPS[self._random.choice(self._formats)]
        text = self._random.choice(known if self._random.random() < 0.9 else STAMPS[self._random.choice([*STAMPS])])
        return text if "/" not in text and ":" not in text and self._random.random() < 0.5 else json.dumps(text)

    def _primitive(self, kind: str) -> str:
        if kind == "timestamp":
            return self._stamp()
        is_usual = kind in USUAL and self._random.random() < 0.9
        return self._random.choice(USUAL[kind]) if is_usual else super()._primitive(kind)


@settings(max_examples=250, deadline=None)
@given(st.integers(0, 1 << 60), st.sampled_from([1, 3, 20, 60]))
def test_decode_when_layout_is_arbitrary_then_result_is_the_same_as_one_by_one(seed: int, count: int) -> None:
    generator = PlacedGenerator(Random(seed))
    columns = generator.columns()
    layout = generator.layout(columns)
    values = [generator.placed(layout, columns) for _ in range(count)]
    _assert_decoded_as_alone(JsonDecoder(columns, layout), columns, layout, values)


def _assert_decoded_as_alone(
    decoder: JsonDecoder, columns: Sequence[Column], layout: Layout, values: list[bytes]
) -> None:
    decoded = decoder.decode(values)
    alone = [decoded_alone(columns, value, layout) for value in values]
    rejects = {index: one for index, one in enumerate(alone) if isinstance(one, tuple)}
    assert {reject.row: (reject.column, reject.reason) for reject in decoded.rejects} == rejects
    assert_equal(columns, decoded, [row for row in alone if not isinstance(row, tuple)])


class ConnectGenerator:
    """Generates records with schemas of Kafka Connect, which describe logical types. Some do not fit their schema."""

    _NUMBERS = ("MDQ=", "AQ==", "gQ==", "AMOA", "AAAA", "/////w==", "////", "AR==")
    _VALUES = (
        *map(json.dumps, _NUMBERS), '"f/////////////////////w=="', '"x"', '""', '"12"', '" AQ=="', '"A\\/8="',
        '"\\u0041Q=="', "12.5",
        "1e2", "7", "null", "true", "-0", "01", "253402300799999", "253402300800000", "-62135596800001", "1.0",
        "9223372036854775807", "9223372036854775808", "1" + "0" * 400, "2932896", "2932897", '"2026-11-21"',
        '{"scale":"1","value":"gQ=="}', '{"scale":2,"value":"MDQ="}', '{"scale":-1,"value":"MDQ="}', '{"scale":1}',
        '{"value":5,"scale":0}', '{"SCALE":1,"value":"gQ=="}', '{"scale":1,"value":"gQ==","Value":"AQ=="}',
        '{"scale":100,"value":"AQ=="}', '{"scale":1.0,"value":"AQ=="}', '["AQ==",null]', '{"a":"AQ==","t":"MDQ="}',
        '{"A":"AQ=="}', '[{"a":"AQ=="}]', '{"k":"MDQ="}', "{}", "[]",
    )  # fmt: skip
    _DECIMAL = "org.apache.kafka.connect.data.Decimal"
    _SCALED = "io.debezium.data.VariableScaleDecimal"
    _UNITS = MappingProxyType({
        "org.apache.kafka.connect.data.Date": 86_400 * 10**9, "org.apache.kafka.connect.data.Timestamp": 10**6,
        "org.apache.kafka.connect.data.Time": 10**6, "io.debezium.time.Date": 86_400 * 10**9,
        "io.debezium.time.Timestamp": 10**6, "io.debezium.time.MicroTimestamp": 10**3,
        "io.debezium.time.NanoTimestamp": 1,
    })  # fmt: skip
    _ISO_DATE = "io.debezium.time.IsoDate"
    _DATES = ('"2026-11-28Z"', '"0001-01-01+14:00"', '"9999-12-31-0530"', '"2024-02-29+02"', '"2026-11-28"')
    _BAD_DATES = (
        '"2023-02-29Z"', '"10000-01-01Z"', '"2026-11-28+24:00"', '"2026-11-28T00:00:00Z"', '"2026-11-28\\u005a"',
        '"2026-11-28Z "', "20000", '["2026-11-28Z"]',
    )  # fmt: skip
    _NAMES = ("a", "t", "s", "m", "l", "whole")

    def __init__(self, random: Random) -> None:
        self._random = random
        self._faults = random.choice([0, 0.01, 0.2])  # the part of what is chosen that is unusual
        self._is_event = random.random() < 0.5
        types = ("decimal(20,3)", "string", "double")
        times = ("date", "timestamp")
        kinds = [random.choice([*types, *times, "decimal(4,1)", "bigint", "binary"]), random.choice([*types, *times])]
        kinds += [
            *random.choice(
                [
                    ("struct<a:decimal(20,3),t:string>", "map<string,decimal(9,2)>", "array<decimal(9,3)>"),
                    ("struct<a:date,t:timestamp>", "map<string,timestamp>", "array<date>"),
                ]
            )
        ]
        taken = random.sample(range(5), random.randint(1, 5))
        paths: dict[str, Path] = {"whole": ()} if self._is_fault() else {}
        self.columns = columns_of(**{self._NAMES[i]: kinds[i] for i in taken}, **dict.fromkeys(paths, "string"))
        self.layout = Layout(
            envelope="debezium" if self._is_event else "connect",
            operations=tuple("crud") if self._is_event else INSERTS,
            paths=paths,
            rejects_unmatched=random.random() < 0.5,
            timestamp_formats=random.choice([("iso",), ("iso",), ("epoch_s", "iso")]),
            lenient=random.random() < 0.1,
        )
        self._schemas = [self._schema() for _ in range(random.randint(1, 3))]

    def _is_fault(self) -> bool:
        return self._random.random() < self._faults

    def record(self) -> bytes:
        schema, row = self._random.choice(self._schemas)
        payload = self._object(row)
        if self._is_event:
            operation = "x" if self._is_fault() else self._random.choice("crud")
            payload = f'{{"op":"{operation}","before":{self._object(row)},"after":{self._object(row)}}}'
        blank = " " * self._is_fault()
        members = [f'"schema":{blank}{json.dumps(schema)}', f'"payload":{blank}{payload}']
        if self._is_fault():
            other, _ = self._random.choice(self._schemas)
            others = ['"x":1', '"Schema":null', f'"payload":{payload}', f'"schema":{json.dumps(other)}']
            members.append(self._random.choice(others))
        if self._is_fault():
            self._random.shuffle(members)
        return ("{" + ",".join(members[self._is_fault() :]) + "}"[self._is_fault() :]).encode()

    def _object(self, kinds: Mapping[str, dict[str, Any]]) -> str:
        if self._is_fault():
            return self._random.choice(["null", "[]", '"x"', "1"])
        names = [name for name in kinds if self._random.random() < 0.8]
        pairs = [(name.upper() if self._is_fault() else name, self._value(kinds[name])) for name in names]
        pairs += pairs[:1] * self._is_fault()
        if pairs and self._is_fault():  # the last of several spellings counts, also if it is null
            name, value = self._random.choice(pairs)
            pairs.append((name.swapcase(), self._random.choice([value, "null"])))
        return "{" + ",".join(f'"{name}":{value}' for name, value in pairs) + "}"

    def _value(self, kind: Mapping[str, Any]) -> str:
        number, chance = json.dumps(self._random.choice(self._NUMBERS)), self._random.random()
        usual = self._random.choice(["0", '"5"', "null", '"1.5"'])
        if self._is_fault():
            usual = self._random.choice((*self._VALUES, *self._DATES, *self._BAD_DATES))
        elif kind.get("name") == self._DECIMAL:
            usual = number if chance < 0.7 else "-2.5"
        elif kind.get("name") == self._SCALED:
            usual = f'{{"scale":{self._random.randint(0, 4)},"value":{number}}}'
        elif kind.get("name") in self._UNITS:
            seconds = self._random.choice([-1, 0, 1, 1_700_000_000, -99_999_999_999 if self._is_fault() else 86_399])
            nanos = seconds * 10**9 + self._random.choice([0, 0, 1, 1000, 123_456_789])
            usual = str(nanos // self._UNITS[kind["name"]])
        elif kind.get("name") == self._ISO_DATE:
            usual = self._random.choice(self._DATES)
        elif kind["type"] == "array":
            usual = f"[{self._value(kind['items'])}]"
        elif kind["type"] == "map":
            usual = f'{{"k":{self._value(kind["values"])}}}'
        elif "fields" in kind:
            usual = self._object({inner["field"]: inner for inner in kind["fields"]})
        return usual if chance < 0.9 else "null"

    def _schema(self) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Return a schema of the payload, and those of the fields of a row."""
        inner = self._leaf()
        struct: dict[str, Any] = {"type": "struct", "fields": [{"field": "a", **self._leaf()}, {"field": "t", **inner}]}
        nested: list[dict[str, Any]] = [struct, {"type": "map", "values": inner}, {"type": "array", "items": inner}]
        kinds = [self._leaf(), self._leaf(), *nested]
        if self._faults > 0.1:
            self._random.shuffle(kinds)
        kinds[3:] = [kind for kind in kinds[3:] if self._random.random() < 0.2]
        row: dict[str, dict[str, Any]] = dict(zip(self._NAMES, kinds, strict=False)) | (
            {"A": self._leaf()} if self._is_fault() else {}
        )
        struct = {"type": "struct", "fields": [{"field": name, **kind} for name, kind in row.items()]}
        events = {"type": "struct", "fields": [{"field": "before", **struct}, {"field": "after", **struct}]}
        return (events if self._is_event else struct), row

    def _leaf(self) -> dict[str, Any]:
        if self._is_fault():
            scale = self._random.choice(["-1", "40", "x", 2])
            unusual: dict[str, Any] = {"type": "bytes", "name": self._DECIMAL, "parameters": {"scale": scale}}
            return unusual
        decimal = {"type": "bytes", "name": self._DECIMAL, "parameters": {"scale": self._random.choice("0123")}}
        scaled: dict[str, Any] = {"type": "struct", "name": self._SCALED}
        other: dict[str, Any] = {"type": "string", "doc": '"payload":'}
        time: dict[str, Any] = {"type": "int64", "name": self._random.choice([*self._UNITS])}
        day = {"type": "string", "name": self._ISO_DATE}
        return self._random.choice([decimal, decimal, scaled, other, time, time, day])


@settings(max_examples=250, deadline=None)
@given(st.integers(0, 1 << 60), st.sampled_from([1, 3, 20, 60]))
def test_decode_when_schemas_describe_logical_types_then_result_is_the_same_as_one_by_one(
    seed: int, count: int
) -> None:
    generator = ConnectGenerator(Random(seed))
    columns, layout = generator.columns, generator.layout
    decoder = JsonDecoder(columns, layout)
    for _ in range(2):  # the decoder knows the schemas of the first batch
        _assert_decoded_as_alone(decoder, columns, layout, [generator.record() for _ in range(count)])


def paths_of(paths: Mapping[str, str]) -> dict[str, Path]:
    return {name: parse_path(path) for name, path in paths.items()}


def only(decoded: DecodeResult) -> Any:
    """Return the only row, or column and reason of the only reject."""
    if decoded.rejects:
        (reject,) = decoded.rejects
        assert decoded.rows == 0
        return reject.column, reject.reason
    (row,) = decoded.batches[0].to_pylist()
    return row


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("$", ()), ("$.a", ("a",)), ("$.User.ID", ("user", "id")), ("$['first name'].x", ("first name", "x")),
        ('$["a.b"][0][12]', ("a.b", 0, 12)), (r"$['it\'s']", ("it's",)), ("$.@timestamp", ("@timestamp",)),
        ("$._id.$oid", ("_id", "$oid")), ("$.größe", ("größe",)),
    ],
)  # fmt: skip
def test_parse_path_when_path_is_valid_then_returns_its_steps(text: str, path: Path) -> None:
    assert parse_path(text) == path


@pytest.mark.parametrize(
    "text",
    ["", "a", "a.b", "$a", "$.", "$..a", "$.*", "$[*]", "$[-1]", "$[a]", "$['a]", "$.a b", "$[]", "$" + ".a" * 51],
)
def test_parse_path_when_path_is_not_supported_then_raises_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="must be a path"):
        parse_path(text)


RECORD = '{"user":{"ID":7,"tags":["x",{"k":2.50}],"none":null},"id":1,"list":[]}'


@pytest.mark.parametrize(
    ("type_text", "path", "expected"),
    [
        ("int", "$.user.id", 7), ("int", "$.id", 1), ("string", "$.user.tags[0]", "x"), ("int", "$.user.tags[9]", None),
        ("decimal(4,2)", "$.user.tags[1].k", 2.5), ("string", "$.user.none.deep[3]", None), ("int", "$.absent.x", None),
        ("map<string,string>", "$.user.tags[1]", [("k", "2.50")]), ("int", "$.list[0]", None), ("string", "$", RECORD),
        ("int", "$.id.x", ("c", "'1' at $.id is not an object")),
        ("int", "$.user[0]", ("c", "{\"ID\":7,\"tags\":[\"x\",{\"k\":2.50}],\"none... at $.user is not an array")),
        ("int", "$.user.tags[0].k", ("c", "'x' at $.user.tags[0] is not an object")),
        ("int", "$.user.tags[0]", ("c", "'x' is not a number, but the type is int")),
    ],
)  # fmt: skip
def test_decode_when_column_has_a_path_then_is_the_value_there(type_text: str, path: str, expected: Any) -> None:
    columns = [*columns_of(c=type_text), *columns_of(id="int")]
    found = only(JsonDecoder(columns, Layout(paths_of({"c": path}))).decode([RECORD.encode()]))
    assert found == (expected if isinstance(expected, tuple) else {"c": expected, "id": 1})


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ('{"op":"c","before":null,"after":{"id":5,"name":"n"},"source":{"ts_ms":3}}', {"id": 5, "name": "n", "s": 3}),
        ('{"op":"r","after":{"ID":5}}', {"id": 5, "name": None, "s": None}),
        ('{"schema":{},"payload":{"op":"c","after":{"id":5},"source":{"ts_ms":4}}}', {"id": 5, "name": None, "s": 4}),
        ('{"op":"u","before":{"id":5},"after":{"id":6}}', "an update (op 'u')"),
        ('{"op":"d","before":{"id":5},"after":null}', "a delete (op 'd')"),
        ('{"op":"t"}', "a truncation (op 't')"), ('{"op":"m"}', "a message of the source database (op 'm')"),
        ('{"op":"z"}', "an unknown operation (op 'z')"), ('{"id":1}', "has no field op"),
        ('{"op":"c"}', "after of an insert is missing or null"), ('{"op":"c","after":[]}', "after of an insert is []"),
        ('{"schema":null,"payload":null}', "the payload of the debezium envelope is missing or null"),
    ],
)  # fmt: skip
def test_decode_when_envelope_is_debezium_then_inserts_are_rows_and_others_are_rejects(
    record: str, expected: Any
) -> None:
    columns = columns_of(id="int", name="string", s="bigint")
    found = only(JsonDecoder(columns, Layout(paths_of({"s": "$.source.ts_ms"}), "debezium")).decode([record.encode()]))
    if isinstance(expected, dict):
        assert found == expected
    else:
        assert found[0] == ""
        assert expected in found[1]


def test_decode_when_changes_are_rows_then_updates_have_the_state_after_and_deletes_before() -> None:
    columns = columns_of(id="int", op="string", new="string")
    paths = {"op": "$.op", "new": "$.after.name"}
    options = JsonOptions(envelope="debezium", fields=paths, updates="row", deletes="row")
    events = [
        {"op": "c", "before": None, "after": {"id": 1, "name": "a"}},
        {"op": "u", "before": {"id": 1, "name": "a"}, "after": {"id": 1, "name": "b"}},
        {"op": "d", "before": {"id": 1, "name": "b"}, "after": None},
        {"op": "d", "before": None, "after": None},
        {"op": "t"},
    ]
    records = [*(json.dumps(event).encode() for event in events), None]

    decoded = replace(options, tombstones="skip").decoder(columns).decode(records * 3)

    rows = [{"id": 1, "op": "c", "new": "a"}, {"id": 1, "op": "u", "new": "b"}, {"id": 1, "op": "d", "new": None}]
    assert [row for batch in decoded.batches for row in batch.to_pylist()] == rows * 3
    assert {reject.reason for reject in decoded.rejects} == {
        "the field before of a delete is missing or null, not an object",
        "the record is a truncation (op 't'); only the operations c, d, r, u are rows",
    }
    assert decoded.skipped == 3


def test_options_when_changes_are_rows_without_their_envelope_then_raises_config_error() -> None:
    with pytest.raises(ConfigError, match="has no effect with envelope: connect"):
        JsonOptions(envelope="connect", deletes="row")


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ('{"schema":{"type":"struct","fields":[]},"payload":{"id":5}}', {"id": 5}),
        ('{"PAYLOAD":{"id":5},"payload":{"id":6}}', {"id": 6}),
        ('{"payload":"x"}', ("", "the payload of the connect envelope is 'x', not an object")),
        ('{"id":5}', ("", "the payload of the connect envelope is missing or null, not an object")),
    ],
)  # fmt: skip
def test_decode_when_envelope_is_connect_then_the_payload_is_the_row(record: str, expected: Any) -> None:
    assert only(JsonDecoder(columns_of(id="int"), Layout(envelope="connect")).decode([record.encode()])) == expected


def test_decode_when_the_schema_of_a_record_describes_decimals_then_they_have_its_scale() -> None:
    decimal = "org.apache.kafka.connect.data.Decimal"
    amount: dict[str, Any] = {"type": "bytes", "name": decimal, "parameters": {"scale": "3"}}
    scaled = {"type": "struct", "name": "io.debezium.data.VariableScaleDecimal", "fields": []}
    items = {"type": "array", "items": amount}
    fields: dict[str, Any] = {"amount": amount, "text": amount, "scaled": scaled, "items": items}
    struct = {"type": "struct", "fields": [{"field": name, **kind} for name, kind in fields.items()]}
    schema = {"type": "struct", "fields": [{"field": "after", **struct}, {"field": "op", "type": "string"}]}

    def record(**after: object) -> bytes:
        return json.dumps({"schema": schema, "payload": {"op": "c", "after": after}}).encode()

    columns = columns_of(amount="decimal(10,2)", text="string", scaled="decimal(5,1)", items="array<decimal(9,3)>")
    records = [
        # "1234" is a valid number, too.
        record(amount="MDQ=", text="1234", scaled={"scale": 1, "value": "gQ=="}, items=["AQ=="]),
        record(amount=12.5, text=None, scaled=None),
        record(amount="AQ=="),
        record(text="x"),
    ]
    decoded = JsonOptions(envelope="debezium").decoder(columns).decode(records)
    assert [row for batch in decoded.batches for row in batch.to_pylist()] == [
        {
            "amount": Decimal("12.34"),
            "text": "-2658.824",
            "scaled": Decimal("-12.7"),
            "items": [Decimal("0.001")],
        },
        {"amount": Decimal("12.50"), "text": None, "scaled": None, "items": None},
    ]
    assert [(reject.row, reject.column) for reject in decoded.rejects] == [(2, "amount"), (3, "")]
    assert "'0.001' does not fit decimal(10,2) exactly" in decoded.rejects[0].reason
    assert "'x' in the field 'text' is not a decimal in Base64" in decoded.rejects[1].reason
    twice = b'{"schema":{},"payload":{"op":"c","after":{"amount":"MDQ="}},' + records[0][1:].replace(b"payload", b"x")
    [batch] = JsonOptions(envelope="debezium").decoder(columns).decode([twice] * 3).batches
    assert batch["amount"].to_pylist() == [Decimal("12.34")] * 3


def test_decode_when_the_schema_of_a_record_describes_times_then_numbers_are_dates_and_timestamps() -> None:
    connect, debezium = "org.apache.kafka.connect.data.", "io.debezium.time."
    numbers = {
        "day": (f"{connect}Date", 20_000, date(2024, 10, 4)),
        "day2": (f"{debezium}Date", -719_162, date(1, 1, 1)),
        "midnight": (f"{debezium}Date", 20_000, datetime(2024, 10, 4)),
        "at": (f"{connect}Timestamp", -1, datetime(1969, 12, 31, 23, 59, 59, 999_000)),
        "at2": (f"{debezium}Timestamp", 1_728_000_000_123, datetime(2024, 10, 4, 0, 0, 0, 123_000)),
        "at3": (f"{debezium}MicroTimestamp", 1_728_000_000_123_456, datetime(2024, 10, 4, 0, 0, 0, 123_456)),
        "at4": (f"{debezium}NanoTimestamp", 1_728_000_000_123_456_000, datetime(2024, 10, 4, 0, 0, 0, 123_456)),
        "at5": (f"{debezium}ZonedTimestamp", "2024-10-04T02:00:00+02:00", datetime(2024, 10, 4)),
        "clock": (f"{connect}Time", 3_600_000, 3_600_000),
        "clock2": (f"{debezium}MicroTime", 3_600_000_000, 3_600_000_000),
        "number": (f"{connect}Timestamp", 5, 5),
        "text": (f"{connect}Date", 20_000, "20000"),
    }
    kinds = ["date", "date", *["timestamp"] * 6, "int", "bigint", "bigint", "string"]
    names = dict(zip(numbers, kinds, strict=True))
    columns = columns_of(**names, inner="struct<day:date,list:array<timestamp>>")
    fields: list[dict[str, Any]] = [{"field": name, "type": "int64", "name": numbers[name][0]} for name in names]
    times = {"type": "array", "items": {"type": "int64", "name": f"{connect}Timestamp"}}
    inner = {"type": "struct", "fields": [fields[0], {"field": "list", **times}]}

    def record(**members: object) -> bytes:
        schema = {"type": "struct", "fields": [*fields, {"field": "inner", **inner}]}
        return json.dumps(
            {"schema": schema, "payload": {name: found[1] for name, found in numbers.items()} | members}
        ).encode()

    values = [
        record(inner={"day": 1, "list": [1_000, None]}),
        record(at=None, day="2024-10-04"),
        record(day=2_932_897),
        record(at2=253_402_300_800_000),
        record(day=1.5),
    ]
    decoded = JsonOptions(envelope="connect").decoder(columns).decode(values)
    row = {name: found[2] for name, found in numbers.items()} | {"inner": None}
    assert rows_of(decoded) == [
        row | {"inner": {"day": date(1970, 1, 2), "list": [datetime(1970, 1, 1, 0, 0, 1), None]}},
        row | {"at": None},
    ]
    assert [(reject.row, reject.column) for reject in decoded.rejects] == [(2, "day"), (3, "at2"), (4, "day")]
    assert "'2932897' is not a date in the years 0001 to 9999" in decoded.rejects[0].reason


def _dated(text: object, name: str = "io.debezium.time.IsoDate") -> bytes:
    """Return a record whose schema describes all of its members as dates."""
    members = {"day": text, "copy": text, "raw": text, "at": text, "inner": {"day": text, "days": [text]}}
    leaf = {"type": "string", "name": name}
    inner = {"type": "struct", "fields": [{"field": "day", **leaf}, {"field": "days", "type": "array", "items": leaf}]}
    fields = [{"field": name, **(inner if name == "inner" else leaf)} for name in members]
    return json.dumps({"schema": {"type": "struct", "fields": fields}, "payload": members}).encode()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-28Z", date(2026, 11, 28)), ("0001-01-01+14:00", date(1, 1, 1)), ("9999-12-31-05", date(9999, 12, 31)),
        ("2024-02-29+0530", date(2024, 2, 29)), ("2026-11-28", date(2026, 11, 28)), (None, None),
        ("2023-02-29Z", ()), ("2026-11-28+24:00", ()), ("2026-11-28 Z", ()), ("2026-11-28T00:00:00Z", ()), ("Z", ()),
    ],
)  # fmt: skip
def test_decode_when_the_schema_of_a_record_describes_a_text_as_a_date_then_its_zone_is_ignored(
    text: str | None, expected: object
) -> None:
    columns = columns_of(day="date", copy="string", raw="binary", inner="struct<day:date,days:array<date>>")
    decoded = JsonOptions(envelope="connect").decoder(columns).decode([_dated(text)] * 3)
    if expected == ():
        reason = f"{text!r} is not a date in the years 0001 to 9999"
        assert reasons(decoded) == [(row, "day", reason) for row in range(3)]
        return
    raw = None if text is None else text.encode()
    row = {"day": expected, "copy": text, "raw": raw, "inner": {"day": expected, "days": [expected]}}
    assert rows_of(decoded) == [row] * 3


def test_decode_when_no_schema_describes_a_text_as_a_date_then_a_zone_is_a_reject() -> None:
    text = "2026-11-28Z"
    reason = f"{text!r} is not a date in the years 0001 to 9999"
    for record in (_dated(text, "io.debezium.time.IsoTime"), json.dumps({"payload": {"day": text}}).encode()):
        decoded = JsonOptions(envelope="connect").decoder(columns_of(day="date")).decode([record])
        assert only(decoded) == ("day", reason)
    assert only(JsonOptions().decoder(columns_of(day="date")).decode([b'{"day":"2026-11-28Z"}'])) == ("day", reason)
    decoded = JsonOptions(envelope="connect").decoder(columns_of(at="timestamp")).decode([_dated(text)])
    assert only(decoded) == ("at", f"{text!r} is not a timestamp in the years 0001 to 9999")


def test_decode_when_lenient_then_the_schema_of_a_date_changes_nothing() -> None:
    columns = columns_of(day="date", copy="string", raw="binary", at="timestamp", inner="string")
    decoder = JsonOptions(envelope="connect", lenient=True).decoder(columns)
    for text in ("2026-11-28Z", "2026-11-28+24:00", "2026-11-28", "2026-11-281", "Z"):
        decoded, plain = (decoder.decode([_dated(text, name)] * 2) for name in ("io.debezium.time.IsoDate", "none"))
        assert rows_of(decoded) == rows_of(plain)
        assert reasons(decoded) == reasons(plain)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("epoch_s", "1700000000", "2023-11-14 22:13:20"), ("epoch_s", "1700000000.25", "2023-11-14 22:13:20.25"),
        ("epoch_s", '"1.7e9"', "2023-11-14 22:13:20"), ("epoch_s", "-0.000000001", "1969-12-31 23:59:59.999999999"),
        ("epoch_ms", "1700000000123", "2023-11-14 22:13:20.123"), ("epoch_us", "-1", "1969-12-31 23:59:59.999999"),
        ("epoch_ms", "253402300799999", "9999-12-31 23:59:59.999"), ("epoch_ms", "253402300800000", None),
        ("epoch_s", "-62135596800", "0001-01-01"), ("epoch_s", "-62135596801", None), ("epoch_s", "1e999999999", None),
        ("epoch_s", "0.0000000001", None), ("epoch_ms", '"2026-01-01"', None), ("epoch_ms", "true", None),
        ("dd/MM/yyyy HH:mm:ss", '"02/01/2026 03:04:05"', "2026-01-02 03:04:05"), ("yyyyMMdd", "20260102", "2026-01-02"),
        ("yyyyMMddHH", '"2026010203"', "2026-01-02 03"), ("yyyyMMdd'T'HHX", '"20260102T03+02"', "2026-01-02 01"),
        ("dd.MM.yyyy", '"31.02.2026"', None), ("yyyy''MM''dd", "\"2026'01'02\"", "2026-01-02"),
        ("HH:mm:ss.SSSXXX yyyy-MM-dd", '"03:04:05.678+05:30 2026-01-02"', "2026-01-01 21:34:05.678"),
        ("dd.MM.yyyy", '"2026-01-02"', None), ("dd.MM.yyyy", '"02.01.2026 "', None), ("yyyy-MM-dd", "null", "null"),
    ],
)  # fmt: skip
def test_decode_when_timestamp_has_a_format_then_is_exact_or_rejected(
    name: str, text: str, expected: str | None
) -> None:
    columns = columns_of(c="timestamp")
    record = f'{{"c":{text}}}'.encode()
    decoded = JsonDecoder(columns, Layout(timestamp_formats=(name,))).decode([record] * 2)
    if expected is None:
        assert [reject.column for reject in decoded.rejects] == ["c", "c"]
        return
    plain = JsonDecoder(columns).decode([json.dumps({"c": None if expected == "null" else expected}).encode()] * 2)
    assert decoded == replace(plain, batches=decoded.batches)
    assert decoded.batches[0].equals(plain.batches[0])


@pytest.mark.parametrize(
    "text", ["", "epoch", "yyyy", "MM-dd", "yyyy-MM-dd mm", "yyyy-MM-dd yyyy", "yy-MM-dd", "yyyy-MM-dd'T",
    "dd MMM yyyy", "yyyy-MM-dd hh:mm:ss a", "yyyy-MM-ddX", "yyyy-MM-dd HH:mm:ssXZ"],
)  # fmt: skip
def test_parse_format_when_pattern_is_not_supported_then_raises_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="must be iso, epoch_s"):
        parse_format(text)


def test_read_when_layout_is_usual_then_no_row_is_undecided() -> None:
    columns = columns_of(id="int", at="timestamp", first="string", day="timestamp")
    layout = Layout(
        paths_of({"at": "$.source.ts_ms", "first": "$.after.tags[0]"}), "debezium", ("iso", "epoch_ms", "dd/MM/yyyy")
    )
    after = '{"id":1,"tags":["x"],"day":"02/01/2026"}'
    record = f'{{"payload":{{"op":"c","after":{after},"source":{{"ts_ms":1700000000123}}}}}}'
    batch, undecided, _ = TapeReader(columns, layout).read([record.encode()] * 3, "ns")
    assert not undecided.any()
    assert [str(value) for value in batch.to_pylist()[2].values()] == [
        *("1", "2023-11-14 22:13:20.123000", "x", "2026-01-02 00:00:00"),
    ]  # fmt: skip


def test_decoder_when_fields_name_no_column_then_raises_config_error() -> None:
    options = JsonOptions(fields={"B": "$.x", "c": "$.y"})
    decoder = options.decoder(columns_of(b="int", c="int"))
    assert only(decoder.decode([b'{"x":1,"y":2,"b":3}'])) == {"b": 1, "c": 2}
    with pytest.raises(ConfigError, match="c is not a column of the records: b"):
        options.decoder(columns_of(b="int"))
