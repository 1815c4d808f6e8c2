"""Reads and writes the parameters from which Hive answers `count(*)`, in the way that ANALYZE does."""

from __future__ import annotations

from typing import Any

from hive_metastore import ttypes

from ingestd.acid.visibility import ValidWriteIds
from ingestd.hive import transactions
from ingestd.hive.partitions import read_partitions
from ingestd.hive.tables import TableName, load_acid_table, read_table
from ingestd.hive.write_ids import as_text
from tests.support.stack import Stack

_CONTEXT = ttypes.EnvironmentContext(properties={"DO_NOT_UPDATE_STATS": "true"})


def read_parameters(stack: Stack, partition: str = "", table: str = "") -> dict[str, str]:
    """Return the parameters of a partition `key=value`, or of the table itself. The default is the test's table."""
    name = TableName("default", table or stack.name)
    if not partition:
        return dict(read_table(stack.metastore, name).parameters)
    (found,) = read_partitions(stack.metastore, load_acid_table(stack.metastore, name), [partition])
    return dict(found.parameters)


def number(stack: Stack, partition: str = "", table: str = "") -> int:
    """Return `numRows`, from which Hive answers `count(*)` when COLUMN_STATS_ACCURATE is set."""
    return int(read_parameters(stack, partition, table)["numRows"])


def end_analyze(stack: Stack, parameters: dict[str, str], snapshot: ValidWriteIds, partition: str = "") -> None:
    """Finish an ANALYZE over `snapshot` that has read `parameters`: write them, and set COLUMN_STATS_ACCURATE."""
    name = TableName("default", stack.name)
    table = load_acid_table(stack.metastore, name)
    txn, write_id = transactions.begin_writing(stack.metastore, name, "tests")
    state = {"writeId": write_id, "validWriteIdList": as_text(snapshot)}
    found = read_partitions(stack.metastore, table, [partition])[0] if partition else table.raw
    found.parameters = parameters | {"COLUMN_STATS_ACCURATE": '{"BASIC_STATS":"true"}'}
    found.writeId = write_id
    _write(stack, name, found, partition, state)
    transactions.commit(stack.metastore, txn)


def write_parameters(stack: Stack, parameters: dict[str, str], partition: str = "", table: str = "") -> None:
    """Write back parameters that were read earlier, as ANALYZE does. Hive then removes COLUMN_STATS_ACCURATE."""
    name = TableName("default", table or stack.name)
    kept = {key: value for key, value in parameters.items() if key != "COLUMN_STATS_ACCURATE"}
    acid = load_acid_table(stack.metastore, name)
    found = read_partitions(stack.metastore, acid, [partition])[0] if partition else acid.raw
    found.parameters = kept
    _write(stack, name, found, partition, {})


def _write(stack: Stack, name: TableName, found: Any, partition: str, state: dict[str, Any]) -> None:
    context = {"dbName": name.database, "tableName": name.table, "environmentContext": _CONTEXT} | state
    if partition:
        changed = ttypes.AlterPartitionsRequest(partitions=[found], **context)
        stack.metastore.call("alter_partitions_req", changed)
    else:
        stack.metastore.call("alter_table_req", ttypes.AlterTableRequest(table=found, **context))
