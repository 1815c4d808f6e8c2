"""Queries of Spark SQL between two functions of a task: what is refused, and what the functions receive."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from pyspark import SparkContext, TaskContext

from ingestd.clock import now
from ingestd.errors import ConfigError
from ingestd.formats.row_batches import arrow_of
from ingestd.ingest.stage.exchange import packed
from ingestd.schema import Column, HiveType
from ingestd.spark.engine import Engine, EngineLimits, JobGroup
from ingestd.spark.errors import JobCancelled, JobFailed, QueryFailed, WorkerLost
from ingestd.spark.queries import require_version
from ingestd.spark.query import Batches, Exchange, Query
from ingestd.spark.session import Session
from tests.support.daemon import shared_engine
from tests.support.patience import LIMIT
from tests.support.stack import eventually

COLUMNS = tuple(
    Column(name, HiveType.parse(kind))
    for name, kind in {
        "id": "bigint",
        "name": "string",
        "price": "decimal(10,2)",
        "at": "timestamp",
        "tags": "array<string>",
        "place": "struct<city:string,zip:int>",
        "rates": "map<string,double>",
    }.items()
)
REFUSED = {
    "select count(*) c from records": "an aggregation is not allowed",
    "select distinct name from records": "DISTINCT is not allowed",
    "select a.id from records a join records b on a.id = b.id": "a join is not allowed",
    "select id from records order by id": "ORDER BY or SORT BY is not allowed",
    "select id from records limit 1": "LIMIT is not allowed",
    "select id from (select * from records limit 3)": "LIMIT is not allowed",
    "select id from records offset 1": "OFFSET is not allowed",
    "select id from records tablesample (10 percent)": "TABLESAMPLE is not allowed",
    "select id from records distribute by id": "DISTRIBUTE BY or CLUSTER BY is not allowed",
    "select id from records except select 1": "EXCEPT or MINUS is not allowed",
    "select id from records intersect all select id from records": "INTERSECT is not allowed",
    "with r as (select id from records) select id from r": "WITH is not allowed",
    "select name from records group by name": "an aggregation is not allowed",
    "select sum(price) over (partition by name) s from records": "a window function is not allowed",
    "select a.id from records a, records b": "a join is not allowed",
    "select name from records, range(3)": "a join is not allowed",
    "select row_number() over (order by id) n from records": "a window function is not allowed",
    "select id from records where id in (select id from records)": "a subquery is not allowed",
    "select (select max(id) from records) m from records": "a subquery is not allowed",
    "select id from records union all select id from records": "UNION is not allowed",
    "select rand() r from records": "rand() AS r is not allowed",
    "select id from records where uuid() > 'a'": "(uuid() > 'a') is not allowed",
    "select current_timestamp() t from records": "current_timestamp and similar functions are not allowed",
    "select cast('now' as timestamp) t from records": "CAST('now' AS TIMESTAMP) is not allowed",
    "select to_date(' Today') d from records": "to_date(' Today') is not allowed",
    "select id from records where at < 'tomorrow UTC'": "CAST('tomorrow UTC' AS TIMESTAMP) is not allowed",
    "select date_add(DATE 'yesterday', 1) d from records": "DATE 'yesterday' is not allowed",
    "select DATE /* of */ -- the query\n 'today' d from records": "'today' is not allowed",
    r"select timestamp 'n\u006fw' t from records": "is not allowed",
    "select cast(concat('no', 'w') as timestamp) t from records": "CAST(concat('no', 'w') AS TIMESTAMP) is not allowed",
    "select id from records where at > lower('TODAY')": "CAST(lower('TODAY') AS TIMESTAMP) is not allowed",
    "select aes_encrypt(name, '0123456789abcdef') b from records": "aes_encrypt without an initialization vector",
    "select aes_encrypt('a', '0123456789abcdef', 'CBC') b from records": "aes_encrypt without an initialization vector",
    "select randstr(3) s from records": "is not allowed",
    "select uniform(1, 1000) n from records": "is not allowed",
    "select try_reflect('java.util.UUID', 'randomUUID') u from records": "is not allowed",
    "select reflect('java.lang.Integer', 'valueOf', '1') u from records": "is not allowed",
    "select java_method('java.lang.System', 'getProperty', 'user.home') u from records": "is not allowed",
    "select transform(tags, tag -> uuid()) u from records": "is not allowed",
    "select input_file_name() f from records": "is not allowed",
    "select current_user() u from records": "current_timestamp and similar functions are not allowed",
    "select explode(sequence(1, 1000000000)) n from records": "too little memory to compute a constant",
    "select id from records where name like repeat('x', 2000000000)": "too little memory to compute a constant",
    "select monotonically_increasing_id() i from records": "monotonically_increasing_id() AS i is not allowed",
    "select 1 a": "must read records, and nothing else",
    "select id from range(3)": "must read records, and nothing else",
    "select * from values (1), (2)": "must read records, and nothing else",
    "select id from other": "[TABLE_OR_VIEW_NOT_FOUND]",
    "select value name from text.`/etc/hostname`": "[TABLE_OR_VIEW_NOT_FOUND]",
    "select id, (select max(value) from text.`/etc/hostname`) s from records": "[TABLE_OR_VIEW_NOT_FOUND]",
    "select nothing from records": "[UNRESOLVED_COLUMN",
    "select id frm records": "[PARSE_SYNTAX_ERROR]",
    "drop view records": "[PARSE_SYNTAX_ERROR]",
    "create table t using orc as select * from records": "[PARSE_SYNTAX_ERROR]",
    "select /*+ repartition(3) */ id from records": "is not allowed",
    "select id from records where 1 = 0": "the predicate is never true",
    "select id, 1 / 0 n from records": "[DIVIDE_BY_ZERO]",
    "select id, cast('x' as int) n from records": "[CAST_INVALID_INPUT]",
    "select interval 1 day d from records": "the result has the type interval day",
    "select named_struct('Zip', 1) place from records": "use CAST(place AS struct<zip:int>)",
}


@pytest.fixture(scope="module")
def engine(processes: None) -> Engine:
    return shared_engine()


def _rows(count: int, item: int, report: Callable[[str], None]) -> Batches:
    for start in range(0, count, 5):
        numbers = range(start, start + 5)
        rows = [(i, f"n{i}", None, i * 1000 + 999, ["a", None], (f"c{item}", i), [("x", 0.5)]) for i in numbers]
        columns = zip(COLUMNS, zip(*rows, strict=True), strict=True)
        arrays = [pa.array(list(values), arrow_of(column.type, "ns")) for column, values in columns]
        yield pa.RecordBatch.from_arrays(arrays, names=[column.name for column in COLUMNS])
    report(f"read {item}")


def _list(_item: object, batches: Batches) -> list[dict[str, object]]:
    return [row for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize("select", REFUSED)
def test_query_when_it_is_not_row_by_row_then_it_is_refused(engine: Engine, select: str) -> None:
    with pytest.raises(ConfigError) as error:
        engine.examine(Query(COLUMNS, select=select))
    assert REFUSED[select] in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "where",
    [
        "id in (select id from records)",
        "rand() > 0.5",
        "current_timestamp() > at",
        "reflect('java.lang.System', 'nanoTime') > '1'",
        "max(id) > 1",
        "row_number() over (order by id) = 1",
        "explode(tags) = 'a'",
        "id > 0 order by id",
        "id > 0 limit 1",
        "1 = 0",
        "id = 1) or (1 = 1",
        "name",
    ],
)
def test_predicate_when_it_is_not_allowed_then_it_is_refused(engine: Engine, where: str) -> None:
    with pytest.raises(ConfigError):
        engine.examine(Query(COLUMNS, where=where))


def test_query_when_its_constants_are_the_same_each_time_then_it_is_allowed(engine: Engine) -> None:
    iv = "unhex('000000000000000000000000')"
    for select in (
        f"select aes_encrypt(name, '0123456789abcdef', 'GCM', 'DEFAULT', {iv}) b from records",
        "select aes_encrypt(name, '0123456789abcdef', 'ECB') b from records",
        "select to_timestamp(name, concat('yyyy', '-MM')) t, date_trunc('MONTH', at) m from records",
        "select from_utc_timestamp(at, concat('UTC', '+1')) t, date(concat('2026-11-', id)) d from records",
        "select explode(sequence(1, 3)) n, DATE '2026-11-01' d, repeat('x', 100) r from records",
        "select * except (at, rates), aggregate(tags, '', (all, tag) -> all || tag) a from records",
        "select r.id from (select id, tags from records where id > 1) r where size(tags) > 0",
    ):
        assert engine.examine(Query(COLUMNS, select=select))


def test_query_when_it_contains_the_name_of_a_setting_then_it_is_a_text(engine: Engine) -> None:
    query = Query(
        COLUMNS, "'${spark.app.name}' like '$%'", "select '${spark.app.name}' || '${env:HOME}' t from records"
    )
    [(_, rows)] = engine.query(JobGroup("query"), query, partial(_rows, 5), _list, [1])
    assert {row["t"] for row in rows} == {"${spark.app.name}${env:HOME}"}


def test_query_when_spark_is_too_old_then_it_is_refused() -> None:
    require_version("4.0.1")
    with pytest.raises(ConfigError, match=r"need Spark 4, but this is Spark 3\.5\.9"):
        require_version("3.5.9")


def test_query_when_examined_then_the_columns_of_the_result_are_known(engine: Engine) -> None:
    computed = "id, t.Tag AS TAG, price * 2 AS double_price, place, rates"
    select = f"SELECT {computed} FROM records LATERAL VIEW explode(tags) t AS Tag; "
    assert [f"{c.name} {c.type}" for c in engine.examine(Query(COLUMNS, select=select))] == [
        "id bigint",
        "tag string",
        "double_price decimal(12,2)",
        "place struct<city:string,zip:int>",
        "rates map<string,double>",
    ]


def test_query_when_run_then_each_task_reads_evaluates_and_writes_its_rows(engine: Engine) -> None:
    query = Query(COLUMNS, "id % 2 = 0 -- even", "select id, place.city, at, tags, rates from records")
    done = engine.query(JobGroup("query"), query, partial(_rows, 10), _list, [7, 8])
    assert [report for report, _ in done] == ["read 7", "read 8"]
    for item, (_, rows) in zip([7, 8], done, strict=True):
        assert [row["id"] for row in rows] == [0, 2, 4, 6, 8]
        assert {row["city"] for row in rows} == {f"c{item}"}
        assert [str(row["at"]) for row in rows][:2] == ["1970-01-01 00:00:00+00:00", "1970-01-01 00:00:00.000002+00:00"]
        assert rows[0]["tags"] == ["a", None]
        assert rows[0]["rates"] == [("x", 0.5)]


def _moments(moments: list[int], report: Callable[[None], None]) -> Batches:
    yield pa.RecordBatch.from_pydict({"at": pa.array(moments, pa.timestamp("ns"))})
    report(None)


def test_query_when_timestamps_have_nanoseconds_then_they_are_cut_off(engine: Engine) -> None:
    query = Query((Column("at", HiveType.parse("timestamp")),), select="select unix_micros(at) n from records")
    moments = [-1, -1000, -1001, 999, 1001, -(2**63) + 1, 2**63 - 1]
    [(_, rows)] = engine.query(JobGroup("query"), query, _moments, _list, [moments])
    assert [row["n"] for row in rows] == [moment // 1000 for moment in moments]


def test_query_when_an_expression_fails_then_the_error_has_sparks_message(engine: Engine) -> None:
    query = Query(COLUMNS, select="select cast(name as int) n from records")
    message = r"\[CAST_INVALID_INPUT\] The value 'n0' .* cannot be cast to \"INT\""
    with pytest.raises(QueryFailed, match=message):
        engine.query(JobGroup("query"), query, partial(_rows, 5), _list, [1])
    with pytest.raises(QueryFailed, match=message):
        engine.exchange_result(JobGroup("query"), query, partial(_rows, 5), Exchange(_send_texts, _received, 2), [1])


def test_query_when_a_value_needs_more_memory_than_the_driver_has_then_only_its_job_fails(engine: Engine) -> None:
    for select in (
        "select repeat(name, 1000000000) r from records",
        "select explode(sequence(1, id + 1000000000)) n from records",
    ):
        with pytest.raises(WorkerLost, match=r"OutOfMemoryError.*spark\.driver\.memory"):
            engine.query(JobGroup("query"), Query(COLUMNS, select=select), partial(_rows, 5), _list, [1])
    [(_, rows)] = engine.query(JobGroup("query"), Query(COLUMNS, "id = 1"), partial(_rows, 5), _list, [1])
    assert [row["id"] for row in rows] == [1]


def _fail_after_rows(item: int, report: Callable[[str], None]) -> Batches:
    yield from _rows(10, item, lambda _: None)
    raise ValueError("lost")


def test_query_when_a_function_fails_then_the_error_names_its_exception(engine: Engine) -> None:
    with pytest.raises(JobFailed, match="ValueError: lost"):
        engine.query(JobGroup("query"), Query(COLUMNS), _fail_after_rows, _list, [1])


def _first(item: int, batches: Batches) -> str:
    return str(next(batches).num_rows)


@pytest.mark.parametrize(
    ("select", "text"),
    [
        ("select date_format(at, 'YYYY-MM-dd') d from records", "Fail to recognize 'YYYY-MM-dd' pattern"),
        ("select if(id > 3, raise_error('too large'), id) n from records", "[USER_RAISED_EXCEPTION] too large"),
        ("select id / (id - 3) n from records", "[DIVIDE_BY_ZERO]"),
    ],
)
def test_query_when_it_fails_for_a_row_then_the_error_is_one_line_for_users(
    engine: Engine, select: str, text: str
) -> None:
    with pytest.raises(QueryFailed) as error:
        engine.query(JobGroup("query"), Query(COLUMNS, select=select), partial(_rows, 5), _list, [1])
    assert text in str(error.value)
    assert "\n" not in str(error.value)


def test_query_when_the_writer_ends_early_then_its_result_is_returned(engine: Engine) -> None:
    [(_, written)] = engine.query(JobGroup("query"), Query(COLUMNS), partial(_rows, 12_000), _first, [1])
    assert written == "10000"


def _large(item: int, report: Callable[[int], None]) -> Batches:
    text = "x" * (1 << 20)
    for _ in range(20):
        yield pa.RecordBatch.from_pydict({"text": pa.array([text] * 10)})
    report(item)


def _largest(item: int, batches: Batches) -> int:
    return max(int(batch.nbytes) for batch in batches)


def test_query_when_rows_are_large_then_batches_have_few_rows(engine: Engine) -> None:
    columns = (Column("text", HiveType.parse("string")),)
    [(_, largest)] = engine.query(JobGroup("query"), Query(columns), _large, _largest, [1])
    assert largest < 16 << 20


def _reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets VmHWM


def _peak() -> int:
    """Return the largest memory that this process has used since the reset, in MiB."""
    [peak] = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    return int(peak) >> 10


def _texts(mebibytes: int, report: Callable[[int], None]) -> Batches:
    _reset_peak()
    for _ in range(mebibytes):
        yield pa.RecordBatch.from_pydict({"text": ["x" * 1024] * 1024})
    report(_peak())


def _written(_item: int, batches: Batches) -> tuple[int, int]:
    _reset_peak()
    return sum(batch.num_rows for batch in batches), _peak()


def _send_texts(_item: int, batches: Batches) -> Iterator[tuple[int, tuple[int, bytes | int]]]:
    _reset_peak()
    for batch in batches:
        yield 0, (batch.num_rows, packed(batch))
    yield 0, (0, _peak())


def _received(received: tuple[int, Iterable[tuple[int, bytes | int]]]) -> tuple[int, list[int]]:
    _reset_peak()
    rows, peaks = 0, []
    for count, value in received[1]:
        rows += count
        if isinstance(value, int):
            peaks.append(value)
    return rows, [*peaks, _peak()]


def test_query_when_its_rows_are_larger_than_the_heap_then_no_process_needs_more_memory_than_for_a_quarter(
    engine: Engine,
) -> None:
    # The heap of the JVM has 512 MiB.
    query = Query((Column("text", HiveType.parse("string")),), select="SELECT upper(text) AS text FROM records")
    peaks = []
    for mebibytes in (144, 576):
        [(read, (rows, write))] = engine.query(JobGroup("query"), query, _texts, _written, [mebibytes])
        moved = Exchange(_send_texts, _received, 1)
        [reader], [(arrived, others)] = engine.exchange_result(JobGroup("query"), query, _texts, moved, [mebibytes])
        assert rows == arrived == mebibytes << 10
        assert read is not None
        assert reader is not None
        peaks.append((read, write, reader, *others))
    few, many = peaks
    assert [more - less < 100 for less, more in zip(few, many, strict=True)] == [True] * 5, peaks


def _wait_for_end(started: str, _report: Callable[[None], None]) -> Batches:
    yield pa.RecordBatch.from_pydict({"text": ["x"]})
    Path(started).touch()
    eventually("the end of the test", Path(started).with_name("end").exists)


def test_query_when_it_is_cancelled_then_the_job_fails(engine: Engine, tmp_path: Path) -> None:
    group, started = JobGroup("query"), tmp_path / "started"
    query = Query((Column("text", HiveType.parse("string")),))
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(engine.query, group, query, _wait_for_end, _list, [str(started)])
        try:
            eventually("the task running", started.exists)
            engine.cancel(group)
            with pytest.raises(JobCancelled, match="cancelled"):
                running.result(LIMIT)
        finally:
            (tmp_path / "end").touch()


def _end_at_first(count: int, item: int, report: Callable[[str], None]) -> Batches:
    yield from _rows(count, item, lambda _: None)
    report(f"read {item}")
    if item == 2 and _attempt() == 0:
        os.kill(os.getpid(), signal.SIGKILL)


def _write_at_second(item: int, batches: Batches) -> tuple[int, int]:
    rows = sum(batch.num_rows for batch in batches)
    if item == 3 and _attempt() == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return rows, _attempt()


def _send_at_second(item: int, batches: Batches) -> Iterator[tuple[int, tuple[int, int, int]]]:
    rows = sum(batch.num_rows for batch in batches)
    if item == 3:
        yield item, (0, 0, 0)  # Spark drops what an attempt has sent that does not end
        if _attempt() == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    yield item, (item, rows, _attempt())


def _sorted(received: tuple[int, Iterable[tuple[int, int, int]]]) -> list[tuple[int, int, int]]:
    return sorted(received[1])


def _attempt() -> int:
    context = TaskContext.get()
    assert context is not None
    return context.attemptNumber()


def _days(_item: int, report: Callable[[None], None]) -> Batches:
    yield pa.RecordBatch.from_pydict({"text": ["2024-01-02 and more"], "pattern": ["yyyy-MM-dd"]})
    report(None)


def _texts_of(_item: int, batches: Batches) -> list[str]:
    return [str(value) for batch in batches for value in batch.column(0)]


def _send_texts_of(item: int, batches: Batches) -> Iterator[tuple[int, str]]:
    yield from ((0, text) for text in _texts_of(item, batches))


def _all(received: tuple[int, Iterable[str]]) -> list[str]:
    return list(received[1])


def run_in_own_session() -> None:
    """Run two queries whose tasks are killed once, with a session that retries them, and print the results.

    The second one moves its result to other tasks. Two more queries depend on a setting of the session for each row.

    Then stop a thread of Spark without which no job ends, cancel a job, and print its error.
    """
    engine = Engine(
        Session("local[2,3]", {"spark.sql.legacy.timeParserPolicy": "LEGACY"}), EngineLimits(cancel_seconds=1.0)
    )
    group, text = JobGroup("query"), HiveType.parse("string")
    parsing = Query((Column("text", text), Column("pattern", text)), "", "select to_date(text, pattern) d from records")
    try:
        done = engine.query(group, Query(COLUMNS), partial(_end_at_first, 10), _write_at_second, [1, 2, 3])
        sys.stdout.write(f"{json.dumps(done)}\n")
        moved = Exchange(_send_at_second, _sorted, 2)
        moved_done = engine.exchange_result(group, Query(COLUMNS), partial(_end_at_first, 10), moved, [1, 2, 3])
        sys.stdout.write(f"{json.dumps(moved_done)}\n")
        [(_, parsed)] = engine.query(group, parsing, _days, _texts_of, [1])
        _, [moved_parsed] = engine.exchange_result(group, parsing, _days, Exchange(_send_texts_of, _all, 1), [1])
        sys.stdout.write(f"{json.dumps([parsed, moved_parsed])}\n")
        spark: Any = SparkContext.getOrCreate()._jsc.sc()
        spark.dagScheduler().eventProcessLoop().stop()
        with ThreadPoolExecutor(1) as threads:
            running = threads.submit(engine.run, group, str, [1])
            eventually("the job", lambda: engine.is_busy)
            engine.cancel(group)
            sys.stdout.write(f"{running.exception(LIMIT)}\n")
    finally:
        engine.stop()


def test_session_when_it_retries_tasks_then_the_last_attempt_counts_and_when_a_job_does_not_end_then_it_is_lost() -> (
    None
):
    code = "from tests.spark.test_query import run_in_own_session; run_in_own_session()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=LIMIT)
    retried, moved, parsed, error = done.stdout.splitlines()[-4:]
    assert json.loads(retried) == [["read 1", [10, 0]], ["read 2", [10, 1]], ["read 3", [10, 1]]]
    reports = ["read 1", "read 2", "read 3"]
    assert json.loads(moved) == [reports, [[[2, 10, 1]], [[0, 0, 0], [1, 10, 0], [3, 10, 1]]]]
    assert json.loads(parsed) == [["2024-01-02"], ["2024-01-02"]]
    assert "a job has not ended 1 s after it was cancelled" in error


def _report_process(_item: int, report: Callable[[int], None]) -> Batches:
    report(os.getpid())
    return iter(())


def _process(_item: int, batches: Batches) -> int:
    assert list(batches) == []
    return os.getpid()


def test_query_when_run_again_then_its_tasks_use_the_same_processes(engine: Engine) -> None:
    def run() -> tuple[int, int]:
        [(reader, writer)] = engine.query(JobGroup("query"), Query(COLUMNS), _report_process, _process, [1])
        assert reader is not None
        return reader, writer

    run()
    before = now()
    assert all(psutil.Process(pid).create_time() < before for pid in run())


def _nothing(item: int, report: Callable[[str], None]) -> Batches:
    report("nothing")
    return iter(())


def test_query_when_an_item_has_no_rows_then_it_is_reported(engine: Engine) -> None:
    assert engine.query(JobGroup("query"), Query(COLUMNS, "id > 0"), _nothing, _list, [1, 2]) == [("nothing", [])] * 2
