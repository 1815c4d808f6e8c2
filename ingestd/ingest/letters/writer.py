"""Writes the dead letters of one task, to a Kafka topic and to the staged files of a Hive table.

Invariant: every dead letter of a committed transaction is in the topic, and exactly once in the table. A task ends only
when Kafka has acknowledged its letters, so the topic has them before the commit: a transaction that is replayed writes
the letter again with the same `ingestd.id`. The files of the table belong to the transaction, which makes them visible
together with its rows.

Letters are sent while the task goes on, and it waits for the topic once, at its end. It waits earlier only to bound the
memory of letters that Kafka has not acknowledged.

A dead letter has the key, the value, the headers and the timestamp of the record. In the topic, further headers, whose
values are UTF-8 texts, follow those of the record: the names `__connect.errors.*` are those of Kafka Connect (KIP-298).
They contain the timestamp, because no record can be written with the timestamp 0 or with none, and a topic may replace
all timestamps.
If the topic refuses the size of a letter, it has a reference instead: only these further headers, after one that says
what was omitted. Records that the client of Kafka cannot read have one letter per batch, with their offsets, but no
value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from itertools import islice

from ingestd.acid.writer_pool import OpenStagingFile, PoolLimits, StagingFile, StagingFiles, WriterPool
from ingestd.errors import InvalidTopic, RecordError, RecordsUnreadable
from ingestd.formats.decoder import Reject
from ingestd.ingest.letters.rejects import RejectedRecord, Rejects
from ingestd.ingest.letters.table import UNREAD, Letter, LetterTable, letter_rows
from ingestd.ingest.options import KafkaField
from ingestd.kafka.ranges import TopicIdentity, TopicPartition
from ingestd.kafka.reader import Batch
from ingestd.kafka.record import Headers, Record, TimestampType
from ingestd.kafka.topic_writer import TopicWriter
from ingestd.kafka.unreadable import UnreadableBatch
from ingestd.storage.storages import Storages

# The names of the headers of a letter, in their order.
_HEADERS = (
    *("__connect.errors.topic", "__connect.errors.partition", "__connect.errors.offset"),
    *("__connect.errors.connector.name", "__connect.errors.task.id", "__connect.errors.stage"),
    *("__connect.errors.class.name", "__connect.errors.exception.class.name", "__connect.errors.exception.message"),
    *("ingestd.id", "ingestd.mapping", "ingestd.column", "ingestd.reason", "ingestd.time"),
    *("ingestd.timestamp.type", "ingestd.timestamp"),
)
# The number of headers of a letter that was written before letters had the timestamps of their records as headers.
_WITHOUT_TIMESTAMP = len(_HEADERS) - 2
_TIMESTAMP_TYPES: Mapping[str, TimestampType] = {"CreateTime": "CreateTime", "LogAppendTime": "LogAppendTime"}
# The type of the timestamp of a record that has none.
_NO_TIMESTAMP = "none"
# The header of a reference. Its value describes the record, which is only in its own topic.
_OMITTED = "ingestd.omitted"
# The stages of Kafka Connect that convert parts of a record. All others belong to the value.
_STAGES: Mapping[KafkaField | None, str] = {"key": "KEY_CONVERTER", "headers": "HEADER_CONVERTER"}
_STAGE_OF_VALUE = "VALUE_CONVERTER"
# How many letters are converted to one Arrow batch, and the bytes of letters that wait to be written.
_BATCH_LETTERS = 1_000
_LIMITS = PoolLimits(pending_bytes=16 << 20)
# The bytes of letters that may wait for an answer of the topic. librdkafka has another copy of them.
_MOST_SENT = 16 << 20


@dataclass(frozen=True, slots=True)
class Origin:
    """What the dead letters of a task have in common.

    `mapping` is the name of the mapping, `task` the number of the task, and `decoder` the class of the options of the
    format. `topics` contains the identities of the topics by name, and `fields` the columns that are filled from Kafka,
    with their fields.
    """

    mapping: str
    task: int
    decoder: str
    topics: Mapping[str, TopicIdentity]
    fields: Mapping[str, KafkaField]

    def letter(self, batch: Batch, reject: Reject) -> Letter:
        """Return the dead letter of a reject of the records of `batch`, whose messages must be kept."""
        described = RejectedRecord.of(batch, reject)
        stage = _STAGES.get(self.fields.get(described.column), _STAGE_OF_VALUE)
        return self._letter(described, str(described.offset), batch.record(reject.row), stage)

    def letter_of_unreadable(self, batch: UnreadableBatch) -> Letter:
        """Return the dead letter of records that the client of Kafka cannot read. Its id contains their offsets."""
        [described] = Rejects.unreadable(batch).first
        offsets = str(batch.first) if batch.next == batch.first + 1 else f"{batch.first}-{batch.next - 1}"
        return self._letter(described, offsets, Record(None, None), UNREAD)

    def _letter(self, described: RejectedRecord, offsets: str, record: Record, stage: str) -> Letter:
        topic, partition = described.partition
        topic_id = self.topics[topic].topic_id or topic
        return Letter(
            f"{self.mapping}:{topic_id}:{partition}:{offsets}",
            self.mapping,
            described.partition,
            described.offset,
            record,
            stage,
            described.column,
            described.reason.encode("utf-8", "backslashreplace").decode(),
            datetime.now(timezone.utc),
        )

    def headers(self, letter: Letter) -> Headers:
        """Return the headers that a dead letter has in addition to those of its record."""
        column = f"column {letter.column}: " if letter.column else ""
        kind = RecordsUnreadable if letter.stage == UNREAD else RecordError
        error = f"{kind.__module__}.{kind.__qualname__}"
        time = letter.time.isoformat(timespec="milliseconds") if letter.time else ""
        texts = (
            *(letter.partition.topic, str(letter.partition.partition), str(letter.offset)),
            *(letter.mapping, str(self.task), letter.stage),
            *(self.decoder, error, column + letter.reason),
            *(letter.id, letter.mapping, letter.column, letter.reason, time),
            *_timestamp_texts(letter.record),
        )
        return tuple((name, text.encode()) for name, text in zip(_HEADERS, texts, strict=True))


def _timestamp_texts(record: Record) -> tuple[str, str]:
    """Return the type of the timestamp of a record, and the milliseconds since 1970; the second is '' without one."""
    if record.timestamp_ms is None:
        return _NO_TIMESTAMP, ""
    return record.timestamp_type, str(record.timestamp_ms)


def parse_letter(record: Record) -> Letter | None:
    """Return the dead letter in a record of a topic; None if ingestd has not written the record."""
    for count in (len(_HEADERS), _WITHOUT_TIMESTAMP):
        original, added = record.headers[:-count], record.headers[-count:]
        if tuple(name for name, _ in added) == _HEADERS[:count]:
            break
    else:
        return None
    text = {name: (value or b"").decode("utf-8", "replace") for name, value in added}
    try:
        partition = TopicPartition(text["__connect.errors.topic"], int(text["__connect.errors.partition"]))
        offset, time = int(text["__connect.errors.offset"]), datetime.fromisoformat(text["ingestd.time"])
        rejected = _with_timestamp(replace(record, headers=original), text)
    except ValueError:  # another program has written headers of these names
        return None
    return Letter(
        text["ingestd.id"],
        text["ingestd.mapping"],
        partition,
        offset,
        rejected,
        text["__connect.errors.stage"],
        text["ingestd.column"],
        text["ingestd.reason"],
        time,
    )


def _with_timestamp(record: Record, text: Mapping[str, str]) -> Record:
    """Return a record with the timestamp that its headers contain, if they do. Raises ValueError."""
    kind = text.get("ingestd.timestamp.type")
    if kind is None:
        return record
    if kind == _NO_TIMESTAMP:
        return replace(record, timestamp_ms=None)
    if kind not in _TIMESTAMP_TYPES:
        raise ValueError(kind)
    return replace(record, timestamp_ms=int(text["ingestd.timestamp"]), timestamp_type=_TIMESTAMP_TYPES[kind])


@dataclass(frozen=True, slots=True)
class LetterTargets:
    """Where the dead letters of a transaction are written: to `topic` unless it is '', and to `table` unless None."""

    topic: str = ""
    table: LetterTable | None = None


@dataclass(slots=True)
class DeadLetters:
    """Writes the dead letters of one task. Connects and creates files when there is the first one.

    `settings` are librdkafka properties. `name` is a prefix of file names that no other attempt of a task uses.
    """

    targets: LetterTargets
    origin: Origin
    settings: Mapping[str, object] = field(repr=False)
    storages: Storages = field(repr=False)
    name: str
    _writer: TopicWriter | None = field(default=None, init=False, repr=False)
    _files: StagingFiles | None = field(default=None, init=False, repr=False)
    _pool: WriterPool[OpenStagingFile] | None = field(default=None, init=False, repr=False)

    def write(self, batch: Batch, rejects: Sequence[Reject]) -> None:
        """Write rejects of the records of `batch`, which are certainly stored when `finish` returns.

        Raises BrokerUnavailable or InvalidTopic (`TopicWriter.flush`), and StorageUnavailable.
        """
        self._write(self.origin.letter(batch, reject) for reject in rejects)

    def write_unreadable(self, batch: UnreadableBatch) -> None:
        """Write records that the client of Kafka cannot read, as `write` does."""
        self._write(iter([self.origin.letter_of_unreadable(batch)]))

    def _write(self, letters: Iterator[Letter]) -> None:
        while some := tuple(islice(letters, _BATCH_LETTERS)):
            if self.targets.topic:
                self._writer = self._writer or TopicWriter(self.settings, self.targets.topic)
                self._writer.send(self._with_headers(letter) for letter in some)
                if self._writer.held_bytes > _MOST_SENT:
                    self._wait_for_topic(self._writer)
            if self.targets.table is not None:
                self._rows(self.targets.table).add((), self.origin.task, letter_rows(some))

    def finish(self) -> tuple[StagingFile, ...]:
        """Wait until Kafka has stored all letters, close the files of the table and return them. Raises as `write`."""
        if self._writer is not None:
            self._wait_for_topic(self._writer)
        if self._pool is None or self._files is None:
            return ()
        self._pool.close()
        return tuple(self._files.closed)

    def abort(self) -> None:
        """Discard the files of the table; never raises."""
        if self._pool is not None:
            self._pool.abort()

    def close(self) -> None:
        """Close the connections."""
        if self._writer is not None:
            self._writer.close()

    def _with_headers(self, letter: Letter) -> Record:
        return replace(letter.record, headers=(*letter.record.headers, *self.origin.headers(letter)))

    def _wait_for_topic(self, writer: TopicWriter) -> None:
        """Wait until Kafka has stored all letters, those whose size the topic refuses as references."""
        writer.send(map(_reference, writer.flush()))
        if writer.flush():
            raise InvalidTopic(
                "the broker refuses the size of a dead letter, even without its record",
                where=f"topic {self.targets.topic}",
                hint="raise max.message.bytes of the topic to 8 KiB or more",
            )

    def _rows(self, table: LetterTable) -> WriterPool[OpenStagingFile]:
        if self._pool is None:
            outbox = self.storages.at(table.staging).outbox(table.staging, self.name)
            self._files = StagingFiles(outbox, table.shape.columns, table.write_id, encoding=table.shape.encoding)
            self._pool = WriterPool(self._files, _LIMITS)
        return self._pool


def _reference(letter: Record) -> Record:
    """Return what the topic has in place of a letter that is too large: its headers, but not those of its record."""
    original, added = letter.headers[: -len(_HEADERS)], letter.headers[-len(_HEADERS) :]
    parts = (("key", letter.key), ("value", letter.value))
    texts = [f"{name}: {'NULL' if part is None else f'{len(part)} bytes'}" for name, part in parts]
    omitted = ", ".join((*texts, f"headers: {len(original)}")).encode()
    return Record(None, None, ((_OMITTED, omitted), *added), letter.timestamp_ms)
