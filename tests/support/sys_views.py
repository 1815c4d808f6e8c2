"""The tables and views in which HiveServer2 shows scheduled queries and the metrics of replication.

`schematool -dbType hive` of a Hive distribution creates them, among many others. The columns and their order are those
of its script hive-schema-4.0.0.hive.sql. A table reads the metastore's database over JDBC, with the connection that is
in HiveServer2's configuration (`hive.sql.database.type` METASTORE).
"""

from __future__ import annotations

from typing import Any

from tests.support.replica import Side

# The names and types of columns.
_QUERIES = (
    "SCHEDULED_QUERY_ID bigint, SCHEDULE_NAME string, ENABLED boolean, CLUSTER_NAMESPACE string, SCHEDULE string, "
    "USER string, QUERY string, NEXT_EXECUTION bigint, ACTIVE_EXECUTION_ID bigint"
)
_EXECUTIONS = (
    "SCHEDULED_EXECUTION_ID bigint, SCHEDULED_QUERY_ID bigint, EXECUTOR_QUERY_ID string, STATE string, "
    "START_TIME int, END_TIME int, ERROR_MESSAGE string, LAST_UPDATE_TIME int"
)
_METRICS = (
    "RM_SCHEDULED_EXECUTION_ID bigint, RM_POLICY string, RM_DUMP_EXECUTION_ID bigint, RM_METADATA string, "
    "RM_PROGRESS string, MESSAGE_FORMAT varchar(16)"
)
_VIEWS = (
    """
    CREATE VIEW IF NOT EXISTS sys.replication_metrics AS
    SELECT DISTINCT rm_scheduled_execution_id scheduled_execution_id, rm_policy policy_name,
        rm_dump_execution_id dump_execution_id, rm_metadata metadata,
        deserialize(rm_progress, message_format) progress
    FROM sys.replication_metrics_orig
    """,
    """
    CREATE VIEW IF NOT EXISTS information_schema.scheduled_queries AS
    SELECT scheduled_query_id, schedule_name, enabled, cluster_namespace, schedule, `user`, query,
        from_unixtime(next_execution) next_execution, active_execution_id
    FROM sys.scheduled_queries
    """,
    """
    CREATE VIEW IF NOT EXISTS information_schema.scheduled_executions AS
    SELECT e.scheduled_execution_id, q.schedule_name, e.executor_query_id, e.state,
        from_unixtime(e.start_time) start_time, from_unixtime(e.end_time) end_time,
        e.end_time - e.start_time elapsed, e.error_message, from_unixtime(e.last_update_time) last_update_time
    FROM sys.scheduled_executions e JOIN sys.scheduled_queries q ON e.scheduled_query_id = q.scheduled_query_id
    """,
)


def create_views(side: Side) -> None:
    """Create the views on a side, unless they exist."""
    for database in ("sys", "information_schema"):
        side.sql(f"CREATE DATABASE IF NOT EXISTS {database}")
    side.sql(_table("scheduled_queries", "SCHEDULED_QUERIES", _QUERIES))
    side.sql(_table("scheduled_executions", "SCHEDULED_EXECUTIONS", _EXECUTIONS))
    side.sql(_table("replication_metrics_orig", "REPLICATION_METRICS", _METRICS))
    for view in _VIEWS:
        side.sql(view)


def rows(side: Side, query: str) -> list[dict[str, Any]]:
    """Return the rows of a query, by the names of its columns."""
    names, found = side.query(query)
    return [dict(zip((name.rpartition(".")[2] for name in names), row, strict=True)) for row in found]


def _table(name: str, stored: str, columns: str) -> str:
    """Return the definition of a table of the metastore's database, whose names are case-sensitive."""
    pairs = [column.split(" ") for column in columns.split(", ")]
    defined = ", ".join(f"`{column}` {kind}" for column, kind in pairs)
    selected = ", ".join(f'\\"{column}\\"' for column, _ in pairs)
    return (
        f"CREATE EXTERNAL TABLE IF NOT EXISTS sys.{name} ({defined}) "
        "STORED BY 'org.apache.hive.storage.jdbc.JdbcStorageHandler' TBLPROPERTIES ("
        '"hive.sql.database.type" = "METASTORE", '
        f'"hive.sql.query" = "SELECT {selected} FROM \\"{stored}\\"")'
    )
