"""The columnar decoding of JSON of any shape has the same rows and rejects as the decoding of each record."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingestd.formats import JsonDecoder
from ingestd.formats.decoder import DecodeResult, RejectError
from ingestd.formats.json.layout import PLAIN, Layout
from ingestd.formats.json.record import MAX_DEPTH, RecordReader
from ingestd.formats.json.tape import Tape
from ingestd.formats.json.tape_reader import TapeReader
from ingestd.formats.row_batches import Row, TimestampUnits, array_of, arrow_of
from ingestd.schema import Column, HiveType
from tests.support.decoding import columns_of, rows_of

KINDS = [
    *("int", "bigint", "tinyint", "double", "float", "decimal(10,2)", "decimal(38,38)", "decimal(4,4)", "boolean"),
    *("string", "varchar(3)", "char(3)", "binary", "date", "timestamp"),
]
TEXTS = [
    *("", "x", "abc", "abcd", "5", "-7", "1.5", "true", "TRUE", "null", "NaN", "1e3", "007", "+5", "9" * 19, "0" * 40),
    *("2026-01-02", "2026-02-30", "0001-01-01", "0000-01-01", "9999-12-31", "2026-01-02 03:04:05", "2026-01-02T03"),
    *(
        "2026-01-02T03:04:05.123456789Z",
        "1600-01-01 00:00:00.5",
        "2026-01-02 03:04:05.1+05:30",
        "1960-01-01 00:00:00.5",
    ),
    *(
        "ä",
        "\u212a",
        "日本語",
        "\U0001f600",
        "a\nb",
        'a"b',
        "\\",
        "/",
        "\0",
        "\x7f",
        "AAH/",
        "AA==",
        " ",
        "é ",
        '{"a":1}',
    ),
]
NUMBERS = [
    *("0", "1", "-1", "127", "128", "-128", "5.0", "1e3", "1E-2", "0.5", "12.50", "12.505", "99999999.99", "1e40"),
    *("1e400", "9223372036854775807", "9223372036854775808", "-9223372036854775808", "8999999999999999999", "3.5e38"),
    *("1e-40", "0." + "0" * 37 + "1", "-0", "-0.0", "0.12345", "00", "1.", "+1", ".5", "0x1", "1 2", "NaN", "nul"),
]
MALFORMED = [
    *(
        b"",
        b" ",
        b"\n",
        b"[]",
        b"5",
        b'"x"',
        b"null",
        b"{}{}",
        b"{} x",
        b"x {}",
        b" \xef\xbb\xbf{}",
        b"\xff{}",
        b'{"a"}',
    ),
    *(
        b'{"a":1,}',
        b'{,"a":1}',
        b'{"a":1 "b":2}',
        b'{"a" 1}',
        b'{"a"::1}',
        b'{"a":}',
        b'{"a":1]',
        b'{"a":[1}',
        b'{"a":1}}',
    ),
    *(
        b'{"a":[1,"b":2]}',
        b'{"a":1,2}',
        b'{"a":{1}}',
        b'{"a":["b":1]}',
        b'{"a":[1,]}',
        b'{"a":[,1]}',
        b'{"a":"\n"}',
        b"{1:2}",
    ),
    *(
        b'{"a":"\t"}',
        b'{"a":"\\x"}',
        b'{"a":"\\u12g4"}',
        b'{"a":"\\u12"}',
        b'{"a":"',
        b'{"a":"\\"}',
        b'{"a":\\"x"}',
        b'{"a":"\x01"}',
    ),
    *(b"{},{}", b'{"a":1},{"a":2}', b'{"a":[1]},{"a":[2]},{}'),
    *(b'{"a":"\\ud800"}', b'{"\\ud800":1}', b'{"a":"\\ud83d\\ude00"}', b'{"a":\n1}', b'{"a":tru}', b'{"a":"x"y}'),
]


class Generator:
    """Generates types, and records that mostly fit them."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def columns(self) -> list[Column]:
        names = self._random.sample(["a", "b", "c", "d", "ä"], self._random.randint(1, 4))
        return [Column(name, HiveType.parse(self._type(0))) for name in names]

    def record(self, columns: Sequence[Column]) -> bytes:
        random = self._random
        chance = random.random()
        if chance < 0.05:
            return random.choice(MALFORMED)
        kind = HiveType("struct", children=tuple(c.type for c in columns), names=tuple(c.name for c in columns))
        value = self._any(0) if chance < 0.08 else self._value(kind, 0)
        record = value.encode()
        return self._mutated(bytearray(record)) if chance > 0.93 else record

    def _type(self, depth: int) -> str:
        random, chance = self._random, self._random.random()
        if depth > 3 or chance < 0.6:
            return random.choice(KINDS)
        if chance < 0.73:
            return f"array<{self._type(depth + 1)}>"
        if chance < 0.86:
            return f"map<{random.choice(KINDS)},{self._type(depth + 1)}>"
        names = random.sample(["a", "b", "c", "ä"], random.randint(1, 3))
        return f"struct<{','.join(f'{name}:{self._type(depth + 1)}' for name in names)}>"

    def _value(self, kind: HiveType, depth: int) -> str:
        chance = self._random.random()
        if chance < 0.06:
            return self._any(depth)
        if chance < 0.14:
            return "null"
        return self._complex(kind, depth + 1) if kind.is_complex else self._primitive(kind.kind)

    def _complex(self, kind: HiveType, depth: int) -> str:
        random = self._random
        count = random.randint(0, 3)
        if kind.kind == "array":
            return self._list([self._value(kind.children[0], depth) for _ in range(count)])
        if kind.kind == "map":
            return self._object([(self._key(), self._value(kind.children[1], depth)) for _ in range(count)])
        fields = [(name, self._value(child, depth)) for name, child in zip(kind.names, kind.children, strict=True)]
        fields = [(random.choice([name, name, name.upper()]), item) for name, item in fields if random.random() < 0.9]
        if random.random() < 0.1:
            fields.append((random.choice(["other", kind.names[0]]), self._any(depth)))
        random.shuffle(fields)
        return self._object(fields)

    def _primitive(self, kind: str) -> str:
        random = self._random
        if kind == "boolean":
            return random.choice(["true", "false", '"TRUE"'])
        if kind in ("date", "timestamp"):
            return self._string(random.choice(TEXTS[16:27]))
        if kind in ("string", "varchar", "char", "binary"):
            return self._string(random.choice(TEXTS))
        number = random.choice(NUMBERS[:11] if random.random() < 0.9 else NUMBERS)
        return number if random.random() < 0.8 else f'"{number}"'

    def _any(self, depth: int) -> str:
        random, chance = self._random, self._random.random()
        if chance < 0.3:
            return self._string(random.choice(TEXTS))
        if chance < 0.6:
            return random.choice(NUMBERS)
        if chance < 0.7 or depth > 3:
            return random.choice(["true", "false", "null", "{}", "[]"])
        items = [self._any(depth + 1) for _ in range(random.randint(0, 3))]
        return self._list(items) if chance < 0.85 else self._object([(self._key(), item) for item in items])

    def _key(self) -> str:
        return self._random.choice([*TEXTS[:12], "a", "A", "Ä", "0", "1", "0.0", "-0.0", "2026-01-02"])

    def _string(self, text: str) -> str:
        chance = self._random.random()
        if chance < 0.15:
            return '"' + "".join(f"\\u{ord(c):04x}" if ord(c) < 0x10000 else c for c in text) + '"'
        quoted = json.dumps(text, ensure_ascii=chance < 0.4)
        return quoted.replace("/", "\\/") if chance > 0.9 else quoted

    def _list(self, items: list[str]) -> str:
        return f"[{self._blank()}{f'{self._blank()},{self._blank()}'.join(items)}{self._blank()}]"

    def _object(self, fields: list[tuple[str, str]]) -> str:
        pairs = [f"{self._string(name)}{self._blank()}:{self._blank()}{item}" for name, item in fields]
        return f"{{{self._blank()}{f',{self._blank()}'.join(pairs)}{self._blank()}}}"

    def _blank(self) -> str:
        return self._random.choice(["", " ", "  ", "\t", "\r", "\n"]) if self._random.random() < 0.1 else ""

    def _mutated(self, record: bytearray) -> bytes:
        letters = b'{}[]:,"\\ \n\t\x00\xff\xc31ae'
        place = self._random.randrange(len(record))
        how = self._random.randrange(4)
        if how == 0:
            del record[place]
        elif how == 1:
            record[place] = self._random.choice(letters)
        elif how == 2:
            record.insert(place, self._random.choice(letters))
        else:
            del record[place:]
        return bytes(record)


def decoded_alone(columns: Sequence[Column], value: bytes, layout: Layout = PLAIN) -> Row | tuple[str, str]:
    """Decode one record; return its row, or column and reason of its reject."""
    try:
        row = RecordReader(columns, layout).row(value)
        TimestampUnits(columns).of(row)
    except RejectError as error:
        return error.column, error.reason
    return row


def assert_equal(columns: Sequence[Column], decoded: DecodeResult, rows: list[Row]) -> None:
    """Assert that the decoded rows are these; `rows` are in the order of the records, of which each has one row."""
    assert decoded.rows == len(rows)
    if decoded.records is not None:
        rows = [rows[rank] for rank in np.argsort(np.argsort(decoded.records, kind="stable")).tolist()]
    start = 0
    for batch in decoded.batches:
        batch.validate(full=True)
        part = rows[start : start + batch.num_rows]
        start += batch.num_rows
        for column, array, values in zip(columns, batch.columns, zip(*part, strict=True), strict=True):
            unit = "us" if array.type == arrow_of(column.type, "us") else "ns"
            assert str(array.to_pylist()) == str(array_of(column.type, values, unit).to_pylist())  # NaN, -0.0


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1 << 60), st.sampled_from([1, 3, 20, 60]))
def test_decode_when_records_have_any_shape_then_result_is_the_same_as_one_by_one(seed: int, count: int) -> None:
    generator = Generator(Random(seed))
    columns = generator.columns()
    values = [generator.record(columns) for _ in range(count)]
    decoded = JsonDecoder(columns).decode(values)
    alone = [decoded_alone(columns, value) for value in values]
    rejects = {index: one for index, one in enumerate(alone) if isinstance(one, tuple)}
    assert {reject.row: (reject.column, reject.reason) for reject in decoded.rejects} == rejects
    assert_equal(columns, decoded, [row for row in alone if not isinstance(row, tuple)])


@pytest.mark.parametrize("value", [*MALFORMED, b"[" * (MAX_DEPTH + 1), b'{"a":' * MAX_DEPTH + b"{}" + b"}" * MAX_DEPTH])
def test_tape_when_a_record_is_malformed_then_the_others_keep_their_tokens(value: bytes) -> None:
    """A value that another parser accepts has tokens, or is malformed only because it nests too deeply."""
    tape = Tape([b'{"a":1}', value, b'{"b":[2,"\\""]}'])
    try:
        is_object = isinstance(json.loads(value.decode()), dict)
    except ValueError:
        is_object = False
    assert tape.malformed.tolist() == [False, not is_object or value.count(b"{") > MAX_DEPTH, False]
    assert len(tape.roots) == 3
    owners, keys = tape.inside(tape.roots[[0, 2]], 1)
    assert owners.tolist() == [0, 1]
    one = np.int32(1)
    assert tape.texts(tape.start[keys] + one, tape.end[keys] - one).to_pylist() == ["a", "b"]


@pytest.mark.parametrize(
    ("types", "record", "value"),
    [
        ({"a": "string"}, '{"a": {"x": [1, 2.50, "y z"], "n": null}}', '{"x":[1,2.50,"y z"],"n":null}'),
        ({"a": "string"}, '{"a":[true , {"b" : "a\\nb"}]}', '[true,{"b":"a\\nb"}]'),
        (
            {"a": "string"},
            r'{"b":"\/","a":{"x" : ["\u00e4\/\\u\u0022\u0001", "\ud83d\ude00"], "y":"\n\/"}}',
            r'{"x":["ä/\\u\"\u0001","😀"],"y":"\n/"}',
        ),
        ({"a": "string"}, '{"a":1e3}', "1e3"),
        ({"a": "array<varchar(9)>"}, '{"a":[[1,2],"x",null,{}]}', ["[1,2]", "x", None, "{}"]),
        ({"a": "map<string,int>"}, '{"A":{"k":1,"l":null}}', [("k", 1), ("l", None)]),
        ({"a": "map<string,int>"}, '{"a":{"k":"x","l":1,"k":null,"m":2,"k":3}}', [("l", 1), ("m", 2), ("k", 3)]),
        ({"a": "struct<b:array<struct<c:int>>>"}, '{"a":{"B":[null,{"C":5,"c":6}]}}', {"b": [None, {"c": 6}]}),
    ],
)
def test_read_when_values_are_usual_then_no_row_is_undecided(types: dict[str, str], record: str, value: Any) -> None:
    batch, undecided, _ = TapeReader(columns_of(**types)).read([record.encode()] * 3, "ns")
    assert not undecided.any()
    assert batch.column(0).to_pylist() == [value] * 3


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a":1,"b":2,"a":3}', '{"a":3,"b":2}'),
        ('[{"a" : {"c":1,"d":[ ],"c":2}, "b":2, "\\u0061":{"c":1,"d":5, "c":"/"}}]', '[{"a":{"c":"/","d":5},"b":2}]'),
        ('{"a":1,"a":2}', '{"a":2}'),
    ],
)
def test_decode_when_an_object_in_a_text_has_equal_keys_then_the_first_place_and_the_last_value_are_stored(
    text: str, value: str
) -> None:
    record = f'{{"s":{text}}}'.encode()
    decoder = JsonDecoder(columns_of(s="string"))
    for values in ([record], [record, b"{}"], [record, b"{"]):
        batch, _ = decoder.decode_batch(values)
        assert batch.column(0)[0].as_py() == value
    assert list(decoder.decode_record(record)) == [value]


UNUSUAL = [
    (
        "bigint",
        ["5.00", "1e3", '"+7"', "-0", "9223372036854775807", "1.5", "99999999999999999999", "true", '"x"', '""'],
    ),
    ("tinyint", ["1e2", "128", "-128.0", '"-129"']),
    ("decimal(10,2)", ["1e2", "12.500", '"+1.5"', "1.234", "1e400"]),
    ("double", ['"NaN"', '"-Infinity"', '"+1.5"', "1e400", '"inf"', "false"]),
    ("boolean", ['"TRUE"', "1", '"yes"']),
    ("varchar(3)", ["1234", "17.50", '"abcd"']),
    ("date", ['"2026-02-30"', "20260101", '"2026-1-1"']),
    ("timestamp", ['"2026-02-30"', '"2026-01-01T24"', "5", '"0000-01-01"']),
    ("binary", ["5", '"%"']),
]


@pytest.mark.parametrize(("kind", "texts"), UNUSUAL)
def test_read_when_values_are_unusual_then_they_are_decided_like_single_records(kind: str, texts: list[str]) -> None:
    columns = columns_of(a=kind, s=f"struct<b:{kind}>")
    reader = RecordReader(columns)
    values = [f'{{"a":{text}}}'.encode() for text in texts]
    batch, undecided, rejected = TapeReader(columns).read(values, "ns")

    assert not undecided.any()
    rows: list[Row | None] = []
    for value in values:
        try:
            rows.append(reader.row(value))
        except RejectError:  # noqa: PERF203
            rows.append(None)
    assert rejected.tolist() == [row is None for row in rows]
    is_row = pa.array([row is not None for row in rows])
    expected = array_of(columns[0].type, [row[0] for row in rows if row is not None])
    assert repr(batch.column(0).filter(is_row).to_pylist()) == repr(expected.to_pylist())


def test_read_when_a_nested_value_is_unusual_then_it_is_decided() -> None:
    values = [b'{"s":{"b":1e3}}', b'{"s":{"b":"x"}}', b'{"s":{"b":1e400}}', b'{"s":{"b":7}}', b'{"s":"b"}']
    batch, undecided, rejected = TapeReader(columns_of(s="struct<b:bigint>")).read(values, "ns")

    assert not undecided.any()
    assert rejected.nonzero()[0].tolist() == [1, 2, 4]
    assert batch.column(0).to_pylist()[::3] == [{"b": 1000}, {"b": 7}]


NESTED = columns_of(
    a="array<struct<x:tinyint,y:array<varchar(2)>,z:map<string,decimal(3,1)>>>", s="struct<p:map<int,string>,q:boolean>"
)
KEYS = st.sampled_from(["x", "Y", "y", "z", "p", "q", "1", "2", "\\u0031", "é", "a'b"])
LEAVES = st.sampled_from(
    ["1", "1.5", "128", "1e2", "100", "true", "null", '"a"', '"abc"', '"1"', '"\\ud800"', '"\\u00e4"']
)
NESTED_VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: f"[{','.join(items)}]")
        | st.lists(st.tuples(KEYS, inner), max_size=4).map(
            lambda members: "{" + ",".join(f'"{key}":{item}' for key, item in members) + "}"
        )
    ),
    max_leaves=12,
)
ITEMS = st.lists(
    st.tuples(LEAVES, st.lists(LEAVES, max_size=3), st.lists(st.tuples(KEYS, LEAVES), max_size=3)).map(
        lambda item: (
            f'{{"x":{item[0]},"y":[{",".join(item[1])}],"z":{{'
            + ",".join(f'"{key}":{value}' for key, value in item[2])
            + "}}"
        )
    )
    | NESTED_VALUES,
    max_size=3,
).map(lambda items: f"[{','.join(items)}]")


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(ITEMS | NESTED_VALUES, NESTED_VALUES), min_size=1, max_size=20))
def test_read_when_nested_values_do_not_fit_then_their_records_are_rejected(
    pairs: list[tuple[str, str]],
) -> None:
    values = [f'{{"s":{second},"a":{first}}}'.encode() for first, second in pairs]
    reader = RecordReader(NESTED)
    batch, undecided, rejected = TapeReader(NESTED).read(values, "ns")
    refused = []
    for index in np.flatnonzero(~undecided).tolist():
        try:
            row = reader.row(values[index])
        except RejectError:
            refused.append(index)
            continue
        expected = [array_of(column.type, [item]).to_pylist() for column, item in zip(NESTED, row, strict=True)]
        assert [column.slice(index, 1).to_pylist() for column in batch.columns] == expected
    assert rejected.nonzero()[0].tolist() == refused


def test_read_when_records_exceed_a_piece_then_rows_keep_their_order() -> None:
    values = [b'{"a":[%d],"b":"%s"}' % (n, b"x" * (n % 5000)) for n in range(2000)]
    batch, undecided, _ = TapeReader(columns_of(a="array<int>", b="string")).read(values, "ns")
    assert not undecided.any()
    assert batch.column(0).to_pylist() == [[n] for n in range(2000)]
    assert pa.compute.utf8_length(batch.column(1)).to_pylist() == [n % 5000 for n in range(2000)]


def _spaced(blanks: int) -> bytes:
    """Return a record with this number of blanks between all tokens."""
    parts = (b"{", b'"a"', b":", b"[", b"1", b",", b"null", b"]", b",", b'"b"', b":", b"true", b"}")
    return (b" \t\r\n"[blanks % 4 :: -1] * (blanks // 4) + b" " * (blanks % 4)).join(parts)


@pytest.mark.parametrize("blanks", [*range(12), 400_000])
def test_decode_when_blanks_are_between_tokens_then_they_change_nothing(blanks: int) -> None:
    values = [b'{"a": [2, 3]}'] * 6000
    values[5] = _spaced(blanks)
    decoded = JsonDecoder(columns_of(a="array<int>", b="string")).decode(values)
    found = rows_of(decoded)
    assert found[5] == {"a": [1, None], "b": "true"}
    assert found[:5] + found[6:] == [{"a": [2, 3], "b": None}] * 5999


def _calls(run: Callable[[], object]) -> int:
    """Return how many functions of Python and C are called."""
    count = 0

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    outer = sys.getprofile()
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(outer)
    return count


def test_read_when_blanks_are_between_tokens_then_its_steps_do_not_depend_on_their_number() -> None:
    reader = TapeReader(columns_of(a="array<int>", b="string"))

    def read(blanks: int) -> None:
        reader.read([b'{"a": [2, 3]}', _spaced(blanks)], "ns")

    read(12)  # what is cached does not count
    few, many = (_calls(partial(read, blanks)) for blanks in (12, 10_000))
    assert many < 2 * few
