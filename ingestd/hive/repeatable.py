"""Which calls of a metastore may be sent again if their answer is lost, and why.

Invariant: a call in `REPEATABLE` has the same effect whether the metastore executes it once or twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_READS = (
    "getName", "getVersion", "get_all_databases", "get_all_table_constraints", "get_all_tables",
    "get_all_write_event_info", "get_config_value", "get_current_notificationEventId", "get_database",
    "get_foreign_keys", "get_function", "get_functions", "get_max_allocated_table_write_id", "get_metastore_db_uuid",
    "get_next_notification", "get_not_null_constraints", "get_open_txns", "get_open_txns_info", "get_partition_names",
    "get_partitions_by_names_req", "get_partitions_statistics_req", "get_replication_metrics", "get_scheduled_query",
    "get_table_objects_by_name_req", "get_table_req", "get_tables_by_type", "get_valid_write_ids",
    "partition_name_has_valid_characters", "partition_name_to_vals", "show_compact", "show_compact_of",
    "show_locks",
)  # fmt: skip
_STATISTICS = (
    "set_aggr_stats_for", "update_table_column_statistics_req", "update_partition_column_statistics_req",
)  # fmt: skip
REPEATABLE = {
    **dict.fromkeys(_READS, "read only"),
    "heartbeat": "updates a timestamp",
    "heartbeat_txn_range": "updates a timestamp",
    "add_write_ids_to_min_history": "only the smallest write id of a table matters",
    "check_lock": "reads a lock's state and updates a timestamp",
    "allocate_table_write_ids": "a transaction has one write id per table: the second call returns the same one",
    "lock": "in a transaction only: its locks do not block each other and end with it (see `is_repeatable`)",
    "open_txns": "in a replay only: it returns the transaction that is open for the source's (`hive/replay.py`)",
    "commit_txn": "in a replay only: it has no effect if no transaction is open for the source's",
    "repl_tbl_writeid_state": "has no effect on a table that has write ids",
    "unlock": "the second call finds no lock, which is the desired state (`leases.release`)",
    **dict.fromkeys(("abort_txn", "abort_txns"), "an aborted transaction may be aborted again"),
    "add_partitions_req": "with ifNotExists only; sent after the directories were created (`ensure_partitions`)",
    "add_dynamic_partitions": "registers the same names again: duplicate rows in TXN_COMPONENTS",
    **dict.fromkeys(_STATISTICS, "without needMerge only: replaces the statistics"),
    "scheduled_query_progress": "an execution that has ended in the same way is accepted (`Schedules.finish`)",
    "add_replication_metrics": "replaces the metrics of the execution",
    "add_write_notification_log": "the event log records each file once",
    "add_write_notification_log_in_batch": "the event log records each file once",
}
# Deliberately absent:
# commit_txn            the caller must know whether it took effect, and has safer ways to find out (publish/outcome.py)
# open_txns             each call opens new transactions; those of a lost answer stay open until they time out. It is
#                       repeated after an internal error, because that answer means that none was opened
# alter_table_req, alter_partitions_req   overwrite the whole object: a second call would revert concurrent changes, and
#                       where HMS compares first, it is rejected although the first one succeeded
# create_table_req, create_database   the second call is rejected although the first one succeeded
# scheduled_query_poll  each call claims another execution; that of a lost answer stays active until it times out
# scheduled_query_maintenance   the second call is refused although the first one succeeded; `Schedules` asks instead
# compact2              the second call is refused, or queues the compaction again after the first one has ended
# lock outside a transaction   the second request waits for the first, whose lock id was lost


def is_repeatable(method: str, arguments: Sequence[Any]) -> bool:
    """Return whether the call may be sent twice, which depends on the arguments of some methods."""
    if method == "lock":
        return bool(arguments[0].txnid)
    if method in {"open_txns", "commit_txn"}:
        return bool(arguments[0].replPolicy)
    if method == "add_partitions_req":
        return bool(arguments[0].ifNotExists)
    if method in _STATISTICS:
        return not arguments[0].needMerge
    return method in REPEATABLE
