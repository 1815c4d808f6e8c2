"""The two tasks of a stage whose rows are distributed: one decodes and sends rows, the other receives and writes them.

With a query (`where`, `transform`), the first task evaluates it before it sends the rows.

Invariant: each row is sent to exactly one writer, and each dead letter and each count is part of one result.
The writer depends only on the row and its task, so a task that Spark repeats, for example after the loss of an
executor, sends the same. `require_all` finds out if it does not, because Kafka has compacted the topic meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from ingestd.acid.routing import distribute
from ingestd.errors import IngestdError, TransactionAborted
from ingestd.ingest.stage.memory import memory_of_task
from ingestd.ingest.stage.task import (
    Access,
    Output,
    StageResult,
    StageTask,
    attempt_name,
    read_rows,
    rows_of_result,
)
from ingestd.spark.shared import Reference

Sent = bytes | StageResult | IngestdError
"""Rows in Arrow's stream format, the result of a task that sends rows, or its error."""

# The batches of a query's result are small. Each writer receives as few batches of this size, in bytes, as possible.
_BATCH_BYTES = 16 << 20


def send(access: Reference[Access], task: StageTask) -> Iterator[tuple[int, Sent]]:
    """Decode the ranges of one task, and yield its rows and its result with the numbers of their writers.

    Every writer receives an error, because none may finish its files.
    """
    reports: list[StageResult | IngestdError] = []
    for batch in read_rows(access, task, reports.append):
        yield from _distributed(task, batch)
    [report] = reports
    yield from _reported(task, report)


def send_result(task: StageTask, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, Sent]]:
    """Yield the rows that a query has computed from those of one task, as `send` does.

    The result contains only their number, as `decoded`, because the task that reads the records reports the others.
    """
    count = 0
    with memory_of_task():
        try:
            for batch in _gathered(rows_of_result(task, batch) for batch in batches):
                count += batch.num_rows
                yield from _distributed(task, batch)
        except IngestdError as error:
            yield from _reported(task, error)
        else:
            yield from _reported(task, StageResult(decoded=count))


def _distributed(task: StageTask, batch: pa.RecordBatch) -> Iterator[tuple[int, Sent]]:
    assert task.writers is not None
    table = task.table
    for number, rows in distribute(batch, table.shape, table.partitioning.static, task.writers, task.number):
        yield number, packed(rows)


def _reported(task: StageTask, report: StageResult | IngestdError) -> Iterator[tuple[int, Sent]]:
    assert task.writers is not None
    everyone = range(task.writers.count)
    for number in everyone if isinstance(report, IngestdError) else [task.number % len(everyone)]:
        yield number, report


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Merge consecutive batches of one schema."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(other.nbytes for other in waiting) >= _BATCH_BYTES:
            yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()
            waiting.clear()
    if waiting:
        yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()


def receive(
    access: Reference[Access], task: StageTask, received: tuple[int, Iterable[Sent]]
) -> list[StageResult | IngestdError]:
    """Write the rows that the writer with this number receives; `task` is any task of the transaction.

    Returns the results that were received and one with the files, or only errors: all that were received, or its own.
    """
    number, values = received
    task = replace(task, number=number, ranges=())
    with memory_of_task():
        try:
            output = Output(access.value, task, attempt_name(task))
            try:
                results, errors = _write(values, output)
                if not errors:
                    return [*results, StageResult(files=output.finish())]
                output.abort()
                return [*errors]
            except BaseException:
                output.abort()
                raise
        except IngestdError as error:
            return [error]


def require_all(answers: Sequence[StageResult | IngestdError]) -> None:
    """Raise TransactionAborted unless the files contain as many rows as were sent, or a task has failed.

    A task that Spark repeats finds fewer records if Kafka has compacted the topic since its first attempt. Then the
    files contain rows of both attempts.
    """
    results = [answer for answer in answers if isinstance(answer, StageResult)]
    if len(results) < len(answers):
        return
    sent, written = (
        sum(result.decoded for result in results),
        sum(file.rows for result in results for file in result.files),
    )
    if sent != written:
        raise TransactionAborted(
            f"the tasks have sent {sent:,} rows, but written {written:,}",
            hint="no data is lost: the transaction is repeated",
        )


def _write(values: Iterable[Sent], output: Output) -> tuple[list[StageResult], list[IngestdError]]:
    """Write the rows until an error is received, and return the results and all errors, which may need columns."""
    results: list[StageResult] = []
    errors: list[IngestdError] = []
    for value in values:
        if isinstance(value, IngestdError):
            errors.append(value)
        elif isinstance(value, StageResult):
            results.append(value)
        elif not errors:
            output.write(list(pa.ipc.open_stream(value)))
    return results, errors


def packed(rows: pa.RecordBatch) -> bytes:
    """Return rows in Arrow's stream format."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_batch(rows)
    return bytes(sink.getvalue().to_pybytes())
