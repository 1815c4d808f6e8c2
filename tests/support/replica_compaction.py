"""Compacts tables with the calls of Hive's worker, so that the metastore's cleaner removes the files."""

from __future__ import annotations

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

    A worker of HiveServer2 may be faster, if one is running.
    """
    kind = ttypes.CompactionType.MAJOR
    metastore.call("compact2", ttypes.CompactionRequest(dbname=name.database, tablename=name.table, type=kind))

    def is_compacted() -> bool:
        request = ttypes.FindNextCompactRequest(workerId="tests", workerVersion="4.2.0")
        info = metastore.call("find_next_compact2", request).ci
        if info is not None:
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


def is_cleaned(metastore: Metastore, storages: Storages, name: TableName) -> bool:
    """Return whether the cleaner has removed the files that a compaction of the table has replaced."""
    return not storages.at(location := table_of(metastore, name).location).exists(child(location, _REPLACED))


def abort_open_transactions(metastore: Metastore) -> None:
    """Abort the transactions that earlier tests have left open, for which the cleaner would wait."""
    abort_all(metastore, sorted(read_transactions(metastore).open))
