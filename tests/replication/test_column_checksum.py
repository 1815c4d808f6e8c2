"""Checksums of columns depend on the values, and on nothing else."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from ingestd.replication.verify.column_checksum import Checksums, checksums

DAY, MOMENT = dt.date(2020, 2, 29), dt.datetime(2020, 2, 29, 1, 2, 3)
VALUES: dict[str, tuple[pa.DataType, list[object]]] = {
    "boolean": (pa.bool_(), [True, False, None]),
    "integer": (pa.int32(), [0, 1, -1, 2**31 - 1, None]),
    "double": (pa.float64(), [0.0, 1.5, -1.5, float("inf"), float("nan"), None]),
    "decimal": (pa.decimal128(20, 2), [Decimal("0.00"), Decimal("1.10"), Decimal("-1.10"), Decimal(10**17), None]),
    "text": (pa.string(), ["", "a", "b", "ab", "ba", "a\0", "\0a", "ä", "a" * 100_000, None]),
    "binary": (pa.binary(), [b"", b"\0", b"\0\0", b"\xff", None]),
    "date": (pa.date32(), [DAY, dt.date(1969, 12, 31), None]),
    "timestamp": (pa.timestamp("ns"), [MOMENT, dt.datetime(1960, 1, 1), None]),
    "array": (pa.list_(pa.int64()), [[], [1, 2], [2, 1], [None], [1, None], None]),
    "array of texts": (pa.list_(pa.string()), [["a", "bc"], ["ab", "c"], ["abc"], [""], None]),
    "map": (pa.map_(pa.string(), pa.int64()), [[], [("a", 1)], [("a", 2)], [("a", 1), ("b", 2)], [("a", 2), ("b", 1)]]),
    "struct": (
        pa.struct([("a", pa.int64()), ("b", pa.int64())]),
        [{"a": 1, "b": 2}, {"a": 2, "b": 1}, {"a": 1, "b": None}, {"a": None, "b": 1}, None],
    ),
}


def _of(*columns: pa.Array) -> Checksums:
    names = [str(number) for number in range(len(columns))]
    return checksums([pa.RecordBatch.from_arrays(list(columns), names)], len(columns))


@pytest.mark.parametrize("kind", VALUES)
def test_values_when_different_then_have_different_checksums(kind: str) -> None:
    arrow, values = VALUES[kind]
    found = [_of(pa.array([value], arrow)).columns for value in values]
    assert len(set(found)) == len(values)


@pytest.mark.parametrize("kind", VALUES)
def test_rows_when_in_another_order_or_in_other_batches_then_have_equal_checksums(kind: str) -> None:
    arrow, values = VALUES[kind]
    column = pa.array(values * 3, arrow)
    whole = _of(column)
    assert _of(pa.array(list(reversed(values * 3)), arrow)) == whole
    parts = [column.slice(0, 1), column.slice(1, len(values)), column.slice(len(values) + 1)]
    assert checksums([pa.RecordBatch.from_arrays([part], ["a"]) for part in parts], 1) == whole
    assert _of(*(column.slice(at, 1) for at in range(2))) != _of(*(column.slice(at, 1) for at in range(1, 3)))


def test_rows_when_one_is_repeated_or_missing_then_have_other_checksums() -> None:
    assert len({_of(pa.array(rows)).columns for rows in ([1, 2], [1, 1, 2], [2], [1, 3], [2, 2])}) == 5


def test_numbers_when_the_type_was_widened_then_have_equal_checksums() -> None:
    assert _of(pa.array([1, -2], pa.int8())) == _of(pa.array([1, -2], pa.int64()))
    assert _of(pa.array([1.5, None], pa.float32())) == _of(pa.array([1.5, None], pa.float64()))
    assert _of(pa.array([0.0])) == _of(pa.array([-0.0]))


def test_map_when_its_entries_are_in_another_order_then_has_the_same_checksum() -> None:
    kind = pa.map_(pa.string(), pa.int64())
    assert _of(pa.array([[("a", 1), ("b", 2)]], kind)) == _of(pa.array([[("b", 2), ("a", 1)]], kind))


def test_column_when_a_file_lacks_it_then_counts_as_nulls() -> None:
    assert checksums([pa.record_batch({"a": [1]})], 2) == _of(pa.array([1]), pa.array([None], pa.string()))


def test_texts_when_many_then_slices_do_not_change_the_checksum() -> None:
    texts = pa.array(["x" * (number % 5000) for number in range(3000)])
    order = pa.array(np.random.default_rng(1).permutation(3000))
    assert _of(texts.take(order)) == _of(texts)


def test_no_rows_then_have_the_neutral_checksums() -> None:
    some = _of(pa.array([1, 2]))
    assert some + checksums([], 1) == some
    assert _of(pa.array([], pa.string())) == Checksums.none(1)
