"""Lenient JSON records: each value becomes what Hive 4.0.1's JsonSerDe makes of it.

`tests/ingest/records/test_json_lenient.py` compares them with Hive itself.
"""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from math import inf
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingestd.errors import ConfigError
from ingestd.formats.json.decoder import JsonDecoder
from ingestd.formats.json.layout import Layout
from ingestd.formats.json.options import JsonOptions
from ingestd.formats.json.tape_reader import TapeReader
from tests.formats.test_tape import Generator, assert_equal, decoded_alone
from tests.support.decoding import columns_of, reasons, rows_of

LENIENT = Layout(lenient=True)
BIG = 9_223_372_036_854_775_807


def decoded(kind: str, value: str) -> Any:
    """Return what a JSON value becomes in a column of this type, or the reason of the reject."""
    result = JsonDecoder(columns_of(a=kind), LENIENT).decode([b'{"a":%s}' % value.encode()])
    return result.rejects[0].reason if result.rejects else rows_of(result)[0]["a"]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("int", {'"5"': 5, '" +7 "': 7, "5.9": 5, "-5.9": -5, '"5.9"': 5, '"x"': 0, '""': 0, "true": 1, "-0": 0}),
        ("int", {"3000000000": -1294967296, '"3000000000"': 0, "1e19": 2**31 - 1, "-1e400": -(2**31), '"NaN"': 0}),
        ("int", {'"+-5"': -5, '"-"': 0, '"0x1p3"': 8, '"1.5f"': 1, '"0000000000000007"': 7, "1" * 1000: -954437177}),
        ("int", {f'"{"0" * 5000}7"': 7, f'"-{"0" * 5000}7"': -7, f'"{"0" * 5000}"': 0, f'"{"7" * 5000}"': 0}),
        ("tinyint", {"300": 44, "1e3": -24, '"Infinity"': -1, '"128"': -128, "-129": 127}),
        ("smallint", {"70000": 4464, "-32768": -32768}),
        ("bigint", {"9223372036854775808": -BIG - 1, '"9223372036854775808"': 0, "1e19": BIG, "1e18": 10**18}),
        ("double", {'"x"': 0.0, '" 5.9 "': 5.9, "1e400": inf, '"-Infinity"': -inf, '"+-5"': 0.0, "false": 0.0}),
        ("double", {'"0x1p99999"': inf, '"-0x1p99999"': -inf, '"1d"': 1.0, '"nan"': 0.0}),
        ("float", {"1e39": inf, "0.1": 0.10000000149011612, "16777217": 16777216.0}),
        ("decimal(10,2)", {"12.505": Decimal("12.51"), '"-12.505"': Decimal("-12.51"), '" 5 "': Decimal("5.00")}),
        ("decimal(10,2)", {"123456789.5": None, '"x"': None, '""': None, "true": None, '"1e2"': Decimal("100.00")}),
        ("decimal(38,18)", {"12345678901234567.5": Decimal("12345678901234568.000000000000000000")}),
        ("boolean", {"1": True, "0": False, "-7": True, "0.5": False, '"true"': True, '"TRUE"': False, '"1"': False}),
        ("string", {"12.50": "12.5", "1e7": "1.0E7", "0.0001": "1.0E-4", "1e-3": "0.001", "100.0": "100.0", "-0": "0"}),
        ("string", {"1e400": "Infinity", "-0.0": "-0.0", "true": "true", '"12.50"': "12.50", '" "': " ", '""': ""}),
        ("string", {'{"b": 1.50, "a": [null, "\\u001f\\/"]}': '{"b":1.5,"a":[null,"\\u001F/"]}', "[1, 2]": "[1,2]"}),
        ("string", {'{"a":1e400}': '{"a":"Infinity"}', "[-1e400]": '["-Infinity"]'}),
        ("string", {'{"k":1,"j":3,"k":2}': '{"k":2,"j":3}', '["1.50", -0]': '["1.50",0]'}),
        ("varchar(4)", {'"abcdef"': "abcd", "12.50": "12.5", "123456": "1234", '"ab    "': "ab  ", "false": "fals"}),
        ("char(4)", {'"ab    "': "ab", '"é\\ud83d\\ude00cde"': "é\U0001f600cd"}),
        (
            "binary",
            {'"YWJj"': b"abc", '" YWJj\\n YQ=="': b"abca", '""': b"", "5": None, "true": None, '"YQ==YWJj"': b"aabc"},
        ),
        (
            "date",
            {'"2026-1-2x"': date(2026, 1, 2), '" 26-01-02 "': date(26, 1, 2), '"2026-01-02 3:4"': date(2026, 1, 2)},
        ),
        ("timestamp", {'"2026-1-2 3:4:5"': datetime(2026, 1, 2, 3, 4, 5), '"2026-01-02"': None, "1420509274123": None}),
        ("timestamp", {'"2026-01-02T03:04"': datetime(2026, 1, 2, 3, 4), '"2026-01-02T03:04:05Z"': None, '"x"': None}),
        ("array<int>", {'[null, "5", true, 1e9, "x"]': [None, 5, 1, 10**9, 0]}),
        ("map<int,string>", {'{"1":"x","01":"y","z":1.0}': [(1, "y"), (0, "1.0")]}),
        ("struct<x:int,y:string>", {'{"_col1":"b","0":"7"}': {"x": 7, "y": "b"}, "null": None}),
    ],
)
def test_decode_when_a_value_is_lenient_then_it_becomes_what_hive_reads(kind: str, values: dict[str, Any]) -> None:
    assert {value: decoded(kind, value) for value in values} == values


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        ("int", "{}", "{} is not a scalar, but the type is int"),
        ("int", "1" * 1001, f"'{'1' * 36}... has more than 1000 digits"),
        ("varchar(4)", "[1]", "[1] is not a scalar, but the type is varchar(4)"),
        ("string", '"\\ud800"', "the text has an unpaired surrogate, which UTF-8 cannot encode"),
        ("binary", '"YWJ"', "'YWJ' is not base64, but the type is binary"),
        ("date", '"2026-02-30"', "'2026-02-30' is not a date in the years 0001 to 9999"),
        ("date", "2026", "'2026' is not a date in the years 0001 to 9999"),
        ("timestamp", '"12026-01-02 00:00:00"', "'12026-01-02 00:00:00' is not a timestamp in the years 0001 to 9999"),
        ("array<int>", "5", "'5' is not an array, but the type is array<int>"),
        ("map<date,int>", '{"x":1}', "['x']: 'x' is not a date in the years 0001 to 9999"),
        ("map<boolean,int>", "[]", "[] is not an object, but the type is map<boolean,int>"),
        ("map<timestamp,int>", '{"x":1}', "['x']: the key is not valid, and a map cannot have a key that is NULL"),
        ("struct<x:int>", '{"_col1":5}', "there is no field at the position of '_col1'"),
    ],
)
def test_decode_when_hive_fails_or_no_column_can_store_the_value_then_it_is_a_reject(
    kind: str, value: str, reason: str
) -> None:
    assert decoded(kind, value) == reason


def test_decode_when_records_are_unusual_then_they_are_read_as_jackson_reads_them() -> None:
    decoder = JsonDecoder(columns_of(id="int", note="string"), LENIENT)
    records = [
        *(b'{"id":1} x', b'{"id":2}{"id":3}', b'\xef\xbb\xbf{"ID":4}', b"null", b'\n {"_col0":5,"1":"x","_COL1":"y"}'),
        *(b'{"id":6,"Id":7,"id":8}', b'{"id":1,"id":9}', b'{"_col0x":1,"2":1,"-1":1,"+1":"z"}'),
        *(b"", b" ", b"[]", b"5", b'{"id":1,}', b'{"_col9":1}', b'{"id":1} \xff'),
    ]
    found = decoder.decode(records)
    rows = [(1, None), (2, None), (4, None), (None, None), (5, "x"), (7, None), (9, None), (None, "z")]
    assert [tuple(row.values()) for row in rows_of(found)] == rows
    assert [(index, reason.partition(":")[0]) for index, _, reason in reasons(found)] == [
        *((8, "record is not JSON"), (9, "record is not JSON"), (10, "record is not a JSON object")),
        *((11, "record is not a JSON object"), (12, "record is not JSON")),
        *((13, "there is no field at the position of '_col9'"), (14, "record is not UTF-8 (byte 9)")),
    ]


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1 << 60), st.sampled_from([1, 3, 20, 60]))
def test_decode_when_lenient_records_are_decoded_together_then_result_is_the_same_as_one_by_one(
    seed: int, count: int
) -> None:
    random = Random(seed)
    generator = Generator(random)
    columns = generator.columns()
    values = [generator.record(columns) for _ in range(count)]
    values = [value.replace(b'"a"', random.choice([b'"_col0"', b'"1"', b'"a"', b'"a"'])) for value in values]
    found = JsonDecoder(columns, LENIENT).decode(values)
    alone = [decoded_alone(columns, value, LENIENT) for value in values]
    rejects = [(index, *one) for index, one in enumerate(alone) if isinstance(one, tuple)]
    assert reasons(found) == rejects
    assert_equal(columns, found, [row for row in alone if not isinstance(row, tuple)])


def test_read_when_lenient_values_are_usual_then_no_row_is_undecided() -> None:
    columns = columns_of(
        a="int", b="double", c="decimal(10,2)", d="boolean", e="string", f="varchar(3)", g="timestamp",
        h="array<float>", i="string", j="date", k="binary",
    )  # fmt: skip
    record = (
        '{"a":"5","b":2.5,"c":12.50,"d":true,"e":"1.50","f":"abcdef","g":"2026-01-02T03:04:05.25","h":[0.1,"7",null],'
        '"i":{"x":[1,2]},"j":"2026-01-02","k":"YWJj","other":1.50}'
    )
    batch, undecided, _ = TapeReader(columns, LENIENT).read([record.encode()] * 3, "ns")
    assert not undecided.any()
    row = batch.slice(2).to_pylist()[0]
    assert (row["a"], row["c"], row["e"], row["f"], row["i"]) == (5, Decimal("12.50"), "1.50", "abc", '{"x":[1,2]}')


def test_decoder_when_lenient_has_timestamp_formats_then_raises_config_error() -> None:
    with pytest.raises(ConfigError, match="not those of timestamp_formats"):
        JsonOptions(lenient=True, timestamp_formats=("epoch_ms",)).decoder(columns_of(id="int"))


def test_decoder_when_lenient_has_fields_or_several_objects_then_they_apply_to_lenient_records() -> None:
    options = JsonOptions(lenient=True, envelope="debezium", records="lines", fields={"n": "$.n[1]"})
    found = options.decoder(columns_of(id="int", n="int")).decode(
        [b'{"op":"c","after":{"id":"7"},"n":[0,"8"]} x\nnull']
    )
    assert reasons(found) == [(0, "", "line 2: record is not a JSON object")]
    found = options.decoder(columns_of(id="int", n="int")).decode([b'{"op":"c","after":{"id":"7"},"n":[0,"8"]} x'])
    assert rows_of(found) == [{"id": 7, "n": 8}]
