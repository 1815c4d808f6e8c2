"""A TRUNCATE in the steps of HiveServer2: acquire the lock, allocate a write id, write the base directory, commit."""

from __future__ import annotations

from collections.abc import Sequence

from hive_metastore import ttypes

from ingestd.hive import transactions
from ingestd.hive.client import Metastore
from ingestd.hive.tables import TableName
from ingestd.hive.write_ids import as_text, as_writer, read_snapshot


class Truncation:
    """A TRUNCATE in progress. The constructor acquires the EXCL_WRITE lock, and `finish` truncates and commits."""

    def __init__(self, metastore: Metastore, table: TableName, partitions: Sequence[str] = ()) -> None:
        self._metastore = metastore
        self._table = table
        self._partitions = list(partitions)
        self._txn = transactions.begin(metastore, "tests/truncate").id
        components = [self._component(name) for name in self._partitions or [""]]
        request = ttypes.LockRequest(component=components, txnid=self._txn, user="tests", hostname="tests")
        assert metastore.call("lock", request).state == ttypes.LockState.ACQUIRED

    def finish(self) -> None:
        """Allocate the write id N, write `base_N` and commit."""
        request = ttypes.AllocateTableWriteIdsRequest(
            dbName=self._table.database, tableName=self._table.table, txnIds=[self._txn]
        )
        write_id = self._metastore.call("allocate_table_write_ids", request).txnToWriteIds[0].writeId
        self._metastore.call(
            "truncate_table_req",
            ttypes.TruncateTableRequest(
                dbName=self._table.database,
                tableName=self._table.table,
                partNames=self._partitions or None,
                writeId=write_id,
                validWriteIdList=as_text(as_writer(read_snapshot(self._metastore, self._table), write_id)),
                environmentContext=ttypes.EnvironmentContext(properties={"truncateSkipDataDeletion": "true"}),
            ),
        )
        self._metastore.call("commit_txn", ttypes.CommitTxnRequest(txnid=self._txn))

    def _component(self, partition: str) -> ttypes.LockComponent:
        return ttypes.LockComponent(
            type=ttypes.LockType.EXCL_WRITE,
            level=ttypes.LockLevel.PARTITION if partition else ttypes.LockLevel.TABLE,
            dbname=self._table.database,
            tablename=self._table.table,
            partitionname=partition or None,
            operationType=ttypes.DataOperationType.NO_TXN,
            isTransactional=True,
        )


def waits_for_lock(metastore: Metastore, table: TableName) -> bool:
    """Return whether an UPDATE, DELETE or TRUNCATE of the table is waiting for its lock."""
    request = ttypes.ShowLocksRequest(dbname=table.database, tablename=table.table)
    return any(
        lock.type == ttypes.LockType.EXCL_WRITE and lock.state == ttypes.LockState.WAITING
        for lock in metastore.call("show_locks", request).locks or []
    )
