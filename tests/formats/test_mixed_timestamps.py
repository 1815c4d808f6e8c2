"""Records that need different units of timestamps are decoded as two batches, however they are interleaved."""

from __future__ import annotations

import json

import pytest

from ingestd.formats.avro.options import AvroOptions
from ingestd.formats.csv import CsvOptions
from ingestd.formats.delimited import DelimitedOptions
from ingestd.formats.json.decoder import JsonDecoder
from ingestd.formats.json.layout import PLAIN, Layout
from ingestd.formats.json.options import JsonOptions
from ingestd.formats.options import FormatOptions, decoder_of
from ingestd.formats.protobuf.options import ProtobufOptions
from ingestd.formats.regex import RegexOptions
from ingestd.formats.row_batches import Row
from tests.support.avro import encode, logical, schema_of
from tests.support.decoding import columns_of, in_order, reasons
from tests.support.protobuf import Field, class_of, file_of, message, set_of

FINE, FAR = "2026-01-01 00:00:00.123456789", "9999-12-31 00:00:00"
FINE_SECOND, FAR_SECOND = 1_767_225_600, 253_402_214_400
SCHEMA = schema_of({"id": "int", "at": [logical("long", "timestamp-nanos"), logical("long", "timestamp-millis")]})
FILE = file_of(message("Row", [Field("id", 1, "int32"), Field("at", 2, ".google.protobuf.Timestamp")]))
FIELDS = ("id", "at")
NANOS = 10**9


def _avro(number: int, *, is_far: bool) -> bytes:
    found = ("timestamp-millis", FAR_SECOND * 1000) if is_far else ("timestamp-nanos", FINE_SECOND * NANOS + 123456789)
    branch = schema_of({"id": "int", "at": logical("long", found[0])})
    plain = encode(branch, {"id": number, "at": found[1]})
    size = len(encode(schema_of({"id": "int"}), {"id": number}))
    return plain[:size] + (b"\x02" if is_far else b"\x00") + plain[size:]


def _record(options: FormatOptions, number: int, *, is_far: bool) -> bytes:
    text = FAR if is_far else FINE
    if isinstance(options, JsonOptions):
        return json.dumps({"id": number, "at": text, "in": [text]}).encode()
    if isinstance(options, AvroOptions):
        return _avro(number, is_far=is_far)
    if isinstance(options, ProtobufOptions):
        seconds, nanos = (FAR_SECOND, 0) if is_far else (FINE_SECOND, 123456789)
        found: bytes = class_of(FILE)(id=number, at={"seconds": seconds, "nanos": nanos}).SerializeToString()
        return found
    return f"{number},{text}".encode()


@pytest.mark.parametrize("nested", [{}, {"in": "array<timestamp>"}], ids=["flat", "nested"])
@pytest.mark.parametrize(
    "options",
    [
        JsonOptions(),
        JsonOptions(lenient=True),
        DelimitedOptions(fields=FIELDS, field_delimiter=","),
        CsvOptions(fields=FIELDS),
        RegexOptions(pattern="([^,]*),(.*)", fields=FIELDS),
        AvroOptions(framing="none", schemas=(SCHEMA,)),
        ProtobufOptions(framing="none", message="shop.Row", descriptor_set=set_of(FILE)),
    ],
    ids=lambda options: options.type,
)
@pytest.mark.parametrize("every", [2, 7, 1000])
def test_decode_when_years_are_far_and_others_have_nanoseconds_then_there_are_two_batches(
    options: FormatOptions, nested: dict[str, str], every: int
) -> None:
    values = [_record(options, number, is_far=number % every == 1) for number in range(3000)]
    values[5:5] = [b"\xff"]

    decoded = decoder_of(options, columns_of(id="int", at="timestamp", **nested), None).decode(values)

    assert [row for row, _, _ in reasons(decoded)] == [5]
    assert [batch.schema.field("at").type.unit for batch in decoded.batches] == ["ns", "us"]
    found = [
        (number, at * (1 if batch.schema.field("at").type.unit == "ns" else 1000))
        for batch in decoded.batches
        for number, at in zip(batch["id"].to_pylist(), batch["at"].cast("int64").to_pylist(), strict=True)
    ]
    far, fine = FAR_SECOND * NANOS, FINE_SECOND * NANOS + 123456789
    assert in_order(decoded, found) == [(number, far if number % every == 1 else fine) for number in range(3000)]


class _Counting(JsonDecoder):
    """Counts the records that are decoded one by one."""

    records = 0

    def decode_record(self, value: bytes) -> Row:
        self.records += 1
        return super().decode_record(value)


@pytest.mark.parametrize("nested", [{}, {"in": "array<timestamp>"}], ids=["flat", "nested"])
@pytest.mark.parametrize("layout", [PLAIN, Layout(paths={"id": ("ID",)})], ids=["plain", "paths"])
@pytest.mark.parametrize("every", [1, 2])
def test_decode_when_years_are_far_and_some_texts_are_no_times_then_no_record_is_decoded_alone(
    layout: Layout, nested: dict[str, str], every: int
) -> None:
    values = [_record(JsonOptions(), number, is_far=number % every == 0) for number in range(1000)]
    values[::100] = [value.replace(b'"at": "', b'"at": "x') for value in values[::100]]
    decoder = _Counting(columns_of(id="int", at="timestamp", **nested), layout)

    decoded = decoder.decode(values)

    assert (decoder.records, decoded.rows) == (0, 990)
    assert [reject.row for reject in decoded.rejects] == list(range(0, 1000, 100))
    units = [batch.schema.field("at").type.unit for batch in decoded.batches]
    assert units == (["us"] if every == 1 else ["ns", "us"])


def test_decode_when_microseconds_fit_all_times_beside_some_texts_that_are_none_then_there_is_one_batch() -> None:
    values = [_record(JsonOptions(), number, is_far=number % 2 == 0) for number in range(1000)]
    values = [value.replace(b".123456789", b".123456") for value in values]
    values[::100] = [value.replace(b'"at": "', b'"at": "x') for value in values[::100]]
    decoder = _Counting(columns_of(id="int", at="timestamp"))

    decoded = decoder.decode(values)

    assert (decoder.records, decoded.rows) == (0, 990)
    assert [reject.row for reject in decoded.rejects] == list(range(0, 1000, 100))
    assert [batch.schema.field("at").type.unit for batch in decoded.batches] == ["us"]
