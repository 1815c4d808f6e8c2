"""The record for which a query fails: which exceptions name it, and which are of no record."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
import pytest

from ingestd.errors import RecordError
from ingestd.ingest.stage.fault import Trial
from ingestd.schema import Column, HiveType
from ingestd.spark.engine import Engine, JobGroup
from ingestd.spark.errors import JobCancelled, JobFailed, QueryFailed, WorkerLost
from ingestd.spark.query import Batches, Query
from tests.support.daemon import shared_engine

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


def test_job_when_it_was_cancelled_or_lost_a_process_then_no_record_is_at_fault(engine: Engine) -> None:
    for error in (JobCancelled("cancelled"), WorkerLost("lost")):
        assert _trial(engine, FAULTS["[DIVIDE_BY_ZERO]"]).explain(error) is error
