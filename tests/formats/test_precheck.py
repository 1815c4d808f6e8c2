"""The pre-check accepts no JSON record that the decoder rejects."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingestd.formats import JsonDecoder
from ingestd.formats.json.record import Precheck
from ingestd.schema import Column, HiveType

KINDS = ("tinyint", "bigint", "float", "double", "boolean", "string", "varchar(4)", "date", "timestamp", "decimal(6,2)")
COLUMNS = [Column(f"c{index}", HiveType.parse(kind)) for index, kind in enumerate(KINDS)]
values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-300, 300),
    st.integers(),
    st.floats(),
    st.text(max_size=6),
    st.sampled_from(["2026-01-02", "2026-02-30", "2026-W01-1", "2026-01-02 03:04:05", "2026-01-02T03:04:05.123456"]),
    st.sampled_from(["2026-01-02 03:04:05,123456", "20260102 03:04:05xx", "0000-01-01 00:00:00", "\ud800"]),
    st.lists(st.integers(), max_size=2),
)
names = st.sampled_from([*(column.name for column in COLUMNS), "C1", "other"])


@settings(deadline=None)
@given(record=st.dictionaries(names, values, max_size=6))
def test_check_when_record_is_arbitrary_then_returns_the_reject_of_decode(record: dict[str, Any]) -> None:
    value = json.dumps(record).encode()

    rejects = JsonDecoder(COLUMNS).decode([value]).rejects

    assert JsonDecoder(COLUMNS).check(value) == (rejects[0] if rejects else None)
    if rejects:
        assert not Precheck(COLUMNS).accepts(value)


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        (b'{"c0":1,"c1":2,"c2":1.5,"c3":2,"c4":true,"c5":"x","c6":"abcd","c7":"2026-01-02"}', True),
        (b'{"c8":"2026-01-02 03:04:05.123"}', True),
        (b'{"other":[{}]}', True),
        (b'{"c0":null}', True),
        (b'{"c2":1e39}', False),
        (b'{"c3":NaN}', False),
        (b'{"C0":1}', False),
        (b"[1]", False),
        (b"{", False),
        (b"\xff", False),
        (b'{"other":' + b"[" * 300 + b"]" * 300 + b"}", False),
    ],
)
def test_accepts_when_record_is_certainly_valid_then_returns_true(text: bytes, accepted: bool) -> None:
    assert Precheck(COLUMNS).accepts(text) == accepted
