"""Each group is a column whose values are decoded as delimited text. A record that does not match is a reject."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import date
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingestd.errors import ConfigError
from ingestd.formats.delimited import DelimitedDecoder, DelimitedFormat
from ingestd.formats.regex import RegexDecoder
from tests.support.decoding import columns_of, values_of

LOG = r"(\d+) \[(\w+)\] (\S+)(?: (.*))?"


def test_decode_when_record_matches_then_groups_are_columns() -> None:
    decoder = RegexDecoder(columns_of("int", "string", "date", "varchar(5)"), LOG)
    decoded = decoder.decode([b"5 [INFO] 2026-11-21 started\nwell", b"6 [WARN] -", "7 [E] x ä".encode()])
    assert decoded.rejects == []
    assert values_of(decoded) == [
        (5, "INFO", date(2026, 11, 21), "start"), (6, "WARN", None, None), (7, "E", None, "ä"),
    ]  # fmt: skip


def test_decode_when_record_is_unmatched_or_not_utf8_or_has_no_value_then_rejects() -> None:
    decoder = RegexDecoder(columns_of("int"), r"(\d*)")
    values = [b"1", b"1 ", None, b"\xff", "４".encode(), b"", b"2\n"]
    decoded = decoder.decode(values)
    assert [(reject.row, reject.column, reject.reason) for reject in decoded.rejects] == [
        (1, "", "record does not match the regular expression"),
        (2, "", "record has no value (tombstone)"),
        (3, "", "record is not UTF-8 (byte 0)"),
        (4, "", "record does not match the regular expression"),
        (6, "", "record does not match the regular expression"),
    ]
    assert values_of(decoded) == [(1,), (None,)]
    assert [decoder.check(value) is None for value in values if value is not None] == [
        True, False, False, False, True, False,
    ]  # fmt: skip


def test_decode_when_unmatched_is_null_then_row_contains_nulls() -> None:
    decoder = RegexDecoder(columns_of("int", "string"), r"(\d*),(.*)", unmatched="null")
    assert values_of(decoder.decode([b"1,a", b"x", b"2,\\N"])) == [(1, "a"), (None, None), (2, "\\N")]


def test_decode_when_case_is_ignored_then_matches_any_case() -> None:
    columns = columns_of("boolean")
    assert values_of(RegexDecoder(columns, "flag=(true|false)", ignore_case=True).decode([b"FLAG=TRUE"])) == [(True,)]
    assert len(RegexDecoder(columns, "flag=(true|false)").decode([b"FLAG=TRUE"]).rejects) == 1


def test_decode_when_bad_values_are_rejected_then_reject_names_the_column() -> None:
    decoder = RegexDecoder(columns_of("string", "int"), "(.*),(.*)?", bad_values="reject")
    decoded = decoder.decode([b"a,x", b"a,5.7", b"a,"])
    assert [(reject.row, reject.column) for reject in decoded.rejects] == [(0, "c1")]
    assert values_of(decoded) == [("a", 5), ("a", None)]
    assert decoder.check(b"a,x") == decoded.rejects[0]


@pytest.mark.parametrize(
    ("types", "pattern", "options"),
    [
        (["int"], "x", {}), (["int"], "(a)(b)", {}), (["int"], "(", {}), (["int"], "(a){1001}", {}),
        (["array<int>"], "(a)", {}), (["int"], "(?u)(a)", {}), (["int"], "(a)", {"bad_values": "skip"}),
        (["int"], "(a)", {"unmatched": "skip"}), (["int"], r"(?=a)(a)", {}), (["int", "int"], r"(a)(?:\1)", {}),
        (["int", "int"], "(a)|b)(?:c", {}), (["int"], "(\ud800)", {}),
    ],
)  # fmt: skip
def test_decoder_when_options_are_invalid_then_raises_config_error(
    types: list[str], pattern: str, options: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError):
        RegexDecoder(columns_of(*types), pattern, **options)


FIELD = st.text(alphabet="0123456789+-.:eE TtNnäx", max_size=12) | st.sampled_from(
    [
        "2026-11-21",
        "2026-11-21 10:00:00",
        "9999-12-31 00:00:00",
        "2026-11-21 10:00:00.123456789",
        "12.345",
        "true",
        "QUJD",
    ]
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(FIELD, min_size=8, max_size=8), min_size=1, max_size=5), st.booleans())
def test_decode_when_groups_are_arbitrary_then_result_is_the_same_as_delimited_text(
    records: list[list[str]], strict: bool
) -> None:
    columns = columns_of("int", "double", "decimal(6,2)", "boolean", "char(3)", "binary", "date", "timestamp")
    form = DelimitedFormat(field_delimiter="|", null_text="no such", bad_values="reject" if strict else "null")
    values = ["|".join(record).encode() for record in records]
    regex = RegexDecoder(columns, r"\|".join([r"([^|]*)"] * 8), bad_values=form.bad_values)
    assert str(regex.decode(values)) == str(DelimitedDecoder(columns, form).decode(values))


def test_decode_when_parentheses_are_not_groups_then_groups_are_those_of_the_pattern() -> None:
    columns = columns_of(*["string"] * 3)
    pattern = r"\Q(a\\E[](]?[^](]?[[:digit:](]?\((?i)(B)?(?:c)?(?P<x>\)|[)]*)(?<x2>[\](]*)"
    values = [rb"(a\x(", rb"(a\]x5(b))))", rb"(a\(((B)](", b"(a", b"x"]
    decoded = RegexDecoder(columns, pattern, unmatched="null").decode(values)
    nothing = (None, None, None)
    assert values_of(decoded) == [(None, "", ""), ("b", "))))", ""), ("B", ")", "]("), nothing, nothing]


@pytest.mark.parametrize(
    ("pattern", "value"),
    [
        (r"(a)\Q(", b"a("),
        ("(a)\\Q(\\", b"a(\\"),
        (r"(a)\QE", b"aE"),
        ("(?P<\u0939\u093f>a)", b"a"),
        ("(?<\u0939\u093f>a)", b"a"),
    ],
)
def test_decode_when_a_quotation_is_open_or_a_name_is_not_latin_then_is_read_as_by_re2(
    pattern: str, value: bytes
) -> None:
    decoder = RegexDecoder(columns_of("string"), pattern)
    assert values_of(decoder.decode([value, b"b"])) == [("a",)]


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|aa)+b", "((?:a+a+)+)b"])
def test_decode_when_the_pattern_would_backtrack_then_the_time_is_linear(pattern: str) -> None:
    decoded = RegexDecoder(columns_of("string"), pattern).decode([b"a" * 1_000_000])
    assert [reject.reason for reject in decoded.rejects] == ["record does not match the regular expression"]


ATOM = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", "[]a]", r"\d", r"\w", r"\S", r"\(", "ä", "(?:a|b)", "(?i:A)"])
PART = st.builds("{}{}".format, ATOM, st.sampled_from(["", "", "*", "+", "?", "{0,2}", "*?", "+?"]))
SEQUENCE = st.lists(PART, max_size=3).map("".join)
GROUP = st.builds("({}{}){}".format, SEQUENCE, st.just("") | SEQUENCE.map("|{}".format), st.sampled_from(["", "?"]))


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(GROUP, SEQUENCE), min_size=2, max_size=2),
    st.lists(st.text(alphabet="ab(\n 1äA", max_size=8) | st.just("\udc00"), min_size=1, max_size=6),
)
def test_decode_when_pattern_is_arbitrary_then_groups_are_those_of_python(
    parts: list[tuple[str, str]], texts: list[str]
) -> None:
    pattern = "".join(group + rest for group, rest in parts)
    values = [text.encode("utf-8", "surrogatepass") for text in texts]
    decoder = RegexDecoder(columns_of("string", "string"), pattern)
    decoded = decoder.decode(values)
    matches = [None if "\udc00" in text else re.fullmatch(pattern, text, re.DOTALL | re.ASCII) for text in texts]
    groups = [(text, match.groups() if match else (None, None)) for text, match in zip(texts, matches, strict=True)]
    rows = [found for text, found in groups if found != (None, None) or (text == "" and re.fullmatch(pattern, ""))]
    assert values_of(decoded) == rows
    assert len(decoded.rejects) == len(values) - len(rows)
    assert [reject for value in values if (reject := decoder.check(value))] == [
        replace(reject, row=0) for reject in decoded.rejects
    ]
