"""The stage: one task reads its ranges, decodes, routes and writes ORC files that no reader can see yet.

Runs inside Spark tasks. Invariant: columnar from the consumer's batches to the ORC file, and nothing is kept beyond a
block and the writer pool's budget, whatever the size of the ranges.
"""

from __future__ import annotations

import gc
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ingestd.acid.constraints import unfit_rows
from ingestd.acid.routing import Shape, route
from ingestd.acid.writer_pool import StagingFile, WriterPool
from ingestd.errors import IngestdError, RecordError, TooManyPartitions
from ingestd.formats.decoder import ConstraintDecoder, DecodeResult, Reject
from ingestd.formats.json.decoder import JsonDecoder
from ingestd.ingest.options import Tombstones
from ingestd.kafka.ranges import OffsetRange, TopicIdentity
from ingestd.kafka.reader import Block, read
from ingestd.schema import Column
from ingestd.storage.local import make_leaf

_HEAD = 80


@dataclass(frozen=True, slots=True)
class StageTask:
    """What one task must do; `bucket` numbers its files, so no two tasks of a transaction share one.

    A transaction may write at most `most_partitions` partitions.
    """

    ranges: tuple[OffsetRange, ...]
    topics: Mapping[str, TopicIdentity]
    kafka: Mapping[str, Any] = field(repr=False)
    shape: Shape
    static_partition: tuple[str, ...]
    tombstones: Tombstones
    write_id: int
    bucket: int
    staging: str
    most_partitions: int


@dataclass(frozen=True, slots=True)
class Staged:
    """What one task did: its files, the records it read and the bytes of their values."""

    files: tuple[StagingFile, ...]
    records: int
    skipped: int
    bytes: int


def run(task: StageTask) -> Staged | IngestdError:
    """Stage one task's ranges. A known error is returned, not raised: Spark would turn it into text."""
    # Millions of messages come and go by reference counts; looking for cycles among them cost 17 % of the CPU.
    gc.disable()
    try:
        return _stage(task)
    except IngestdError as error:
        return error
    finally:
        gc.enable()


def _stage(task: StageTask) -> Staged:
    # A retried task must never write into the files of its first attempt.
    directory = Path(task.staging) / f"task-{task.bucket}-{uuid.uuid4().hex[:8]}"
    make_leaf(directory)
    json = JsonDecoder(_record_columns(task), tombstones=task.tombstones)
    decoder = ConstraintDecoder(json, partial(unfit_rows, shape=task.shape))
    pool = WriterPool(directory, task.shape.columns, task.write_id, task.bucket, encoding=task.shape.encoding)
    records = skipped = size = 0
    try:
        for block in read(task.kafka, task.ranges, topics=task.topics):
            decoded = decoder.decode(block.values)
            _refuse(block, decoded)
            _write(task, pool, decoded)
            records, skipped, size = records + len(block.values), skipped + decoded.skipped, size + block.size
        return Staged(tuple(pool.close()), records, skipped, size)
    except BaseException:
        pool.abort()
        raise


def _record_columns(task: StageTask) -> tuple[Column, ...]:
    """Columns that come out of the record: with static partition values those are not asked for."""
    return task.shape.columns + (() if task.static_partition else task.shape.partition_columns)


def _write(task: StageTask, pool: WriterPool, decoded: DecodeResult) -> None:
    for batch in decoded.batches:
        for part in route(batch, task.shape, task.static_partition):
            pool.add(part.partition, part.rows)
        refuse_too_many(pool.partitions, task.most_partitions)


def refuse_too_many(partitions: int, most: int) -> None:
    """Raise TooManyPartitions for a transaction that writes more partitions than it may."""
    if partitions > most:
        raise TooManyPartitions(
            f"one transaction would write more than {most:,} partitions",
            where="commit.partitions",
            hint="partition by a column with fewer values, let a transaction take fewer records (commit.rows,"
            " commit.bytes), or raise commit.partitions if the metastore can bear it",
        )


def _refuse(block: Block, decoded: DecodeResult) -> None:
    """Stop at the first bad record. Dead letters, when they come, take `decoded.rejects` here instead."""
    if not decoded.rejects:
        return
    reject: Reject = decoded.rejects[0]
    column = f", column {reject.column}" if reject.column else ""
    more = f" ({len(decoded.rejects)} bad records in this block)" if len(decoded.rejects) > 1 else ""
    raise RecordError(
        f"{reject.reason}{more}; the record begins {reject.head[:_HEAD]!r}",
        where=f"{block.origin(reject.row)}{column}",
        hint="mend the producer or the table; the mapping stands before this record, nothing is lost",
    )
