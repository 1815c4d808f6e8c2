"""Results of jobs that are fetched in several blocks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ingestd.schema import Column, HiveType
from ingestd.spark.engine import JobGroup
from ingestd.spark.query import Batches, Query
from ingestd.spark.results import blocks
from tests.support.daemon import shared_engine

# Each is less than a block, about a block, or several. The last value is as large as the first, to find the ends.
SIZES = [0, 1, (1 << 20) - 20, 1 << 20, 5_000_000, 1]


def _value(size: int) -> bytes:
    return bytes(n % 251 for n in range(min(size, 1000))) * (size // 1000) + b"end"


def _no_rows(_size: int, _report: Callable[[None], None]) -> Batches:
    return iter(())


def _written(size: int, batches: Batches) -> bytes:
    assert not list(batches)
    return _value(size)


@pytest.mark.unit
def test_blocks_when_a_value_is_large_then_each_is_of_limited_length() -> None:
    lengths = [len(block) for block in blocks(bytes(3 << 20))]
    assert len(lengths) == 4
    assert max(lengths) < 1_500_000


def test_results_when_they_are_of_any_size_then_arrive_in_the_order_of_the_items(processes: None) -> None:
    engine, group = shared_engine(), JobGroup("results")
    expected = [_value(size) for size in SIZES]
    assert engine.run(group, _value, SIZES) == expected
    query = Query((Column("id", HiveType.parse("bigint")),), "id > 0")
    assert [written for _, written in engine.query(group, query, _no_rows, _written, SIZES)] == expected
