"""The stage of one Spark task: read offset ranges, decode and route the records, and write hidden ORC files.

Invariant: data is columnar from the consumer's batches to the ORC file. Memory is bounded by one batch of records and
the limit of the writer pool, whatever the size of the ranges.
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
from ingestd.acid.writer_pool import OpenStagingFile, StagingFile, StagingFiles, WriterPool
from ingestd.errors import IngestdError, RecordError, TooManyPartitions
from ingestd.formats.decoder import ConstraintDecoder, DecodeResult, Reject
from ingestd.formats.json.decoder import JsonDecoder
from ingestd.ingest.options import Tombstones
from ingestd.kafka.ranges import OffsetRange, TopicIdentity
from ingestd.kafka.reader import Batch, read
from ingestd.kafka.timestamps import FirstRecord
from ingestd.schema import Column
from ingestd.storage.local import make_leaf

# How many bytes of a rejected record its error shows.
_HEAD = 80


@dataclass(frozen=True, slots=True)
class StageTask:
    """The input of one task.

    `bucket` is the number in the names of the task's files; each task of a transaction has a different one. `topics`
    contains the identities of the topics, `staging` is the path of the transaction's staging directory, and
    `max_partitions` limits the number of partitions that the transaction may write.
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
    max_partitions: int


@dataclass(frozen=True, slots=True)
class StageResult:
    """The output of one task: its files, the number of records read and skipped, and the bytes of record values.

    `firsts` contains the first record of each range.
    """

    files: tuple[StagingFile, ...]
    records: int
    skipped: int
    bytes: int
    firsts: tuple[FirstRecord, ...]


def run(task: StageTask) -> StageResult | IngestdError:
    """Stage the ranges of one task. Errors are returned, because Spark converts raised errors to text."""
    # Reference counts free the records. The garbage collector's search for cycles took 17 % of the CPU time.
    gc.disable()
    try:
        return _stage(task)
    except IngestdError as error:
        return error
    finally:
        gc.enable()


def _stage(task: StageTask) -> StageResult:
    # A retried task must not write to the files of its first attempt, which may still be running.
    directory = Path(task.staging) / f"task-{task.bucket}-{uuid.uuid4().hex[:8]}"
    make_leaf(directory)
    json = JsonDecoder(_record_columns(task), tombstones=task.tombstones)
    decoder = ConstraintDecoder(json, partial(unfit_rows, shape=task.shape))
    files = StagingFiles(directory, task.shape.columns, task.write_id, encoding=task.shape.encoding)
    pool = WriterPool(files)
    records = skipped = size = 0
    firsts: list[FirstRecord] = []
    try:
        for batch in read(task.kafka, task.ranges, topics=task.topics):
            decoded = decoder.decode(batch.values)
            _raise_first_reject(batch, decoded)
            _write(task, pool, decoded)
            records, skipped, size = records + len(batch.values), skipped + decoded.skipped, size + batch.size
            firsts += batch.firsts
        pool.close()
        return StageResult(tuple(files.closed), records, skipped, size, tuple(firsts))
    except BaseException:
        pool.abort()
        raise


def _record_columns(task: StageTask) -> tuple[Column, ...]:
    """Return the columns to decode from the records: all columns, without partition columns that have static values."""
    return task.shape.columns + (() if task.static_partition else task.shape.partition_columns)


def _write(task: StageTask, pool: WriterPool[OpenStagingFile], decoded: DecodeResult) -> None:
    for batch in decoded.batches:
        for part in route(batch, task.shape, task.static_partition):
            pool.add(part.partition, task.bucket, part.rows)
        check_partition_count(len(pool.partitions), task.max_partitions)


def check_partition_count(count: int, limit: int) -> None:
    """Raise TooManyPartitions when a transaction writes more than `limit` partitions."""
    if count > limit:
        raise TooManyPartitions(
            f"one transaction would write more than {limit:,} partitions",
            where="commit.partitions",
            hint="partition by a column with fewer values, limit a transaction to fewer records (commit.rows,"
            " commit.bytes), or raise commit.partitions if the metastore can handle the load",
        )


def _raise_first_reject(batch: Batch, decoded: DecodeResult) -> None:
    """Raise RecordError for the first reject of a batch, if there is one. Dead letters are not implemented yet."""
    if not decoded.rejects:
        return
    reject: Reject = decoded.rejects[0]
    column = f", column {reject.column}" if reject.column else ""
    more = f" ({len(decoded.rejects)} rejected records in this batch)" if len(decoded.rejects) > 1 else ""
    raise RecordError(
        f"{reject.reason}{more}; the record starts with {reject.head[:_HEAD]!r}",
        where=f"{batch.origin(reject.row)}{column}",
        hint="fix the producer or the table; the mapping stopped before this record, and no record was lost",
    )
