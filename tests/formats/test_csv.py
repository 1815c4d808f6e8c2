"""CSV records are read as RFC 4180 says, whole batches as single records, and malformed ones are rejects."""

from __future__ import annotations

import csv
import io
from datetime import date
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingestd.errors import ConfigError
from ingestd.formats.csv import CsvOptions
from ingestd.formats.decoder import RejectError
from ingestd.schema import Column, HiveType
from tests.support.decoding import rows_of

COLUMNS = [
    Column(name, HiveType.parse(text)) for name, text in {"id": "int", "note": "string", "raw": "binary"}.items()
]
FORMS = [
    CsvOptions(fields=("id", "note", "raw")),
    CsvOptions(fields=("note",), surplus="reject"),
    CsvOptions(fields=("", "raw", "note", ""), field_delimiter="\t", null_text="NULL", bad_values="null"),
    CsvOptions(fields=("raw", "note"), field_delimiter="|", surplus="reject"),
]
PIECES = [b"1", b"x", b"", b",", b",,", b"\t", b"|", b'"', b'""', b'"a,b"', b'"\n"', b"\n", b"\r\n", b"\r", b"NULL"]
PIECES += [
    b'"NULL"',
    b"\xff",
    b"\0",
    b"\xef\xbb\xbf",
    b" ",
    '"ä"'.encode(),
    b'"a""b"',
    b'"\r\n\n"',
    b"7,y,z",
    b'1,"",z',
]


def test_decode_when_fields_are_quoted_then_quotes_are_removed_and_the_text_is_kept() -> None:
    columns = [*COLUMNS[:2], Column("day", HiveType.parse("date"))]
    decoder = CsvOptions(fields=("note", "", "id", "day")).decoder(columns)
    values = [b'"say ""hi"", \r\nAnn",x,"5",2026-11-21\r\n', b',"",6', b'"",,"",,surplus\n', b""]
    decoded = decoder.decode(values)
    assert decoded.rejects == []
    assert rows_of(decoded) == [
        {"id": 5, "note": 'say "hi", \r\nAnn', "day": date(2026, 11, 21)},
        {"id": 6, "note": None, "day": None},
        {"id": None, "note": "", "day": None},
        {"id": None, "note": None, "day": None},
    ]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b'a"b', "field 1 is not well-formed: a field with a quote must be in quotes, and the quote must be doubled"),
        (b'1,"b', "field 2 is not well-formed: a field with a quote must be in quotes, and the quote must be doubled"),
        (b'1,"b"c', "field 2 is not well-formed: text follows the closing quote"),
        (b'1,"b" ', "field 2 is not well-formed: text follows the closing quote"),
        (b"1,b\n2,c", "field 2 is not well-formed: a line end must be in quotes"),
        (b"1\n\n", "field 1 is not well-formed: a line end must be in quotes"),
        (b"1,2,3", "the number of fields is 3, but the number of columns is 2"),
    ],
)
def test_decode_when_a_record_is_malformed_then_it_alone_is_a_reject(value: bytes, reason: str) -> None:
    decoder = CsvOptions(fields=("id", "note"), surplus="reject").decoder(COLUMNS)
    for before, after in ([b"1,a"], [b'2,"b"']), ([], []):
        decoded = decoder.decode([*before, value, *after])
        assert [(reject.row, reject.reason) for reject in decoded.rejects] == [(len(before), reason)]
        assert [row["note"] for row in rows_of(decoded)] == ["a", "b"][: 2 * len(before)]


@pytest.mark.parametrize("options", FORMS, ids=lambda form: ",".join(form.fields))
@settings(deadline=None)
@given(values=st.lists(st.lists(st.sampled_from(PIECES), max_size=6).map(b"".join), max_size=8))
def test_decode_when_records_are_in_one_batch_then_result_is_that_of_each_record(
    options: CsvOptions, values: list[bytes]
) -> None:
    decoder = options.decoder(COLUMNS)
    expected: list[list[Any]] = []
    rejects: list[tuple[int, str, str]] = []
    for index, value in enumerate(values):
        try:
            expected.append(list(decoder.decode_record(value)))
        except RejectError as error:  # noqa: PERF203
            rejects.append((index, error.column, error.reason))
    decoded = decoder.decode(values)
    assert [list(row.values()) for row in rows_of(decoded)] == expected
    assert [(reject.row, reject.column, reject.reason) for reject in decoded.rejects] == rejects


@settings(deadline=None)
@given(
    records=st.lists(st.lists(st.text(max_size=5) | st.sampled_from(['"', ",", "\n", '","']), min_size=2, max_size=2)),
    quoting=st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]),
)
def test_decode_when_records_are_written_by_the_csv_module_then_returns_their_fields(
    records: list[list[str]], quoting: Any
) -> None:
    columns = [Column(name, HiveType.parse("string")) for name in "ab"]
    values: list[bytes] = []
    for record in records:
        text = io.StringIO(newline="")
        csv.writer(text, quoting=quoting).writerow(record)
        values.append(text.getvalue().encode(errors="replace"))
    decoded = CsvOptions(fields=("a", "b"), null_text="no text\0").decoder(columns).decode(values)
    assert decoded.rejects == []
    found = [[row["a"], row["b"]] for row in rows_of(decoded)]
    assert found == [[field.encode(errors="replace").decode() for field in record] for record in records]


@pytest.mark.parametrize("delimiter", ['"', "\n", "13", "0"])
def test_options_when_the_delimiter_has_another_meaning_then_raise_config_error(delimiter: str) -> None:
    with pytest.raises(ConfigError, match=r"^.field_delimiter: cannot be a quote"):
        CsvOptions(fields=("a",), field_delimiter=delimiter)
