"""The rows of dead letters: their files contain every byte of the letters."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, TIMESTAMP_NOT_AVAILABLE, Message
from pyarrow import orc

from ingestd.acid.writer_pool import StagingFiles, WriterPool
from ingestd.errors import BrokerUnavailable
from ingestd.formats.decoder import Reject
from ingestd.ingest.letters.table import COLUMNS, Letter, letter_rows, letters_of
from ingestd.ingest.letters.writer import DeadLetters, LetterTargets, Origin, parse_letter
from ingestd.kafka.ranges import TopicIdentity, TopicPartition
from ingestd.kafka.reader import Batch
from ingestd.kafka.record import Record
from ingestd.storage.local import LocalStorage, local_path
from ingestd.storage.options import StorageOptions
from ingestd.storage.storages import Storages

_HEADERS = (("trace", b"\x00\xff"), ("trace", b""), ("ü", None))
RECORDS = [
    Record(b"\x00\xff", b"\xff{\x00", _HEADERS, 1_790_000_000_123),
    Record(None, None, (), None),
    Record(b"", b"", (("a", b"b"),), 0),
    Record(b"", b"", (), -9_214_560_000_000 + 123),
    Record(b"", b"", (), 9_214_646_399_999),
]


def _letters(records: list[Record]) -> list[Letter]:
    at = datetime(2026, 11, 1, 9, 30, 0, 120_000, timezone.utc)
    place = TopicPartition("clicks", 3)
    return [
        Letter(f"m:x:3:{n}", "m", place, n, record, "VALUE_CONVERTER", "id" * (n % 2), f"reason {n} ü", at)
        for n, record in enumerate(records)
    ]


def test_letters_when_written_to_a_file_and_read_then_are_the_same(tmp_path: Path) -> None:
    files = StagingFiles(LocalStorage().outbox(str(tmp_path), "task"), COLUMNS, write_id=7)
    pool = WriterPool(files)
    letters = _letters(RECORDS)
    pool.add((), 0, letter_rows(letters))
    pool.close()
    rows = [orc.read_table(local_path(file.uri))["row"].combine_chunks() for file in files.closed]
    found = [letter for row in rows for letter in letters_of(pa.RecordBatch.from_struct_array(row))]
    assert sorted(found, key=lambda letter: letter.offset) == letters


@pytest.mark.parametrize("milliseconds", [9_214_646_400_000, 1_790_000_000_123_000, -9_214_560_000_001, -(2**63)])
def test_letter_when_its_timestamp_is_outside_the_years_1678_to_2261_then_it_is_null(milliseconds: int) -> None:
    [letter] = letters_of(letter_rows(_letters([Record(None, b"", (), milliseconds)])))
    assert letter.record.timestamp_ms is None
    assert letter.time == datetime(2026, 11, 1, 9, 30, 0, 120_000, timezone.utc)


def test_letter_when_it_has_no_time_of_its_error_then_is_read_without_one() -> None:
    rows = letter_rows(_letters([RECORDS[0]]))
    rows = rows.set_column(rows.schema.names.index("error_time"), "error_time", pa.nulls(1, pa.timestamp("ns")))
    [letter] = letters_of(rows)
    assert (letter.time, letter.record) == (None, RECORDS[0])
    assert list(letters_of(letter_rows([letter]))) == [letter]


@pytest.mark.parametrize("kind", [TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME])
@pytest.mark.parametrize("milliseconds", [0, 1_790_000_000_123, -5])
def test_record_when_it_becomes_a_message_then_has_its_timestamp_and_the_type(kind: int, milliseconds: int) -> None:
    message = Message(topic="t", partition=0, offset=1, value=b"", timestamp=(kind, milliseconds))
    assert Record.of(message).message(TopicPartition("t", 0), 1).timestamp() == (kind, milliseconds)


def test_record_when_kafka_has_no_timestamp_of_it_then_has_none() -> None:
    for kind, milliseconds in ((TIMESTAMP_NOT_AVAILABLE, 0), (TIMESTAMP_CREATE_TIME, -1)):
        assert Record.of(Message(value=b"", timestamp=(kind, milliseconds))).timestamp_ms is None


@pytest.mark.parametrize(
    ("column", "stage"),
    [
        ("k", "KEY_CONVERTER"),
        ("h", "HEADER_CONVERTER"),
        ("t", "VALUE_CONVERTER"),
        ("id", "VALUE_CONVERTER"),
        ("", "VALUE_CONVERTER"),
    ],
)
def test_letter_when_a_column_cannot_store_a_part_of_the_record_then_its_stage_names_the_part(
    column: str, stage: str
) -> None:
    message = Message(topic="clicks", key=b"\xff", value=b"{}")
    batch = Batch("clicks", [b"{}"], np.array([3], np.int32), np.array([9]), 2, messages=[message])
    topics = {"clicks": TopicIdentity(topic_id="x")}
    origin = Origin("m", 0, "json", topics, {"k": "key", "h": "headers", "t": "timestamp"})
    letter = origin.letter(batch, Reject.of(0, b"{}", column, "a reason"))
    assert (letter.id, letter.column, letter.stage) == ("m:x:3:9", column, stage)


def test_letters_when_written_to_a_topic_and_read_then_are_the_same() -> None:
    origin = Origin("m", 0, "json", {}, {})
    for letter in _letters([*RECORDS, replace(RECORDS[0], timestamp_type="LogAppendTime")]):
        headers = (*letter.record.headers, *origin.headers(letter))
        stored = Record(letter.record.key, letter.record.value, headers, 7)  # a broker may set another timestamp
        assert parse_letter(stored) == letter
        assert parse_letter(replace(stored, headers=headers[:-1])) is None
        for wrong in ((("ingestd.timestamp", b"x"),), (("ingestd.timestamp.type", b"x"), headers[-1])):
            other = parse_letter(replace(stored, headers=headers[: -len(wrong)] + wrong))
            assert other is None or other.record.timestamp_ms is None


def test_letter_when_its_headers_lack_the_timestamp_of_the_record_then_has_that_of_the_letter() -> None:
    [letter] = _letters(RECORDS[:1])
    headers = (*letter.record.headers, *Origin("m", 0, "json", {}, {}).headers(letter)[:-2])
    assert parse_letter(replace(letter.record, headers=headers)) == letter


# No broker answers at this address.
_UNREACHABLE = {"bootstrap.servers": "127.0.0.1:1", "socket.timeout.ms": 1000, "fetch.min.bytes": 1}


def _batch_of(value: bytes, count: int) -> tuple[Batch, list[Reject]]:
    messages = [Message(topic="clicks", value=value) for _ in range(count)]
    partitions, offsets = np.zeros(count, np.int32), np.arange(count)
    batch = Batch("clicks", [value] * count, partitions, offsets, count * len(value), messages=messages)
    return batch, [Reject.of(row, value, "id", "a reason") for row in range(count)]


def _dead_letters() -> DeadLetters:
    origin = Origin("m", 0, "json", {"clicks": TopicIdentity(topic_id="x")}, {})
    return DeadLetters(LetterTargets("dead"), origin, _UNREACHABLE, Storages(StorageOptions()), "task")


def test_letters_when_the_topic_has_not_stored_them_then_the_task_goes_on_and_its_end_fails() -> None:
    letters = _dead_letters()
    for _ in range(3):
        letters.write(*_batch_of(b"{}", 10))
    with pytest.raises(BrokerUnavailable, match="topic dead"):
        letters.finish()
    letters.close()


def test_letters_when_the_topic_has_not_stored_many_bytes_of_them_then_the_task_waits() -> None:
    letters = _dead_letters()
    with pytest.raises(BrokerUnavailable, match="topic dead"):
        letters.write(*_batch_of(b"x" * 100_000, 200))
    letters.close()
