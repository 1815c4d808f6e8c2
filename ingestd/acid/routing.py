"""Splits a batch by partition and bucket, column-wise.

Invariant: each row goes to exactly one partition and to the bucket that Hive computes for it, in its original order.
Without buckets all rows are in bucket 0. The writer of a row depends on nothing but the row, the number of the task
that has decoded it, and the `Writers`, so that a task that is repeated sends the same rows to each writer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ingestd.acid.buckets import bucket_of_rows
from ingestd.acid.encoding import Encoding
from ingestd.acid.layout import MAX_BUCKET
from ingestd.acid.partitions import partition_value
from ingestd.errors import InvalidTable
from ingestd.schema import Column

_UINT16_CODES = 1 << 16  # numpy sorts uint16 by radix sort


@dataclass(frozen=True, slots=True)
class Bucketing:
    """The bucketing of a table: CLUSTERED BY `columns`, in that order, INTO `count` BUCKETS.

    `version` is the table's `bucketing_version`, which selects the hash function.
    """

    columns: tuple[Column, ...]
    count: int
    version: int

    def check(self) -> None:
        """Raise InvalidTable for too many buckets, and for bucket columns that `bucket_of_rows` cannot hash."""
        if self.count > MAX_BUCKET + 1:
            raise InvalidTable(
                f"the table has {self.count:,} buckets, but ACID row ids have room for {MAX_BUCKET + 1:,}",
                hint="recreate the table with fewer buckets",
            )
        schema = pa.schema([pa.field(column.name, column.type.arrow) for column in self.columns])
        bucket_of_rows(pa.RecordBatch.from_pylist([], schema), self.columns, self.count, version=self.version)


@dataclass(frozen=True, slots=True)
class Shape:
    """The properties of a table that the writers need.

    `columns` does not include `partition_columns`. `not_null` contains the names of the NOT NULL columns, which are
    never partition columns.
    """

    columns: tuple[Column, ...]
    partition_columns: tuple[Column, ...]
    bucketing: Bucketing | None
    encoding: Encoding
    not_null: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of one partition and one bucket; `partition` contains the values of the partition columns."""

    partition: tuple[str, ...]
    bucket: int
    rows: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class Writers:
    """The tasks that write the rows of a transaction if these are distributed by partition and bucket.

    Each partition and bucket has one of the `count` writers. The partitions in `spread` are too large for that: the
    number of the task that has decoded their rows selects their writer. All tasks of a transaction need equal
    `Writers`, because those that write choose the names of their files by them.
    """

    count: int
    spread: frozenset[tuple[str, ...]] = frozenset()

    def of(self, partition: tuple[str, ...], task: int) -> int:
        """Return a number from which the writer of the rows of a partition follows, the same in every process.

        `task` is the number of the task that has decoded the rows.
        """
        return task if partition in self.spread else crc32("\0".join(partition).encode())


def route(batch: pa.RecordBatch, shape: Shape, static: tuple[str | None, ...]) -> Iterator[Part]:
    """Split a batch by partition and bucket; rows keep their order within each part.

    Columns are looked up in the batch by name. `static` contains the value of each partition column in table order, or
    None if the batch contains the column; if `static` is empty, it contains all of them. Each part contains
    `shape.columns`, in that order.
    """
    for partition, rows in _by_partition(batch, shape, static):
        for bucket, bucket_rows in _by_bucket(rows, shape.bucketing):
            yield Part(partition, bucket, bucket_rows)


def distribute(
    batch: pa.RecordBatch, shape: Shape, static: tuple[str | None, ...], writers: Writers, task: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Split a batch by the writer of its rows, with all columns; `static` is that of `route`.

    `task` is the number of the task that has decoded the batch.
    """
    if batch.num_rows == 0:
        return
    codes, texts = partition_codes(batch, shape.partition_columns, static)
    of_rows = np.array([writers.of(text, task) for text in texts])[codes]
    if shape.bucketing is not None:
        buckets = shape.bucketing
        of_rows = of_rows + bucket_of_rows(batch, buckets.columns, buckets.count, version=buckets.version)
    of_rows = np.broadcast_to(of_rows % writers.count, batch.num_rows)
    for number in np.unique(of_rows).tolist():
        yield number, batch.take(pa.array(np.flatnonzero(of_rows == number)))


def _by_partition(
    batch: pa.RecordBatch, shape: Shape, static: tuple[str | None, ...]
) -> list[tuple[tuple[str, ...], pa.RecordBatch]]:
    """Return the rows of each partition; an unpartitioned table has one partition without values."""
    rows = batch.select([column.name for column in shape.columns])
    if batch.num_rows == 0:
        return []
    codes, texts = partition_codes(batch, shape.partition_columns, static)
    if len(texts) == 1:
        return [(texts[0], rows)]
    order = np.argsort(codes.astype(np.uint16) if len(texts) <= _UINT16_CODES else codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    ends = [*starts[1:].tolist(), len(order)]
    rows = rows.take(pa.array(order))
    return [
        (texts[codes[order[start]]], rows.slice(start, end - start))
        for start, end in zip(starts.tolist(), ends, strict=True)
    ]


def partition_codes(
    batch: pa.RecordBatch, columns: Sequence[Column], static: tuple[str | None, ...] = ()
) -> tuple[npt.NDArray[np.int64], list[tuple[str, ...]]]:
    """Return a code per row, and the values of the partition columns for each code; `static` is that of `route`.

    An array of codes of length 1 means that every row has that code.
    """
    codes = np.zeros(1, np.int64)
    texts: list[tuple[str, ...]] = [()]
    for column, value in zip(columns, static or repeat(None), strict=False):
        if value is None:
            more, values = _value_codes(column, batch.column(column.name))
            codes, texts = _combine(codes, texts, more, values)
        else:
            texts = [(*text, value) for text in texts]
    return codes, texts


def _value_codes(column: Column, array: pa.Array) -> tuple[npt.NDArray[np.int64], list[str]]:
    """Return a code per row and the partition value of each code; equal partition values share a code."""
    encoded = pc.dictionary_encode(array, null_encoding="encode")
    texts = [partition_value(column, scalar) for scalar in encoded.dictionary]
    distinct = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    if len(distinct) == 1:
        return np.zeros(1, np.int64), list(distinct)
    renumber = np.fromiter((distinct[text] for text in texts), np.int64, len(texts))
    return renumber[encoded.indices.to_numpy(zero_copy_only=False)], list(distinct)


def _combine(
    codes: npt.NDArray[np.int64], texts: list[tuple[str, ...]], more: npt.NDArray[np.int64], values: list[str]
) -> tuple[npt.NDArray[np.int64], list[tuple[str, ...]]]:
    """Combine the codes of two columns into codes of the pairs that occur."""
    if len(values) == 1:
        return codes, [(*text, values[0]) for text in texts]
    if len(texts) == 1:
        return more, [(*texts[0], value) for value in values]
    pairs, numbers = np.unique(codes * len(values) + more, return_inverse=True)
    combined = [(*texts[pair // len(values)], values[pair % len(values)]) for pair in pairs.tolist()]
    return numbers.astype(np.int64), combined


def _by_bucket(rows: pa.RecordBatch, bucketing: Bucketing | None) -> Iterator[tuple[int, pa.RecordBatch]]:
    if bucketing is None:
        yield 0, rows
        return
    buckets = bucket_of_rows(rows, bucketing.columns, bucketing.count, version=bucketing.version)
    order = np.argsort(buckets, kind="stable")
    numbers, starts = np.unique(buckets[order], return_index=True)
    ends = [*starts[1:].tolist(), len(order)]
    for number, start, end in zip(numbers.tolist(), starts.tolist(), ends, strict=True):
        yield number, rows.take(pa.array(order[start:end]))
