"""The stage of a replay: decodes the records of dead letters, and writes hidden files of their rows and of their marks.

Invariant: a letter has a mark if and only if its record was decoded. All rows that the mapping would make of the record
are then in the files of rows. Letters without a record, which could not be read from Kafka, are left as they are. With
`where` or `transform`, Spark computes the rows on this machine, in a single task.
"""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ingestd.acid.writer_pool import PoolLimits, StagingFile, StagingFiles, WriterPool
from ingestd.errors import IngestdError, InvalidTable, RecordError
from ingestd.formats.decoder import DecodeResult
from ingestd.hive.tables import Table
from ingestd.ingest.letters.groups import LetterGroup, grouped
from ingestd.ingest.letters.table import UNREAD, LetterTable, Replay, letters_of, marks_of
from ingestd.ingest.letters.writer import LetterTargets
from ingestd.ingest.options import MappingOptions
from ingestd.ingest.rows.decoding import NONE_REFUSED, Refused, RowDecoder
from ingestd.ingest.stage.fault import Trial
from ingestd.ingest.stage.task import Access, Output, RecordRules, StagedTable, StageTask, check_rows, write_rows
from ingestd.ingest.table.evolution import ColumnsNeeded, require_columns
from ingestd.ingest.table.target import decoding_of, partitioning_of
from ingestd.kafka.reader import Batch
from ingestd.spark.engine import Engine, JobGroup
from ingestd.spark.errors import JobFailed
from ingestd.spark.query import Batches, Query
from ingestd.spark.shared import Reference
from ingestd.storage.system_errors import guarded

_LIMITS = PoolLimits(pending_bytes=16 << 20)
# The columns of letters that name their records.
_ORIGIN = ["record_topic", "record_partition", "record_offset"]


@dataclass(frozen=True, slots=True)
class Staged:
    """The staged files of rows and of marks.

    `replayed` is the number of letters with a mark, and `remaining` contains the groups of the others, with their
    present reasons.
    """

    rows: tuple[StagingFile, ...]
    marks: tuple[StagingFile, ...]
    replayed: int
    remaining: tuple[LetterGroup, ...]


def replay_task(
    options: MappingOptions, table: Table, write_id: int, staging: str, refused: Refused = NONE_REFUSED
) -> StageTask:
    """Return the task of a stage that reads nothing from Kafka, and whose rejects remain what they are.

    `refused` are the `RefusedPartitions.reasons`.
    """
    rules = RecordRules.of(options, decoding_of(table, options, refused))
    partitioning = partitioning_of(table, options)
    return StageTask(
        mapping=options.name,
        number=0,
        tasks=1,
        ranges=(),
        offsets=0,
        topics={},
        rules=replace(rules, on_error="dead_letter", on_unreadable="stop", max_rejects=None),
        table=StagedTable(table.shape, partitioning, write_id, staging, options.commit.partitions),
        letters=LetterTargets(),
    )


@dataclass(slots=True)
class ReplayStage:
    """Decodes the records of letters as a stage of the mapping does, and writes rows and marks.

    `engine` returns Spark on this machine, and is called only if the task has a query.
    """

    access: Access = field(repr=False)
    task: StageTask
    letters: LetterTable
    replay: Replay
    engine: Callable[[], Engine]

    def run(self, remaining: Iterable[pa.RecordBatch]) -> Staged:
        """Stage letters, given as rows of their table.

        Raises InvalidTable, TooManyPartitions, StorageUnavailable, and with a query the errors of `Engine.query`, and
        RecordError for a row of its result that the table cannot store.
        """
        name = f"replay-{uuid.uuid4().hex[:8]}"
        output = self._output(name)
        outbox = self.access.storages.at(self.letters.staging).outbox(self.letters.staging, f"{name}-letters")
        shape = self.letters.shape
        mark_files = StagingFiles(outbox, shape.columns, self.letters.write_id, encoding=shape.encoding)
        marks = WriterPool(mark_files, _LIMITS)
        decoder = self.task.rules.decoding.decoder(self.task.rules.format, self.access.registry)
        rejects: tuple[LetterGroup, ...] = ()
        unread: list[LetterGroup] = []
        replayed = 0
        try:
            topics = _by_topic(_with_record(remaining, unread))
            for letters, batch, decoded in chain.from_iterable(self._decode(decoder, of_topic) for of_topic in topics):
                records = pa.array(decoded.records_of_rows(batch.values))
                output.write(decoded.batches, letters.select(_ORIGIN).take(records))
                fits = np.ones(letters.num_rows, np.bool_)
                fits[[reject.row for reject in decoded.rejects]] = False
                rejects = grouped([*rejects, *_rejects(letters, decoded)])
                if fits.any():
                    replayed += int(fits.sum())
                    marks.add((), 0, marks_of(letters.filter(pa.array(fits)), self.replay))
            rows = output.finish()
            marks.close()
        except BaseException:
            output.abort()
            marks.abort()
            raise
        return Staged(rows, tuple(mark_files.closed), replayed, grouped([*rejects, *unread]))

    def _output(self, name: str) -> _Output:
        query = self.task.rules.decoding.query
        if query is None:
            return _DecodedOutput(Output(self.access, self.task, name))
        return _QueriedOutput(self.engine(), query, self.access, self.task)

    def _decode(
        self, decoder: RowDecoder, letters: pa.RecordBatch
    ) -> Iterator[tuple[pa.RecordBatch, Batch, DecodeResult]]:
        """Yield the letters in parts, with their records and what these become."""
        start = 0
        batch = _batch(letters, keep_messages=self.task.rules.decoding.columns.need_messages)
        for part, decoded in decoder.decode_in_parts(batch):
            try:
                require_columns(self.task.rules.evolution, decoder, self.task.table.shape, part)
            except ColumnsNeeded as error:
                hint = "add them with ALTER TABLE, or let the mapping do so by reading a record with the same schema"
                raise InvalidTable(error.what, where=f"mapping {self.task.mapping}", hint=hint) from error
            yield letters.slice(start, len(part.values)), part, decoded
            start += len(part.values)


class _Output(Protocol):
    def write(self, batches: Sequence[pa.RecordBatch], origins: pa.RecordBatch) -> None:
        """Write decoded rows, each of which has a row of `_ORIGIN`."""

    def finish(self) -> tuple[StagingFile, ...]: ...

    def abort(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _DecodedOutput:
    """Writes the decoded rows themselves."""

    output: Output

    def write(self, batches: Sequence[pa.RecordBatch], origins: pa.RecordBatch) -> None:
        self.output.write(batches)

    def finish(self) -> tuple[StagingFile, ...]:
        return self.output.finish()

    def abort(self) -> None:
        self.output.abort()


@dataclass(frozen=True, slots=True)
class _Rows:
    """The decoded rows at some places of the file `path`, from which `task` writes rows of the table."""

    path: str
    task: StageTask
    places: range

    def parts(self) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
        """Yield rows, and as many rows of `_ORIGIN`."""
        start = 0
        with open(self.path, "rb") as file:
            while file.peek(1):
                batches, origins = pickle.load(file)
                start_of_part = start
                for batch in batches:
                    first, end = max(self.places.start, start), min(self.places.stop, start + batch.num_rows)
                    if first < end:
                        length = end - first
                        yield batch.slice(first - start, length), origins.slice(first - start_of_part, length)
                    start += batch.num_rows


class _QueriedOutput:
    """Writes the result of a query over the decoded rows, which wait in a temporary file until all are decoded."""

    def __init__(self, engine: Engine, query: Query, access: Access, task: StageTask) -> None:
        self._engine = engine
        self._query = query
        self._access = access
        self._task = task
        self._count = 0
        self._file = NamedTemporaryFile(prefix="ingestd-replay-")  # noqa: SIM115 - `finish` or `abort` closes it

    def write(self, batches: Sequence[pa.RecordBatch], origins: pa.RecordBatch) -> None:
        with guarded(Path(self._file.name)):
            pickle.dump((batches, origins), self._file)
            self._file.flush()
        self._count += origins.num_rows

    def finish(self) -> tuple[StagingFile, ...]:
        files = self._evaluated() if self._count else ()
        self._file.close()
        return files

    def abort(self) -> None:
        with suppress(OSError):  # of a full disk, to which its buffer cannot be written
            self._file.close()

    def _evaluated(self) -> tuple[StagingFile, ...]:
        access, group = self._engine.share(self._access), JobGroup(self._task.mapping)
        trial = Trial(self._engine, group, self._query, self._count, self._rows, self._name, _decoded_rows, _check)
        try:
            write = partial(_write, access.reference())
            items = [self._rows(range(self._count))]
            [(_, files)] = self._engine.query(group, self._query, _decoded_rows, write, items)
        except JobFailed as error:
            raise trial.explain(error) from error.__cause__
        else:
            if isinstance(files, IngestdError):
                raise trial.explain(files) if isinstance(files, RecordError) else files
        finally:
            access.release()
        return files

    def _rows(self, places: range) -> _Rows:
        return _Rows(self._file.name, self._task, places)

    def _name(self, place: int) -> str:
        """Return the topic, partition and offset of the record of a row."""
        [(_, origin)] = self._rows(range(place, place + 1)).parts()
        topic, partition, offset = (origin.column(name)[0] for name in _ORIGIN)
        return f"{topic}[{partition}] offset {offset}"


def _decoded_rows(rows: _Rows, report: Callable[[None], None]) -> Iterator[pa.RecordBatch]:
    for batch, _ in rows.parts():
        yield batch
    report(None)


def _write(access: Reference[Access], rows: _Rows, batches: Batches) -> tuple[StagingFile, ...] | IngestdError:
    return write_rows(access, rows.task, batches)


def _check(rows: _Rows, batches: Batches) -> RecordError | None:
    return check_rows(rows.task, batches)


def _with_record(remaining: Iterable[pa.RecordBatch], unread: list[LetterGroup]) -> Iterator[pa.RecordBatch]:
    """Yield the letters that have a record, and add the others to `unread`."""
    for letters in remaining:
        is_unread = pc.equal(pc.fill_null(letters.column("error_stage"), ""), UNREAD)
        unread[:] = grouped([*unread, *map(LetterGroup.of, letters_of(letters.filter(is_unread)))])
        yield letters.filter(pc.invert(is_unread))


def _by_topic(remaining: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Split batches of letters, because a batch of records has one topic."""
    for letters in remaining:
        topics = letters.column("record_topic")
        for topic in pc.unique(topics).to_pylist():
            yield letters.filter(pc.equal(topics, topic))


def _batch(letters: pa.RecordBatch, *, keep_messages: bool) -> Batch:
    """Return the records of letters of one topic, as they were read from Kafka."""
    values = letters.column("record_value").to_pylist()
    return Batch(
        letters.column("record_topic")[0].as_py(),
        values,
        letters.column("record_partition").to_numpy(zero_copy_only=False),
        letters.column("record_offset").to_numpy(zero_copy_only=False),
        sum(map(len, filter(None, values))),
        messages=[letter.record.message(letter.partition, letter.offset) for letter in letters_of(letters)]
        if keep_messages
        else (),
    )


def _rejects(letters: pa.RecordBatch, decoded: DecodeResult) -> Iterator[LetterGroup]:
    """Yield the letters that remain, with their present columns and reasons."""
    ordered = sorted(decoded.rejects, key=lambda rejected: rejected.row)
    rows = letters.take(pa.array([reject_.row for reject_ in ordered], pa.int64()))
    for reject, letter in zip(ordered, letters_of(rows), strict=True):
        yield LetterGroup.of(replace(letter, column=reject.column, reason=reject.reason))
