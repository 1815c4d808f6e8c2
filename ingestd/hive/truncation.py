"""Truncates a table of a replica as the source was truncated: immediately, or when a transaction commits.

Invariant: rows that were written after the TRUNCATE stay.
"""

from __future__ import annotations

from collections.abc import Sequence

from hive_metastore import ttypes

from ingestd.acid.visibility import ValidWriteIds
from ingestd.hive.client import Metastore
from ingestd.hive.tables import TableName
from ingestd.hive.write_ids import as_text, read_snapshot


def truncate_at_once(metastore: Metastore, table: TableName, partitions: Sequence[str]) -> None:
    """Remove the files of a table, or of `partitions` if there are any. Raises InvalidTable, MetastoreUnavailable."""
    request = ttypes.TruncateTableRequest(
        dbName=table.database, tableName=table.table, partNames=list(partitions) or None
    )
    metastore.call("truncate_table_req", request)


def truncate_in_transaction(metastore: Metastore, table: TableName, partitions: Sequence[str], write_id: int) -> None:
    """Write empty bases, which hide all rows of earlier write ids when the transaction of `write_id` commits.

    Does nothing if that transaction has ended: the table has the result already. Otherwise the call may be repeated.
    Raises InvalidTable if the table or a partition does not exist, and MetastoreUnavailable.
    """
    if read_snapshot(metastore, table).has_ended(write_id):
        return
    request = ttypes.TruncateTableRequest(
        dbName=table.database,
        tableName=table.table,
        partNames=list(partitions) or None,
        writeId=write_id,
        validWriteIdList=as_text(ValidWriteIds(str(table), write_id)),
        # Without it, HMS removes the files at once, which readers of earlier snapshots still need.
        environmentContext=ttypes.EnvironmentContext(properties={"truncateSkipDataDeletion": "true"}),
    )
    metastore.call("truncate_table_req", request)
