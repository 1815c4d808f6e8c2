"""Reads the dead letters of one mapping: from its table of dead letters if it has one, otherwise from the topic.

Invariant: every letter of the mapping is returned once, in any order. The topic may contain a letter several times, and
records of other mappings and programs. The table contains a letter several times if its record was read again after a
change of the committed position. Nothing is stored, no position is committed, and no consumer group is joined.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from ingestd.acid.rows import FileFormat, RowFile, read_rows, row_files
from ingestd.acid.visibility import ValidWriteIds
from ingestd.errors import ConfigError
from ingestd.hive.tables import Table, TableName
from ingestd.hive.write_ids import read_snapshot, read_transactions
from ingestd.ingest.letters.table import REPLAYED, Letter, Replay, letters_of, load_letter_table
from ingestd.ingest.letters.writer import parse_letter
from ingestd.ingest.options import DeadLetterOptions, MappingOptions
from ingestd.kafka.admin import Broker
from ingestd.kafka.ranges import OffsetRange
from ingestd.kafka.reader import ReadLimits, read
from ingestd.publish.warehouse import Warehouse
from ingestd.storage.contract import Storage

# How long Kafka may take to answer. A user is waiting for the result.
_ANSWER_SECONDS = 10.0
# How many rows are converted to Python objects at a time.
_ROWS = 1_000


@dataclass(frozen=True, slots=True)
class Selection:
    """Chooses letters: those that meet every condition that is given, and at most `limit` of them.

    `reason` is a part of the reason. `since` is inclusive, `until` is not, and both are times of the rejection.
    """

    ids: frozenset[str] = frozenset()
    column: str | None = None
    reason: str = ""
    since: datetime | None = None
    until: datetime | None = None
    limit: int | None = None

    def of(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of letters that meet the conditions, regardless of the limit."""
        masks = []
        if self.ids:
            masks.append(pc.is_in(rows.column("id"), value_set=pa.array(sorted(self.ids), pa.string())))
        if self.column is not None:
            masks.append(pc.equal(rows.column("error_column"), self.column))
        if self.reason:
            masks.append(pc.match_substring(rows.column("error_reason"), self.reason))
        times = rows.column("error_time")
        if self.since is not None:
            masks.append(pc.greater_equal(times, _scalar(self.since, times.type)))
        if self.until is not None:
            masks.append(pc.less(times, _scalar(self.until, times.type)))
        return rows.filter(reduce(pc.and_, masks)) if masks else rows


@dataclass(frozen=True, slots=True)
class LetterRows:
    """The rows of a mapping in a table of dead letters, as one snapshot shows them. A stripe is in memory at a time.

    Methods raise StorageUnavailable, also if a compaction has removed a file since. It cannot if a transaction has been
    open since before the snapshot.
    """

    mapping: str
    storage: Storage = field(repr=False)
    files: Sequence[RowFile]
    snapshot: ValidWriteIds

    @classmethod
    def read(cls, warehouse: Warehouse, table: Table, mapping: str) -> LetterRows:
        """List the files that a query that begins now reads. Raises an Unavailable error."""
        snapshot = read_snapshot(warehouse.metastore, table.name)
        is_committed = read_transactions(warehouse.metastore).is_committed
        storage = warehouse.storages.at(table.location)
        return cls(mapping, storage, row_files(storage, table.location, snapshot, is_committed), snapshot)

    def replays(self) -> dict[str, Replay]:
        """Return the letters that were replayed, by id. All letters of one replay share the value."""
        replays: dict[str, Replay] = {}
        shared: dict[Replay, Replay] = {}
        for rows, is_mark in self._batches():
            for mark in letters_of(rows.filter(is_mark)):
                replay = Replay(mark.reason, mark.time)
                replays[mark.id] = shared.setdefault(replay, replay)
        return replays

    def letters(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of letters, without marks, in small batches. A letter may have several rows."""
        for rows, is_mark in self._batches():
            letters = rows.filter(pc.invert(is_mark))
            if letters.num_rows:
                yield letters

    def remaining(self, replays: Mapping[str, Replay], selection: Selection) -> Iterator[pa.RecordBatch]:
        """Yield one row of each letter that is selected and not in `replays`."""
        seen: set[str] = set()
        for rows in self.letters():
            selected = selection.of(rows)
            kept = []
            for index, identity in enumerate(selected.column("id").to_pylist()):
                if len(seen) == selection.limit:
                    break
                if identity is not None and identity not in replays and identity not in seen:
                    seen.add(identity)
                    kept.append(index)
            if kept:
                yield selected.take(pa.array(kept, pa.int64()))
            if len(seen) == selection.limit:
                return

    def _batches(self) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
        for file in self.files:
            for stripe in read_rows(self.storage, file, FileFormat.ORC, self.snapshot):
                own = stripe.filter(pc.equal(stripe.column("mapping"), self.mapping))
                for start in range(0, own.num_rows, _ROWS):
                    rows = own.slice(start, _ROWS)
                    yield rows, pc.equal(pc.fill_null(rows.column("error_stage"), ""), REPLAYED)


def read_letters(warehouse: Warehouse, options: MappingOptions) -> Iterator[Letter]:
    """Yield the dead letters of a mapping. A stripe of the table, or a batch of the topic, is in memory at a time.

    Raises ConfigError if the mapping has no dead letters, TableMissing, InvalidTable, InvalidTopic, LoginFailed, or an
    Unavailable error, also if a compaction has removed a file meanwhile.
    """
    target = letter_target(options)
    if target.table is not None:
        return _distinct(_of_table(warehouse, target.table, options.name))
    return _distinct(letter for letter in _of_topic(options, target.topic) if letter.mapping == options.name)


def letter_target(options: MappingOptions) -> DeadLetterOptions:
    """Return where a mapping writes its dead letters. Raises ConfigError if it writes none."""
    if options.dead_letter is None:
        raise ConfigError(
            "the mapping writes no dead letters",
            where=f"mapping {options.name}",
            hint="set on_error: dead_letter",
        )
    return options.dead_letter


def _of_table(warehouse: Warehouse, name: TableName, mapping: str) -> Iterator[Letter]:
    stored = LetterRows.read(warehouse, load_letter_table(warehouse.metastore, name), mapping)
    replays = stored.replays()
    for rows in stored.letters():
        for letter in letters_of(rows):
            yield replace(letter, replay=replays.get(letter.id))


def _of_topic(options: MappingOptions, topic: str) -> Iterator[Letter]:
    broker = Broker(options.kafka, timeout_seconds=_ANSWER_SECONDS)
    with broker.explained():
        partitions = broker.partitions([topic])
    first, ends = broker.earliest(partitions), broker.ends(partitions)
    ranges = [
        OffsetRange(*partition, first[partition], ends[partition])
        for partition in partitions
        if ends[partition] > first[partition]
    ]
    for batch in read(options.reader, ranges, ReadLimits(silence_seconds=_ANSWER_SECONDS), keep_messages=True):
        for row, headers in enumerate(batch.headers()):
            # Other programs may have written headers that the client cannot read. No dead letter has them.
            letter = None if headers is None else parse_letter(batch.record(row))
            if letter is not None:
                yield letter


def _distinct(letters: Iterable[Letter]) -> Iterator[Letter]:
    seen: set[str] = set()
    for letter in letters:
        if letter.id not in seen:
            seen.add(letter.id)
            yield letter


def _scalar(moment: datetime, kind: pa.DataType) -> pa.Scalar:
    """Return a time as a timestamp of the table, which is in UTC and has no zone."""
    return pa.scalar(moment.astimezone(timezone.utc).replace(tzinfo=None), pa.timestamp("us")).cast(kind)
