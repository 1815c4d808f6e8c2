"""The formats text and binary store the whole value in one column, unchanged, or reject the record."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingestd.errors import ConfigError
from ingestd.formats.decoder import RejectError
from ingestd.formats.options import FormatOptions
from ingestd.formats.whole_value import BinaryOptions, TextOptions
from tests.support.decoding import columns_of, rows_of

HOSTILE = [b"", b"\0", b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"a\r\nb", "ä😀".encode(), b"   "]
VALUES = st.binary(max_size=6) | st.text(max_size=6).map(str.encode) | st.sampled_from(HOSTILE)


def test_decode_when_a_column_is_named_then_it_has_the_value_and_the_others_are_null() -> None:
    columns = columns_of(a="int", b="string", c="binary", d="array<timestamp>")
    value = "  ä\n".encode()
    text = {"a": None, "b": "  ä\n", "c": None, "d": None}
    assert rows_of(TextOptions(column="b").decoder(columns).decode([value, b""])) == [text, text | {"b": ""}]
    binary = {"a": None, "b": None, "c": b"\xff\0", "d": None}
    assert rows_of(BinaryOptions(column="c").decoder(columns).decode([b"\xff\0"])) == [binary]


def test_decode_when_text_does_not_fit_then_rejects_it_with_the_reason() -> None:
    decoded = TextOptions().decoder(columns_of(c="char(3)")).decode([b"abc  ", b"abcd", None, b"a\xff", b"\xc3\xa4bc"])
    assert rows_of(decoded) == [{"c": "abc"}, {"c": "äbc"}]
    assert [(reject.row, reject.column, reject.reason) for reject in decoded.rejects] == [
        (1, "c", "text of 4 characters is longer than char(3)"),
        (2, "", "record has no value (tombstone)"),
        (3, "", "record is not UTF-8 (byte 1)"),
    ]


def test_decode_when_tombstones_are_skipped_then_counts_them() -> None:
    decoded = BinaryOptions(tombstones="skip").decoder(columns_of(c="binary")).decode([None, b"1", None])
    assert (rows_of(decoded), decoded.rejects, decoded.skipped) == ([{"c": b"1"}], [], 2)


@pytest.mark.parametrize(
    ("options", "kind"),
    [(BinaryOptions(), "binary"), (TextOptions(), "string"), (TextOptions(), "varchar(3)"), (TextOptions(), "char(3)")],
    ids=str,
)
@settings(deadline=None)
@given(values=st.lists(VALUES, max_size=12))
def test_decode_when_records_are_in_one_batch_then_result_is_that_of_each_record(
    options: TextOptions | BinaryOptions, kind: str, values: list[bytes]
) -> None:
    decoder = options.decoder(columns_of(c=kind))
    decoded = decoder.decode(values)
    expected: list[dict[str, object]] = []
    rejects: list[tuple[int, str]] = []
    for index, value in enumerate(values):
        try:
            [stored] = decoder.decode_record(value)
            expected.append({"c": stored})
        except RejectError as error:  # noqa: PERF203
            rejects.append((index, error.reason))
    assert rows_of(decoded) == expected
    assert [(reject.row, reject.reason) for reject in decoded.rejects] == rejects


@pytest.mark.parametrize(
    ("options", "types", "expected"),
    [
        (TextOptions(), {"a": "string", "b": "string"}, "format.column: the whole value is stored in one column, but"),
        (TextOptions(column="z"), {"a": "string"}, "format.column: z is not a column of the records: a"),
        (TextOptions(), {"a": "binary"}, "format.column: column a has the type binary, which cannot store"),
        (BinaryOptions(column="a"), {"a": "string"}, "format.column: column a has the type string, which cannot store"),
    ],
)
def test_decoder_when_no_column_can_store_the_value_then_raises_config_error(
    options: FormatOptions, types: dict[str, str], expected: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        options.decoder(columns_of(**types))
    assert str(caught.value).startswith(expected)
