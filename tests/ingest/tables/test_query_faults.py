"""The record for which a query fails: which exceptions name it, and which are of no record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from ingestd.acid.encoding import STANDARD
from ingestd.acid.routing import Shape
from ingestd.errors import RecordError
from ingestd.formats.json.options import JsonOptions
from ingestd.hive.tables import TableName
from ingestd.ingest.letters.writer import LetterTargets
from ingestd.ingest.options import MappingOptions
from ingestd.ingest.rows.partitioning import Partitioning
from ingestd.ingest.rows.transform import Decoding
from ingestd.ingest.stage.fault import Trial
from ingestd.ingest.stage.jobs import StageJobs
from ingestd.ingest.stage.task import RecordRules, StagedTable, StageTask
from ingestd.kafka.admin import Broker
from ingestd.kafka.ranges import OffsetRange
from ingestd.schema import Column, HiveType
from ingestd.spark.engine import Engine, JobGroup
from ingestd.spark.errors import PYTHON_HINT, JobCancelled, JobFailed, QueryFailed, WorkerLost
from ingestd.spark.query import Batches, Query
from ingestd.storage.storages import Storages
from tests.support.daemon import shared_engine
from tests.support.patience import LIMIT
from tests.support.stack import Stack, eventually

COLUMNS = (Column("id", HiveType.parse("int")),)
COUNT = 4
# Expressions that cannot be evaluated for the ids 2 and 3, by a text of the exception. Its class, and whether Spark
# shows a stack, differ.
FAULTS = {
    "[DIVIDE_BY_ZERO]": "1 / ((id - 2) * (id - 3)) > 2",
    "[DUPLICATED_MAP_KEY]": "size(str_to_map(if(id > 1, 'a:1\nb,a:2', 'a:1'))) > 0",
    "java.util.UnknownFormatConversionException": "format_string(if(id > 1, '%q', '%s'), 'a') > ''",
    "java.lang.StackOverflowError": "repeat('a', if(id > 1, 100000, 1)) rlike '^(a|b)*$'",
}


@pytest.fixture(scope="module")
def engine(processes: None) -> Engine:
    return shared_engine()


def _read(ids: Sequence[int], report: Callable[[None], None]) -> Batches:
    for id_ in ids:
        yield pa.RecordBatch.from_pydict({"id": pa.array([id_], pa.int32())})
    report(None)


def _read_without_two(ids: Sequence[int], report: Callable[[None], None]) -> Batches:
    if 2 in ids:
        raise ValueError("no two")
    yield from _read(ids, report)


def _check(_ids: Sequence[int], batches: Batches) -> RecordError | None:
    for batch in batches:
        if 3 in batch.column("id").to_pylist():
            return RecordError("three", where="column id", hint="no three")
    return None


def _trial(engine: Engine, where: str, read: Callable[..., Batches] = _read) -> Trial[range]:
    query = Query(COLUMNS, where=where)
    return Trial(engine, JobGroup("query"), query, COUNT, lambda places: places, "t[0] offset {}".format, read, _check)


def _failed(engine: Engine, trial: Trial[range]) -> JobFailed:
    """Return the error of a query for all records, in several tasks."""
    with pytest.raises(JobFailed) as failed:
        engine.query(JobGroup("query"), trial.query, trial.read, _check, [range(2), range(2, COUNT)])
    return failed.value


@pytest.mark.parametrize("text", FAULTS)
def test_query_when_any_exception_is_of_a_record_then_the_error_names_the_first_one(engine: Engine, text: str) -> None:
    trial = _trial(engine, FAULTS[text])
    error = trial.explain(_failed(engine, trial))
    assert type(error) is QueryFailed
    assert text in error.what
    assert error.where == "t[0] offset 2, Spark job of query"
    assert "; no record was lost" in error.hint
    assert "\n" not in str(error)


def test_query_when_a_row_of_its_result_does_not_fit_then_the_error_names_the_record(engine: Engine) -> None:
    error = _trial(engine, "id > 0").explain(RecordError("another", where="column id"))
    assert str(error) == "t[0] offset 3, column id: three → no three"
    assert type(error) is RecordError


def test_query_when_a_record_cannot_be_read_without_it_then_is_not_at_fault(engine: Engine) -> None:
    trial = _trial(engine, "id > 0", _read_without_two)
    error = _failed(engine, trial)
    assert trial.explain(error) is error
    assert error.what == "ValueError: no two"


def test_query_when_it_fails_for_no_record_then_the_error_stays_as_it_is(engine: Engine) -> None:
    for error in (JobFailed("lost"), RecordError("lost")):
        assert _trial(engine, "id < 3").explain(error) is error


def test_job_when_it_was_cancelled_lost_a_process_or_has_another_python_then_no_record_is_at_fault(
    engine: Engine,
) -> None:
    for error in (JobCancelled("cancelled"), WorkerLost("lost"), JobFailed("no module", hint=PYTHON_HINT)):
        assert _trial(engine, FAULTS["[DIVIDE_BY_ZERO]"]).explain(error) is error


def _fail_at_three(_ids: Sequence[int], batches: Batches) -> RecordError | None:
    for batch in batches:
        if 3 in batch.column("id").to_pylist():
            raise ValueError("a defect")
    return None


def test_query_when_only_what_becomes_of_its_result_fails_then_the_query_is_not_at_fault(engine: Engine) -> None:
    trial = replace(_trial(engine, "id > 0"), check=_fail_at_three)
    error = trial.explain(JobFailed("another"))
    assert type(error) is JobFailed
    assert str(error) == "t[0] offset 3, Spark job of query: ValueError: a defect"


def _check_without_place(_ids: Sequence[int], batches: Batches) -> RecordError | None:
    return RecordError("a row") if sum(batch.num_rows for batch in batches) else None


def test_error_when_it_has_no_place_then_the_record_is_its_place(engine: Engine) -> None:
    trial = replace(_trial(engine, "id = 2"), check=_check_without_place)
    assert str(trial.explain(RecordError("another"))) == "t[0] offset 2: a row"


def _wait_for_end(folder: Path, ids: Sequence[int], report: Callable[[None], None]) -> Batches:
    (folder / "started").touch()
    eventually("the end of the test", (folder / "end").exists)
    yield from _read(ids, report)


def test_search_when_it_is_cancelled_then_it_ends_without_the_error(engine: Engine, tmp_path: Path) -> None:
    trial = _trial(engine, "id > 0", partial(_wait_for_end, tmp_path))
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(trial.explain, RecordError("another"))
        try:
            eventually("the task running", (tmp_path / "started").exists)
            engine.cancel(trial.group)
            with pytest.raises(JobCancelled, match="cancelled"):
                running.result(LIMIT)
        finally:
            (tmp_path / "end").touch()


def test_stage_when_another_task_has_a_tombstone_then_the_error_names_the_record_of_the_query(
    stack: Stack, engine: Engine, tmp_path: Path
) -> None:
    topic = stack.topic(1)
    stack.produce([None, {"id": 1}, {"id": 2}, {"id": 0}])
    table, partitioning = Shape(COLUMNS, (), None, STANDARD), Partitioning((), ())
    reader = {"bootstrap.servers": stack.addresses.kafka}
    options = MappingOptions(
        "faults", (topic,), TableName("default", stack.name), JsonOptions(), kafka=reader, where="1 / id > 0"
    )
    task = StageTask(
        mapping="faults",
        number=0,
        tasks=2,
        ranges=(OffsetRange(topic, 0, 0, 2),),
        offsets=4,
        topics={topic: Broker(reader).topics([topic])[topic].identity},
        rules=RecordRules.of(options, Decoding.of(table, partitioning, options)),
        table=StagedTable(table, partitioning, 1, tmp_path.as_uri(), 10),
        letters=LetterTargets(),
    )
    jobs = StageJobs(engine, options, Storages())
    try:
        with pytest.raises(QueryFailed) as failed:
            jobs.run([task, replace(task, number=1, ranges=(OffsetRange(topic, 0, 2, 4),))])
    finally:
        jobs.release()
    assert failed.value.where.startswith(f"{topic}[0] offset 3, ")
