"""The task that writes the rows of other tasks: it stores all of them, or returns every error and leaves no file."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
from pyarrow import orc

from ingestd.acid.encoding import STANDARD
from ingestd.acid.routing import Shape, Writers
from ingestd.errors import IngestdError, RecordError
from ingestd.formats.json.options import JsonOptions
from ingestd.hive.tables import TableName
from ingestd.ingest.letters.writer import LetterTargets
from ingestd.ingest.options import MappingOptions
from ingestd.ingest.rows.partitioning import Partitioning
from ingestd.ingest.rows.transform import Decoding
from ingestd.ingest.stage.exchange import Sent, receive, send_result
from ingestd.ingest.stage.task import Access, RecordRules, StagedTable, StageResult, StageTask
from ingestd.ingest.table.evolution import ColumnsNeeded
from ingestd.schema import Column, HiveType
from ingestd.spark.shared import Reference
from ingestd.storage.storages import Storages

SHAPE = Shape((Column("id", HiveType.parse("bigint")),), (Column("p", HiveType.parse("string")),), None, STANDARD)


def _task(staging: Path) -> StageTask:
    options = MappingOptions("m", ("t",), TableName("web", "a"), JsonOptions())
    partitioning = Partitioning.of(SHAPE, {})
    return StageTask(
        mapping="m",
        number=0,
        tasks=2,
        ranges=(),
        offsets=10,
        topics={},
        rules=RecordRules.of(options, Decoding.of(SHAPE, partitioning, options)),
        table=StagedTable(SHAPE, partitioning, 1, staging.as_uri(), 10),
        letters=LetterTargets(),
        writers=Writers(2, frozenset({("large",)})),
    )


def _access() -> Reference[Access]:
    # Instead of a broadcast value of Spark.
    return Reference(cast(Any, SimpleNamespace(value=Access({}, Storages()))))


def _rows(first: int, partition: str) -> bytes:
    batch = pa.record_batch({"id": pa.array([first, first + 1], pa.int64()), "p": [partition] * 2})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def test_receive_when_rows_are_of_two_tasks_then_one_file_has_those_of_a_partition(tmp_path: Path) -> None:
    reports = [StageResult(decoded=4, records=5), StageResult(decoded=2)]
    values: list[Sent] = [_rows(0, "a"), _rows(2, "large"), reports[0], _rows(4, "a"), reports[1]]
    *received, written = receive(_access(), _task(tmp_path), (1, iter(values)))
    assert received == reports
    assert isinstance(written, StageResult)
    # Other tasks also write the large partition, so the number in the name of its file is that of the task.
    found = {(*file.partition, file.bucket): orc.read_table(file.uri.removeprefix("file://")) for file in written.files}
    ids = {key: sorted(row["row"]["id"] for row in rows.to_pylist()) for key, rows in found.items()}
    assert ids == {("a", 0): [0, 1, 4, 5], ("large", 1): [2, 3]}


def test_receive_when_tasks_have_failed_then_all_errors_are_returned_and_no_file_is_left(tmp_path: Path) -> None:
    errors: list[IngestdError] = [
        RecordError("the record is malformed"),
        ColumnsNeeded("columns", columns=SHAPE.columns),
    ]
    values: list[Sent] = [_rows(0, "a"), errors[0], _rows(2, "a"), StageResult(decoded=2), errors[1]]
    assert receive(_access(), _task(tmp_path), (0, iter(values))) == errors
    assert list(tmp_path.rglob("*")) == []


def test_result_when_its_batches_are_small_then_they_are_sent_together(tmp_path: Path) -> None:
    batches = [pa.record_batch({"id": pa.array([n], pa.int64()), "p": [["a", "b"][n % 2]]}) for n in range(40)]
    *rows, (_, end) = send_result(_task(tmp_path), iter(batches))
    assert end == StageResult(decoded=40)
    sent = [(number, pa.ipc.open_stream(value).read_all()) for number, value in rows if isinstance(value, bytes)]
    assert len({number for number, _ in sent}) == len(sent) == len(rows)
    for _, table in sent:
        # Each writer receives the rows in their order.
        assert table.column("id").to_pylist() == sorted(table.column("id").to_pylist())
    assert sorted(n for _, table in sent for n in table.column("id").to_pylist()) == list(range(40))


def test_result_when_the_table_cannot_store_a_row_then_every_writer_receives_the_error(tmp_path: Path) -> None:
    batches = [pa.record_batch({"id": pa.array([n], pa.int64()), "p": ["a" * n]}) for n in (1, 300, 2)]
    sent = list(send_result(_task(tmp_path), iter(batches)))
    assert [(number, type(value)) for number, value in sent] == [(0, RecordError), (1, RecordError)]
