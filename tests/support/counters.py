"""The parameters that Hive answers `count(*)` from, read and written as ANALYZE does it."""

from __future__ import annotations

from hive_metastore import ttypes

from ingestd.hive.partitions import read_partitions
from ingestd.hive.tables import TableName, load_acid_table, read_table
from tests.support.stack import Stack

_CONTEXT = ttypes.EnvironmentContext(properties={"DO_NOT_UPDATE_STATS": "true"})


def read_parameters(stack: Stack, partition: str = "", table: str = "") -> dict[str, str]:
    """Parameters of a partition `key=value` of a table, by default the test's, or of the table itself."""
    name = TableName("default", table or stack.name)
    if not partition:
        return dict(read_table(stack.metastore, name).parameters)
    (found,) = read_partitions(stack.metastore, load_acid_table(stack.metastore, name), [partition])
    return dict(found.parameters)


def number(stack: Stack, partition: str = "", table: str = "") -> int:
    """`numRows`, from which Hive answers once a compaction has set its flag."""
    return int(read_parameters(stack, partition, table)["numRows"])


def write_parameters(stack: Stack, parameters: dict[str, str], partition: str = "") -> None:
    """Write parameters back as they were read before, which is what ANALYZE does; Hive drops the flag with it."""
    name = TableName("default", stack.name)
    kept = {key: value for key, value in parameters.items() if key != "COLUMN_STATS_ACCURATE"}
    table = load_acid_table(stack.metastore, name)
    if not partition:
        table.raw.parameters = kept
        request = ttypes.AlterTableRequest(
            dbName="default", tableName=stack.name, table=table.raw, environmentContext=_CONTEXT
        )
        stack.metastore.call("alter_table_req", request)
        return
    (found,) = read_partitions(stack.metastore, table, [partition])
    found.parameters = kept
    changed = ttypes.AlterPartitionsRequest(
        dbName="default", tableName=stack.name, partitions=[found], environmentContext=_CONTEXT
    )
    stack.metastore.call("alter_partitions_req", changed)
