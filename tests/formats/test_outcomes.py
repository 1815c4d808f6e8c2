"""Every record of any format becomes the same row or the same reject, whichever records surround it."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingestd.acid.hive_text import hive_text
from ingestd.formats.avro.options import AvroOptions
from ingestd.formats.csv import CsvOptions
from ingestd.formats.decoder import Decoder, DecodeResult
from ingestd.formats.delimited import DelimitedOptions
from ingestd.formats.json.options import JsonOptions
from ingestd.formats.options import FormatOptions, decoder_of
from ingestd.formats.protobuf.options import ProtobufOptions
from ingestd.formats.record_decoder import Tombstones
from ingestd.formats.regex import RegexOptions
from ingestd.formats.whole_value import BinaryOptions, TextOptions
from ingestd.schema import Column, HiveType
from tests.support.avro import SCALED_DECIMAL, ZONED_TIMESTAMP, encode, schema_of
from tests.support.patience import LIMIT
from tests.support.protobuf import Field, class_of, file_of, message, set_of

COLUMNS = [
    Column(name, HiveType.parse(text))
    for name, text in {
        "id": "int", "name": "varchar(8)", "raw": "binary", "at": "timestamp", "price": "decimal(12,4)",
    }.items()
]  # fmt: skip
SCHEMA = schema_of({"id": ["null", "long"], "name": ["null", "string"], "at": ["null", "string"]})
DEBEZIUM_SCHEMA = schema_of({
    "id": ["null", "long"], "name": ["null", "string"], "at": ["null", ZONED_TIMESTAMP],
    "price": ["null", SCALED_DECIMAL],
})  # fmt: skip
FILE = file_of(
    message(
        "Row",
        [
            *(
                Field(name, number, kind, "optional")
                for name, number, kind in (("id", 1, "sint64"), ("name", 2, "bytes"))
            ),
            Field("at", 3, ".google.protobuf.Timestamp"),
            Field("more", 4, ".shop.Row", "repeated"),
        ],
    )
)
TOMBSTONES: list[Tombstones] = ["stop", "skip", "dead_letter", "null_row"]

IDS = [None, 0, 7, -(2**31), 2**31, 2**62]
TEXTS = [None, "", "Ann", "é|\"',\\", "123456789", "\ud7ff", "\x00", "\n"]
TIMES = [None, "2026-11-21T10:00:00Z", "2026-11-21 10:00:00.123456789", "1500-01-01 00:00:00.5", "9999-12-31", "soon"]
HOSTILE = [
    None,
    b"",
    b"\xff\xfe",
    b"{" * 1_100,
    b'{"id": 1e400, "id": NaN}',
    b'{"id": 1}, {"id": 2}',
    b'{"name": "\\ud800"}',
    b"[]",
    b"\x00" * 40,
    b'"' * 31,
    b"1|" * 300,
    b"\x02" + b"\xff" * 9 + b"\x01",
]


def _written(options: FormatOptions, row: tuple[Any, Any, Any]) -> bytes:
    """Return a record of the format with these values of id, name and at."""
    fields = dict(zip(FIELDS, row, strict=True))
    if isinstance(options, JsonOptions):
        return json.dumps(_event(fields) if options.envelope == "debezium" else fields).encode()
    if isinstance(options, AvroOptions):
        return encode(options.schemas[0], fields | {"price": _price(fields["id"])})
    if isinstance(options, ProtobufOptions):
        return _message(fields)
    return "|".join("" if value is None else str(value) for value in row).encode("utf-8", "surrogatepass")


def _price(number: int | None) -> dict[str, Any] | None:
    """Return a decimal of Debezium; the scale of some does not fit the column."""
    return None if number is None else {"scale": number % 90 - 10, "value": number.to_bytes(9, "big", signed=True)}


def _event(fields: dict[str, Any]) -> dict[str, Any]:
    """Return a change event of Debezium with its schema."""
    price = _price(fields["id"])
    if price:
        price["value"] = base64.b64encode(price["value"]).decode()
    named = {"field": "price", "type": "struct", "name": SCALED_DECIMAL["connect.name"]}
    schema = {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": [named]}]}
    return {"schema": schema, "payload": {"op": "c", "after": fields | {"price": price}}}


def _message(fields: dict[str, Any]) -> bytes:
    written: Any = class_of(FILE)()
    if fields["id"] is not None:
        written.id, written.at.seconds = fields["id"], fields["id"] % 10**12
        written.more.add().id = fields["id"]
    if fields["name"] is not None:
        written.name = fields["name"].encode()
    data: bytes = written.SerializeToString()
    return data


def _outcomes(decoded: DecodeResult, values: Sequence[bytes | None]) -> dict[int, object]:
    """Return the texts of the row or the column and reason of the reject of each record that was not skipped."""
    records = iter(decoded.records_of_rows(values).tolist())
    found: dict[int, object] = {}
    for batch in decoded.batches:
        for row in range(batch.num_rows):
            record = next(records)
            assert record not in found
            arrays = zip(COLUMNS, batch.columns, strict=True)
            found[record] = [hive_text(column.type, array[row]) for column, array in arrays]
    assert next(records, None) is None
    for reject in decoded.rejects:
        assert reject.row not in found
        assert reject.record == values[reject.row]
        found[reject.row] = (reject.column, reject.reason)
    assert [reject.row for reject in decoded.rejects] == sorted(reject.row for reject in decoded.rejects)
    return found


def _mutated(value: bytes, place: int, change: int) -> bytes:
    """Return the record with a changed byte (`change` < 256), without its end, or with its end twice."""
    place %= len(value) + 1
    if change < 256:
        return value[:place] + bytes([change]) + value[place + 1 :]
    return value[:place] if change < 300 else value + value[place:]


def _alone(decoder: Decoder, value: bytes) -> object:
    [outcome] = _outcomes(decoder.decode([value]), [value]).values()
    return outcome


FIELDS = ("id", "name", "at")
PATTERN = r"(?s)([^|]*)\|(.*)\|([^|]*)"


OPTIONS: tuple[FormatOptions, ...] = (
    JsonOptions(),
    DelimitedOptions(fields=FIELDS, field_delimiter="|"),
    DelimitedOptions(fields=FIELDS, field_delimiter="|", bad_values="null", surplus="reject"),
    CsvOptions(fields=FIELDS, field_delimiter="|"),
    RegexOptions(pattern=PATTERN, fields=FIELDS),
    JsonOptions(envelope="debezium"),
    AvroOptions(framing="none", schemas=(SCHEMA,)),
    AvroOptions(framing="none", schemas=(DEBEZIUM_SCHEMA,)),
    ProtobufOptions(framing="none", message="shop.Row", descriptor_set=set_of(FILE)),
    TextOptions(column="name"),
    BinaryOptions(column="raw"),
)
EACH_FORMAT = pytest.mark.parametrize("options", OPTIONS, ids=lambda options: options.type)
LARGE = 10_000_000


@EACH_FORMAT
@settings(deadline=None, max_examples=30)
@given(data=st.data(), tombstones=st.sampled_from(TOMBSTONES), repeated=st.sampled_from([1, 40]))
def test_decode_when_records_are_valid_mutated_or_hostile_then_each_has_the_outcome_that_it_has_alone(
    options: FormatOptions, data: st.DataObject, tombstones: Tombstones, repeated: int
) -> None:
    rows = st.tuples(st.sampled_from(IDS), st.sampled_from(TEXTS), st.sampled_from(TIMES))
    valid = rows.map(lambda row: _written(options, row))
    mutated = st.builds(_mutated, valid, st.integers(0, 200), st.integers(0, 350))
    values = data.draw(st.lists(st.one_of(valid, valid, mutated, st.sampled_from(HOSTILE)), max_size=15)) * repeated
    plain, decoder = (decoder_of(form, COLUMNS, None) for form in (options, replace(options, tombstones=tombstones)))

    decoded = decoder.decode(values)

    alone: dict[bytes | None, object] = {value: _alone(plain, value) for value in set(values) if value is not None}
    no_value = "", "record has no value (tombstone)"
    alone[None] = [None] * len(COLUMNS) if tombstones == "null_row" else no_value
    assert _outcomes(decoded, values) == {
        record: alone[value] for record, value in enumerate(values) if value is not None or tombstones != "skip"
    }
    assert decoded.skipped == (values.count(None) if tombstones == "skip" else 0)


# Prints for each format how many bytes more than before the process had at its peak, and the bytes of the values.
LARGE_VALUES = """
import gc, json, re
from pathlib import Path
import pyarrow as pa
from tests.formats.test_outcomes import OPTIONS, decode_large, large_values

def memory(kind):
    return int(re.search(kind + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) << 10

for options in OPTIONS:
    values = large_values(options)
    decode_large(options, [values[0], values[-1]])  # imports modules
    pa.default_memory_pool().release_unused()
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    before = memory("VmRSS")
    decode_large(options, values)
    print(json.dumps([options.type, memory("VmHWM") - before, sum(map(len, values))]))
"""


def large_values(options: FormatOptions) -> list[bytes]:
    """Return a small record, values of 10 MB, and the small record again."""
    small = _written(options, (7, "Ann", None))
    # As a message, this text has as many unknown fields as pairs of letters.
    size = LARGE // 10 if isinstance(options, ProtobufOptions) else LARGE
    text = b'{"name": "' + b"x" * size + b'"}'
    return [small, b"\x00" * LARGE, b"\xff" * LARGE, b"[" * LARGE, text, b"1" * LARGE + b"|", small]


def decode_large(options: FormatOptions, values: list[bytes]) -> None:
    """Decode records of which the first and the last are valid. Fail unless each becomes a row or a reject."""
    decoder = decoder_of(options, COLUMNS, None)
    decoded = decoder.decode(values)
    outcomes = _outcomes(decoded, values)
    assert outcomes.keys() == set(range(len(values)))
    assert outcomes[0] == outcomes[len(values) - 1] == _alone(decoder, values[0])
    assert all(len(reject.reason) < 200 for reject in decoded.rejects)


def test_decode_when_values_have_10_mb_then_each_is_a_row_or_a_reject_and_memory_is_limited() -> None:
    root = Path(__file__).resolve().parents[2]
    ended = subprocess.run(
        [sys.executable, "-c", LARGE_VALUES], capture_output=True, text=True, check=False, cwd=root, timeout=LIMIT
    )
    assert ended.returncode == 0, ended.stderr
    peaks = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [kind for kind, _, _ in peaks] == [options.type for options in OPTIONS]
    assert not [(kind, peak) for kind, peak, size in peaks if peak > 8 * size]
