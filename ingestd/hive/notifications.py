"""Write notifications, which report the files of a transaction to a metastore that keeps an event log.

The event of a commit (COMMIT_TXN) names no files; programs that replicate a table find them in these notifications.
Source: Hive.addWriteNotificationLog, DbNotificationListener.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from hive_metastore import ttypes

from ingestd.clock import Deadline
from ingestd.hive.answers import MetastoreRefusal, UnknownCall
from ingestd.hive.client import CATALOG, Metastore
from ingestd.hive.tables import Table
from ingestd.hive.transactions import Transaction

_LISTENERS = ("hive.metastore.transactional.event.listeners", "metastore.transactional.event.listeners")
_LISTENER = "DbNotificationListener"
# The event log may be enabled while a daemon runs, so the setting is read again after this time.
_CACHE_SECONDS = 60.0
_CHUNK = 1000  # the default of hive.write.notification.max.batch.size, which Hive's own writer uses
_answers: WeakKeyDictionary[Metastore, tuple[bool, Deadline]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class WrittenPartition:
    """The files that a transaction wrote to one partition.

    Each file is a pair of its URI and the name of its delta directory. `values` are the partition's values, or () for
    an unpartitioned table.
    """

    values: tuple[str, ...]
    files: Sequence[tuple[str, str]]


def keeps_event_log(metastore: Metastore) -> bool:
    """Return whether DbNotificationListener is one of the metastore's transactional listeners; cached for a minute.

    Raises MetastoreUnavailable.
    """
    known = _answers.get(metastore)
    if known is None or known[1].passed:
        answer = any(_LISTENER in _setting(metastore, key) for key in _LISTENERS)
        known = _answers[metastore] = (answer, Deadline.after(_CACHE_SECONDS))
    return known[0]


def notify_writes(
    metastore: Metastore, txn: Transaction, table: Table, write_id: int, partitions: Sequence[WrittenPartition]
) -> None:
    """Send the notifications of a transaction, one per partition. They may be sent again: HMS records a file only once.

    As in Hive's writers, `replace` is set for an INSERT too, and the checksum is empty for a file system without one.
    HMS keeps only the last notification of a partition in a call (HMSHandler), so a partition must occur only once.
    Raises MetastoreUnavailable or InvalidTable.
    """
    requests = [_request(txn, table, write_id, partition) for partition in partitions]
    for start in range(0, len(requests), _CHUNK):
        _send(metastore, table, requests[start : start + _CHUNK])


def _setting(metastore: Metastore, key: str) -> str:
    try:
        return str(metastore.call("get_config_value", key, ""))
    except MetastoreRefusal:  # an old metastore rejects keys with this prefix
        return ""


def _request(txn: Transaction, table: Table, write_id: int, partition: WrittenPartition) -> Any:
    return ttypes.WriteNotificationLogRequest(
        txnId=txn.id,
        writeId=write_id,
        db=table.name.database,
        table=table.name.table,
        fileInfo=ttypes.InsertEventRequestData(
            replace=True,
            filesAdded=[uri for uri, _ in partition.files],
            filesAddedChecksum=[""] * len(partition.files),
            subDirectoryList=[delta for _, delta in partition.files],
        ),
        partitionVals=list(partition.values) or None,
    )


def _send(metastore: Metastore, table: Table, requests: Sequence[Any]) -> None:
    """Send all requests in one call, or one by one if the metastore does not know that call.

    Hive 3.1 knows neither call, although its listener has the same name. Its replication lists the deltas itself.
    """
    batch = ttypes.WriteNotificationLogBatchRequest(
        catalog=table.raw.catName or CATALOG,
        db=table.name.database,
        table=table.name.table,
        requestList=list(requests),
    )
    if not _is_known(metastore, "add_write_notification_log_in_batch", batch):
        all(_is_known(metastore, "add_write_notification_log", request) for request in requests)


def _is_known(metastore: Metastore, method: str, request: Any) -> bool:
    """Call `method`; return False if the metastore does not know it."""
    try:
        metastore.call(method, request)
    except UnknownCall:
        return False
    return True
