"""The patterns of dates and times that exist."""

from __future__ import annotations

import re
from datetime import date

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingestd.formats.iso_dates import DATE, HOUR, MINUTE, NEAR_DATE, SECOND
from ingestd.formats.json.times import DateType, timestamp_column, timestamp_nanos
from ingestd.formats.json.types import InvalidValue
from ingestd.schema import HiveType

YEARS = [*range(1, 10), 99, 100, 400, 999, 1000, 1600, 1699, 1700, 1999, 2000, 2024, 2026, 2100, 2199, 2200, 2400, 9999]
PARTS = [
    "00",
    "01",
    "02",
    "09",
    "10",
    "11",
    "12",
    "13",
    "19",
    "20",
    "23",
    "24",
    "28",
    "29",
    "30",
    "31",
    "32",
    "59",
    "60",
]
ZONES = ["", "Z", "+02", "-0330", "+23:59", "-24:00", "+02:60"]
FRACTIONS = ["", ".5", ".123456", ".1234567", ".123456789", ".1234567890"]


@pytest.mark.parametrize(("pattern", "first", "last"), [(DATE, 1, 9999), (NEAR_DATE, 1700, 2199)])
def test_date_when_years_and_days_are_all_then_matches_only_dates_that_exist(
    pattern: str, first: int, last: int
) -> None:
    matches = re.compile(pattern).fullmatch
    days = [f"-{month:02}-{day:02}" for month in range(14) for day in range(33)]
    texts = [f"{year:04}{day}" for year in [0, *YEARS] for day in days]
    texts += [f"{year:04}-02-29" for year in range(10_000)]
    expected = [text for text in texts if is_date(text) and first <= int(text[:4]) <= last]
    assert [text for text in texts if matches(text)] == expected


def test_time_when_parts_are_all_then_matches_only_those_of_a_day() -> None:
    parts = [f"{part:02}" for part in range(100)]
    for pattern, count in ((HOUR, 24), (MINUTE, 60), (SECOND, 60)):
        assert list(filter(re.compile(pattern).fullmatch, parts)) == parts[:count]


def is_date(text: str) -> bool:
    try:
        return bool(date.fromisoformat(text))
    except ValueError:
        return False


part = st.sampled_from(PARTS)
moment = st.builds(
    "{:04}-{}-{}{}{}:{}{}{}{}".format,
    st.sampled_from([0, *YEARS, 1677, 1678, 2261, 2262]), part, part, st.sampled_from(" T"), part, part,
    part.map(":{}".format) | st.just(""), st.sampled_from(FRACTIONS), st.sampled_from(ZONES),
)  # fmt: skip
real = st.datetimes().map(lambda found: found.isoformat(sep=" "))


@settings(max_examples=300, deadline=None)
@given(st.lists(moment | real, min_size=1, max_size=50))
def test_timestamp_column_when_some_dates_do_not_exist_then_others_are_exact(texts: list[str]) -> None:
    expected = [nanos_of(text) for text in texts]
    for unit, scale in (("ns", 1), ("us", 1000)):
        found = timestamp_column(pa.array(texts), unit).view(pa.int64()).to_pylist()
        for text, nanos, number in zip(texts, expected, found, strict=True):
            assert number is None or number * scale == nanos, text
        plain = [nanos for text, nanos in zip(texts, expected, strict=True) if "1678" <= text[:4] <= "2261"]
        if unit == "ns":
            assert [number for number in found if number is not None] == [n for n in plain if n is not None]


def nanos_of(text: str) -> int | None:
    try:
        return timestamp_nanos(text)
    except InvalidValue:
        return None


def test_decided_when_days_of_all_months_are_given_then_decides_the_dates_that_exist() -> None:
    texts = [f"{year:04}-{month:02}-{day:02}" for year in [0, *YEARS] for month in range(14) for day in range(33)]
    days = DateType(HiveType.parse("date")).decided(pa.array(texts), "ns")
    assert days.is_valid().to_pylist() == [is_date(text) for text in texts]
