"""Routing keeps each row once and in order, in its partition and in the bucket that Hive computes."""

from __future__ import annotations

from datetime import date

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingestd.acid.buckets import bucket_of_rows
from ingestd.acid.encoding import STANDARD
from ingestd.acid.partitions import DEFAULT_PARTITION
from ingestd.acid.routing import Bucketing, Shape, Writers, distribute, route
from ingestd.errors import InvalidTable
from ingestd.schema import Column, HiveType

DATA = (Column("n", HiveType.parse("bigint")),)
KEYS = (
    Column("day", HiveType.parse("date")),
    Column("city", HiveType.parse("string")),
    Column("q", HiveType.parse("int")),
)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.one_of(st.none(), st.dates(date(2026, 1, 1), date(2026, 1, 3))),
            st.sampled_from([None, "", "a", "b", "ä/b"]),
            st.sampled_from([None, 0, 1]),
        ),
        max_size=40,
    ),
    st.integers(0, 3),
)
def test_route_when_rows_are_random_then_each_is_returned_once_and_in_order(
    keys: list[tuple[date | None, str | None, int | None]], width: int
) -> None:
    arrays = [pa.array(range(len(keys)), pa.int64())]
    arrays += [pa.array([key[place] for key in keys], column.type.arrow) for place, column in enumerate(KEYS)]
    batch = pa.RecordBatch.from_arrays(arrays, names=["n", "day", "city", "q"])
    parts = list(route(batch, Shape(DATA, KEYS[:width], None, STANDARD), ()))
    expected: dict[tuple[str, ...], list[int]] = {}
    for number, key in enumerate(keys):
        texts = tuple(DEFAULT_PARTITION if part in (None, "") else str(part) for part in key[:width])
        expected.setdefault(texts, []).append(number)
    assert {part.partition: part.rows.column("n").to_pylist() for part in parts} == expected
    assert len(parts) == len(expected)
    assert all(part.rows.schema.names == ["n"] and part.bucket == 0 for part in parts)


def test_route_when_table_is_bucketed_then_rows_of_each_bucket_stay_in_order() -> None:
    city = Column("city", HiveType.parse("string"))
    batch = pa.record_batch({"n": pa.array(range(200), pa.int64()), "city": ["a", "b"] * 100})
    buckets = bucket_of_rows(batch, DATA, 3, version=2).tolist()
    parts = list(route(batch, Shape(DATA, (city,), Bucketing(DATA, 3, 2), STANDARD), ()))
    found = {(part.partition, part.bucket): part.rows.column("n").to_pylist() for part in parts}
    assert found == {
        ((city_value,), bucket): [n for n in range(first, 200, 2) if buckets[n] == bucket]
        for first, city_value in enumerate("ab")
        for bucket in range(3)
    }
    assert len(parts) == 6


@pytest.mark.parametrize("bucketing", [None, Bucketing(DATA, 3, 2)])
@pytest.mark.parametrize("width", [0, 1])
def test_distribute_when_batches_are_cut_elsewhere_then_each_row_has_the_same_writer(
    bucketing: Bucketing | None, width: int
) -> None:
    cities = (Column("city", HiveType.parse("string")),)[:width]
    batch = pa.record_batch({"n": pa.array(range(300), pa.int64()), "city": [f"c{n % 40}" for n in range(300)]})
    shape, writers = Shape(DATA, cities, bucketing, STANDARD), Writers(4)

    def writers_of_rows(batches: list[pa.RecordBatch]) -> dict[int, int]:
        sent = [pair for batch in batches for pair in distribute(batch, shape, (), writers, 1)]
        assert all(rows.schema == batch.schema for _, rows in sent)
        pairs = [(n, number) for number, rows in sent for n in rows.column("n").to_pylist()]
        assert len(pairs) == len(dict(pairs)) == batch.num_rows
        return dict(pairs)

    found = writers_of_rows([batch])
    assert found == writers_of_rows([batch.slice(start, 7) for start in range(0, 300, 7)])
    places = {(part.partition, part.bucket): part.rows.column("n").to_pylist() for part in route(batch, shape, ())}
    assert all(len({found[n] for n in rows}) == 1 for rows in places.values())
    assert set(found.values()) <= set(range(4))
    assert width == 0 or set(found.values()) == set(range(4))


def test_distribute_when_a_partition_is_large_then_the_task_selects_its_writer() -> None:
    cities = (Column("city", HiveType.parse("string")),)
    batch = pa.record_batch({"n": pa.array(range(80), pa.int64()), "city": [f"c{n % 40}" for n in range(80)]})
    for task in range(4):
        writers = Writers(4, frozenset({("c7",)}))
        sent = dict(distribute(batch, Shape(DATA, cities, None, STANDARD), (), writers, task))
        assert {7, 47} <= set(sent[task].column("n").to_pylist())


@pytest.mark.parametrize(
    ("bucketing", "message"),
    [
        (Bucketing(DATA, 4097, 2), "4,097 buckets"),
        (Bucketing((Column("b", HiveType.parse("binary")),), 2, 1), "type binary cannot be a bucket column"),
        (Bucketing((Column("a", HiveType.parse("array<int>")),), 2, 2), r"type array<int> cannot be a bucket column"),
    ],
)
def test_bucketing_when_a_row_could_not_be_stored_then_check_raises(bucketing: Bucketing, message: str) -> None:
    Bucketing(DATA, 4096, 2).check()
    with pytest.raises(InvalidTable, match=message):
        bucketing.check()


def test_route_when_partition_is_static_then_its_rows_are_not_split() -> None:
    batch = pa.record_batch({"n": pa.array(range(3), pa.int64())})
    (part,) = route(batch, Shape(DATA, KEYS, None, STANDARD), ("2026-01-01", "a", "7"))
    assert (part.partition, part.bucket, part.rows.num_rows) == (("2026-01-01", "a", "7"), 0, 3)
