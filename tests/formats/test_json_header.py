"""JSON records with the header of a schema registry, as JSON Schema serializers write them."""

from __future__ import annotations

import json
import struct
import warnings
from typing import Any, Literal

import pytest

from ingestd.formats.json.options import JsonOptions
from tests.support.decoding import columns_of, reasons, rows_of
from tests.support.registry import registry_server, serialize

COLUMNS = columns_of(id="int", at="timestamp")
WRONG_HEADER = "record does not begin with the header of the framing confluent"
NOT_SKIPPED = "the JSON text begins with the header of a schema registry; format.framing: confluent skips one header"
# Ids whose bytes are line ends, brackets, quotes, and none of UTF-8.
IDS = (1, 0x0A0D0A0D, 0x7B5B225C, 0xFFFEFFFE, 0)


def framed(identifier: int, text: bytes) -> bytes:
    return struct.pack(">BI", 0, identifier) + text


@pytest.mark.parametrize("count", [1, 100])
@pytest.mark.parametrize("keys", [{}, {"lenient": True}, {"fields": {"id": "$.id"}}])
def test_decode_when_records_have_a_header_then_it_is_skipped(keys: dict[str, Any], count: int) -> None:
    sound = [framed(identifier, b'{"id": %d}' % number) for number, identifier in enumerate(IDS)]
    far = framed(1, b'{"id": 9, "at": "3000-01-01 00:00:00"}')
    exact = framed(1, b'{"id": 10, "at": "2026-01-01 00:00:00.123456789"}')
    bad = [b"", b"\0\0\0\0", b'{"id": 1}', b'\1\0\0\0\1{"id": 1}', framed(1, b""), framed(1, b'{"id": "x"')]
    records = [*sound, far, exact, *bad]

    decoded = JsonOptions(framing="confluent", **keys).decoder(COLUMNS).decode(records * count)

    ids = [row["id"] for row in rows_of(decoded)]
    assert sorted(ids) == sorted([*range(len(IDS)), 9, 10] * count)
    found = [(row % len(records), reason) for row, _, reason in reasons(decoded)]
    assert found[:4] == [(7, WRONG_HEADER), (8, WRONG_HEADER), (9, WRONG_HEADER), (10, WRONG_HEADER)]
    assert [row for row, _ in found] == [*range(7, 13)] * count
    assert [reject.record for reject in decoded.rejects] == bad * count


@pytest.mark.parametrize("count", [1, 100])
def test_decode_when_several_objects_have_one_header_then_it_is_skipped(count: int) -> None:
    cases: list[tuple[Literal["array", "lines"], bytes]] = [
        ("array", b'[{"id": 1}, {"id": 2}]'),
        ("lines", b'{"id": 1}\n{"id": 2}\n'),
    ]
    for records, text in cases:
        values: list[bytes | None] = [framed(identifier, text) for identifier in IDS]
        values[2:2] = [text, None, b"\0"]
        options = JsonOptions(framing="confluent", records=records, tombstones="skip", unmatched="null")
        decoded = options.decoder(COLUMNS).decode(values * count)
        assert [row["id"] for row in rows_of(decoded)] == [1, 2] * len(IDS) * count
        assert reasons(decoded) == [(row + len(values) * n, "", WRONG_HEADER) for n in range(count) for row in (2, 4)]
        assert options.decoder(columns_of(x="int")).unstored_fields([framed(1, text)], ()) == ("id",)


def test_decode_when_the_framing_is_not_set_then_the_reason_names_it() -> None:
    for text in (b'{"id": 1}', b' [{"id": 1}]'):
        for identifier in IDS:
            decoded = JsonOptions().decoder(COLUMNS).decode([framed(identifier, text)])
            assert reasons(decoded) == [(0, "", NOT_SKIPPED)]
    decoded = JsonOptions().decoder(COLUMNS).decode([framed(1, b"\0\0{")])
    assert reasons(decoded)[0][2].startswith("record is not JSON: ")


@pytest.mark.parametrize("count", [1, 100])
def test_decode_when_records_have_two_headers_then_the_reason_does_not_name_the_framing_that_is_set(count: int) -> None:
    for records, text in (("object", b'{"id": 1}'), ("array", b'[{"id": 1}]')):
        options = JsonOptions(framing="confluent", records=records)  # type: ignore[arg-type]
        decoded = options.decoder(COLUMNS).decode([framed(1, framed(2, text))] * count)
        assert [reason for _, _, reason in reasons(decoded)] == [NOT_SKIPPED] * count


def test_decode_when_serializer_is_confluents_then_rows_are_exact() -> None:
    with warnings.catch_warnings(record=True):  # a library that the client imports warns of its next release
        library = pytest.importorskip("confluent_kafka.schema_registry.json_schema")
    schema = {"title": "Row", "type": "object", "properties": {"id": {"type": "integer"}}}
    with registry_server() as server:
        serializer = library.JSONSerializer(json.dumps(schema), server.client())
        records = [serialize(serializer, "t", {"id": number}) for number in range(300)]
    decoder = JsonOptions(framing="confluent").decoder(COLUMNS)

    decoded = decoder.decode(records)

    assert decoded.rejects == []
    assert [row["id"] for row in rows_of(decoded)] == [*range(300)]
    assert decoder.absent_columns(records) == {"at"}
    other = JsonOptions(framing="confluent", unmatched="null").decoder(columns_of(at="timestamp"))
    assert [(column.name, str(column.type)) for column in other.needed_columns(records, ())] == [("id", "bigint")]
