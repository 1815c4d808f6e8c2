"""What a mapping would make of records of its topics: the rows, their partitions and buckets, and the rejects.

Invariant: nothing is written to Hive or Kafka, no position is committed, and no consumer group is joined. Records are
decoded, checked and routed by the functions of a stage.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import accumulate, islice
from typing import Any

import numpy as np
import pyarrow as pa

from ingestd.acid.hive_text import hive_text
from ingestd.acid.routing import Shape, route
from ingestd.acid.writer_pool import StagingFiles, WriterPool
from ingestd.errors import ConfigError, IngestdError, RecordError, encodable
from ingestd.formats.decoder import DecodeResult
from ingestd.hive.alteration import describe
from ingestd.hive.client import Metastore
from ingestd.hive.tables import Table
from ingestd.ingest.inspection.checks import usable_control
from ingestd.ingest.inspection.excerpt import ANSWER_SECONDS, End, Excerpt, ExcerptLimits, read_excerpt
from ingestd.ingest.inspection.positions import InvalidPosition
from ingestd.ingest.options import CommitOptions, MappingOptions, milliseconds, parse_time
from ingestd.ingest.rows.decoding import RowDecoder
from ingestd.ingest.rows.partitioning import Partitioning
from ingestd.ingest.rows.transform import table_rows
from ingestd.ingest.stage.exchange import packed
from ingestd.ingest.stage.fault import Trial, at_record, ignore_rows
from ingestd.ingest.table.creation import find_letters, find_target
from ingestd.ingest.table.evolution import columns_for
from ingestd.ingest.table.target import check_query, decoder_for, decoding_of, partitioning_of
from ingestd.kafka.admin import Broker
from ingestd.kafka.ranges import OffsetRange, TopicIdentity, TopicPartition
from ingestd.kafka.reader import Batch
from ingestd.schema import Column
from ingestd.spark.engine import Engine, JobGroup
from ingestd.spark.errors import JobFailed
from ingestd.spark.query import Query
from ingestd.storage.storages import Storages

_PLACE = re.compile(r"([\w.-]{1,249}):(\d+):(\d+)")

Values = tuple[str | None, ...]
"""The values of a row as HiveServer2 returns them, without partition columns; None is NULL."""


class NothingToPreview(IngestdError):
    """The topics of a mapping have no records, or none after the start of a preview."""

    exit_code = 65


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record of each partition at or after a time, in milliseconds since 1970 (UTC)."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class AtOffset:
    """An offset of a partition; None means the only partition that the mapping reads."""

    partition: TopicPartition | None
    offset: int


class InvalidStart(ConfigError):
    """A text that names no start of a preview."""


def parse_start(text: str) -> AtTime | AtOffset:
    """Parse a time such as 2026-11-01T00:00Z, an offset, or TOPIC:PARTITION:OFFSET. Raises InvalidStart."""
    if text.isdecimal():
        return AtOffset(None, int(text))
    # A time can look like TOPIC:PARTITION:OFFSET.
    moment = parse_time(text)
    if moment is not None:
        return AtTime(milliseconds(moment))
    match = _PLACE.fullmatch(text)
    if match is None:
        raise InvalidStart(
            f"{text[:100]!r} is neither a time such as 2026-11-01T00:00:00Z nor OFFSET nor TOPIC:PARTITION:OFFSET"
        )
    return AtOffset(TopicPartition(match[1], int(match[2])), int(match[3]))


@dataclass(frozen=True, slots=True, order=True)
class Origin:
    """The place of a record in Kafka."""

    topic: str
    partition: int
    offset: int

    @classmethod
    def of(cls, batch: Batch, record: int) -> Origin:
        """Return the place of a record of the batch."""
        return cls(batch.topic, int(batch.partitions[record]), int(batch.offsets[record]))

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}] offset {self.offset}"


@dataclass(frozen=True, slots=True)
class PreviewRow:
    """A row: its record, the name of its partition ('' without partition columns), its bucket, and its values."""

    origin: Origin
    partition: str
    bucket: int
    values: Values


@dataclass(frozen=True, slots=True)
class PreviewReject:
    """A reject: its record, the column that cannot store its value, and the reason.

    The column is '' if the record is malformed or cannot be read.
    """

    origin: Origin
    column: str
    reason: str


@dataclass(frozen=True, slots=True)
class Estimate:
    """The files of a transaction that ends by `commit.rows` or `commit.bytes`, estimated from the rows of a preview.

    `records` and `rows` are numbers in that transaction, `bytes` is the size of all its ORC files, and `row_bytes` that
    of one row. It is too large if there are few rows, because ORC compresses many rows better.
    """

    records: int
    rows: int
    bytes: int
    row_bytes: float


@dataclass(frozen=True, slots=True)
class Sample:
    """The number of rows of `records` records, and the columns that no record fills (`Preview.unfilled`).

    `unreadable` of the records cannot be read, and are rejects.
    """

    records: int
    unreadable: int
    rows: int
    unfilled: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Preview:
    """The result for `records` records, of which `skipped` are tombstones; rows and rejects are ordered by record.

    `statements` are those by which the mapping will first create or alter the table, and create that of its dead
    letters; `table` is the result. `estimate` is None if there are fewer than two rows. `unfilled` are the columns that
    are NULL in all rows because no record has a field for them; with a `transform`, those of its view. `unstored` are
    the fields without a column, whose values the table will not contain.
    """

    table: Table
    statements: tuple[str, ...]
    records: int
    skipped: int
    rows: tuple[PreviewRow, ...]
    rejects: tuple[PreviewReject, ...]
    estimate: Estimate | None
    unfilled: tuple[str, ...]
    unstored: tuple[str, ...]

    @property
    def partitions(self) -> tuple[str, ...]:
        """The names of the partitions of the rows, sorted."""
        return tuple(sorted({row.partition for row in self.rows}))

    def document(self, mapping: str) -> dict[str, Any]:
        """Return the preview of a mapping as a JSON object."""
        names = [column.name for column in self.table.columns]
        return {
            "mapping": mapping,
            "table": str(self.table.name),
            "statements": list(self.statements),
            "records": self.records,
            "skipped": self.skipped,
            "rows": [
                asdict(row.origin)
                | {
                    "table_partition": row.partition or None,
                    "bucket": row.bucket if self.table.bucketing else None,
                    "values": dict(zip(names, row.values, strict=True)),
                }
                for row in self.rows
            ],
            "rejects": [
                asdict(reject.origin) | {"column": reject.column, "reason": reject.reason} for reject in self.rejects
            ],
            "unfilled": list(self.unfilled),
            "unstored": list(self.unstored),
            "estimate": self.estimate and asdict(self.estimate) | {"partitions": len(self.partitions)},
        }


def preview(
    metastore: Metastore,
    options: MappingOptions,
    limit: int,
    start: AtTime | AtOffset | None,
    engine: Callable[[], Engine],
    group: JobGroup | None = None,
) -> Preview:
    """Decode at most `limit` records of the mapping's topics: the first ones at or after `start`, or the last ones.

    The mapping need not have run. `engine` is called only for a mapping with `where` or `transform`, whose jobs are in
    `group`. Raises InvalidTable, InvalidTopic, InvalidPosition for an offset that Kafka does not have,
    NothingToPreview, LoginFailed, MetastoreUnavailable, BrokerUnavailable and the other errors of `read_excerpt`,
    `check_query` and `Engine.query`.
    """
    usable_control(metastore, options.control)
    table, statement = find_target(metastore, options)
    creations = (statement, find_letters(metastore, options))
    if options.where or options.transform:
        check_query(table, options, engine().examine)
    static = partitioning_of(table, options).static
    excerpt = _read(options, ExcerptLimits(limit), start)
    decoded = _decode(options, table, excerpt.batches)
    alterations: list[str] = []
    # With a new column, records that had no field of the table may be rows, and need columns for their other fields.
    while (evolved := decoded.evolved) != table.columns:
        alterations += describe(table, evolved)
        table = replace(table, columns=evolved)
        decoded = _decode(options, table, excerpt.batches)
    batches, results = decoded.batches, decoded.results
    query = decoding_of(table, options).query
    if query is not None:
        partitioning = partitioning_of(table, options)
        evaluate = partial(_evaluate, engine(), group or JobGroup("preview"), query)
        results = list(_queried(evaluate, table, partitioning, batches, results))
    rows: list[PreviewRow] = []
    rejects = [
        PreviewReject(Origin(bad.partition.topic, bad.partition.partition, offset), "", bad.reason)
        for bad in excerpt.unreadable
        for offset in range(bad.first, bad.next)
    ]
    for batch, result in zip(batches, results, strict=True):
        records = result.records_of_rows(batch.values).tolist()
        numbered = zip(records, _rows(table, static, result), strict=True)
        rows += [PreviewRow(Origin.of(batch, record), *row) for record, row in numbered]
        rejects += [
            PreviewReject(Origin.of(batch, reject.row), reject.column, reject.reason) for reject in result.rejects
        ]
    return Preview(
        table,
        tuple(filter(None, (*creations, *alterations))),
        excerpt.records,
        sum(result.skipped for result in results),
        tuple(sorted(rows, key=lambda row: row.origin)),
        tuple(sorted(rejects, key=lambda reject: reject.origin)),
        _estimate(table.shape, [rows for result in results for rows in result.batches], options.commit, batches),
        decoded.unfilled,
        decoded.unstored,
    )


def take_sample(metastore: Metastore, options: MappingOptions, limits: ExcerptLimits) -> Sample:
    """Decode the last records without evaluating SQL. Raises as `preview`."""
    table, _ = find_target(metastore, options)
    excerpt = _read(options, limits, None)
    decoder = decoder_for(table, options)
    rows = [rows for batch in excerpt.batches for _, part in decoder.decode_in_parts(batch) for rows in part.batches]
    unreadable = excerpt.records - sum(len(batch.values) for batch in excerpt.batches)
    unfilled = _unfilled(decoder, excerpt.batches, rows)
    return Sample(excerpt.records, unreadable, sum(batch.num_rows for batch in rows), unfilled)


@dataclass(frozen=True, slots=True)
class _Decoded:
    """The results of some batches for a table, and the columns that the mapping would give it for them (`evolved`).

    `batches` are their parts that were decoded together.
    """

    batches: list[Batch]
    results: list[DecodeResult]
    evolved: tuple[Column, ...]
    unfilled: tuple[str, ...]
    unstored: tuple[str, ...]


def _decode(options: MappingOptions, table: Table, batches: Sequence[Batch]) -> _Decoded:
    decoder = decoder_for(table, options)
    parts = [part for batch in batches for part in decoder.decode_in_parts(batch)]
    results = [decoded for _, decoded in parts]
    return _Decoded(
        [part for part, _ in parts],
        results,
        columns_for(options.schema_evolution, decoder, table.shape, batches),
        _unfilled(decoder, batches, [rows for result in results for rows in result.batches]),
        tuple(dict.fromkeys(encodable(name) for batch in batches for name in decoder.unstored_fields(batch))),
    )


def _unfilled(decoder: RowDecoder, batches: Sequence[Batch], rows: Sequence[pa.RecordBatch]) -> tuple[str, ...]:
    """Return the columns that are NULL in all rows, and for which no record has a field; none if there are no rows."""
    if not rows:
        return ()
    absent = frozenset.intersection(*(decoder.absent_columns(batch) for batch in batches))
    names = [name for name in rows[0].schema.names if name in absent]
    return tuple(name for name in names if all(row.column(name).null_count == row.num_rows for row in rows))


def _queried(
    evaluate: Callable[[Sequence[bytes], Sequence[Origin]], list[list[pa.RecordBatch]]],
    table: Table,
    partitioning: Partitioning,
    batches: Sequence[Batch],
    results: Sequence[DecodeResult],
) -> Iterator[DecodeResult]:
    """Yield the rows of the table instead of the decoded rows of each batch. Raises RecordError for a row of these."""
    # As bytes, because each task unpickles all items.
    rows = [
        packed(rows.take([index])) for result in results for rows in result.batches for index in range(rows.num_rows)
    ]
    of_rows = [decoded.records_of_rows(batch.values).tolist() for batch, decoded in zip(batches, results, strict=True)]
    origins = [Origin.of(batch, record) for batch, of_row in zip(batches, of_rows, strict=True) for record in of_row]
    done = iter(evaluate(rows, origins) if rows else [])
    for batch, decoded, of_row in zip(batches, results, of_rows, strict=True):
        computed: list[pa.RecordBatch] = []
        records: list[int] = []
        for record, of_record in zip(of_row, islice(done, len(of_row)), strict=True):
            for result in of_record:
                try:
                    computed.append(table_rows(result, table.shape, partitioning))
                except RecordError as error:
                    raise at_record(error, str(Origin.of(batch, record))) from error
                records += [record] * result.num_rows
        yield DecodeResult(computed, decoded.rejects, decoded.skipped, np.array(records, np.int64))


def _evaluate(
    engine: Engine, group: JobGroup, query: Query, rows: Sequence[bytes], origins: Sequence[Origin]
) -> list[list[pa.RecordBatch]]:
    """Return the result of a query for each row. Raises QueryFailed, which names the record, and those of the engine.

    One job evaluates all of them, as in a stage. But each row is a task, which shows its record.
    """
    try:
        return [result for _, result in engine.query(group, query, _yield_rows, _list, [(row,) for row in rows])]
    except JobFailed as error:
        trial = Trial(
            engine,
            group,
            query,
            len(rows),
            lambda places: rows[places.start : places.stop],
            lambda place: str(origins[place]),
            _yield_rows,
            ignore_rows,
        )
        raise trial.explain(error) from error.__cause__


def _yield_rows(rows: Sequence[bytes], report: Callable[[None], None]) -> Iterator[pa.RecordBatch]:
    for row in rows:
        yield from pa.ipc.open_stream(row)
    report(None)


def _list(_rows: Sequence[bytes], batches: Iterator[pa.RecordBatch]) -> list[pa.RecordBatch]:
    return list(batches)


def _read(options: MappingOptions, limits: ExcerptLimits, start: AtTime | AtOffset | None) -> Excerpt:
    """Return the records. Raises NothingToPreview if there are none."""
    broker = Broker(options.kafka, timeout_seconds=ANSWER_SECONDS)
    with broker.explained():
        topics = broker.topics(options.topics)
    partitions = [partition for topic in topics.values() for partition in topic.partitions]
    first, ends = broker.earliest(partitions), broker.ends(partitions)
    if isinstance(start, AtTime):
        first = broker.at_time(partitions, start.timestamp_ms)
    elif isinstance(start, AtOffset):
        first = _first_of_one(options, start, first, ends)
    ranges = [OffsetRange(*key, offset, ends[key]) for key, offset in sorted(first.items()) if ends[key] > offset]
    identities: Mapping[str, TopicIdentity] = {name: topic.identity for name, topic in topics.items()}
    end: End = "last" if start is None else "first"
    excerpt = read_excerpt(options.reader, ranges, limits, end, topics=identities, on_unreadable=options.on_unreadable)
    if not excerpt.records:
        where = f"mapping {options.name}, topics {', '.join(options.topics)}"
        if start is None:
            raise NothingToPreview("no records were found", where=where, hint="produce a record first")
        raise NothingToPreview("no records were found at or after the start", where=where, hint="choose another --at")
    return excerpt


def _first_of_one(
    options: MappingOptions,
    start: AtOffset,
    first: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """Return the partition that `start` names with the offset. Raises InvalidPosition."""
    where = f"mapping {options.name}"
    partition = start.partition
    if partition is None:
        if len(first) > 1:
            hint = "name one, as TOPIC:PARTITION:OFFSET"
            raise InvalidPosition(f"the mapping reads {len(first)} partitions", where=where, hint=hint)
        [partition] = first
    if partition not in first:
        hint = f"it reads {len(first)} partitions of the topics {', '.join(options.topics)}"
        raise InvalidPosition(f"the mapping does not read {partition}", where=where, hint=hint)
    earliest, end = first[partition], ends[partition]
    if not earliest <= start.offset <= end:
        raise InvalidPosition(
            f"Kafka does not have the offset {start.offset}: the partition has {earliest}..{end}",
            where=str(partition),
            hint=f"use an offset from {earliest} to {end}",
        )
    return {partition: start.offset}


def _rows(table: Table, static: tuple[str | None, ...], decoded: DecodeResult) -> Iterator[tuple[str, int, Values]]:
    """Yield the name of the partition, the bucket and the values of each row."""
    for batch in decoded.batches:
        for row in range(batch.num_rows):
            [part] = route(batch.slice(row, 1), table.shape, static)
            columns = zip(table.columns, part.rows.columns, strict=True)
            values = tuple(hive_text(column.type, array[0]) for column, array in columns)
            yield table.partition_name(part.partition), part.bucket, values


def _estimate(
    shape: Shape, decoded: Sequence[pa.RecordBatch], commit: CommitOptions, records: Sequence[Batch]
) -> Estimate | None:
    """Estimate the size of a row from the second half of the rows: only the first half needs headers and footers."""
    rows, count = sum(batch.num_rows for batch in decoded), sum(len(batch.values) for batch in records)
    if rows < 2:
        return None
    half, size = rows // 2, sum(batch.size for batch in records)
    names = [column.name for column in shape.columns]
    batches = [batch.select(names) for batch in decoded]
    more_bytes = max(0, _file_size(shape, batches) - _file_size(shape, _first(batches, half)))
    row_bytes = more_bytes / (rows - half)
    planned = min(commit.rows, commit.bytes * count // size) if size else commit.rows
    expected = planned * rows // count
    return Estimate(planned, expected, int(expected * row_bytes), row_bytes)


def _first(batches: Sequence[pa.RecordBatch], rows: int) -> list[pa.RecordBatch]:
    """Return the first rows of the batches."""
    starts = accumulate((batch.num_rows for batch in batches), initial=0)
    return [batch.slice(0, rows - start) for start, batch in zip(starts, batches, strict=False) if start < rows]


def _file_size(shape: Shape, batches: Sequence[pa.RecordBatch]) -> int:
    """Return the size of a file with these rows in bytes, after writing it to a temporary directory."""
    with tempfile.TemporaryDirectory(prefix="ingestd-preview-") as directory:
        outbox = Storages().at(directory).outbox(directory, "sample")
        files = StagingFiles(outbox, shape.columns, write_id=1, encoding=shape.encoding)
        pool = WriterPool(files)
        for batch in batches:
            pool.add((), 0, batch)
        pool.close()
        return sum(file.bytes for file in files.closed)
