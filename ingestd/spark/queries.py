"""Evaluates a filter and a SELECT of Spark SQL between two functions of each task, which read and write its rows.

Invariant: a query is evaluated for each row on its own, and gives the same rows whenever it is repeated. A task reads
its item, evaluates the query for the rows, and writes the result or sends it to other tasks, so memory is bounded by
some batches. What a function reports comes from the same attempt as what the other one returns or sends.
"""

from __future__ import annotations

import pickle
import re
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from py4j import java_gateway, protocol
from py4j.protocol import Py4JJavaError
from pyspark import SparkContext, TaskContext
from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.sql import DataFrame, Row, SparkSession

from ingestd.errors import ConfigError, InvalidTable
from ingestd.schema import Column, HiveType, quoted
from ingestd.spark.errors import GATEWAY_ERRORS, JobFailed, calling
from ingestd.spark.exchange import exchange
from ingestd.spark.query import VIEW, Batches, Exchange, Query, Read, Write
from ingestd.spark.results import blocks, collected_blocks
from ingestd.spark.same_version import SameVersion

A = TypeVar("A")
B = TypeVar("B")
R = TypeVar("R")
V = TypeVar("V")
W = TypeVar("W")

_BATCH_BYTES = 4 << 20
_NANOS_PER_MICRO = 1000
# The zone of all rows and literals: TIMESTAMP is then the wall time that Hive stores. A batch is limited because Spark
# holds it in memory as often as there are processes.
_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "false",
    # A query reads nothing but records: no file, whose format Spark would have to read, and no setting or variable.
    "spark.sql.runSQLOnFiles": "false",
    "spark.sql.variable.substitute": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(_BATCH_BYTES),
}
# Exceptions that leave the JVM in an unknown state. A StackOverflowError is the fault of a query with many terms, and
# an OutOfMemoryError that of a large constant, mostly of an array that cannot be allocated. Other threads go on.
_FATAL = ("LinkageError", "InternalError", "ThreadDeath")
_RESULT = "block string"
_SENT = "receiver int, value binary"
# The nodes of a plan that is evaluated row by row, with those of the view.
_SOURCE = "MapInArrow"
_NODES = frozenset({"Project", "Filter", "Generate", "SubqueryAlias", "View", "Range", _SOURCE})
_NAMES = {
    "Aggregate": "an aggregation",
    "Distinct": "DISTINCT",
    "Join": "a join",
    "LateralJoin": "a join (use LATERAL VIEW)",
    "Sort": "ORDER BY or SORT BY",
    "GlobalLimit": "LIMIT",
    "LocalLimit": "LIMIT",
    "Offset": "OFFSET",
    "Sample": "TABLESAMPLE",
    "Window": "a window function",
    "WithCTE": "WITH",
    "Union": "UNION",
    "Intersect": "INTERSECT",
    "Except": "EXCEPT or MINUS",
    "RepartitionByExpression": "DISTRIBUTE BY or CLUSTER BY",
    "ScriptTransformation": "TRANSFORM",
}
# Texts that Spark replaces by the present time if they are literals of a DATE or TIMESTAMP, or cast to one. Escape
# sequences and comments could hide them.
_NOW = re.compile(r"\s*(?:now|today|tomorrow|yesterday)\b", re.IGNORECASE)
_NOW_LITERAL = re.compile(
    rf"\b(?:date|timestamp(?:_ltz|_ntz)?)(?:\s|/\*.*?\*/|--[^\n]*\n)*r?['\"](?:{_NOW.pattern}|[^'\"]*\\)",
    re.IGNORECASE | re.DOTALL,
)
# An initialization vector that was not given.
_EMPTY = ("''", "X''", "CAST('' AS BINARY)")
_HINT_NOW = "rows that are read again must be the same; `columns` can provide Kafka's timestamp"
_ONLY_RECORDS = "the query must read records, and nothing else"
_HINT = "use a SELECT with expressions, WHERE and LATERAL VIEW over records, which is evaluated row by row"


class Queries:
    """Examines queries, and runs them in a Spark session of their own. All methods are safe for use from any thread."""

    def __init__(self, context: SparkContext) -> None:
        self._session = SparkSession(context).newSession()
        # The session has replaced this function by one that converts some exceptions, also those of other jobs.
        java_gateway.get_return_value = protocol.get_return_value
        for name, value in _SETTINGS.items():
            self._session.conf.set(name, value)
        self._reports: Accumulator[dict[Any, Any]] = context.accumulator({}, _Reports())
        self._view = threading.Lock()

    def examine(self, query: Query) -> tuple[Column, ...]:
        """Return the columns of the result. Raises ConfigError for a query that is invalid or not allowed."""
        require_version(self._session.version)
        _refuse_literals_of_now(query)
        try:
            frame = self._frame(query, _no_rows, 1)
            execution = frame._jdf.queryExecution()
            _require_rows(execution.analyzed(), self._session.sparkContext)
            _require_source(execution.optimizedPlan())
        except Py4JJavaError as error:
            # Besides AnalysisException and ParseException, there are those of constants, such as 1 / 0, and of regular
            # expressions. They are faults of this query, and must not end the JVM, which other mappings use.
            if _exception(error).endswith(_FATAL) or self._session.sparkContext._jsc.sc().isStopped():
                raise
            if _exception(error) == "OutOfMemoryError":
                raise _refused(
                    "Spark's driver has too little memory to compute a constant of the query",
                    "correct constants such as sequence(1, 1000000000) or repeat('x', 1000000000), or raise"
                    " spark.driver.memory",
                ) from error
            message = str(error.java_exception.getMessage() or _exception(error)).strip().splitlines()[0]
            raise _refused(message, "see the reference of Spark SQL") from error
        return tuple(Column(field.name.lower(), _hive_type(field.name, field.dataType)) for field in frame.schema)

    def run(self, query: Query, read: Read[A, R], write: Write[A, W], items: Sequence[A]) -> list[tuple[R | None, W]]:
        """Run the query for each item in a task of its own; return what `read` has reported and `write` has returned.

        `read` yields the columns of the query, in any order, and `write` receives those of the result. There is no
        report if `write` returned before it had received all rows. Raises the exceptions of Spark, and JobFailed if the
        query has not read all items.
        """
        job = uuid.uuid4().hex
        try:
            source = SameVersion(partial(_read, job, self._reports, read, items, query.columns))
            frame = self._frame(query, source, len(items))
            done = collected_blocks(frame.mapInArrow(SameVersion(partial(_write, write, items)), _RESULT))
            attempts = {number: attempt for number, attempt, _ in done}
            written = {number: result for number, _, result in done}
            reports = self._reports_of(job, attempts, len(items))
            return [(report, written[number]) for number, report in enumerate(reports)]
        finally:
            self._forget(job)

    def exchange(
        self, query: Query, read: Read[A, R], moved: Exchange[A, V, B], items: Sequence[A]
    ) -> tuple[list[R | None], list[B]]:
        """Run the query for each item in a task of its own, and move the result to other tasks.

        Returns what `read` has reported for each item, and what the receivers have returned. There is no report if
        `send` ended before it had received all rows. Raises the exceptions of `run`.
        """
        job = uuid.uuid4().hex
        try:
            source = SameVersion(partial(_read, job, self._reports, read, items, query.columns))
            sent = self._frame(query, source, len(items)).mapInArrow(
                SameVersion(partial(_send, moved.send, items)), _SENT
            )
            with self._settings_in_tasks():
                done = exchange(sent.rdd, _stored, partial(_receive, moved.receive), moved.receivers)
            attempts = {end.number: end.attempt for ends, _ in done for end in ends}
            return self._reports_of(job, attempts, len(items)), [answer for _, answer in done]
        finally:
            self._forget(job)

    @contextmanager
    def _settings_in_tasks(self) -> Iterator[None]:
        """Let the tasks of the jobs of this thread read the settings of the session.

        Spark does this for jobs of a query, but not for those of its RDD. Some functions read settings for each row.
        """
        context = self._session.sparkContext
        settings = {key: value for key, value in self._session.conf.getAll.items() if key.startswith("spark.sql.")}
        for key, value in settings.items():
            context.setLocalProperty(key, value)
        try:
            yield
        finally:
            unset_properties(context, settings)

    def _reports_of(self, job: str, attempts: Mapping[int, int], items: int) -> list[Any]:
        """Return the reports of the attempts whose output was used, by the number of the item."""
        if len(attempts) < items:
            raise JobFailed("the query ended before it had read all records", hint="simplify where and transform")
        reports, none = self._reports.value, pickle.dumps(None)
        return [pickle.loads(reports.get((job, attempts[number]), none)) for number in range(items)]

    def _forget(self, job: str) -> None:
        for key in [key for key in list(self._reports.value) if key[0] == job]:
            del self._reports.value[key]

    def _frame(self, query: Query, source: Callable[[Batches], Batches], tasks: int) -> DataFrame:
        rows = self._session.range(0, tasks, 1, tasks).mapInArrow(source, _definition(query.columns))
        if query.where:
            rows = rows.where(query.where)
        if not query.select:
            return rows
        with self._view:
            rows.createOrReplaceTempView(VIEW)
            # In parentheses, it can only be a query: `sql` would execute a statement that changes something.
            return self._session.sql(f"SELECT * FROM ({query.select.rstrip().rstrip(';')}\n)")


def unset_properties(context: SparkContext, keys: Iterable[str]) -> None:
    """Remove local properties from the jobs of this thread. Never raises: the job may have failed, and has the reason.

    If Spark has stopped, there are no more jobs.
    """
    with suppress(*GATEWAY_ERRORS), calling(context):
        for key in keys:
            context.setLocalProperty(key, None)  # type: ignore[arg-type]  # PySpark removes it


def require_version(spark: str) -> None:
    """Raise ConfigError for a version of Spark, such as 3.5.9, whose plans and errors differ from those of Spark 4."""
    if int(spark.partition(".")[0]) < 4:
        raise _refused(f"`where` and `transform` need Spark 4, but this is Spark {spark}", "install pyspark 4")


class _Reports(AccumulatorParam[dict[Any, Any]]):
    """Collects what tasks report. Spark adds the values of a task once, when it has ended successfully."""

    def zero(self, value: dict[Any, Any]) -> dict[Any, Any]:
        """Return no reports."""
        return {}

    def addInPlace(self, value1: dict[Any, Any], value2: dict[Any, Any]) -> dict[Any, Any]:  # noqa: N802  # Spark's
        """Add reports to others."""
        value1.update(value2)
        return value1


def _read(
    job: str,
    reports: Accumulator[dict[Any, Any]],
    read: Read[A, R],
    items: Sequence[A],
    columns: Sequence[Column],
    numbers: Batches,
) -> Batches:
    """Yield the rows of the item of this task in Spark's types."""
    for _ in numbers:  # Spark does not reuse a process that has not read its whole input
        pass
    attempt = _task().taskAttemptId()

    def report(value: R) -> None:
        reports.add({(job, attempt): pickle.dumps(value)})

    schema = pa.schema([(column.name, _arrow(column.type)) for column in columns])
    for batch in read(items[_task().partitionId()], report):
        cast = [_cast(batch.column(field.name), field.type) for field in schema]
        yield from _parts(pa.RecordBatch.from_arrays(cast, schema=schema))


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column in Spark's type. Without their nanoseconds, timestamps are earlier, also before 1970."""
    if array.type != pa.timestamp("ns"):
        return array.cast(kind, safe=False)
    nanos = array.cast(pa.int64())
    micros = pc.divide(nanos, _NANOS_PER_MICRO)  # rounds towards 1970
    is_later = pc.less(nanos, pc.multiply(micros, _NANOS_PER_MICRO))
    return pc.subtract(micros, is_later.cast(pa.int64())).cast(pa.timestamp("us")).cast(kind)


def _parts(batch: pa.RecordBatch) -> Batches:
    """Divide a batch, because the JVM holds a whole batch of each task in memory."""
    rows = max(1, batch.num_rows * _BATCH_BYTES // max(1, batch.nbytes))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def _write(write: Write[A, W], items: Sequence[A], batches: Batches) -> Batches:
    number = _task().partitionId()
    for block in blocks((number, _task().taskAttemptId(), write(items[number], batches))):
        yield pa.RecordBatch.from_arrays([pa.array([block])], names=["block"])


@dataclass(frozen=True, slots=True)
class _End:
    """The last value that an attempt of a task sends, with the number of its item."""

    number: int
    attempt: int


def _send(send: Callable[[A, Batches], Iterable[tuple[int, V]]], items: Sequence[A], batches: Batches) -> Batches:
    """Yield what is sent for the item of this task, and its end."""
    number = _task().partitionId()
    for receiver, value in send(items[number], batches):
        yield _sent(receiver, value)
    yield _sent(number, _End(number, _task().taskAttemptId()))


def _sent(receiver: int, value: object) -> pa.RecordBatch:
    columns = [pa.array([receiver], pa.int32()), pa.array([pickle.dumps(value)], pa.binary())]
    return pa.RecordBatch.from_arrays(columns, names=["receiver", "value"])


def _stored(row: Row) -> Iterator[tuple[int, bytes]]:
    """Yield the value in a row of `_SENT`."""
    yield row.receiver, bytes(row.value)


def _receive(
    receive: Callable[[tuple[int, Iterable[V]]], B], received: tuple[int, Iterable[bytes]]
) -> tuple[list[_End], B]:
    """Return the ends among the values of a receiver, and what `receive` returns for the others."""
    number, stored = received
    ends: list[_End] = []

    def values() -> Iterator[V]:
        for value in map(pickle.loads, stored):
            if isinstance(value, _End):
                ends.append(value)
            else:
                yield value

    arriving = values()
    answer = receive((number, arriving))
    deque(arriving, maxlen=0)  # a receiver that has failed may have left some
    return ends, answer


def _no_rows(_numbers: Batches) -> Batches:
    """Stand for the rows of a query that is only examined."""
    return iter(())


def _task() -> TaskContext:
    context = TaskContext.get()
    assert context is not None
    return context


def _arrow(kind: HiveType) -> pa.DataType:
    """Return the Arrow type that Spark expects. Its timestamps have microseconds and a zone."""
    if kind.kind == "timestamp":
        return pa.timestamp("us", "UTC")
    if not kind.is_complex:
        return kind.arrow
    children = [_arrow(child) for child in kind.children]
    if kind.kind == "struct":
        return pa.struct([pa.field(name, child) for name, child in zip(kind.names, children, strict=True)])
    return pa.map_(*children) if kind.kind == "map" else pa.list_(*children)


def _definition(columns: Sequence[Column]) -> str:
    return ", ".join(f"{quoted(column.name)} {_spark_type(column.type)}" for column in columns)


def _spark_type(kind: HiveType) -> str:
    if not kind.is_complex:
        return "string" if kind.kind in ("varchar", "char") else str(kind)
    children = [_spark_type(child) for child in kind.children]
    if kind.kind == "struct":
        children = [f"{quoted(name)}: {child}" for name, child in zip(kind.names, children, strict=True)]
    return f"{kind.kind}<{', '.join(children)}>"


def _hive_type(name: str, kind: Any) -> HiveType:
    """Return a type of the result. Raises ConfigError if Hive has no such type."""
    text = kind.simpleString()
    what, where = f"the result has the type {text}", f"column {name}"
    if "struct<" in text and text != text.lower():  # Arrow would not find the fields of structs in those of Hive
        hint = f"use CAST({name} AS {text.lower()}), because the names of fields in Hive are in lower case"
        raise ConfigError(what, where=where, hint=hint)
    try:
        return HiveType.parse(text)
    except InvalidTable as error:
        raise ConfigError(what, where=where, hint=f"use CAST({name} AS type) with a type of Hive") from error


def _require_rows(plan: Any, context: SparkContext) -> None:
    """Raise ConfigError unless the plan is evaluated for each row on its own, with the same result each time."""
    jvm: Any = context._jvm
    patterns = jvm.org.apache.spark.sql.catalyst.trees.TreePattern
    if plan.containsPattern(patterns.PLAN_EXPRESSION()):
        raise _refused("a subquery is not allowed", _HINT)
    if plan.containsPattern(patterns.CURRENT_LIKE()):
        raise _refused("current_timestamp and similar functions are not allowed", _HINT_NOW)
    nodes = list(_nodes(plan))
    for node, name in nodes:
        if name not in _NODES:
            if node.children().isEmpty():
                raise _refused(_ONLY_RECORDS, _HINT)
            raise _refused(f"{_NAMES.get(name.removesuffix(' All'), f'the operation {name}')} is not allowed", _HINT)
        for expression in _elements(node.expressions()):
            if name != _SOURCE:
                _require_repeatable(expression)
    if sum(name == _SOURCE for _, name in nodes) != 1:
        raise _refused(_ONLY_RECORDS, _HINT)


def _require_repeatable(expression: Any) -> None:
    """Raise ConfigError for an expression that can have another value when it is evaluated again for the same row."""
    if not expression.deterministic():
        what = f"{expression.sql()} is not allowed, because its value is another one each time"
        raise _refused(what, "rows that are read again must be the same")
    for part in _subexpressions(expression):
        if _reads_now(part):
            raise _refused(f"{part.sql()} is not allowed", _HINT_NOW)
        if _encrypts_at_random(part):
            what = "aes_encrypt without an initialization vector is not allowed"
            raise _refused(what, "its value is another one each time; pass the argument iv")


def _refuse_literals_of_now(query: Query) -> None:
    """Raise ConfigError for a literal such as DATE 'today', which is a constant once Spark has parsed it."""
    for text in (query.where, query.select):
        if match := _NOW_LITERAL.search(text):
            raise _refused(f"{' '.join(match[0].split())}' is not allowed", _HINT_NOW)


def _reads_now(expression: Any) -> bool:
    """Return whether an expression computes a date or a timestamp from a text such as 'today'.

    Spark computes constant texts first, so any that is not a literal may be one of these.
    """
    if not str(expression.dataType().typeName()).startswith(("date", "timestamp")):
        return False
    text = next(_elements(expression.children()), None)
    if text is None or str(text.dataType().typeName()) != "string":
        return False
    return bool(_NOW.match(str(text.toString())) if str(text.nodeName()) == "Literal" else text.foldable())


def _encrypts_at_random(expression: Any) -> bool:
    """Return whether an expression encrypts with an initialization vector that Spark makes up."""
    if str(expression.nodeName()) not in ("AesEncrypt", "aes_encrypt"):
        return False
    _, _, mode, _, iv, _ = _elements(expression.children())
    return str(iv.sql()) in _EMPTY and str(mode.toString()).upper() != "ECB"


def _subexpressions(expression: Any) -> Iterator[Any]:
    yield expression
    for child in _elements(expression.children()):
        yield from _subexpressions(child)


def _require_source(plan: Any) -> None:
    """Raise ConfigError if Spark would not read the records, because it knows that the result has no rows."""
    if not any(name == _SOURCE for _, name in _nodes(plan)):
        raise _refused("the predicate is never true", "correct where, or the WHERE of transform")


def _nodes(plan: Any) -> Iterator[tuple[Any, str]]:
    yield plan, str(plan.nodeName())
    for child in _elements(plan.children()):
        yield from _nodes(child)


def _elements(sequence: Any) -> Iterator[Any]:
    """Yield the elements of a sequence of Scala."""
    for index in range(sequence.size()):
        yield sequence.apply(index)


def _refused(what: str, hint: str) -> ConfigError:
    return ConfigError(what, hint=hint)


def _exception(error: Py4JJavaError) -> str:
    """Return the name of the class of the JVM's exception."""
    return str(error.java_exception.getClass().getSimpleName())
