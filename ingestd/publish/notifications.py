"""Tells a metastore that keeps an event log which files a transaction wrote, as whoever replicates the table must know.

Invariant: the announcement comes before the commit, and a transaction whose announcement failed does not commit: the
COMMIT_TXN event names no files, so rows that were not announced would never reach a replica (DbNotificationListener).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from hive_metastore import ttypes

from ingestd.clock import Deadline
from ingestd.hive.client import Metastore, MetastoreRefusal, UnknownCall
from ingestd.hive.tables import Table
from ingestd.hive.transactions import Transaction
from ingestd.publish.deltas import DeltaFiles

_LISTENERS = ("hive.metastore.transactional.event.listeners", "metastore.transactional.event.listeners")
_LOG_KEEPER = "DbNotificationListener"
# A daemon may outlive the configuration of its metastore: a log that is switched on later is noticed this soon.
_ASK_AGAIN_SECONDS = 60.0
_CHUNK = 1000  # as Hive's own writer: hive.write.notification.max.batch.size
_DEFAULT_CATALOG = "hive"
_answers: WeakKeyDictionary[Metastore, tuple[bool, Deadline]] = WeakKeyDictionary()


def keeps_event_log(metastore: Metastore) -> bool:
    """Whether DbNotificationListener is among the metastore's transactional listeners; asked once a minute.

    Raises MetastoreUnavailable.
    """
    known = _answers.get(metastore)
    if known is None or known[1].passed:
        answer = any(_LOG_KEEPER in _setting(metastore, key) for key in _LISTENERS)
        known = _answers[metastore] = (answer, Deadline.after(_ASK_AGAIN_SECONDS))
    return known[0]


def announce(metastore: Metastore, table: Table, txn: Transaction, write_id: int, placed: Iterable[DeltaFiles]) -> None:
    """Announce what `txn` placed; without an event log nothing is sent. Repeating it is safe: HMS keeps a file once.

    The same as Hive's writers send (Hive.addWriteNotificationLog): `replace` for an INSERT too, and an empty checksum
    for a file system that has none. Raises MetastoreUnavailable, InvalidTable.
    """
    if not keeps_event_log(metastore):
        return
    by_partition: dict[str, list[DeltaFiles]] = {}
    for one in placed:
        by_partition.setdefault(table.partition_name(one.partition), []).append(one)
    # One request for each partition: of two in one batch HMS takes the last (HMSHandler).
    requests = [_request(table, txn, write_id, parts) for parts in by_partition.values()]
    for start in range(0, len(requests), _CHUNK):
        _send(metastore, table, requests[start : start + _CHUNK])


def _setting(metastore: Metastore, key: str) -> str:
    try:
        return str(metastore.call("get_config_value", key, ""))
    except MetastoreRefusal:  # an old metastore gives out no key of this prefix
        return ""


def _request(table: Table, txn: Transaction, write_id: int, placed: Sequence[DeltaFiles]) -> Any:
    files = dict.fromkeys((f"{one.location}/{one.delta}/{name}", one.delta) for one in placed for name in one.files)
    return ttypes.WriteNotificationLogRequest(
        txnId=txn.id,
        writeId=write_id,
        db=table.name.database,
        table=table.name.table,
        fileInfo=ttypes.InsertEventRequestData(
            replace=True,
            filesAdded=[uri for uri, _ in files],
            filesAddedChecksum=[""] * len(files),
            subDirectoryList=[delta for _, delta in files],
        ),
        partitionVals=list(placed[0].partition) or None,
    )


def _send(metastore: Metastore, table: Table, requests: Sequence[Any]) -> None:
    """All at once, or one by one to a metastore that has no call for all.

    Hive 3.1 has neither call, although its listener has the same name: there a replicator lists the deltas itself.
    """
    batch = ttypes.WriteNotificationLogBatchRequest(
        catalog=table.raw.catName or _DEFAULT_CATALOG,
        db=table.name.database,
        table=table.name.table,
        requestList=list(requests),
    )
    if not _understood(metastore, "add_write_notification_log_in_batch", batch):
        all(_understood(metastore, "add_write_notification_log", request) for request in requests)


def _understood(metastore: Metastore, method: str, request: Any) -> bool:
    """Call `method`; False when the metastore does not know it."""
    try:
        metastore.call(method, request)
    except UnknownCall:
        return False
    return True
