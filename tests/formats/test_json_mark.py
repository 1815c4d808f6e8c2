"""JSON records that begin with a byte order mark, as some programs for Windows write them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ingestd.formats.json.options import JsonOptions
from tests.support.decoding import columns_of, reasons, rows_of

MARK = "\ufeff".encode()
ROW: dict[str, Any] = {"id": 1, "NAME": "\ufeffx", "tags": [{"a": 1}], "at": "2026-01-01 10:00:00"}
CONNECT = {
    "schema": {
        "type": "struct",
        "fields": [
            {
                "field": "id",
                "type": "bytes",
                "name": "org.apache.kafka.connect.data.Decimal",
                "parameters": {"scale": "0"},
            }
        ],
    },
    "payload": {"id": "BQ=="},
}
CHANGE = {"op": "c", "before": None, "after": ROW}


def _texts(*records: Any) -> list[bytes]:
    return [json.dumps(record).encode() for record in records]


@pytest.mark.parametrize("count", [1, 100])
@pytest.mark.parametrize("complex_column", ["string", "array<struct<a:int>>"])
@pytest.mark.parametrize(
    ("keys", "texts"),
    [
        ({}, [*_texts(ROW, {"id": 2}, {}), b'{"id": 1, "ID": 3}', b'\n {"id":\n 4}\n', b'{"x": 1}', b'{"id": "x"}']),
        ({"lenient": True}, _texts(ROW, {"id": 2})),
        ({"fields": {"name": "$"}}, _texts(ROW)),
        ({"envelope": "connect"}, _texts(CONNECT, {"schema": None, "payload": ROW})),
        ({"envelope": "debezium"}, _texts(CHANGE)),
        ({"records": "array"}, _texts([ROW, ROW], [], {"id": 1})),
        ({"records": "lines"}, [b"\n".join(_texts(ROW, ROW))]),
    ],
)
def test_decode_when_records_begin_with_a_mark_then_they_are_those_without_it(
    keys: dict[str, Any], texts: list[bytes], complex_column: str, count: int
) -> None:
    columns = columns_of(id="int", name="string", tags=complex_column, at="timestamp")
    texts = texts * count
    marked = [MARK + text for text in texts]
    mixed = [text for pair in zip(texts, marked, strict=True) for text in pair]

    def decoded(values: list[bytes]) -> tuple[list[dict[str, Any]], list[tuple[int, str, str]]]:
        result = JsonOptions(**keys).decoder(columns).decode(values)
        return rows_of(result), reasons(result)

    rows, rejects = decoded(texts)
    of_mixed, rejects_of_mixed = decoded(mixed)
    assert decoded(marked) == (rows, rejects)
    assert sorted(map(str, of_mixed)) == sorted(map(str, [*rows, *rows]))
    assert rejects_of_mixed == [(2 * index + half, *more) for index, *more in rejects for half in range(2)]


@pytest.mark.parametrize("others", [0, 1, 100])
@pytest.mark.parametrize("keys", [{}, {"envelope": "debezium"}])
def test_decode_when_a_mark_is_elsewhere_then_the_record_is_a_reject(keys: dict[str, Any], others: int) -> None:
    sound = _texts(CHANGE | {"id": 1}) * others + [b'{"id":\n 1}'] * (others and not keys)
    bad = [b" " + MARK + b'{"id": 1}', MARK * 2 + b'{"id": 1}', b'{"id": ' + MARK + b"1}", MARK, MARK + b"[1]"]

    decoded = JsonOptions(**keys).decoder(columns_of(id="int")).decode(sound + bad)

    assert [row - len(sound) for row, _, reason in reasons(decoded) if "not" in reason] == [*range(len(bad))]


def test_columns_of_records_with_a_mark_then_are_those_without_it() -> None:
    decoder = JsonOptions(unmatched="null").decoder(columns_of(id="int", more="string"))
    assert decoder.absent_columns([MARK + b'{"id": 1}']) == {"more"}
    assert decoder.unstored_fields([MARK + b'{"id": 1, "x": 2}'], ()) == ("x",)
    assert decoder.check(MARK + b'{"id": 1}') is None
