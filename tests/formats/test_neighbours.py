"""The rows or the reject of a record do not depend on the records around it, nor on their number.

The records have complex values, fields that are skipped, and parts of other records of the same format. `test_outcomes`
examines plain values of all formats.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingestd.acid.hive_text import hive_text
from ingestd.formats.avro.options import AvroOptions
from ingestd.formats.csv import CsvOptions
from ingestd.formats.decoder import Decoder
from ingestd.formats.delimited import DelimitedOptions
from ingestd.formats.json.options import JsonOptions
from ingestd.formats.options import FormatOptions, decoder_of
from ingestd.formats.protobuf.options import ProtobufOptions
from ingestd.formats.regex import RegexOptions
from ingestd.schema import Column, HiveType
from tests.support.avro import encode, schema_of, single_object
from tests.support.protobuf import Field, class_of, file_of, message, set_of

Row = dict[str, Any]
COLUMNS = [
    Column(name, HiveType.parse(text))
    for name, text in {
        "id": "int", "tags": "array<varchar(4)>", "item": "struct<n:smallint,at:timestamp>",
        "more": "map<string,bigint>", "items": "array<struct<n:smallint,tags:array<string>>>",
    }.items()
]  # fmt: skip
TEXTS = [None, "", "Ann", "é", "12345"]
NUMBERS = [None, 0, -1, 2**14, 2**40]
# Milliseconds: with and without a fraction, and in a year that only microseconds can store.
TIMES = [None, 0, 1_795_255_200_123, -14_831_769_600_000]
ROWS = st.fixed_dictionaries({
    "id": st.sampled_from(NUMBERS),
    "tags": st.lists(st.sampled_from(TEXTS), max_size=3),
    "item": st.none() | st.fixed_dictionaries({"n": st.sampled_from(NUMBERS), "at": st.sampled_from(TIMES)}),
    "more": st.dictionaries(st.sampled_from(["a", "b", "é"]), st.sampled_from(NUMBERS[1:]), max_size=2),
    "items": st.lists(
        st.fixed_dictionaries({
            "n": st.sampled_from(NUMBERS), "tags": st.lists(st.sampled_from(TEXTS[1:]), max_size=2),
        }),
        max_size=3,
    ),
})  # fmt: skip

LONG, TEXT = ["null", "long"], ["null", "string"]
TIME = ["null", {"type": "long", "logicalType": "timestamp-millis"}]


def _array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _record(**fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "r", "fields": [{"name": name, "type": kind} for name, kind in fields.items()]}


def _avro(prefix: str) -> str:
    """Return a schema whose fields with the prefix are columns if it is ''. Others are skipped."""
    items = _array(_record(n=LONG, tags=_array("string")))
    fields = {
        "id": LONG, "tags": _array(TEXT), "item": ["null", _record(n=LONG, at=TIME)],
        "more": {"type": "map", "values": "long"}, "items": items,
    }  # fmt: skip
    return schema_of({f"{prefix}{name}": kind for name, kind in fields.items()} | {"id": LONG, "last": TEXT})


READ, SKIPPED = _avro(""), _avro("other_")
ITEM = message(
    "Item",
    [
        Field("n", 1, "sint64", "optional"),
        Field("at", 2, ".google.protobuf.Timestamp"),
        Field("tags", 3, "string", "repeated"),
    ],
)
FILE = file_of(
    message(
        "Row",
        [
            Field("id", 1, "int64", oneof="key"),
            Field("tags", 2, "string", "repeated"),
            Field("item", 3, ".shop.Item", oneof="key"),
            Field("more", 4, "int64", key="string"),
            Field("items", 5, ".shop.Item", "repeated"),
            Field("numbers", 6, "sint32", "repeated"),
        ],
    ),
    ITEM,
)


def _json(row: Row) -> bytes:
    return json.dumps(row, ensure_ascii=False).encode()


def _json_lines(row: Row, *, as_array: bool) -> bytes:
    rows = [row, {"id": 7}, row]
    return _json_array(rows) if as_array else b"\n".join(map(_json, rows))


def _json_array(rows: Sequence[Row]) -> bytes:
    return b"[" + b",".join(map(_json, rows)) + b"]"


def _debezium(row: Row) -> bytes:
    return _json({"payload": {"op": "c", "after": row}})


def _of_avro(row: Row, *, schema: str, prefix: str = "", is_single: bool = False) -> bytes:
    data = encode(schema, {f"{prefix}{name}": value for name, value in row.items()} | {"id": row["id"], "last": "x"})
    return single_object(schema, data) if is_single else data


def _of_protobuf(row: Row) -> bytes:
    written: Any = class_of(FILE)(numbers=[1, -2])
    for text in filter(None, row["tags"]):
        written.tags.append(text)
    for name, number in row["more"].items():
        written.more[name] = number
    for item in row["items"]:
        written.items.add(tags=item["tags"], **({} if item["n"] is None else {"n": item["n"]}))
    data: bytes = written.SerializeToString()
    # A member of the oneof, and perhaps another one that replaces it.
    if row["item"] is not None:
        data += class_of(FILE)(item={"n": row["item"]["n"] or 0}).SerializePartialToString()
    if row["id"] is not None:
        data += class_of(FILE)(id=row["id"]).SerializePartialToString()
    return data


def _separated(row: Row, *, separators: tuple[str, str, str]) -> bytes:
    first, second, third = separators
    item = row["item"] or {"n": "", "at": ""}
    more = second.join(f"{name}{third}{value}" for name, value in row["more"].items())
    tags = second.join(str(text) for text in row["tags"])
    return first.join((str(row["id"]), tags, f"{item['n']}{second}{item['at']}", more)).encode()


CASES: dict[str, tuple[FormatOptions, Callable[[Row], bytes]]] = {
    "json": (JsonOptions(timestamp_formats=("epoch_ms",)), _json),
    "lenient": (JsonOptions(lenient=True), _json),
    "array": (JsonOptions(records="array", timestamp_formats=("epoch_ms",)), partial(_json_lines, as_array=True)),
    "lines": (JsonOptions(records="lines", timestamp_formats=("epoch_ms",)), partial(_json_lines, as_array=False)),
    "paths": (JsonOptions(fields={"id": "$.item.n"}, unmatched="null"), _json),
    "debezium": (JsonOptions(envelope="debezium", timestamp_formats=("epoch_ms",)), _debezium),
    "avro": (AvroOptions(framing="none", schemas=(READ,)), partial(_of_avro, schema=READ)),
    "skipped": (AvroOptions(framing="none", schemas=(SKIPPED,)), partial(_of_avro, schema=SKIPPED, prefix="other_")),
    "resolved": (
        AvroOptions(framing="none", schemas=(SKIPPED,), reader_schema=schema_of({"id": LONG})),
        partial(_of_avro, schema=SKIPPED, prefix="other_"),
    ),
    "fingerprints": (
        AvroOptions(framing="single_object", schemas=(READ, SKIPPED)),
        partial(_of_avro, schema=READ, is_single=True),
    ),
    "protobuf": (ProtobufOptions(framing="none", message="shop.Row", descriptor_set=set_of(FILE)), _of_protobuf),
    "delimited": (
        DelimitedOptions(
            fields=("id", "tags", "item", "more"), field_delimiter="|", collection_delimiter=";", map_key_delimiter="="
        ),
        partial(_separated, separators=("|", ";", "=")),
    ),
    "csv": (CsvOptions(fields=("id",), field_delimiter="|"), partial(_separated, separators=("|", ";", "="))),
    "regex": (RegexOptions(pattern=r"([^|]*)\|.*", fields=("id",)), partial(_separated, separators=("|", ";", "="))),
}
# Numbers of variable length: too long, at and near the limit, and larger than any length.
PARTS = [
    b"\xff" * 10, b"\xff" * 9 + b"\x01", b"\xff" * 9 + b"\x02", b"\x80" * 9 + b"\x7f", b"\xff" * 4 + b"\x0f", b"\x0b",
    b"\xff\xff\xff\x7f", b"{}", b'"', b"[[[", b"null", b"\\ud800", b"|", b"\xc3",
]  # fmt: skip


def _damaged(value: bytes, place: int, part: bytes, rest: int) -> bytes:
    """Return a record with other bytes at a place, and with `rest` bytes of what follows them."""
    place %= len(value) + 1
    return value[:place] + part + value[place : place + rest]


def _outcomes(decoder: Decoder, values: Sequence[bytes]) -> list[object]:
    """Return, for each record, the texts of its rows, or the column and the reason of its reject."""
    decoded = decoder.decode(values)
    outcomes: list[Any] = [[] for _ in values]
    records = iter(decoded.records_of_rows(values).tolist())
    for batch in decoded.batches:
        for row in range(batch.num_rows):
            texts = [hive_text(column.type, array[row]) for column, array in zip(COLUMNS, batch.columns, strict=True)]
            outcomes[next(records)].append(texts)
    assert next(records, None) is None
    for reject in decoded.rejects:
        assert outcomes[reject.row] == []
        outcomes[reject.row] = (reject.column, reject.reason)
    return outcomes


@pytest.mark.parametrize("case", CASES)
@settings(deadline=None, max_examples=25)
@given(data=st.data(), count=st.sampled_from([2, 17, 70]))
def test_decode_when_records_are_valid_or_damaged_then_each_has_the_outcome_that_it_has_alone(
    case: str, data: st.DataObject, count: int
) -> None:
    options, write = CASES[case]
    valid = ROWS.map(write)
    damaged = st.builds(_damaged, valid, st.integers(0, 200), st.sampled_from([b"", *PARTS]), st.integers(0, 40))
    distinct = data.draw(st.lists(st.one_of(valid, damaged, damaged), min_size=1, max_size=6))
    order = data.draw(st.permutations([*distinct, *distinct]))
    values = [order[index % len(order)] for index in range(count)]
    decoder = decoder_of(options, COLUMNS, None)

    outcomes = _outcomes(decoder, values)

    alone = {value: _outcomes(decoder_of(options, COLUMNS, None), [value])[0] for value in set(values)}
    assert outcomes == [alone[value] for value in values]
