"""ArrowWriter converts every value without changing it, or rejects the whole call."""

from __future__ import annotations

import math
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingestd.streaming import SerializationError
from tests.streaming.support import batches, connect
from tests.support.stack import Stack

NS, US = pa.timestamp("ns"), pa.timestamp("us")
FAR = datetime(9999, 12, 31)


def written(array: pa.Array, kind: str) -> list[Any]:
    """Return the values of a column after an ArrowWriter has converted it."""
    done = batches(pa.table({"c": array}), c=kind)
    return [value for batch in done for value in batch.column(0).to_pylist()]


def view(values: list[int | None], kind: pa.DataType) -> pa.Array:
    """Return an array of a type whose values are stored as integers."""
    return pa.array(values, pa.int64()).view(kind)


def exactly(*texts: str, kind: pa.DataType = None) -> pa.Array:
    return pa.array([Decimal(text) for text in texts], kind)


CATEGORIES = pa.DictionaryArray.from_arrays(
    pa.array([1, None, 0], pa.uint32()), pa.array(["b", "a", "unused and long"], pa.string_view())
)
RUNS = pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array(["b", None]))
JSON = pa.array(["{}"], pa.json_() if hasattr(pa, "json_") else pa.string())  # added in Arrow 19
MIDNIGHT = view([86_400_000_000, None, -86_400_000_000], US)
KEEPS: list[tuple[str, Any, list[Any]]] = [
    ("tinyint", pa.array([1, -128, None], pa.int64()), [1, -128, None]),
    ("smallint", pa.array([255], pa.uint8()), [255]),
    ("bigint", pa.array([2**63 - 1], pa.uint64()), [2**63 - 1]),
    ("int", pa.array([5.0, -0.0, None]), [5, 0, None]),
    ("int", pa.array(np.array([2.0], np.float16)), [2]),
    ("bigint", exactly("7.00", "-9"), [7, -9]),
    ("bigint", exactly(str(2**63 - 1), kind=pa.decimal128(38, 0)), [2**63 - 1]),
    ("float", pa.array([1.1, math.inf, 1e-300]), [float(np.float32(1.1)), math.inf, 0.0]),
    ("float", pa.array([2**24], pa.int64()), [2.0**24]),
    ("float", exactly("0.1"), [float(np.float32(0.1))]),
    ("double", exactly("0.1", "123456789.123456789"), [0.1, 123456789.123456789]),
    ("double", exactly("12E2", kind=pa.decimal128(5, -2)), [1200.0]),
    ("decimal(10,1)", exactly("12.50"), [Decimal("12.5")]),
    ("decimal(10,2)", pa.array([7, None], pa.int64()), [Decimal(7), None]),
    ("decimal(38,0)", pa.array([2**64 - 1], pa.uint64()), [Decimal(2**64 - 1)]),
    ("decimal(38,2)", exactly("1.5", kind=pa.decimal256(60, 5)), [Decimal("1.5")]),
    ("boolean", pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, 0, None], pa.int8())), [True, False, None]),
    ("string", pa.array([b"\xc3\xbc", b"", None], pa.large_binary()), ["ü", "", None]),
    ("string", pa.array(["ü", None], pa.large_string()), ["ü", None]),
    ("string", CATEGORIES, ["a", None, "b"]),
    ("varchar(3)", CATEGORIES, ["a", None, "b"]),
    ("string", RUNS, ["b", "b", None]),
    ("string", JSON, ["{}"]),
    ("varchar(3)", pa.array(["äöü", "a  "]), ["äöü", "a  "]),
    ("char(3)", pa.array(["äöü   ", " a "]), ["äöü", " a"]),
    ("binary", pa.array([b"\xff\0", b"", None], pa.binary_view()), [b"\xff\0", b"", None]),
    ("binary", pa.array([b"ab"], pa.large_binary()), [b"ab"]),
    ("binary", pa.array([b"ab"], pa.binary(2)), [b"ab"]),
    ("binary", pa.array(["abcd"]), [b"abcd"]),
    ("binary", pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0" * 16], pa.binary(16))), [b"0" * 16]),
    ("date", pa.array([date(1, 1, 1), date(9999, 12, 31)]), [date(1, 1, 1), date(9999, 12, 31)]),
    ("date", view([86_400_000], pa.date64()), [date(1970, 1, 2)]),
    ("date", MIDNIGHT, [date(1970, 1, 2), None, date(1969, 12, 31)]),
    ("timestamp", pa.array([datetime(1, 1, 1), FAR], pa.timestamp("s")), [datetime(1, 1, 1), FAR]),
    ("timestamp", pa.array([FAR.date()]), [FAR]),
    ("array<int>", pa.array([[1, None], None, []], pa.large_list(pa.int64())), [[1, None], None, []]),
    ("array<string>", pa.array([["a", None], None], pa.list_view(pa.string_view())), [["a", None], None]),
    ("array<smallint>", pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int8(), 2)).slice(1), [None, [3, 4]]),
    ("array<string>", pa.ListArray.from_arrays([0, 2, 3], CATEGORIES), [["a", None], ["b"]]),
    ("map<string,int>", pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int64())), [[("a", 1)], None, []]),
    ("map<int,char(2)>", pa.array([[{"Key": 1, "value": "a "}]]), [[(1, "a")]]),
    ("struct<x:int,y:string>", pa.array([{"X": 1, "Y": "q"}, None]), [{"x": 1, "y": "q"}, None]),
    ("struct<x:int,y:string>", pa.array([{"y": "q"}]), [{"x": None, "y": "q"}]),
    ("struct<a:array<struct<b:int>>>", pa.array([{"A": [{"B": 5}]}]), [{"a": [{"b": 5}]}]),
    ("array<timestamp>", pa.array([[datetime(1, 1, 1), FAR]]), [[datetime(1, 1, 1), FAR]]),
    ("struct<t:timestamp>", pa.array([{"t": FAR}]), [{"t": FAR}]),
    ("map<date,int>", pa.nulls(2), [None, None]),
]


@pytest.mark.parametrize(("kind", "array", "values"), KEEPS, ids=[f"{kind} of {a.type}"[:60] for kind, a, _ in KEEPS])
def test_value_when_its_column_can_hold_it_then_unchanged(kind: str, array: pa.Array, values: list[Any]) -> None:
    assert written(array, kind) == values


PAIRS = pa.map_(pa.float64(), pa.int64())
REFUSES: list[tuple[str, Any, str]] = [
    ("tinyint", pa.array([128]), "128"),
    ("bigint", pa.array([2**63], pa.uint64()), "9223372036854775808"),
    ("int", pa.array([1.5]), "1.5"),
    ("int", pa.array([math.nan]), "nan"),
    ("int", exactly("1.5"), "data loss"),
    ("int", pa.array(["5"]), "string cannot be converted to int"),
    ("float", pa.array([1e300]), "double does not fit: out of range for float"),
    ("float", exactly("1" + "0" * 60), "out of range for float"),
    ("float", pa.array([2**24 + 1]), "16777217"),
    ("double", pa.array([2**53 + 1]), "9007199254740993"),
    ("decimal(10,2)", pa.array([1.005]), r"double cannot be converted to decimal\(10,2\)"),
    ("decimal(10,1)", exactly("1.55"), "data loss"),
    ("decimal(3,1)", exactly("100.0"), "precision 3"),
    ("decimal(3,1)", pa.array([100]), "precision 3"),
    ("boolean", pa.array([1]), "int64 cannot be converted to boolean"),
    ("string", pa.array([1]), "int64 cannot be converted to string"),
    ("string", pa.array([b"\xff"]), "UTF8"),
    (
        "string",
        pa.ExtensionArray.from_storage(pa.opaque(pa.string(), "x", "y"), pa.array(["a"])),
        "cannot be converted to",
    ),
    ("varchar(3)", pa.array(["abc "]), r"text of 4 characters is longer than varchar\(3\)"),
    ("char(3)", pa.array(["abcd"]), r"longer than char\(3\)"),
    ("binary", pa.array([1]), "int64 cannot be converted to binary"),
    ("date", pa.array([datetime(2020, 1, 1, 5)]), "time of day"),
    ("date", view([86_400_001], pa.date64()), "lose data"),
    ("date", pa.array([2932897], pa.int32()).view(pa.date32()), "0001 to 9999"),
    ("date", pa.array([18000]), "int64 cannot be converted to date"),
    ("timestamp", pa.array([0]), "int64 cannot be converted to timestamp"),
    ("timestamp", pa.array(["2020-01-01"]), "string cannot be converted to timestamp"),
    ("timestamp", pa.array([time(5)]), r"time64\[us\] cannot be converted to timestamp"),
    ("timestamp", pa.array([timedelta(1)]), r"duration\[us\] cannot be converted to timestamp"),
    ("timestamp", view([2**60], pa.timestamp("s")), "out of bounds"),
    ("timestamp", view([-62_135_596_801], pa.timestamp("s")), "0001 to 9999"),
    ("array<varchar(3)>", pa.array([["abc", "abcd"]]), r"column c\[\] varchar\(3\): .*4 characters"),
    ("array<int>", pa.array([1]), "int64 cannot be converted to array<int>"),
    ("map<string,int>", pa.array([{"a": 1}]), "cannot be converted to map<string,int>"),
    ("map<string,int>", pa.array([[{"a": 1, "b": 2}]]), "cannot be converted to map<string,int>"),
    ("map<string,int>", pa.array([[{"key": None, "value": 2}]]), "a NULL key"),
    ("map<double,int>", pa.array([[(0.0, 1)], [(0.0, 1), (-0.0, 2)]], PAIRS), "duplicate key"),
    ("map<string,tinyint>", pa.array([[("a", 300)]], pa.map_(pa.string(), pa.int64())), r"c\[\].value tinyint"),
    ("struct<a:struct<b:char(2)>>", pa.array([{"a": {"b": "xyz"}}]), r"column c.a.b char\(2\)"),
    ("struct<x:int>", pa.array([{"x": 1, "z": 2}]), "has no field z"),
    ("struct<x:int>", pa.array([{"x": 1, "X": 2}]), "(?i)field x is duplicated"),
    ("array<struct<x:int>>", pa.array([[{"y": 1}]]), r"column c\[\] struct<x:int>: .* has no field y"),
]


@pytest.mark.parametrize(("kind", "array", "reason"), REFUSES)
def test_value_when_its_column_cannot_hold_it_then_rejected_with_column_and_types(
    kind: str, array: pa.Array, reason: str
) -> None:
    with pytest.raises(SerializationError, match=reason) as caught:
        written(array, kind)
    assert "column c" in str(caught.value)


FLOATS = {"float": (np.float32, 2**24), "double": (np.float64, 2**53)}
INTEGERS = {"tinyint": 7, "smallint": 15, "int": 31, "bigint": 63}
DECIMALS = {"decimal(38,10)": (38, 10), "decimal(9,2)": (9, 2), "decimal(18,0)": (18, 0)}
SOURCES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    **{getattr(pa, f"int{n}")(): st.integers(-(2 ** (n - 1)), 2 ** (n - 1) - 1) for n in (8, 16, 32, 64)},
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float32(): st.floats(width=32) | st.integers(-(2**24), 2**24).map(float),
    pa.float64(): st.floats() | st.integers(-(2**62), 2**62).map(float),
    pa.decimal128(38, 10): st.decimals(-(10**25), 10**25, places=10) | st.integers(-(2**64), 2**64).map(Decimal),
    pa.decimal256(70, 2): st.decimals(-(10**60), 10**60, places=2) | st.integers(-(2**64), 2**64).map(Decimal),
}


def fits(value: Any, kind: str) -> bool:
    """Return whether the number fits a column of this type."""
    if isinstance(value, float) and not math.isfinite(value):
        return kind in FLOATS
    number = Fraction(value)
    if kind in INTEGERS:
        return number.denominator == 1 and -(2 ** INTEGERS[kind]) <= number < 2 ** INTEGERS[kind]
    if kind in DECIMALS:
        precision, scale = DECIMALS[kind]
        scaled = number * 10**scale
        return not isinstance(value, float) and scaled.denominator == 1 and abs(scaled) < 10**precision
    make, limit = FLOATS[kind]
    return abs(value) <= limit if isinstance(value, int) else bool(np.isfinite(make(value)))


def is_kept(value: Any, found: Any, kind: str) -> bool:
    """Return whether the value found in the column equals the number or, for floats, is the nearest one."""
    if kind not in FLOATS or not math.isfinite(value):
        return bool(found == value) or (math.isnan(found) and math.isnan(value))
    make = FLOATS[kind][0]
    others = [np.nextafter(make(found), make(end)) for end in (-math.inf, math.inf)]
    error = abs(Fraction(found) - Fraction(value))
    return all(not np.isfinite(other) or error <= abs(Fraction(float(other)) - Fraction(value)) for other in others)


@pytest.mark.filterwarnings("ignore:overflow encountered")
@settings(max_examples=200, deadline=None)
@given(st.sampled_from(list(SOURCES)), st.sampled_from([*INTEGERS, *FLOATS, *DECIMALS]), st.data())
def test_random_numbers_when_converted_then_unchanged_or_rejected(source: pa.DataType, kind: str, data: Any) -> None:
    values = data.draw(st.lists(SOURCES[source] | st.none(), min_size=1, max_size=3))
    array = pa.StructArray.from_arrays([pa.ListArray.from_arrays([0, len(values)], pa.array(values, source))], ["X"])
    values = [value for value in array.to_pylist()[0]["X"] if value is not None]
    try:
        found = [value for value in written(array, f"struct<x:array<{kind}>>")[0]["x"] if value is not None]
    except SerializationError:
        assert not all(fits(value, kind) for value in values) or (pa.types.is_floating(source) and kind in DECIMALS)
    else:
        assert all(fits(value, kind) for value in values)
        assert len(values) == len(found)
        assert all(is_kept(*pair, kind) for pair in zip(values, found, strict=True))


def test_rows_when_the_caller_reuses_their_memory_then_unchanged() -> None:
    numbers = np.array([1, 2, 3])
    (batch,) = batches(pa.table({"id": numbers}), id="bigint")
    numbers[:] = 9

    assert batch.to_pylist() == [{"id": 1}, {"id": 2}, {"id": 3}]


def test_slice_of_a_large_table_when_written_then_only_its_rows_are_copied() -> None:
    table = pa.table({"id": np.arange(100_000), "s": ["x" * 10] * 100_000})

    (batch,) = batches(table.slice(50_000, 10), id="bigint", s="string")

    assert batch.column(0).to_pylist() == list(range(50_000, 50_010))
    assert batch.get_total_buffer_size() < 10_000


def test_columns_when_named_in_any_case_then_matched_and_missing_ones_are_null() -> None:
    (batch,) = batches(pa.table({"ID": [1]}), id="int", gone="array<string>")

    assert batch.to_pylist() == [{"id": 1, "gone": None}]


@pytest.mark.parametrize(
    ("names", "reason"), [(["id", "ID"], "column id is duplicated"), (["id", "x", "y"], "has no column x, y")]
)
def test_columns_when_duplicate_or_unknown_then_rejected(names: list[str], reason: str) -> None:
    with pytest.raises(SerializationError, match=reason):
        batches(pa.table([[1]] * len(names), names), id="int")


def test_timestamps_when_they_have_a_zone_then_stored_in_utc() -> None:
    berlin = pa.array([datetime(2020, 1, 1, 12, tzinfo=timezone.utc)], pa.timestamp("us", "Europe/Berlin"))

    assert written(berlin, "timestamp") == [datetime(2020, 1, 1, 12)]
    assert written(pa.ListArray.from_arrays([0, 1], berlin), "array<timestamp>") == [[datetime(2020, 1, 1, 12)]]
    with pytest.raises(SerializationError, match="time of day"):
        written(berlin, "date")


@pytest.mark.parametrize(
    ("fine", "coarse", "units"),
    [(1, datetime(2020, 1, 1), ["ns", "ns"]), (1000, FAR, ["us", "us"]), (1, FAR, ["ns", "us"])],
    ids=["all fit ns", "all fit us", "neither"],
)
def test_timestamps_when_their_units_differ_then_all_have_one_unit_if_possible(
    fine: int, coarse: datetime, units: list[str]
) -> None:
    table = pa.table({"a": view([fine], NS), "b": pa.array([[coarse]], pa.list_(US))})

    (batch,) = batches(table, a="timestamp", b="array<timestamp>", c="timestamp")

    assert [batch.schema.types[0].unit, batch.schema.types[1].value_type.unit] == units
    assert batch.column(0).cast(pa.int64()).to_pylist() == [fine if units[0] == "ns" else fine // 1000]
    assert batch.column(1).to_pylist() == [[coarse]]


def test_complex_value_when_null_then_its_hidden_elements_are_ignored() -> None:
    hidden = pa.array(["ok", "much too long", "much too long"])
    masked = pa.array([False, True, True])
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), hidden, mask=masked)
    structs = pa.StructArray.from_arrays([hidden], ["x"], mask=masked)

    assert written(lists, "array<varchar(2)>") == [["ok"], None, None]
    assert written(lists.slice(1), "array<varchar(2)>") == [None, None]
    assert written(structs, "struct<x:char(2)>") == [{"x": "ok"}, None, None]
    assert written(structs.slice(1), "struct<x:char(2)>") == [None, None]


def test_data_when_large_then_split_into_batches_that_fit_32_bit_offsets() -> None:
    done = batches(pa.table({"s": pa.array(["x"] * 300_000, pa.large_string())}), s="string")

    assert [batch.num_rows for batch in done] == [1 << 18, 300_000 - (1 << 18)]


def test_timestamps_when_no_unit_can_represent_all_then_hive_reads_each_unchanged(stack: Stack) -> None:
    stack.table("id int, at timestamp, until timestamp")
    table = pa.table({"id": [1], "at": view([1_577_836_800_000_000_001], NS), "until": pa.array([FAR], US)})

    with connect(stack) as connection, connection.transaction():
        connection.write(table)
        with pytest.raises(SerializationError):
            connection.write(pa.table({"id": [2, 2**40]}))
        connection.write(pa.table({"id": [3]}))

    rows = stack.sql(f"SELECT id, cast(at AS string), cast(until AS string) FROM {stack.name}")
    assert sorted(rows) == [(1, "2020-01-01 00:00:00.000000001", "9999-12-31 00:00:00"), (3, None, None)]
