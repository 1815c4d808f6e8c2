"""Data frames of pandas and polars are converted without changing a value, or rejected."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pandas as pd
import polars as pl
import pytest

from ingestd.streaming import SerializationError
from tests.streaming.support import batches, connect
from tests.support.stack import Stack


@pytest.mark.parametrize(
    "value",
    [
        [pd.Timestamp("2020-01-01 00:00:00.000000001")],
        {"at": pd.Timestamp("2020-01-01 00:00:00.000000001")},
        [date(2020, 1, 1), datetime(2020, 1, 1, 5)],
    ],
    ids=["list", "struct", "mixed"],
)
def test_pandas_objects_when_pyarrow_would_truncate_them_then_rejected(value: Any) -> None:
    with pytest.raises(SerializationError, match="not all objects of the column are of"):
        batches(pd.DataFrame({"c": [value]}), c="array<timestamp>")


def test_pandas_frame_when_converted_then_its_index_is_dropped_and_nan_is_null() -> None:
    days = pd.Series([date(2020, 1, 1), pd.NaT, None], dtype=object)
    frame = pd.DataFrame({"x": [1.0, math.nan, 3.0], "day": days})

    (batch,) = batches(frame[frame.x != 3], x="int", day="date")

    assert batch.to_pylist() == [{"x": 1, "day": date(2020, 1, 1)}, {"x": None, "day": None}]


STAMP = pd.Timestamp("2020-01-01 00:00:00.000000001")
FRAMES: list[tuple[str, Callable[[], Any], str]] = [
    ("date", lambda: pd.DataFrame({"c": [date(2020, 1, 1), datetime(2020, 1, 1, 5)]}, dtype=object), "not all objects"),
    ("timestamp", lambda: pd.DataFrame({"c": [STAMP]}, dtype=object), "not all objects"),
    ("int", lambda: pd.DataFrame({"c": [1, "x"]}, dtype=object), "cannot be converted to an Arrow table"),
    ("int", lambda: pd.DataFrame({"c": [2**70]}, dtype=object), "cannot be converted to an Arrow table"),
    ("int", lambda: pd.DataFrame([[1, 2]], columns=["c", "c"]), "Duplicate column"),
    ("int", lambda: pd.DataFrame({"c": pd.period_range("2020", periods=1)}), "period"),
    ("binary", lambda: pl.DataFrame({"c": pl.Series([object()], dtype=pl.Object)}), "a polars Object column"),
    ("bigint", lambda: pl.DataFrame({"c": pl.Series([1], dtype=pl.Int128)}), "cannot be converted to an Arrow table"),
    ("int", lambda: pl.Series([1]), "cannot be converted to an Arrow table"),
    ("int", lambda: pl.LazyFrame({"c": [1]}), "cannot write LazyFrame"),
    ("int", lambda: {"c": [1]}, "cannot write dict"),
]


@pytest.mark.parametrize(("kind", "make", "reason"), FRAMES)
def test_frame_when_not_convertible_without_loss_then_rejected(kind: str, make: Callable[[], Any], reason: str) -> None:
    with pytest.raises(SerializationError, match=reason):
        batches(make(), c=kind)


COLUMNS = (
    "id int, a tinyint, f float, d decimal(10,2), g boolean, s string, v varchar(5), c char(3), b binary, k date, "
    "t timestamp, m array<varchar(3)>, n map<string,binary>, o struct<x:int,t:timestamp,b:binary>"
)
READ = (
    "SELECT id, a, f, cast(d AS string), g, s, v, c, hex(b), cast(k AS string), cast(t AS string), m[1], "
    "hex(n['q']), o.x, cast(o.t AS string), hex(o.b) FROM "
)
FIRST = (1, -5, 1.5, "12.30", True, "ü", "cat", "x  ", "FF00", "2020-01-02", "2020-01-01 12:00:00.123456")
EXPECTED = [(*FIRST, "b", "00FE", 7, "0001-01-01 00:00:00", "80"), (2, *[None] * 15)]


def pandas_frame() -> Any:
    return pd.DataFrame(
        {
            "ID": [1, 2],
            "a": [-5, math.nan],
            "f": [1.5, None],
            "d": pd.Series([Decimal("12.3"), None], dtype=object),
            "g": pd.Series([True, None], dtype="boolean"),
            "s": ["ü", None],
            "v": pd.Categorical(["cat", None], categories=["longer than five", "cat"]),
            "c": ["x ", None],
            "b": [b"\xff\0", None],
            "k": pd.to_datetime(pd.Series(["2020-01-02", None])),
            "t": pd.to_datetime(pd.Series(["2020-01-01 13:00:00.123456+01:00", None])),
            "m": pd.Series([["a", "b"], None], dtype=object),
            "n": pd.Series([[{"key": "q", "value": b"\0\xfe"}], None], dtype=object),
            "o": pd.Series([{"X": 7, "T": datetime(1, 1, 1), "b": b"\x80"}, None], dtype=object),
        }
    ).set_axis(["p", "q"])


def polars_frame() -> Any:
    pairs = pl.List(pl.Struct({"key": pl.String, "value": pl.Binary}))
    inside = pl.Struct({"X": pl.Int64, "T": pl.Datetime("ms"), "b": pl.Binary})
    return pl.DataFrame(
        {
            "ID": pl.Series([1, 2], dtype=pl.UInt64),
            "a": [-5, None],
            "f": [1.5, None],
            "d": pl.Series([Decimal("12.3"), None], dtype=pl.Decimal(38, 3)),
            "g": [True, None],
            "s": ["ü", None],
            "v": pl.Series(["cat", None], dtype=pl.Categorical),
            "c": pl.Series(["x ", None], dtype=pl.Enum(["x ", "longer"])),
            "b": [b"\xff\0", None],
            "k": [date(2020, 1, 2), None],
            "t": pl.Series([datetime(2020, 1, 1, 12, 0, 0, 123456), None], dtype=pl.Datetime("us", "Europe/Berlin")),
            "m": pl.Series([["a", "b"], None], dtype=pl.List(pl.Categorical)),
            "n": pl.Series([[{"key": "q", "value": b"\0\xfe"}], None], dtype=pairs),
            "o": pl.Series([{"X": 7, "T": datetime(1, 1, 1), "b": b"\x80"}, None], dtype=inside),
        }
    )


@pytest.mark.parametrize("frame", [pandas_frame, polars_frame])
def test_frame_when_written_then_hive_reads_every_value_unchanged(stack: Stack, frame: Callable[[], Any]) -> None:
    stack.table(COLUMNS)

    with connect(stack) as connection, connection.transaction():
        connection.write(frame())

    assert sorted(stack.sql(READ + stack.name)) == EXPECTED
