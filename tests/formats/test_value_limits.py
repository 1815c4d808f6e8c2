"""A few bytes can be an item, and so a struct of many columns. What is decoded from them is limited in every format.

A record with too many values in its arrays and maps is a reject before they need memory, and a batch is decoded in
parts: each has few values, or is one record.
"""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest

from ingestd.formats.avro.options import AvroOptions
from ingestd.formats.csv import CsvOptions
from ingestd.formats.decoder import (
    VALUES_OF_PART,
    Decoder,
    DecodeResult,
    RejectError,
    TooManyValues,
    decode_in_parts,
)
from ingestd.formats.delimited import DelimitedOptions
from ingestd.formats.json.options import JsonOptions
from ingestd.formats.json.record import RecordReader
from ingestd.formats.options import FormatOptions, decoder_of
from ingestd.formats.protobuf.options import ProtobufOptions
from ingestd.formats.record_decoder import RecordDecoder, RejectReasons
from ingestd.formats.row_batches import Row
from ingestd.formats.values import TOO_MANY_VALUES
from tests.support.avro import encode, schema_of
from tests.support.decoding import columns_of, rows_of
from tests.support.protobuf import Field, file_of, message, set_of

WIDTH = 400
NAMES = [f"x{number}" for number in range(WIDTH)]
WIDE = f"struct<{','.join(f'{name}:bigint' for name in NAMES)}>"
COLUMNS = columns_of(a=f"array<{WIDE}>", n="int")
# The number of items of records: rows of few values, some of which a part has, and rejects.
FEW, MANY, EXCESSIVE = 2, 7_500, 50_000
COUNTS = [FEW, MANY, MANY, EXCESSIVE, None, MANY, FEW, MANY, FEW]


def _json(items: Sequence[bytes], number: int) -> bytes:
    return b'{"n":%d,"a":[%s]}' % (number, b",".join(items))


def _objects(count: int, number: int) -> bytes:
    return _json([b"{}"] * count, number)


def _nulls(count: int, number: int) -> bytes:
    return _json([b"null"] * count, number)


def _payload(count: int, number: int) -> bytes:
    return b'{"schema":null,"payload":%s}' % _objects(count, number)


ITEM = {"type": "record", "name": "i", "fields": [{"name": "x0", "type": ["null", "long"]}]}
SCHEMA = schema_of({"a": {"type": "array", "items": ITEM}, "n": "int"})
FILE = file_of(
    message("Row", [Field("a", 1, ".shop.Wide", "repeated"), Field("n", 2, "int32")]),
    message("Wide", [Field(name, number, "int64") for number, name in enumerate(NAMES, 1)]),
)


def _avro(count: int, number: int) -> bytes:
    return encode(SCHEMA, {"a": [{"x0": None}] * count, "n": number})


def _protobuf(count: int, number: int) -> bytes:
    return b"\x0a\x00" * count + b"\x10" + bytes([number])


def _delimited(count: int, number: int) -> bytes:
    return b"|".join([b";" * (count - 1) or b"=", b"%d" % number])


def _array(count: int, number: int) -> bytes:
    return b"[%s,%s]" % (_objects(count // 2, number), _objects(count // 2, number))


def _lines(count: int, number: int) -> bytes:
    return b"\n".join([b'{"n":%d}' % number, _objects(count, number)])


CASES: dict[str, tuple[FormatOptions, Callable[[int, int], bytes]]] = {
    "objects": (JsonOptions(), _objects),
    "nulls": (JsonOptions(), _nulls),
    "lenient": (JsonOptions(lenient=True), _nulls),
    "paths": (JsonOptions(fields={"n": "$.n"}), _objects),
    "connect": (JsonOptions(envelope="connect"), _payload),
    "array": (JsonOptions(records="array"), _array),
    "lines": (JsonOptions(records="lines"), _lines),
    "avro": (AvroOptions(framing="none", schemas=(SCHEMA,)), _avro),
    "protobuf": (ProtobufOptions(framing="none", message="shop.Row", descriptor_set=set_of(FILE)), _protobuf),
    "delimited": (
        DelimitedOptions(fields=("a", "n"), field_delimiter="|", collection_delimiter=";", map_key_delimiter="="),
        _delimited,
    ),
}


def _outcomes(decoder: Decoder, values: Sequence[bytes | None]) -> list[Any]:
    """Return the rows of each record, as their `n` and the number of items, or the column and the reason of its reject.

    Each part has few values or one record.
    """
    outcomes: list[Any] = [[] for _ in values]
    end = 0
    for start, part, decoded in decode_in_parts(decoder.decode, values):
        assert start == end
        end += len(part)
        records = iter(decoded.records_of_rows(part).tolist())
        for batch in decoded.batches:
            assert batch["a"].type.value_type.num_fields == WIDTH
            pairs = list(zip(batch["n"].to_pylist(), batch["a"].value_lengths().to_pylist(), strict=True))
            assert len(part) == 1 or sum(count or 0 for _, count in pairs) * WIDTH <= VALUES_OF_PART
            for pair in pairs:
                outcomes[start + next(records)].append(pair)
        assert next(records, None) is None
        for reject in decoded.rejects:
            assert outcomes[start + reject.row] == []
            outcomes[start + reject.row] = reject.column, reject.reason
    assert end == len(values)
    return outcomes


@pytest.mark.parametrize("case", CASES)
def test_decode_when_small_items_are_many_values_then_each_record_has_the_outcome_that_it_has_alone(case: str) -> None:
    options, write = CASES[case]
    values = [None if count is None else write(count, 7) for count in COUNTS]
    decoder = decoder_of(options, COLUMNS, None)

    outcomes = _outcomes(decoder, values)

    alone = {value: _outcomes(decoder, [value])[0] for value in set(values)}
    assert outcomes == [alone[value] for value in values]
    assert [sum(items or 0 for _, items in outcome) for outcome in outcomes if isinstance(outcome, list)] == [
        count for count in COUNTS if count not in (None, EXCESSIVE)
    ]
    column, reason = outcomes[COUNTS.index(EXCESSIVE)]
    expected = ("", "have too many values as rows") if case in ("array", "lines") else ("a", TOO_MANY_VALUES)
    assert (column, reason[-len(expected[1]) :]) == expected


ITEMS = [b"null"], [b"[]"], [b"1"], [b'""'], [b"{}", b"null"]


def _decode_items(items: list[bytes], *, lenient: bool) -> None:
    values = [_json(items * (count // len(items)), 7) for count in (200_000, 4, 12_000, 12_000)]
    decoder = JsonOptions(lenient=lenient).decoder(COLUMNS)
    for _, part, decoded in decode_in_parts(decoder.decode, values):
        assert sum(batch.nbytes for batch in decoded.batches) <= 9 * VALUES_OF_PART
        assert decoded.rows + len(decoded.rejects) == len(part)


def print_memory() -> None:
    """Print the most bytes that Arrow needs at once to decode items, and those that Python needs to count them."""
    for items, lenient in product(ITEMS, (False, True)):
        _decode_items(items, lenient=lenient)
    sys.stdout.write(f"{pa.default_memory_pool().max_memory()}\n")
    value = b"{}," * (8 << 20)
    tracemalloc.start()
    most = RecordReader(COLUMNS).most_values([value])
    assert most is not None
    assert most[0] > len(value)
    sys.stdout.write(f"{tracemalloc.get_traced_memory()[1]}\n")


def test_decode_when_items_of_json_are_not_objects_then_their_memory_is_limited() -> None:
    code = "from tests.formats.test_value_limits import print_memory; print_memory()"
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    of_items, of_count = map(int, done.stdout.split())
    assert of_items <= 40 * VALUES_OF_PART
    assert of_count <= 1 << 20


@pytest.mark.parametrize("member", [b"5", b"null"], ids=["numbers", "nulls"])
def test_decode_when_objects_have_all_fields_then_members_do_not_count_as_items(member: bytes) -> None:
    item = b"{%s}" % b",".join(b'"%s": %s' % (name.encode(), member) for name in NAMES)
    values = [_json([item], number) for number in range(200)]
    [(_, _, decoded)] = decode_in_parts(JsonOptions().decoder(COLUMNS).decode, values)
    assert decoded.rows == len(values)


def test_decode_when_map_repeats_its_keys_then_only_the_last_values_count() -> None:
    entries = b",".join([b'"k":{}'] * EXCESSIVE)
    values = [b'{"m":{"k":{"x1":5}}}', b'{"m":{%s,"j":{"x1":6}}}' % entries]
    decoder = JsonOptions().decoder(columns_of(m=f"map<string,{WIDE}>"))

    rows = [row for _, _, decoded in decode_in_parts(decoder.decode, values) for row in rows_of(decoded)]

    assert [[(key, value["x1"]) for key, value in row["m"]] for row in rows] == [[("k", 5)], [("k", None), ("j", 6)]]


@pytest.mark.parametrize("replaced", [b"1", b'""', b"[]"])
@pytest.mark.parametrize("last", [b'{"x1":5}', b"null"])
def test_decode_when_replaced_item_of_map_has_another_kind_then_only_the_last_counts(
    replaced: bytes, last: bytes
) -> None:
    decoder = JsonOptions().decoder(columns_of(m="map<string,struct<x1:int>>"))
    decoded = decoder.decode([b'{"m":{"k":%s,"k":%s}}' % (replaced, last)] * 3)
    expected = None if last == b"null" else {"x1": 5}
    assert [row["m"] for batch in decoded.batches for row in batch.to_pylist()] == [[("k", expected)]] * 3
    assert list(decoded.rejects) == []


@pytest.mark.parametrize("item", [b"{}", b"null", b" null", b"1", b"[]"])
def test_decode_when_map_has_items_of_any_kind_then_their_memory_is_limited(item: bytes) -> None:
    count = 12_000
    entries = b",".join(b'"%d":%s' % (number, item) for number in range(count))
    decoder = JsonOptions().decoder(columns_of(m=f"map<string,{WIDE}>"))
    parts = list(decode_in_parts(decoder.decode, [b'{"m":{%s}}' % entries] * 3))
    batches = [batch for _, _, decoded in parts for batch in decoded.batches]
    assert all(batch.nbytes <= 9 * VALUES_OF_PART for batch in batches)
    items = [count for batch in batches for count in np.diff(batch["m"].offsets).tolist()]
    assert items == ([count] * 3 if item in (b"{}", b"null", b" null") else [])


def test_decode_when_columns_are_many_then_a_batch_of_small_records_is_decoded_in_parts() -> None:
    decoder = JsonOptions(unmatched="null").decoder(columns_of(**dict.fromkeys(NAMES, "bigint")))
    values: list[bytes | None] = [b"{}"] * 15_000 + [None] + [b'{"x1":5}'] * 15_000

    with pytest.raises(TooManyValues):
        decoder.decode(values)
    parts = [(start, part, decoded) for start, part, decoded in decode_in_parts(decoder.decode, values)]

    assert all(len(part) * WIDTH <= VALUES_OF_PART for _, part, _ in parts)
    numbers = np.concatenate([start + decoded.records_of_rows(part) for start, part, decoded in parts])
    assert numbers.tolist() == [index for index, value in enumerate(values) if value is not None]
    assert [start + reject.row for start, _, decoded in parts for reject in decoded.rejects] == [15_000]


@pytest.mark.parametrize("several", ["lines", "array"])
def test_decode_when_tombstones_are_rows_beside_several_objects_then_their_columns_count(
    several: Literal["lines", "array"],
) -> None:
    options = JsonOptions(records=several, tombstones="null_row", unmatched="null")
    decoder = options.decoder(columns_of(**dict.fromkeys(NAMES, "bigint")))
    record = b'[{"x1":5},{"x1":6}]' if several == "array" else b'{"x1":5}\n{"x1":6}'
    values: list[bytes | None] = [None, record, None, None] * 6_000

    parts = list(decode_in_parts(decoder.decode, values))

    assert all(decoded.rows * WIDTH <= VALUES_OF_PART for _, _, decoded in parts)
    numbers = np.concatenate([start + decoded.records_of_rows(part) for start, part, decoded in parts])
    assert np.bincount(numbers).tolist() == [1, 2, 1, 1] * 6_000


def test_decode_when_text_has_separators_of_items_then_only_those_in_arrays_count() -> None:
    options = DelimitedOptions(fields=("t", "a"), field_delimiter="|", collection_delimiter=";")
    decoder = options.decoder(columns_of(t="string", a=f"array<{WIDE}>"))
    value = b";" * EXCESSIVE + b"|1;2"

    decoded = decoder.decode([value, value])

    assert [(len(row["t"]), row["a"][1]["x0"]) for row in rows_of(decoded)] == [(EXCESSIVE, 2)] * 2
    assert decoder.check(value) is None


def test_check_when_arrays_have_too_many_values_then_the_record_is_a_reject() -> None:
    for options, write in CASES.values():
        decoder: Any = decoder_of(options, COLUMNS, None)
        assert decoder.check(write(FEW, 7)) is None
        assert decoder.check(write(EXCESSIVE, 7)) is not None


@pytest.mark.parametrize(
    "options",
    [CsvOptions(fields=("x1", "x2")), DelimitedOptions(fields=("x1", "x2"), field_delimiter=",")],
    ids=["csv", "delimited"],
)
def test_decode_when_records_have_fewer_fields_than_the_table_columns_then_the_columns_count(
    options: FormatOptions,
) -> None:
    decoder = decoder_of(options, columns_of(**dict.fromkeys(NAMES, "bigint")), None)
    values = [b"5,6"] * 30_000

    with pytest.raises(TooManyValues):
        decoder.decode(values)
    assert sum(decoded.rows for _, _, decoded in decode_in_parts(decoder.decode, values)) == len(values)


def test_decode_when_a_wide_struct_has_a_long_array_then_each_of_its_items_is_one_value() -> None:
    items = f"array<struct<tags:array<int>,{','.join(f'{name}:bigint' for name in NAMES)}>>"
    decoder = DelimitedOptions(
        fields=("a",), field_delimiter="|", collection_delimiter=";", map_key_delimiter="="
    ).decoder(columns_of(a=items))
    tags = b"\x04".join([b"7"] * (3 * EXCESSIVE))

    for values in ([tags], [tags, b"1"]):
        [(_, _, decoded), *_] = decode_in_parts(decoder.decode, values)
        assert len(decoded.rejects) == 0
        assert next(len(item["tags"]) for row in rows_of(decoded) for item in row["a"]) == 3 * EXCESSIVE


class Excessive:
    """A decoder whose counts are `counts` for records that contain `x`, each of which has too many values for it."""

    def __init__(self, counts: Callable[[int], Sequence[int]]) -> None:
        self._counts = counts

    def decode(self, values: Sequence[bytes | None]) -> DecodeResult:
        if b"x" in values:
            raise TooManyValues(np.array(self._counts(len(values)), np.int64))
        numbers = pa.array([int(value or b"0") for value in values], pa.int32())
        return DecodeResult([pa.RecordBatch.from_arrays([numbers], names=["n"])], [], 0)


@pytest.mark.parametrize(
    "counts",
    [lambda count: [VALUES_OF_PART] * count, lambda count: [1] * count, lambda _: [VALUES_OF_PART], lambda _: []],
    ids=["high", "low", "of one record", "none"],
)
def test_decode_when_a_custom_decoder_refuses_one_record_for_its_values_then_it_is_a_reject(
    counts: Callable[[int], Sequence[int]],
) -> None:
    values = [b"1", b"x", b"3", b"x", b"x", b"6", b"7"]

    parts = list(decode_in_parts(Excessive(counts).decode, values))

    assert [value for _, part, _ in parts for value in part] == values
    rejects = [(start + reject.row, reject) for start, _, decoded in parts for reject in decoded.rejects]
    assert [(row, reject.record) for row, reject in rejects] == [(row, b"x") for row in (1, 3, 4)]
    assert {reject.reason for _, reject in rejects} == {"the record has too many values"}
    assert [row["n"] for _, _, decoded in parts for row in rows_of(decoded)] == [1, 3, 6, 7]
    assert list(decode_in_parts(Excessive(counts).decode, [])) != []


class Columnless(RecordDecoder):
    """A format for which a batch always has too many values, and a record never."""

    def decode_batch(self, values: Sequence[bytes]) -> tuple[pa.RecordBatch, RejectReasons]:
        raise TooManyValues(np.full(len(values), VALUES_OF_PART))

    def decode_record(self, value: bytes) -> Row:
        if not value.isdigit():
            raise RejectError("n", "is not a number")
        return [int(value)]


def test_decode_when_a_format_refuses_each_batch_for_its_values_then_records_are_decoded_one_by_one() -> None:
    decoder = Columnless(columns_of(n="int"))
    parts = list(decode_in_parts(decoder.decode, [b"1", b"x", b"3"]))
    assert [row["n"] for _, _, decoded in parts for row in rows_of(decoded)] == [1, 3]
    assert [(start, reject.reason) for start, _, part in parts for reject in part.rejects] == [(1, "is not a number")]
