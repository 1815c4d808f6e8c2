"""Batches in which few records have faults have the same rows and reasons as records that are decoded one by one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ingestd.formats import JsonDecoder
from ingestd.formats.decoder import RejectError
from ingestd.formats.json.arrow_reader import ArrowReader
from ingestd.formats.json.tape_reader import TapeReader
from ingestd.formats.record_decoder import NotColumnar
from ingestd.formats.row_batches import RowBatches
from ingestd.schema import Column
from tests.support.decoding import columns_of, in_order, rows_of

MANY = settings(max_examples=125, deadline=None, suppress_health_check=[HealthCheck.too_slow])
FAULTS = [
    '{"id":"x"}', '{"id":5.0}', '{"id":"7"}', '{"id":true}', '{"id":[1]}', '{"id":99999999999999999999}',
    '{"ts":5}', '{"ts":""}', '{"ts":"2026-02-30"}', '{"ts":"2026-01-02T03Z"}', '{"amount":1e2}', '{"amount":1.234}',
    '{"amount":"a"}', '{"amount":123456789.1}', '{"ratio":1e400}', '{"ratio":"NaN"}', '{"ratio":NaN}',
    '{"flag":"TRUE"}', '{"flag":1}', '{"note":17.50}', '{"note":{"a":[1]}}', '{"note":"\\ud800"}', '{"note":"\\x"}',
    '{"note":"\t"}',
    '{"note":"\x01"}', '{"short":"abcdef"}', '{"id":1', '{"id":1} x', '[{"id":1}]', "", "{", "}", "{}", "null{}",
    "\ufeff{}", '{"id":1}\r\n', ' {"id":1}', '{"id":\n1}', '{"note":"a\nb"}', '{"id":1}\n{"id":2}', '{"id":1}{"id":2}',
    '{"x":null{}}', '{"note":' + "[" * 250 + "]" * 250 + "}", '{"Id":3}', '{"id":1,"id":2}', '{"other":{"id":"x"}}',
    '{"id" : "x"}', '{"id"1}', '{"note" "x","id":1}', '{"id":1"note":"x"}', '{"note":"a" "id":2}', '{"note":"a""id":2}',
    '{"note":":x","short":":"}', '{"note":"a,","id":1}',
]  # fmt: skip
FLAT = columns_of(
    id="bigint", ts="timestamp", amount="decimal(10,2)", ratio="double", flag="boolean", note="string",
    short="varchar(5)",
)  # fmt: skip
NESTED = columns_of(
    id="bigint",
    buyer="struct<name:string,since:timestamp,address:struct<zip:string>>",
    items="array<struct<count:int,price:double,total:decimal(5,2),note:varchar(5)>>",
    labels="map<string,string>",
    counts="map<int,array<int>>",
    rates="map<char(2),decimal(5,2)>",
)
SOUND = '{"id":%d,"ts":"2026-11-21 10:00:00.%03d","amount":1.5,"ratio":0.25,"flag":true,"note":"n %d","short":"abc"}'


NESTED_FAULTS = [
    '{"id":"x"}', '{"buyer":{"name":5}}', '{"buyer":{"Name":"x"}}', '{"buyer":{"name":"a","name":"b"}}', '{"buyer":[]}',
    '{"buyer":{"name":{"a":1}}}', '{"buyer":"x"}', '{"buyer":{"other":1}}', '{"buyer":{"since":"2026-02-30"}}',
    '{"buyer":{"since":"2026-01-01 00:00:00.123456789"}}',
    '{"items":[{"count":"7"}]}', '{"items":[{"count":1.5}]}', '{"items":[{"count":99999999999}]}', '{"items":{}}',
    '{"items":[{"price":NaN}]}', '{"items":[{"price":1e400}]}',
    '{"items":[{"total":1e2}]}', '{"items":[{"total":1.234}]}',
    '{"items":[null,{},{"price":null}]}', '{"items":[]}', '{"items":[5]}', '{"items":[{"note":"abcdef"}]}',
    '{"labels":null}', '{"labels":{}}', '{"labels":{"a":null}}',
    '{"labels":{"b":"1","a":"2"}}', '{"labels":{"a":1,"a":2}}',
    '{"labels":{"a":"x}y","b":"{"}}', '{"labels":{"a":{"b":[1]}}}', '{"labels":{"a":"x"}', '{"labels":{"a":}}',
    '{"labels" : {"a":"x"}}', '{"labels": {"a":"x"}}', '{"labels":[]}', '{"labels":"labels"}',
    '{"labels"}', '{"labels":',
    '{"labels":null,"labels":{"a":"1"}}', '{"labels":{"a":"1"},"labels":null}', '{"labels":null,"labels":null}',
    '{"buyer":null,"buyer":{"name":"x"}}', '{"buyer":{"name":"x"},"buyer":null}', '{"items":[],"items":null}',
    '{"labels":{"a":"1"},"labels":{"b":"2"}}', '{"Labels":{"a":"1"}}', '{"l\\u0061bels":{"a":"1"}}',
    '{"id":1,"other":{"labels":{"a":"1"}}}', '{"l\\u0061bels":{"b":"2"},"other":{"labels":{"a":"1"}}}',
    '{"other":{"labels":{"a":"1"}},"labels":null}', '{"id":1,"other":"labels"}', '{"labels":{"a\\n":"\\ud800"}}',
    '{"counts":{"x":1}}', '{"counts":{"1":1,"1.0":2}}', '{"counts":{"1":[1,null],"2":[]}}', '{"counts":{"1":[{}]}}',
    '{"counts":{"1":[1]},"labels":{"2":"x"}}', "{}", '{"id":1,"x":null{}}',
    '{"labels":{"\t":"1"}}', '{"labels":{"a" : "1" } }', '{"labels":{ }}', '{"labels":{1}}', '{"labels":{"a","b"}}',
    '{"labels":{"a":"b":"c":"d"}}', '{"labels":{"a":"1" "b":"2"}}', '{"labels":{"a":"1",}}', '{"labels":{,"a":"1"}}',
    '{"labels":{"a"x"1"}}', '{"labels":{"a": "1", "b": "}"}}', '{"labels":{"":"","é":"x:y,z"}}',
    '{"rates":{"a":1.234}}', '{"rates":{"a":"1.5","b":2}}', '{"rates":{"a":01}}', '{"rates":{"a":,"b":1}}',
    '{"rates":{"a":1e2,"b":null}}', '{"rates":{"a":1,"a ":2}}', '{"rates":{"abc":1}}', '{"rates":{"a":1 2}}',
    '{"rates":{"a":true}}', '{"rates":{"a" ,"b":1}}', '{"rates":{"a":1,"b":}}', '{"rates":{"a"}}',
    '{"labels":{"a":"1"}"id":1}', '{"buyer"{"name":"x"}}', '{"buyer":{"name""x"}}', '{"items":[{"count":1"note":"x"}]}',
    '{"id":1,"labels":{"a":"x"}}}', '{"labels":{"a":"x"}}{}', '{"labels":{"a":"1"}',
    '{"items":[{"total":1.234},{"count":1.5}]}', '{"items":[{"note":"abcdef","count":"x"},5]}', '{"items":"x"}',
    '{"labels":{"a":"\\ud800","b":"\\ud800"}}', '{"counts":{"1":[1,"x"],"2":5.5},"id":"x"}',
    '{"rates":{"a":"x","b":1.234}}',
    '{"buyer":{"name":"\\ud800","since":"x"},"items":5}', '{"items":[{"count":"x"},{"count":{}}]}', '{"buyer":true}',
]  # fmt: skip
NESTED_SOUND = (
    '{"id":%d,"buyer":{"name":"n%d","since":"2026-11-21 10:00:00","address":{"zip":"5"}},"labels":{"a":"1","b":"%d"},'
    '"items":[{"count":1,"price":0.5,"total":1.25,"note":"a"},{"count":2,"price":1,"total":2,"note":null}],'
    '"counts":{"5":[1,2],"7":null},"rates":{"a": 1.5, "b": 2}}'
)


@MANY
@given(st.lists(st.sampled_from(NESTED_FAULTS).map(str.encode), min_size=1, max_size=9), st.data())
def test_decode_when_few_nested_records_have_faults_then_rows_and_reasons_are_those_of_each_record(
    faults: list[bytes], data: st.DataObject
) -> None:
    _check_faults(NESTED, NESTED_SOUND, faults, data)


@MANY
@given(
    st.lists(st.sampled_from(FAULTS).map(str.encode) | st.just(b'{"note":"\xff"}'), min_size=1, max_size=9), st.data()
)
def test_decode_when_few_records_have_faults_then_rows_and_reasons_are_those_of_each_record(
    faults: list[bytes], data: st.DataObject
) -> None:
    _check_faults(FLAT, SOUND, faults, data)


MANY_FAULTS = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
UNLIKE = ['{"note":"\\ud800","id":"x"}', '{"id":"\\ud800"}', '{"short":"\\udc00\\ud800"}', '{"note":"\\ud83d\\ude00"}']
UNLIKE += ['{"ID":3,"id":4}', '{"id":4,"i\\u0064":5}', '{"x":NaN}', '{"x":[-Infinity]}', '{"id":1,"Note":"n"}']


@MANY_FAULTS
@given(st.lists(st.sampled_from([*FAULTS, *UNLIKE]).map(str.encode), min_size=65, max_size=150), st.data())
def test_decode_when_many_records_have_faults_then_rows_and_reasons_are_those_of_each_record(
    faults: list[bytes], data: st.DataObject
) -> None:
    _check_faults(FLAT, SOUND, faults, data)


@MANY_FAULTS
@given(st.lists(st.sampled_from(NESTED_FAULTS).map(str.encode), min_size=65, max_size=150), st.data())
def test_decode_when_many_nested_records_have_faults_then_rows_and_reasons_are_those_of_each_record(
    faults: list[bytes], data: st.DataObject
) -> None:
    _check_faults(NESTED, NESTED_SOUND, faults, data)


@MANY_FAULTS
@given(st.sampled_from([*FAULTS, *UNLIKE]), st.sampled_from([*FAULTS, *UNLIKE]), st.integers(0, 3), st.data())
def test_decode_when_most_records_have_one_fault_then_rows_and_reasons_are_those_of_each_record(
    fault: str, other: str, others: int, data: st.DataObject
) -> None:
    _check_faults(FLAT, SOUND, [fault.encode()] * 200 + [other.encode()] * others, data)


@MANY_FAULTS
@given(st.sampled_from(NESTED_FAULTS), st.sampled_from(NESTED_FAULTS), st.integers(0, 3), st.data())
def test_decode_when_most_nested_records_have_one_fault_then_rows_and_reasons_are_those_of_each_record(
    fault: str, other: str, others: int, data: st.DataObject
) -> None:
    _check_faults(NESTED, NESTED_SOUND, [fault.encode()] * 200 + [other.encode()] * others, data)


@cache
def _outcome(columns: Sequence[Column], value: bytes) -> tuple[object, ...] | RejectError:
    """Return the row or the error of a record that is decoded alone. Most examples contain the same records."""
    try:
        return tuple(JsonDecoder(columns).decode_record(value))
    except RejectError as error:
        return error


def _check_faults(columns: Sequence[Column], sound: str, faults: list[bytes], data: st.DataObject) -> None:
    decoder = JsonDecoder(columns)
    for inserted in (faults, [], faults):  # the decoder has learned from the batches before
        values = [(sound % (number, number, number)).encode() for number in range(data.draw(st.integers(1, 200)))]
        for fault in inserted:
            values.insert(data.draw(st.integers(0, len(values))), fault)
        rows: list[Any] = []
        rejects = []
        for index, value in enumerate(values):
            outcome = _outcome(columns, value)
            if isinstance(outcome, RejectError):
                rejects.append((index, outcome.column, outcome.reason))
            else:
                rows.append(outcome)
        decoded = decoder.decode(values)
        assert [(reject.row, reject.column, reject.reason) for reject in decoded.rejects] == rejects
        expected = RowBatches(columns)
        for row in rows:
            expected.add_row(row)
        found = [row for batch in decoded.batches for row in batch.to_pylist()]
        assert repr(in_order(decoded, found)) == repr([row for batch in expected.close() for row in batch.to_pylist()])


def test_read_when_few_records_have_a_fault_then_only_these_are_undecided() -> None:
    faults = [
        '{"id":"x"}', '{"id":5.5}', '{"ts":5}', '{"ts":"2026-02-30"}', '{"amount":1.234}', '{"amount":"a"}',
        '{"ratio":1e400}', '{"ratio":NaN}', '{"flag":1}', '{"note":17.50}', '{"note":{"a":[1]}}', '{"note":"\\ud800"}',
        '{"note":"\\x"}', '{"note":"\t"}', '{"short":"abcdef"}', '{"id":1', '{"id":1} x', "", "null{}",
        '{"id":1}{"id":2}', '{"ID":3,"id":4}', '{"id":3,"id":4}', '{"x":NaN}', '{"i\\u0064":5,"x":1}',
    ]  # fmt: skip
    nested_faults = [
        '{"buyer":{"name":5}}', '{"buyer":"x"}', '{"buyer":{"since":"2026-02-30"}}', '{"items":[{"count":1.5}]}',
        '{"items":[{"price":NaN}]}', '{"items":[{"total":1.234}]}', '{"items":{}}', '{"labels":{"a":"x}y","b":"{"}}',
        '{"labels":{"a":}}', '{"labels":[]}', '{"id":1,"note":"labels"}',
        '{"labels"\t:{"a":"1"}}',
    ]  # fmt: skip
    cases = [(FLAT, SOUND, fault) for fault in faults] + [(NESTED, NESTED_SOUND, fault) for fault in nested_faults]
    for columns, sound, fault in cases:
        values = [(sound % (number, number, number)).encode() for number in range(200)]
        values[50] = values[150] = fault.encode()
        _, undecided, rejected = ArrowReader(columns).read(values)
        assert (undecided | rejected).nonzero()[0].tolist() == [50, 150], fault


def test_read_when_many_records_miss_a_colon_or_a_comma_then_only_these_are_undecided() -> None:
    cases = [(FLAT, SOUND, fault) for fault in ('{"id"1}', '{"id" 1}', '{"id":1"note":"x"}', '{"note":"a" "id":2}')]
    cases += [
        (NESTED, NESTED_SOUND, fault) for fault in ('{"buyer":{"name" "x"}}', '{"items":[{"count":1"note":"x"}]}')
    ]
    for columns, sound, fault in cases:
        values = [(sound % (number, number, number)).encode() for number in range(200)]
        values[5::20] = [fault.encode()] * 10
        _, undecided, rejected = ArrowReader(columns).read(values)
        assert (undecided | rejected).nonzero()[0].tolist() == list(range(5, 200, 20)), fault


def test_read_when_two_fifths_of_the_records_have_faults_then_arrow_reads_the_others() -> None:
    values = [(SOUND % (number, number, number)).encode() for number in range(100)]
    values[0::5] = [b'{"id":"x"}'] * 20
    values[1::5] = [b"{"] * 20
    _, undecided, rejected = ArrowReader(FLAT).read(values)
    assert (undecided | rejected).nonzero()[0].tolist() == [number for number in range(100) if number % 5 < 2]


# What all records have in place of a part of SOUND or NESTED_SOUND, so that none of them can be stored.
FAULTY = [
    (FLAT, SOUND, fault)
    for fault in (
        ('"id":%d', '"id":"x"'), ('"id":%d', '"id":%d.5'), ('"id":%d', '"id":99999999999999999999'),
        ('"id":%d', '"id":true'), (' 10:', " 25:"), ('"2026', '"'), ('"2026-11-21 10:00:00.%03d"', "17%03d"),
        ("1.5", "1.234"), ("1.5", '"1.234"'), ("1.5", '"n/a"'), ("1.5", "123456789.5"), ("0.25", '"a"'),
        ("0.25", "false"), ("true", "1"), ("true", '"yes"'), ('"abc"', '"abcdef"'), ("}", ""), ("}", "} x"), ("{", "["),
    )
] + [
    (NESTED, NESTED_SOUND, fault)
    for fault in (
        ('"count":1', '"count":1.5'), ('"count":1', '"count":99999999999'), ('"total":1.25', '"total":1.234'),
        ('"2026-11-21 10:00:00"', "5"), ('"buyer":{', '"buyer":"x","other":{'), ('"items":[', '"items":5,"other":['),
    )
]  # fmt: skip


@pytest.mark.parametrize(("columns", "sound", "fault"), FAULTY)
def test_read_when_no_record_can_be_stored_then_arrow_rejects_all_until_one_can(
    columns: Sequence[Column], sound: str, fault: tuple[str, str]
) -> None:
    values = [(sound % (number, number, number)).encode() for number in range(200)]
    record = sound.replace(*fault, 1)
    faulty = [(record % ((number,) * record.count("%"))).encode() for number in range(200)]
    reader = ArrowReader(columns)
    for _ in range(2):
        _, undecided, rejected = reader.read(faulty)
        assert not undecided.any()
        assert rejected.all()
    batch, undecided, rejected = reader.read(values)
    assert not (undecided | rejected).any()
    assert batch.equals(ArrowReader(columns).read(values)[0])


def test_read_when_a_text_has_an_unpaired_surrogate_then_the_tape_decides_the_reject() -> None:
    record = '{"id":%d,"note":"%s","short":"%s"}'
    texts = [("a", "b"), ("\\ud800", "b"), ("\\ud83d\\ude00", "\\udc00"), ("\\udc00\\ud800", "abcdef")]
    values = [(record % (number, *pair)).encode() for number, pair in enumerate(texts)]
    batch, undecided, rejected = TapeReader(FLAT).read(values, "ns")
    assert not undecided.any()
    assert rejected.tolist() == [False, True, True, True]
    assert batch.column(5).to_pylist()[0] == "a"


def test_read_when_nested_records_are_common_then_arrow_reads_the_batch() -> None:
    record = NESTED_SOUND % (1, 2, 3)
    variants = [
        record,
        record.replace('"name"', '"Name"').replace('"price"', '"PRICE"').replace('"labels"', '"Labels"'),
        record.replace('"count":1', '"count":"1"').replace('"count":2', '"count":"2"'),
        record.replace('"address"', '"extra":[{"x":null}],"address"').replace('"id":1', '"id":1,"more":{"a":"b"}'),
        json.dumps(json.loads(record)),
        record.replace('"a":"1"', '"a":null,"é":"\\u00e4{"'),
        record.replace('"labels":{', '"labels":null,"other":{'),
        record.replace('"5":[1,2]', '"6":[1.0,"2"]'),
        record.replace('"items":[', '"items":[null,{},'),
    ]
    for variant in variants:
        batch, undecided, _ = ArrowReader(NESTED).read([variant.encode()] * 3)
        assert undecided.tolist() == [False] * 3, variant
        assert batch.to_pylist()[1] == rows_of(JsonDecoder(NESTED).decode([variant.encode()]))[0]


def test_read_when_all_other_fields_have_different_names_then_arrow_reads_the_batch() -> None:
    """If pyarrow inferred their types, these records would need a minute and gigabytes."""
    record = '{"id":%d,"other":{"k%d":"\\u0431\\u0432"},"x%d":1}'
    values = [(record % (number, number, number)).encode() for number in range(20_000)]
    batch, undecided, _ = ArrowReader(FLAT).read(values)
    assert not undecided.any()
    assert batch.column(0).to_pylist() == list(range(20_000))


def test_decode_when_a_name_has_the_kelvin_sign_then_others_keep_their_values() -> None:
    values = [json.dumps(record).encode() for record in ({"x": 1, "\u212a": {}}, {"x": 2, "k": "c"}, {"k": 1})]
    decoded = JsonDecoder(columns_of(k="int", at="timestamp")).decode(values)
    assert [reject.row for reject in decoded.rejects] == [0, 1]
    assert rows_of(decoded) == [{"k": 1, "at": None}]


def test_decode_when_the_reader_stops_at_a_row_that_does_not_exist_then_each_record_has_its_own_result() -> None:
    sound = (NESTED_SOUND % (1, 2, 3)).encode()
    values = [b'{"items":[{},{},{},5]}', sound, b'{"id":1}"id":1}']
    for count in (1, 2, 3):
        decoded = JsonDecoder(NESTED).decode(values[:count])
        assert [reject.row for reject in decoded.rejects] == [0, 2][: (count + 1) // 2]


OTHER = b'{"id":1,"other":1}'
# Text like NaN is decided only in a batch in which each field is a column.
LIKE_NAN = [b'{"id":1}', *[b'{"id":2,"note":"it is: NaN"}'] * 3]


def test_read_when_no_record_has_other_fields_after_a_batch_with_some_then_reads_as_a_new_reader() -> None:
    reader = ArrowReader(FLAT)
    _, undecided, _ = reader.read([OTHER, *LIKE_NAN, b"{}", b"{}"])
    assert undecided.tolist() == [False, False, True, True, True, False, False]
    for _ in range(2):
        batch, undecided, _ = reader.read(LIKE_NAN)
        assert not undecided.any()
        assert batch.column(5).to_pylist() == [None, *["it is: NaN"] * 3]


def test_read_when_many_batches_have_had_other_fields_then_reads_as_a_new_reader_soon() -> None:
    reader = ArrowReader(FLAT)
    for _ in range(50):
        reader.read([OTHER] * 4)
    undecided = [reader.read(LIKE_NAN)[1].any() for _ in range(10)]
    assert not undecided[-1]
    reader.read([OTHER] * 4)
    assert not reader.read(LIKE_NAN)[1].any()


def test_read_when_names_are_spelled_otherwise_after_many_batches_with_other_fields_then_learns_the_names() -> None:
    reader = ArrowReader(FLAT)
    for _ in range(50):
        reader.read([OTHER] * 4)
    respelled = [*[OTHER.replace(b"id", b"ID")] * 3, OTHER]
    reader.read(respelled)
    batch, undecided, _ = reader.read(respelled)
    assert undecided.tolist() == [False, False, False, True]
    assert batch.column(0).to_pylist()[:3] == [1, 1, 1]


def test_read_when_names_with_capitals_have_others_beside_them_then_only_other_cases_are_undecided() -> None:
    usual = '{"userId":1,"other":{"userid2":"userID"},"Note"%s: "n"}'
    others = ['{"userID":1,"other":2}', '{"other":2,"note" \t :"n"}', '{"userId":1,"USERID":2}']
    values = [(usual % blanks).encode() for blanks in ("", " ", "\t" * 300)] + [value.encode() for value in others]
    _, undecided, _ = ArrowReader(columns_of(userid="int", note="string")).read([*values, *values[:3] * 2])
    assert undecided.tolist() == [False] * 3 + [True] * 3 + [False] * 6


@MANY_FAULTS
@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                ["a", "A", "ab", "aB", "AB", "b", "k", "\u212a", "K", "x", "aX", 'a\\"b', "\\u0061", "a:b"]
            ),
            st.sampled_from(["", " ", "\t"]),
            st.sampled_from(["1", "null", '"A"', '"a\\"B"', '{"A":1}', '"\u212a"', '"\\"AB\\":"']),
        ),
        max_size=4,
    ),
    st.sampled_from([("a", "ab", "b", "k"), ("a", "ab"), ("k",)]),
    st.sampled_from(["a", "A", "aB", "AB", "K"]),
    st.integers(1, 3),
)
def test_read_when_names_have_other_cases_then_the_rows_are_those_of_each_record(
    members: list[tuple[str, str, str]], names: tuple[str, ...], learned: str, count: int
) -> None:
    columns = columns_of(**dict.fromkeys(names, "string"))
    record = "{" + ",".join(f'"{name}"{blank}:{value}' for name, blank, value in members) + "}"
    values = [value.encode() for value in (f'{{"{learned}":"5","o":1}}', *[record] * count, '{"k":"7"}')]
    try:
        batch, undecided, _ = ArrowReader(columns).read(values)
    except NotColumnar:
        return
    one = JsonDecoder(columns)
    for row, value in enumerate(values):
        if not undecided[row]:
            assert list(batch.slice(row, 1).to_pylist()[0].values()) == list(one.decode_record(value))


def test_decode_when_a_text_has_a_million_digits_beside_exponents_then_the_rows_are_stored() -> None:
    """A search whose time grew with the square of the number of digits would take hours."""
    decoder, digits = JsonDecoder(columns_of(note="string", amount="decimal(10,2)")), "7" * 1_000_000
    values = [f'{{"note":"{digits}","amount":{amount}}}'.encode() for amount in ("1e2", "1E+2", "100e-02")]
    rows = rows_of(decoder.decode(values))
    assert [(len(row["note"]), str(row["amount"])) for row in rows] == [
        (1_000_000, "100.00"),
        (1_000_000, "100.00"),
        (1_000_000, "1.00"),
    ]
