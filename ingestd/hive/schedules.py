"""Scheduled queries of the metastore, their executions, and the metrics of replication that belong to executions.

Invariant: at most one execution of a query is active, because the metastore hands out a query that is due by one
transaction of its database (`claim`). So an execution is the lease of a policy. It ends when its executor says so, or
when the metastore has seen no progress for `metastore.scheduled.queries.execution.timeout` (120 s): then the executor
is refused, and another one may have claimed the query. HiveServer2 claims the queries of the namespace `hive` only.

A change of a query, or the end of an execution, succeeds if its answer is lost and the metastore has its effect.

Tried on a metastore 4.2.0: an execution that is due while another one is active waits for its end; missed times are not
queued; CREATE ignores the given time of the next execution, and ALTER does not; without one, ALTER computes it from the
schedule, which is a cron expression of Quartz in the time zone of the metastore. A query that is dropped takes its
executions with it. The metastore cannot list queries or executions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hive_metastore import ttypes

from ingestd.errors import ConfigError, InvalidTable, MetastoreUnavailable, OwnershipLost
from ingestd.hive.answers import MetastoreRefusal
from ingestd.hive.client import Metastore
from ingestd.hive.durations import hive_seconds

# Columns of the metastore's database: longer texts are errors, or are cut.
QUERY_LENGTH, NAME_LENGTH, USER_LENGTH = 4000, 256, 128
_ERROR_LENGTH, _METADATA_LENGTH, _PROGRESS_LENGTH = 1000, 4000, 10_000
_PLAIN = "json-0.2"
# Messages about the progress of an execution that has ended, or whose query was dropped.
_ENDED = re.compile("Invalid state change|MScheduledExecution:[0-9]+. not found")
_ENDED_SO = re.compile(r"Invalid state change: (\w+)=>\1\b")
_TIMEOUT_KEY, _TIMEOUT = "metastore.scheduled.queries.execution.timeout", "120s"


@dataclass(frozen=True, slots=True)
class ScheduledQuery:
    """A query and its schedule, a cron expression of Quartz in the time zone of the metastore.

    `next_execution` is the Unix time at which it is due; None if the schedule has no further time.
    """

    name: str
    schedule: str
    statement: str
    user: str
    is_enabled: bool = True
    next_execution: int | None = None


@dataclass(frozen=True, slots=True)
class Execution:
    """A claimed execution of the query `name`."""

    id: int
    name: str
    statement: str
    user: str


# HMS fails when it returns a query without a next time (NullPointerException in MScheduledQuery.toThrift).
_NO_NEXT_TIME = "Internal error processing get_scheduled_query"


@dataclass(frozen=True, slots=True)
class MetricRow:
    """A row of `sys.replication_metrics`: the JSON texts of one execution of a policy."""

    execution: int
    policy: str
    metadata: str
    progress: str
    dump_execution: int = 0


class Schedules:
    """The scheduled queries of one namespace. All methods raise MetastoreUnavailable. Thread-safe.

    `executor` names this process in `information_schema.scheduled_executions`.
    """

    def __init__(self, metastore: Metastore, namespace: str, executor: str) -> None:
        self._metastore = metastore
        self.namespace = namespace
        self._executor = executor[:NAME_LENGTH]

    # --- queries

    def create(self, query: ScheduledQuery) -> None:
        """Create a query; the metastore computes when it is due. Raises ConfigError if it exists or is not valid."""
        self._maintain(ttypes.ScheduledQueryMaintenanceRequestType.CREATE, query)

    def alter(self, query: ScheduledQuery) -> None:
        """Replace a query. If `next_execution` is None, the metastore computes it. Raises ConfigError."""
        self._maintain(ttypes.ScheduledQueryMaintenanceRequestType.ALTER, query)

    def drop(self, name: str) -> None:
        """Drop a query and its executions, also an active one. Raises ConfigError if it does not exist."""
        self._maintain(ttypes.ScheduledQueryMaintenanceRequestType.DROP, ScheduledQuery(name, "", "", ""))

    def find(self, name: str) -> ScheduledQuery | None:
        """Return a query; None if it does not exist.

        The metastore cannot return one that has no next time; its schedule, statement and user are then ''.
        """
        try:
            query = self._metastore.call("get_scheduled_query", self._key(name))
        except InvalidTable:
            return None
        except MetastoreUnavailable as error:
            if _NO_NEXT_TIME not in error.what:
                raise
            return ScheduledQuery(name, "", "", "", is_enabled=False)
        return ScheduledQuery(name, query.schedule, query.query, query.user, bool(query.enabled), query.nextExecution)

    # --- executions

    def timeout_seconds(self) -> float:
        """Return after how many seconds without a report the metastore ends an execution."""
        return hive_seconds(self._metastore.call("get_config_value", _TIMEOUT_KEY, _TIMEOUT))

    def claim(self) -> Execution | None:
        """Begin the execution of the enabled query that has been due for the longest time; None if none is due.

        It may also be None if another client claims at the same moment.
        If the answer is lost, the execution stays active until it times out.
        """
        due = self._metastore.call("scheduled_query_poll", ttypes.ScheduledQueryPollRequest(self.namespace))
        if not due.executionId:
            return None
        name = due.scheduleKey.scheduleName
        statement = due.query.removeprefix(f"/* schedule: {name} */")
        return Execution(due.executionId, name, statement, due.user or "")

    def report(self, execution: Execution, message: str = "") -> None:
        """Keep an execution active, and store what it does. Raises OwnershipLost if it has ended, or was dropped."""
        self._progress(execution, ttypes.QueryState.EXECUTING, message)

    def finish(self, execution: Execution, error: str | None = None) -> None:
        """End an execution; `error` is None if it succeeded. Raises the errors of `report`."""
        state = ttypes.QueryState.FINISHED if error is None else ttypes.QueryState.FAILED
        self._progress(execution, state, error or "")

    # --- metrics

    def store(self, row: MetricRow) -> None:
        """Store the metrics of an execution, in place of earlier ones. The metastore keeps them for seven days."""
        raw = ttypes.ReplicationMetrics(
            scheduledExecutionId=row.execution,
            policy=row.policy,
            dumpExecutionId=row.dump_execution,
            metadata=row.metadata[:_METADATA_LENGTH],
            progress=row.progress[:_PROGRESS_LENGTH],
            messageFormat=_PLAIN,
        )
        self._metastore.call("add_replication_metrics", ttypes.ReplicationMetricList([raw]))

    def metrics(self, policy: str) -> Sequence[MetricRow]:
        """Return the metrics of the executions of a policy, the latest first."""
        request = ttypes.GetReplicationMetricsRequest(policy=policy)
        metrics = self._metastore.call("get_replication_metrics", request).replicationMetricList or []
        rows = [
            MetricRow(
                metric.scheduledExecutionId,
                metric.policy,
                metric.metadata,
                metric.progress,
                metric.dumpExecutionId or 0,
            )
            for metric in metrics
        ]
        return sorted(rows, key=lambda row: row.execution, reverse=True)

    def _key(self, name: str) -> ttypes.ScheduledQueryKey:
        return ttypes.ScheduledQueryKey(name, self.namespace)

    def _maintain(self, kind: int, query: ScheduledQuery) -> None:
        where = f"policy {query.name}"
        for text, limit, what in ((query.statement, QUERY_LENGTH, "statement"), (query.user, USER_LENGTH, "user")):
            if len(text) > limit:
                raise ConfigError(f"the {what} has {len(text)} characters; at most {limit} can be stored", where=where)
        raw = ttypes.ScheduledQuery(
            scheduleKey=self._key(query.name),
            enabled=query.is_enabled,
            schedule=query.schedule,
            user=query.user,
            query=query.statement,
            nextExecution=query.next_execution,
        )
        try:
            request = ttypes.ScheduledQueryMaintenanceRequest(kind, raw)
            self._metastore.call("scheduled_query_maintenance", request)
        except MetastoreUnavailable:
            if not self._is_maintained(kind, query):
                raise
        except InvalidTable as error:
            raise ConfigError("the policy does not exist", where=where, hint="see `ingestd policy list`") from error
        except MetastoreRefusal as error:
            if isinstance(error.__cause__, ttypes.AlreadyExistsException):
                hint = "alter it, or drop it first"
                raise ConfigError("the policy exists already", where=where, hint=hint) from error
            if isinstance(error.__cause__, ttypes.InvalidInputException):
                raise ConfigError(
                    f"the metastore refuses the policy: {error.__cause__.message}", where=where
                ) from error
            raise

    def _is_maintained(self, kind: int, wanted: ScheduledQuery) -> bool:
        """Return whether the metastore has the effect of a request whose answer was lost."""
        query = self.find(wanted.name)
        if kind == ttypes.ScheduledQueryMaintenanceRequestType.DROP:
            return query is None
        is_given = kind == ttypes.ScheduledQueryMaintenanceRequestType.ALTER and wanted.next_execution is not None
        return query is not None and query == (
            wanted if is_given else replace(wanted, next_execution=query.next_execution)
        )

    def _progress(self, execution: Execution, state: int, message: str) -> None:
        info = ttypes.ScheduledQueryProgressInfo(
            scheduledExecutionId=execution.id,
            state=state,
            executorQueryId=self._executor,
            errorMessage=message[:_ERROR_LENGTH] or None,
        )
        try:
            self._metastore.call("scheduled_query_progress", info)
        except (MetastoreRefusal, MetastoreUnavailable) as error:
            if _ENDED_SO.search(error.what):
                return  # the answer to the first request was lost
            if not _ENDED.search(error.what):
                raise
            raise OwnershipLost(
                "the execution has ended, because it timed out or its policy was dropped",
                where=f"policy {execution.name}, execution {execution.id}",
                hint="another worker may run the policy now; check whether this machine or the metastore was suspended",
            ) from error
