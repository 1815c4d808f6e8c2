"""Formats whose records have fields without names store each field in the column that `fields` names."""

from __future__ import annotations

from datetime import date

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingestd.errors import ConfigError
from ingestd.formats.decoder import RejectError
from ingestd.formats.delimited import DelimitedOptions
from ingestd.formats.regex import RegexOptions
from ingestd.schema import Column, HiveType
from tests.support.decoding import rows_of

COLUMNS = [
    Column(name, HiveType.parse(text))
    for name, text in {"id": "int", "note": "string", "day": "date", "added": "map<string,int>"}.items()
]
COMMA = DelimitedOptions(fields=("day", "", "id", "note"), field_delimiter=",", surplus="reject")
PIPE = RegexOptions(pattern=r"(\S*) \[(.*?)\] (\d*)(?: (.*))?", fields=("day", "", "id", "note"))
PIECES = [b"2026-11-21", b"x", b"5", b"", b",", b",,", b"\\N", b" ", b"[y]", b"\xff", b"\n", b"2026-11-21,x,5,a"]


@pytest.mark.parametrize(
    ("options", "values"),
    [(COMMA, [b"2026-11-21,\xff,5,a", b",,6"]), (PIPE, [b"2026-11-21 [x] 5 a", b" [] 6"])],
    ids=["delimited", "regex"],
)
def test_decode_when_fields_are_named_then_columns_without_a_field_are_null(
    options: DelimitedOptions | RegexOptions, values: list[bytes]
) -> None:
    assert rows_of(options.decoder(COLUMNS).decode(values)) == [
        {"id": 5, "note": "a", "day": date(2026, 11, 21), "added": None},
        {"id": 6, "note": None, "day": None, "added": None},
    ]


def test_decode_when_a_record_has_surplus_fields_then_they_are_dropped_or_the_record_is_a_reject() -> None:
    dropping = DelimitedOptions(fields=("id",), field_delimiter=",")
    assert rows_of(dropping.decoder(COLUMNS[:1]).decode([b"1", b"2,x", b"3,,"])) == [{"id": 1}, {"id": 2}, {"id": 3}]
    rejecting = DelimitedOptions(fields=("id", "note"), field_delimiter=",", surplus="reject", unmatched="null")
    decoded = rejecting.decoder(COLUMNS[:2]).decode([b"1", b"2,x", b"3,,"])
    assert rows_of(decoded) == [{"id": 1, "note": None}, {"id": 2, "note": "x"}]
    assert [(reject.row, reject.reason) for reject in decoded.rejects] == [
        (2, "the number of fields is 3, but the number of columns is 2")
    ]


@pytest.mark.parametrize("options", [COMMA, PIPE], ids=["delimited", "regex"])
def test_decode_when_a_field_is_invalid_then_it_is_a_reject_and_tombstones_are_skipped(
    options: DelimitedOptions | RegexOptions,
) -> None:
    values = [b"today,,5", b"today [] 5", None]
    decoded = options.decoder(COLUMNS).decode(values)
    assert "day" in {reject.column for reject in decoded.rejects}
    assert [reject.row for reject in decoded.rejects] == [0, 1, 2]


@pytest.mark.parametrize("options", [COMMA, PIPE], ids=["delimited", "regex"])
@settings(deadline=None)
@given(values=st.lists(st.lists(st.sampled_from(PIECES), max_size=5).map(b"".join), max_size=12))
def test_decode_when_records_are_in_one_batch_then_result_is_that_of_each_record(
    options: DelimitedOptions | RegexOptions, values: list[bytes]
) -> None:
    decoder = options.decoder(COLUMNS[:2] + COLUMNS[2:3])
    expected: list[list[object]] = []
    rejects: list[tuple[int, str, str]] = []
    for index, value in enumerate(values):
        try:
            expected.append(list(decoder.decode_record(value)))
        except RejectError as error:  # noqa: PERF203
            rejects.append((index, error.column, error.reason))
    decoded = decoder.decode(values)
    day = {None: None, date(2026, 11, 21): 20778}
    assert [[row["id"], row["note"], day[row["day"]]] for row in rows_of(decoded)] == expected
    assert [(reject.row, reject.column, reject.reason) for reject in decoded.rejects] == rejects


def test_decoder_when_a_field_has_no_column_then_raises_config_error() -> None:
    with pytest.raises(ConfigError, match=r"^format.fields: there is no column day; .* are id, note →"):
        COMMA.decoder(COLUMNS[:2])


def test_decoder_when_a_group_is_stored_in_a_complex_column_then_raises_config_error() -> None:
    with pytest.raises(ConfigError, match="column added"):
        RegexOptions(pattern="(.*)", fields=("added",)).decoder(COLUMNS)
