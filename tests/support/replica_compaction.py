"""Compacts tables with the calls of Hive's worker: for the metastore's cleaner, or held in the middle of the work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hive_metastore import ttypes

from ingestd.acid.layout import delta_name
from ingestd.hive.client import Metastore
from ingestd.hive.tables import TableName
from ingestd.hive.transactions import abort_all
from ingestd.hive.write_ids import read_transactions
from ingestd.storage.contract import child
from ingestd.storage.storages import Storages
from tests.support.replica_rows import table_of
from tests.support.stack import eventually

_REPLACED = delta_name(1, 0)


def compact_first_write(metastore: Metastore, storages: Storages, name: TableName) -> None:
    """Compact an unpartitioned table whose only files are those of write id 1.

    A worker of HiveServer2 may be faster, if one is running. Requests that earlier tests have left are not executed.
    """
    kind = ttypes.CompactionType.MAJOR
    metastore.call("compact2", ttypes.CompactionRequest(dbname=name.database, tablename=name.table, type=kind))

    def is_compacted() -> bool:
        request = ttypes.FindNextCompactRequest(workerId="tests", workerVersion="4.2.0")
        info = metastore.call("find_next_compact2", request).ci
        if info is not None and (info.dbname, info.tablename) == (name.database, name.table):
            _work(metastore, storages, info)
        answer = metastore.call("show_compact", ttypes.ShowCompactRequest())
        states = [
            compact.state
            for compact in answer.compacts
            if (compact.dbname, compact.tablename) == (name.database, name.table)
        ]
        assert not {"failed", "refused", "did not initiate"} & set(states), states
        return bool({"ready for cleaning", "succeeded"} & set(states))

    eventually("the compaction", is_compacted)


def _work(metastore: Metastore, storages: Storages, info: ttypes.CompactionInfoStruct) -> None:
    request = ttypes.OpenTxnRequest(
        num_txns=1, user=metastore.user, hostname="tests", txn_type=ttypes.TxnType.COMPACTION
    )
    txn = metastore.call("open_txns", request).txn_ids[0]
    info.highestWriteId, info.runas = 1, metastore.user
    metastore.call("update_compactor_state", info, txn)
    location = table_of(metastore, TableName(info.dbname, info.tablename)).location
    storage, delta = storages.at(location), child(location, _REPLACED)
    base = storages.location(location).make_directory(f"base_{1:07d}_v{txn:07d}")
    for entry in storage.entries(delta):
        storage.write(child(base, entry.name), storage.read(child(delta, entry.name)))
    metastore.call("mark_compacted", info)
    metastore.call("commit_txn", ttypes.CommitTxnRequest(txnid=txn))


@dataclass
class Work:
    """A major compaction of two deltas that a worker has begun: it has read them, and writes a bucket for each.

    Like Hive's worker, it writes to the directory that the table or partition had at its beginning.
    """

    metastore: Metastore
    storages: Storages
    info: Any
    txn_id: int
    base: str
    contents: list[bytes]
    written: int = field(default=0)

    def write(self) -> None:
        """Write the next bucket."""
        storage = self.storages.at(self.base)
        storage.make_directories(self.base)
        storage.write(child(self.base, f"bucket_{self.written:05d}"), self.contents[self.written])
        self.written += 1

    def complete(self) -> None:
        """Write the last bucket, and leave the transaction open."""
        self.write()
        self.metastore.call("mark_compacted", self.info)

    def finish(self) -> None:
        """Write the last bucket and commit."""
        self.complete()
        self.metastore.call("commit_txn", ttypes.CommitTxnRequest(txnid=self.txn_id))

    def fail(self) -> None:
        """End as a worker whose transaction was aborted."""
        self.metastore.call("mark_failed", self.info)


def take_request(metastore: Metastore, name: TableName, partition: str = "") -> Any:
    """Request a compaction, and take the request as a worker; return the entry of the queue.

    If a worker of HiveServer2 is faster, requests it again.
    """
    request = ttypes.CompactionRequest(
        dbname=name.database,
        tablename=name.table,
        partitionname=partition or None,
        type=ttypes.CompactionType.MAJOR,
    )
    worker = ttypes.FindNextCompactRequest(workerId="tests", workerVersion="4.2.0")

    def take() -> Any:
        metastore.call("compact2", request)
        infos = iter(lambda: metastore.call("find_next_compact2", worker).ci, None)
        return next((info for info in infos if (info.dbname, info.tablename) == (name.database, name.table)), None)

    return eventually("the request of a compaction", take)


def begin_transaction(metastore: Metastore, info: Any) -> int:
    """Open the transaction of a worker that has taken a request, and store it in the entry; return its id."""
    opened = ttypes.OpenTxnRequest(
        num_txns=1, user=metastore.user, hostname="tests", txn_type=ttypes.TxnType.COMPACTION
    )
    (txn_id,) = metastore.call("open_txns", opened).txn_ids
    info.highestWriteId, info.runas = 2, metastore.user
    metastore.call("update_compactor_state", info, txn_id)
    return int(txn_id)


def begin_work(metastore: Metastore, storages: Storages, name: TableName, partition: str = "") -> Work:
    """Begin a compaction of a table, or of a partition, whose files are those of the write ids 1 and 2."""
    return continue_work(metastore, storages, take_request(metastore, name, partition))


def continue_work(metastore: Metastore, storages: Storages, info: Any) -> Work:
    """Begin a compaction whose request is taken."""
    txn_id = begin_transaction(metastore, info)
    name = TableName(info.dbname, info.tablename)
    location = child(table_of(metastore, name).location, *filter(None, [info.partitionname]))
    storage = storages.at(location)
    contents = [storage.read(child(location, delta_name(write_id, 0), "bucket_00000")) for write_id in (1, 2)]
    return Work(metastore, storages, info, txn_id, child(location, f"base_{2:07d}_v{txn_id:07d}"), contents)


def fail_compactions(metastore: Metastore, name: TableName, partitions: Sequence[str]) -> None:
    """Add an entry to the history of a table for each partition, none of which needs to exist."""
    for partition in partitions:
        metastore.call("mark_failed", take_request(metastore, name, partition))


def is_cleaned(metastore: Metastore, storages: Storages, name: TableName) -> bool:
    """Return whether the cleaner has removed the files that a compaction of the table has replaced."""
    return not storages.at(location := table_of(metastore, name).location).exists(child(location, _REPLACED))


def abort_open_transactions(metastore: Metastore) -> None:
    """Abort the transactions that earlier tests have left open, for which the cleaner would wait."""
    abort_all(metastore, sorted(read_transactions(metastore).open))
