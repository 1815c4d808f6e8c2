"""Records in one buffer are decoded with the same result as a list of records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingestd.formats.decoder import Decoder, Lines, join_lines, total_bytes, without_tombstones
from ingestd.formats.delimited import DelimitedDecoder, DelimitedFormat
from ingestd.formats.json.decoder import JsonDecoder
from ingestd.formats.regex import RegexDecoder
from ingestd.schema import Column, HiveType

COLUMNS = [Column("id", HiveType.parse("int")), Column("note", HiveType.parse("string"))]
PIECES = [b"", b"1", b"1,a", b"2,", b"x,y,z", b'{"id":1}', b'{"id":2,"note":"b"}', b'{"ID":[3]}', b"{}", b"\xff", b" "]


@pytest.mark.parametrize(
    "decoder",
    [
        JsonDecoder(COLUMNS),
        DelimitedDecoder(COLUMNS, DelimitedFormat(field_delimiter=",")),
        DelimitedDecoder(COLUMNS, DelimitedFormat(field_delimiter=",", bad_values="reject", bad_counts="reject")),
        RegexDecoder(COLUMNS, "(.*),(.*)"),
    ],
    ids=["json", "delimited", "strict", "regex"],
)
@settings(deadline=None)
@given(records=st.lists(st.sampled_from(PIECES), min_size=1, max_size=12))
def test_decode_when_records_are_lines_then_result_is_the_same_as_a_list(
    decoder: Decoder, records: list[bytes]
) -> None:
    lines = Lines(b"\n".join(records))

    assert (len(lines), total_bytes(lines)) == (len(records), sum(map(len, records)))
    assert join_lines(lines) == join_lines(records)
    assert list(without_tombstones(lines)) == records
    expected, found = decoder.decode(records), decoder.decode(lines)
    assert [batch.to_pylist() for batch in found.batches] == [batch.to_pylist() for batch in expected.batches]
    assert found.rejects == expected.rejects


class _Whole(Lines):
    """Records that can be read only all at once."""

    def __getitem__(self, index: int | slice) -> Any:
        raise AssertionError(f"record {index} was read alone")

    def __iter__(self) -> Iterator[bytes]:
        raise AssertionError("the records were read one by one")


@pytest.mark.parametrize("text", [b'{"id": 1}\n{"id": 2}', b'{"id": 1}'])
def test_decode_when_lines_are_plain_json_then_the_buffer_is_not_split(text: bytes) -> None:
    lines = _Whole(text)

    assert JsonDecoder(COLUMNS).decode(lines).rows == len(lines)
