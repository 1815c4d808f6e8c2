"""The reject of a record names the first column that cannot store its value, in any order of its fields.

Its reason is that of the first value in the column.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingestd.formats.avro.options import AvroOptions
from ingestd.formats.csv import CsvOptions
from ingestd.formats.decoder import Decoder
from ingestd.formats.delimited import DelimitedOptions
from ingestd.formats.json.options import JsonOptions
from ingestd.formats.regex import RegexOptions
from ingestd.formats.values import Records, Values
from ingestd.schema import Column
from tests.support.avro import encode, logical, schema_of
from tests.support.decoding import columns_of
from tests.support.protobuf import Field, class_of, file_of, message, options_of

COLUMNS = columns_of(id="int", name="varchar(3)", small="smallint", price="decimal(4,0)")
# A value that fits each column, and one that does not.
VALUES: dict[str, tuple[Any, Any]] = {
    "id": (1, 2**40), "name": ("Ann", "Anna"), "small": (7, 70_000), "price": (9_999, 10_000),
}  # fmt: skip
AVRO: dict[str, Any] = {"id": ["null", "long"], "name": ["null", "string"], "small": "long", "price": ["null", "long"]}
PROTOBUF = {"id": "int64", "name": "string", "small": "sint64", "price": "uint64"}
TEXTUAL = ("csv", "delimited", "regex")  # as in Hive, they cut texts that are too long

# Columns of timestamps, of which a record with `old` cannot have digits below the microsecond.
TIMED = columns_of(s="struct<at:timestamp>", id="int", fine="timestamp", old="timestamp", small="smallint")
TEXTS = {False: "2026-11-21 10:00:00", "fine": "2026-11-21 10:00:00.000000001", "old": "1500-01-01 00:00:00"}
NANOS = {False: 1_795_255_200 * 10**9, "fine": 1_795_255_200 * 10**9 + 1}
SECONDS = {False: 1_795_255_200, "fine": 1_795_255_200, "old": -14_831_769_600}

Faults = frozenset[str]


def encoded(kind: str, order: Sequence[str], records: Sequence[Faults]) -> tuple[Decoder, list[bytes]]:
    """Return a decoder into COLUMNS, and records with fields in this order whose values do not fit these columns."""
    rows = [{name: VALUES[name][name in faults] for name in order} for faults in records]
    if kind == "json":
        return JsonOptions().decoder(COLUMNS), [json.dumps(row).encode() for row in rows]
    if kind == "avro":
        schema = schema_of({name: AVRO[name] for name in order})
        decoder = AvroOptions(framing="none", schemas=(schema,)).decoder(COLUMNS)
        return decoder, [encode(schema, row) for row in rows]
    if kind == "protobuf":
        file = file_of(message("Row", [Field(name, place + 1, PROTOBUF[name]) for place, name in enumerate(order)]))
        row_class = class_of(file)
        return options_of(file).decoder(COLUMNS), [row_class(**row).SerializeToString() for row in rows]
    texts = [",".join(map(str, row.values())).encode() for row in rows]
    if kind == "csv":
        return CsvOptions(fields=tuple(order), bad_values="reject").decoder(COLUMNS), texts
    if kind == "delimited":
        options = DelimitedOptions(fields=tuple(order), field_delimiter=",", bad_values="reject")
        return options.decoder(COLUMNS), texts
    pattern = ",".join(["([^,]*)"] * len(order))
    return RegexOptions(pattern=pattern, fields=tuple(order), bad_values="reject").decoder(COLUMNS), texts


def first_faults(decoder: Decoder, records: Sequence[bytes]) -> list[str | None]:
    """Return the column of each record's reject, None for a row: the same in the batch and alone."""
    rejects = {reject.row: (reject.column, reject.reason) for reject in decoder.decode(records).rejects}
    for index, record in enumerate(records):
        alone = [(reject.column, reject.reason) for reject in decoder.decode([record]).rejects]
        assert alone == ([rejects[index]] if index in rejects else [])
    return [rejects[index][0] if index in rejects else None for index in range(len(records))]


def first_of(columns: Sequence[Column], faults: Faults) -> str | None:
    return next((column.name for column in columns if column.name in faults), None)


@pytest.mark.parametrize("kind", ["json", "avro", "protobuf", *TEXTUAL])
@given(
    order=st.permutations([column.name for column in COLUMNS]),
    records=st.lists(st.frozensets(st.sampled_from([column.name for column in COLUMNS])), min_size=1, max_size=9),
)
@settings(max_examples=25, deadline=None)
def test_decode_when_several_fields_are_faulty_then_the_reject_has_the_first_column_of_the_table(
    kind: str, order: list[str], records: list[Faults]
) -> None:
    decoder, values = encoded(kind, order, records)
    cut = {"name"} if kind in TEXTUAL else set()
    assert first_faults(decoder, values) == [first_of(COLUMNS, faults - cut) for faults in records]


@pytest.mark.parametrize("kind", ["json", "avro", "protobuf"])
@given(order=st.permutations([column.name for column in COLUMNS]))
@settings(max_examples=10, deadline=None)
def test_decode_when_a_record_with_faulty_fields_is_cut_then_it_is_malformed(kind: str, order: list[str]) -> None:
    decoder, [value, other] = encoded(kind, order, [frozenset(VALUES), frozenset(["small"])])
    assert first_faults(decoder, [value[:-1], other]) == ["", "small"]


def timed(kind: str, order: Sequence[str], records: Sequence[Faults]) -> tuple[Decoder, list[bytes]]:
    """Return a decoder into TIMED, and records with fields in this order.

    The integers in the set of a record do not fit; its timestamps have digits below the microsecond, or are `old`.
    """
    rows = [{name: name in faults and ("old" if name == "old" else "fine") for name in order} for faults in records]
    if kind == "json":
        values = [
            {"s": {"at": TEXTS[row["s"]]}, **{name: TEXTS[row[name]] for name in ("fine", "old")}, **_integers(row)}
            for row in rows
        ]
        return JsonOptions().decoder(TIMED), [json.dumps({n: v[n] for n in order}).encode() for v in values]
    if kind == "avro":
        nanos = logical("long", "timestamp-nanos")
        inner = {"type": "record", "name": "s", "fields": [{"name": "at", "type": nanos}]}
        types = {"s": inner, "fine": nanos, "old": logical("long", "timestamp-millis"), "id": "long", "small": "long"}
        schema = schema_of({name: types[name] for name in order})
        values = [
            {"s": {"at": NANOS[row["s"]]}, "fine": NANOS[row["fine"]], "old": SECONDS[row["old"]] * 1000}
            | _integers(row)
            for row in rows
        ]
        decoder = AvroOptions(framing="none", schemas=(schema,)).decoder(TIMED)
        return decoder, [encode(schema, value) for value in values]
    time = ".google.protobuf.Timestamp"
    kinds = {"s": ".shop.S", "fine": time, "old": time, "id": "int64", "small": "int64"}
    fields = [Field(name, place + 1, kinds[name]) for place, name in enumerate(order)]
    file = file_of(message("Row", fields), message("S", [Field("at", 1, time)]))
    row_class = class_of(file)
    times = [{name: _seconds(row[name]) for name in ("s", "fine", "old")} for row in rows]
    messages = [
        row_class(s={"at": at["s"]}, fine=at["fine"], old=at["old"], **_integers(row))
        for at, row in zip(times, rows, strict=True)
    ]
    return options_of(file).decoder(TIMED), [made.SerializeToString() for made in messages]


def _seconds(fault: str | bool) -> dict[str, int]:
    return {"seconds": SECONDS[fault], "nanos": int(fault == "fine")}


def _integers(row: dict[str, Any]) -> dict[str, int]:
    return {name: 2**40 if row[name] else 7 for name in ("id", "small")}


@pytest.mark.parametrize("kind", ["json", "avro", "protobuf"])
@given(
    order=st.permutations([column.name for column in TIMED]),
    records=st.lists(st.frozensets(st.sampled_from([column.name for column in TIMED])), min_size=1, max_size=9),
)
@settings(max_examples=25, deadline=None)
def test_decode_when_no_unit_fits_the_timestamps_then_columns_that_cannot_store_any_such_value_come_first(
    kind: str, order: list[str], records: list[Faults]
) -> None:
    decoder, values = timed(kind, order, records)
    expected = [
        first_of(TIMED, faults - {"s", "fine", "old"})
        or (first_of(TIMED, faults - {"old"}) if "old" in faults else None)
        for faults in records
    ]
    assert first_faults(decoder, values) == expected


def test_values_when_many_of_a_record_are_bad_then_only_the_first_one_is_described() -> None:
    records = Records([b"abc", b"d", b"ef"], ["n"])
    values = Values(records, np.array([0, 0, 0, 1, 2, 2]), "n", lambda index: f"[{index}]")
    described: list[int] = []

    def reason(index: int) -> str:
        described.append(index)
        return "too large"

    values.reject(np.array([False, True, True, False, True, True]), reason)

    assert described == [1, 4]
    assert records.failures == {0: ("n", "[1]: too large"), 2: ("n", "[4]: too large")}
