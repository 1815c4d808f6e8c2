"""Rows of one transaction go to their partitions and buckets.

Invariant: rows of a bucketed table are in the file whose number Hive computes for them; without buckets all are in
bucket 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from ingestd.acid.buckets import bucket_of_rows
from ingestd.acid.partitions import Routed, route
from ingestd.acid.writer import Encoding
from ingestd.acid.writer_pool import WriterPool, WrittenFile, storage_errors
from ingestd.schema import Column

_MAX_OPEN = 16


@dataclass(frozen=True, slots=True)
class Bucketing:
    """CLUSTERED BY `columns` (in that order) INTO `count` BUCKETS; `version` chooses the hash (Utilities)."""

    columns: tuple[Column, ...]
    count: int
    version: int


@dataclass(frozen=True, slots=True)
class Shape:
    """What a table's rows look like: `columns` are without `partition_columns`.

    `not_null` has the names of the columns that may not be NULL; partition columns are never among them.
    """

    columns: tuple[Column, ...]
    partition_columns: tuple[Column, ...]
    bucketing: Bucketing | None
    encoding: Encoding
    not_null: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of one partition and one bucket."""

    partition: tuple[str, ...]
    bucket: int
    rows: pa.RecordBatch


def spread(batch: pa.RecordBatch, shape: Shape, static: tuple[str, ...]) -> Iterator[Part]:
    """Split a batch by partition and bucket; rows keep their order within each part.

    With `static` partition values the batch has the table's columns, else the partition columns besides.
    """
    routed = [Routed(static, batch)] if static else route(batch, shape.columns, shape.partition_columns)
    for one in routed:
        for bucket, rows in _by_bucket(one.rows, shape.bucketing):
            yield Part(one.values, bucket, rows)


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


class BucketPools:
    """A writer pool per bucket; files lie in `staging`/b00000 and so on.

    They share one budget of memory and one of open files: 16, or one for each bucket if there are more of these.

    Methods raise StorageUnavailable and InvalidTable as `WriterPool` does; then call `abort`.
    """

    def __init__(
        self,
        staging: Path,
        shape: Shape,
        write_id: int,
        *,
        max_pending_bytes: int = 64 << 20,
        statement: int | None = None,
    ) -> None:
        self._statement = statement
        self._staging = staging
        self._shape = shape
        self._write_id = write_id
        self._max_pending = max_pending_bytes
        self._pools: dict[int, WriterPool] = {}

    def add(self, part: Part) -> None:
        """Take rows."""
        self._pool(part.bucket).add(part.partition, part.rows)
        if sum(pool.pending_bytes for pool in self._pools.values()) > self._max_pending:
            self.flush()

    def flush(self) -> None:
        """Give all rows that wait to their ORC writers."""
        for pool in self._pools.values():
            pool.flush()

    def close(self) -> list[WrittenFile]:
        """Finish all files and tell what there is."""
        return [file for pool in self._pools.values() for file in pool.close()]

    def abort(self) -> None:
        """Close and remove all files; never raises."""
        for pool in self._pools.values():
            pool.abort()

    def _pool(self, bucket: int) -> WriterPool:
        if bucket not in self._pools:
            directory = self._staging / f"b{bucket:05d}"
            with storage_errors(directory):
                directory.mkdir(parents=True)
            self._pools[bucket] = WriterPool(
                directory,
                self._shape.columns,
                self._write_id,
                bucket,
                encoding=self._shape.encoding,
                max_open_writers=max(1, _MAX_OPEN // (self._shape.bucketing.count if self._shape.bucketing else 1)),
                max_pending_bytes=self._max_pending,
                statement=self._statement,
            )
        return self._pools[bucket]
