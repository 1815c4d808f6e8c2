"""The computed buckets are those that Hive computes, for any memory layout of the columns."""

from __future__ import annotations

import struct
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingestd.acid.buckets import bucket_of_rows
from ingestd.errors import InvalidTable
from ingestd.schema import Column, HiveType

ALL = 1 << 31  # with this many buckets the bucket is the hash without its sign bit
SECOND = 1_000_000_000
EPOCH = date(1970, 1, 1)
U32 = 0xFFFFFFFF


def _hashes(type_text: str, array: pa.Array, version: int) -> list[int]:
    batch = pa.RecordBatch.from_arrays([array], ["k"])
    return _buckets(batch, [("k", type_text)], ALL, version)


def _buckets(batch: pa.RecordBatch, columns: list[tuple[str, str]], buckets: int, version: int) -> list[int]:
    bucket_columns = [Column(name, HiveType.parse(type_text)) for name, type_text in columns]
    numbers = bucket_of_rows(batch, bucket_columns, buckets, version=version)
    assert numbers.dtype == np.int64
    return list(map(int, numbers))


# Type, value and the hashes of bucketing versions 1 and 2, as Hive computes them in a JVM in UTC (the second half with
# ObjectInspectorUtils of hive-exec 4.0.1). An int as a timestamp is in nanoseconds, a datetime in microseconds.
VECTORS: list[tuple[str, Any, int, int]] = [
    ("boolean", True, 1, 1), ("tinyint", 42, 42, 42), ("smallint", 42, 42, 1876706815),
    ("int", 42, 42, 1960085659), ("int", -1, -1, 1626716813),
    ("bigint", 42, 42, -1236600470), ("bigint", -1, 0, -237789309),
    ("float", 3.14, 1078523331, 142104873), ("double", 3.14, 300063655, -1542044508),
    ("string", "hello", 99162322, 1321743225), ("string", "héllo", -1376354943, 1190235422),
    ("string", "", 0, -965378730),
    ("varchar(9)", "hello", 127791473, 1321743225), ("char(9)", "hello", 127791473, 1321743225),
    ("char(9)", "hello   ", 127791473, 1321743225),
    ("date", date(2024, 1, 1), 19723, 1618759177),
    ("timestamp", 1704164645 * SECOND, 1499782985, -1517719289),
    ("timestamp", 1704164645 * SECOND + 678_901_000, 1897130561, 576980823),
    ("timestamp", -SECOND, 1073741823, -2005195780),
    ("decimal(10,2)", Decimal("1.50"), 466, 864210675), ("decimal(10,2)", Decimal("-7.10"), -2200, 651801122),
    ("tinyint", -1, -1, -1), ("smallint", -2, -2, 864251930),
    ("float", float("nan"), 2143289344, -480354314), ("double", -0.0, -2147483648, -1757926548),
    ("string", "😀 ", -17769943, 1359096209),
    ("varchar(9)", "😀 ", 10859208, 1359096209), ("char(9)", "😀 ", 350296, -178109353),
    ("date", date(1, 1, 1), -719162, 1191766136),
    ("timestamp", 2147483648 * SECOND, 536870912, 1448433335),
    ("timestamp", datetime(1, 1, 1), 1645926784, 1971120217),
    ("timestamp", datetime(1582, 10, 15), 1240144096, -1238221195),
    ("timestamp", datetime(9999, 12, 31, 23, 59, 59, 999999), 1147655751, -219666470),
    ("decimal(38,0)", Decimal("9" * 38), -427198386, -1248281328),
    ("decimal(38,0)", Decimal(1 - 2**64), 992, -1336193282),
    ("decimal(10,2)", Decimal("100.00"), 3100, 275017581), ("decimal(10,2)", Decimal("0.00"), 0, 500407381),
    ("decimal(10,2)", Decimal("-1.28"), -3966, 1104592682),
]  # fmt: skip


@pytest.mark.parametrize(("type_text", "value", "old", "murmur"), VECTORS)
def test_hash_when_the_hash_of_hive_is_known_then_it_is_equal(
    type_text: str, value: object, old: int, murmur: int
) -> None:
    arrow = pa.timestamp("us") if isinstance(value, datetime) else HiveType.parse(type_text).arrow
    array = pa.array([value], arrow)
    assert _hashes(type_text, array, 1) == [old % ALL]
    assert _hashes(type_text, array, 2) == [murmur % ALL]


@pytest.mark.parametrize(("version", "expected"), [(1, 99163624), (2, 1954856510)])
def test_hash_when_table_has_two_bucket_columns_then_hashes_are_combined_in_clustered_by_order(
    version: int, expected: int
) -> None:
    batch = pa.RecordBatch.from_pydict({"s": ["hello"], "n": pa.array([42], pa.int32())})
    assert _buckets(batch, [("n", "int"), ("s", "string")], ALL, version) == [expected]
    assert _buckets(batch, [("s", "string"), ("n", "int")], ALL, version) != [expected]


def test_bucket_when_hash_is_negative_then_its_sign_is_ignored() -> None:
    batch = pa.RecordBatch.from_pydict({"n": pa.array([-1, -2, 7], pa.int32())})
    assert _buckets(batch, [("n", "int")], 10, 1) == [(ALL - 1) % 10, (ALL - 2) % 10, 7]


def _murmur(data: bytes) -> int:
    """Return Murmur3.hash32 of the bytes of one row."""
    whole = len(data) // 4 * 4
    hashed = 104729
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        hashed ^= _scrambled(word)
        hashed = (hashed << 13 | hashed >> 19) & U32
        hashed = (hashed * 5 + 0xE6546B64) & U32
    tail = 0
    for place, (byte,) in enumerate(struct.iter_unpack("b", data[whole:])):
        tail ^= byte << 8 * place
    hashed ^= _scrambled(tail & U32) ^ len(data)
    hashed = (hashed ^ hashed >> 16) * 0x85EBCA6B & U32
    hashed = (hashed ^ hashed >> 13) * 0xC2B2AE35 & U32
    return hashed ^ hashed >> 16


def _scrambled(word: int) -> int:
    word = word * 0xCC9E2D51 & U32
    return (word << 15 | word >> 17) * 0x1B873593 & U32


def _polynomial(data: bytes, start: int) -> int:
    for (byte,) in struct.iter_unpack("b", data):
        start = 31 * start + byte & U32
    return start


def _long_hash(value: int) -> int:
    return (value >> 32) ^ value


def _bits(value: float, kind: str) -> int:
    size, bits = ("f", "i") if kind == "float" else ("d", "q")
    (number,) = struct.unpack(f">{bits}", struct.pack(f">{size}", value))
    return int(number)


def _unscaled(value: Decimal) -> tuple[int, int]:
    sign, digits, exponent = value.as_tuple()
    number, scale = int("".join(map(str, digits))), -int(exponent)
    while scale and number % 10 == 0:
        number, scale = number // 10, scale - 1
    return (-number if sign else number), scale


def _big_decimal_hash(value: Decimal) -> int:
    number, scale = _unscaled(value)
    hashed = 0
    for (word,) in struct.iter_unpack(">I", abs(number).to_bytes(16, "big")):
        hashed = 31 * hashed + word
    return 31 * (hashed if number > 0 else -hashed) + scale


def _big_integer_bytes(value: Decimal) -> bytes:
    number, _ = _unscaled(value)
    size = next(size for size in range(1, 18) if -(1 << 8 * size - 1) <= number < 1 << 8 * size - 1)
    return number.to_bytes(size, "big", signed=True)


def _old_timestamp(nanoseconds: int) -> int:
    seconds, nanos = divmod(nanoseconds, SECOND)
    days, rest = divmod(seconds, 86_400)
    day = EPOCH + timedelta(days)
    if day < date(1582, 10, 15):  # the epoch day of this date in the Julian calendar
        late = (14 - day.month) // 12
        year, month = day.year + 4800 - late, day.month + 12 * late - 3
        days = day.day + (153 * month + 2) // 5 + 365 * year + year // 4 - 32083 - 2440588
    return _long_hash((days * 86_400 + rest) << 30 | nanos)


def _timestamp_bytes(nanoseconds: int) -> bytes:
    seconds, nanos = divmod(nanoseconds, SECOND)
    second_int = seconds < 0 or seconds > 0x7FFFFFFF
    mirrored = 0
    for place in range(9):
        mirrored = mirrored * 10 + nanos // 10**place % 10
    flag = 0x80000000 if second_int or mirrored else 0
    data = struct.pack(">I", seconds & 0x7FFFFFFF | flag)
    if flag:
        data += _vlong(-mirrored - 1 if second_int else mirrored)
    return data + _vlong(seconds >> 31) if second_int else data


def _vlong(value: int) -> bytes:
    if -112 <= value <= 127:
        return struct.pack("b", value)
    tag, rest = (-112, value) if value >= 0 else (-120, value ^ -1)
    data = b""
    while rest:
        data, rest, tag = bytes([rest & 0xFF]) + data, rest >> 8, tag - 1
    return struct.pack("b", tag) + data


def _old_hash(kind: str, value: Any) -> int:
    if kind in {"string", "varchar", "char"}:
        return _polynomial((value.rstrip(" ") if kind == "char" else value).encode(), 0 if kind == "string" else 1)
    if kind in {"float", "double"}:
        bits = _bits(value, kind)
        return bits if kind == "float" else _long_hash(bits)
    if kind == "date":
        return int((value - EPOCH).days)
    if kind == "decimal":
        return _big_decimal_hash(value)
    if kind == "timestamp":
        return _old_timestamp(value)
    return _long_hash(value) if kind == "bigint" else int(value)


def _murmured_bytes(kind: str, value: Any) -> bytes:
    if kind in {"string", "varchar", "char"}:
        return bytes((value.rstrip(" ") if kind == "char" else value).encode())
    if kind in {"float", "double"}:
        return struct.pack(">f" if kind == "float" else ">d", _bits(value, kind))
    if kind == "date":
        return struct.pack(">i", (value - EPOCH).days)
    if kind == "decimal":
        return _big_integer_bytes(value)
    if kind == "timestamp":
        return _timestamp_bytes(value)
    return struct.pack({"smallint": ">h", "int": ">i", "bigint": ">q"}[kind], value)


def _expected(type_text: str, value: object, version: int) -> int:
    kind = HiveType.parse(type_text).kind
    if value is None:
        return 0
    if version == 1 or kind in {"boolean", "tinyint"}:
        return _old_hash(kind, value) % ALL
    return _murmur(_murmured_bytes(kind, value)) % ALL


def _decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**precision - 1
    return st.integers(-most, most).map(lambda number: Decimal(f"{number}E-{scale}"))


TEXT = st.text(max_size=40)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    **{f"{kind}int": st.integers(-(1 << bits), (1 << bits) - 1) for kind, bits in [("tiny", 7), ("small", 15)]},
    "int": st.integers(-(1 << 31), (1 << 31) - 1),
    "bigint": st.integers(-(1 << 63), (1 << 63) - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "string": TEXT,
    "varchar(50)": TEXT,
    "char(50)": st.one_of(TEXT, TEXT.map(lambda text: text + "  ")),
    "date": st.dates(),
    "timestamp": st.integers(-9_223_372_036 * SECOND, 9_223_372_036 * SECOND),
    "decimal(38,0)": _decimals(38, 0),
    "decimal(38,18)": _decimals(38, 18),
    "decimal(10,2)": st.one_of(
        _decimals(10, 2), st.integers(-99_999_999, 99_999_999).map(lambda n: Decimal(f"{n}.00"))
    ),
}


@pytest.mark.parametrize("type_text", VALUES)
@settings(max_examples=50, deadline=None)
@given(st.data(), st.sampled_from([1, 40]), st.integers(0, 3), st.integers(0, 3))
def test_hash_when_values_are_random_then_it_equals_the_row_by_row_hash(
    type_text: str, data: st.DataObject, repeat: int, front: int, back: int
) -> None:
    values = data.draw(st.lists(st.one_of(st.none(), VALUES[type_text]), max_size=8))
    array = pa.array(values * repeat, HiveType.parse(type_text).arrow)
    array = array[front : max(len(array) - back, front)]
    for version in (1, 2):
        expected = [_expected(type_text, value, version) for value in values] * repeat
        assert _hashes(type_text, array, version) == expected[front : max(len(expected) - back, front)]


@pytest.mark.parametrize(("unit", "nanoseconds"), [("s", SECOND), ("ms", 1_000_000), ("us", 1_000)])
@settings(max_examples=50, deadline=None)
@given(st.data())
def test_hash_when_timestamp_has_another_unit_then_it_is_the_same(
    unit: str, nanoseconds: int, data: st.DataObject
) -> None:
    first, last = -62_135_596_800 * SECOND // nanoseconds, 253_402_300_799 * SECOND // nanoseconds
    values = data.draw(st.lists(st.integers(first, last), max_size=8))
    array = pa.array(values, pa.timestamp(unit))
    for version in (1, 2):
        expected = [_expected("timestamp", value * nanoseconds, version) for value in values]
        assert _hashes("timestamp", array, version) == expected


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(*(st.one_of(st.none(), VALUES[kind]) for kind in ("date", "string", "double"))), max_size=9))
def test_bucket_when_table_has_several_bucket_columns_then_hashes_are_multiplied_by_31_and_added(
    rows: list[tuple[Any, ...]],
) -> None:
    columns = [("d", "date"), ("s", "string"), ("x", "double")]
    arrays = [
        pa.array([row[place] for row in rows], HiveType.parse(type_text).arrow)
        for place, (_, type_text) in enumerate(columns)
    ]
    batch = pa.RecordBatch.from_arrays(arrays, ["d", "s", "x"])
    for version in (1, 2):
        expected = [
            (31 * 31 * _expected("date", day, version) + 31 * _expected("string", text, version) + number) % ALL % 7
            for day, text, number in ((row[0], row[1], _expected("double", row[2], version)) for row in rows)
        ]
        assert _buckets(batch, columns, 7, version) == expected


@pytest.mark.parametrize("version", [1, 2])
def test_hash_when_one_text_is_very_long_then_it_is_correct(version: int) -> None:
    texts = [*("x" * (number % 9) for number in range(100)), "é" * 50_000, "y" * 70_001]
    assert _hashes("string", pa.array(texts), version) == [_expected("string", text, version) for text in texts]


@pytest.mark.parametrize("version", [1, 2])
def test_hash_when_text_is_large_string_then_it_is_the_same(version: int) -> None:
    texts = ["", None, "hello", "Ḧéllo, a longer one"] * 20
    expected = _hashes("string", pa.array(texts), version)
    assert _hashes("string", pa.array(texts, pa.large_string()), version) == expected
    assert _hashes("string", pa.array(texts, pa.large_string())[3:70], version) == expected[3:70]


NANS = {
    "float": np.array([0x7FC00000, 0xFFC00000, 0x7F800001], np.uint32).view(np.float32),
    "double": np.array([0x7FF8 << 48, 0xFFF8 << 48, 0x7FF0 << 48 | 1], np.uint64).view(np.float64),
}


@pytest.mark.parametrize("type_text", NANS)
def test_hash_when_value_is_nan_then_it_is_the_same_for_all_bit_patterns(type_text: str) -> None:
    for version in (1, 2):
        expected = _expected(type_text, float("nan"), version)
        assert _hashes(type_text, pa.array(NANS[type_text]), version) == [expected] * 3


def test_bucket_when_all_values_are_null_then_it_is_0() -> None:
    for type_text in VALUES:
        array = pa.nulls(3, HiveType.parse(type_text).arrow)
        assert _hashes(type_text, array, 1) == _hashes(type_text, array, 2) == [0, 0, 0]


def test_bucket_when_batch_is_empty_then_result_is_empty() -> None:
    for type_text in VALUES:
        array = pa.array([], HiveType.parse(type_text).arrow)
        assert _hashes(type_text, array, 1) == _hashes(type_text, array, 2) == []


@pytest.mark.parametrize("kind", ["binary", "array", "map", "struct"])
def test_bucket_when_type_cannot_be_hashed_then_invalid_table(kind: str) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([b"x"])], ["k"])
    with pytest.raises(InvalidTable, match=rf"column k: a column of type {kind} cannot be .* → recreate"):
        bucket_of_rows(batch, [Column("k", HiveType(kind))], 4, version=2)


@pytest.mark.parametrize("buckets", [0, -1])
def test_bucket_when_bucket_count_is_not_positive_then_invalid_table(buckets: int) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([1])], ["k"])
    with pytest.raises(InvalidTable, match=f"the table has {buckets} buckets"):
        bucket_of_rows(batch, [Column("k", HiveType("bigint"))], buckets, version=2)
