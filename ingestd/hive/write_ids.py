"""Snapshots of a table's write ids, and their text form in metastore calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hive_metastore import ttypes

from ingestd.acid.visibility import ValidWriteIds
from ingestd.hive.client import Metastore
from ingestd.hive.tables import TableName

_NONE_OPEN = 2**63 - 1


def read_snapshot(metastore: Metastore, table: TableName) -> ValidWriteIds:
    """Return the valid write ids of `table` for a query that begins now."""
    request = ttypes.GetValidWriteIdsRequest(fullTableNames=[str(table)])
    answer = metastore.call("get_valid_write_ids", request).tblValidWriteIds[0]
    # A java.util.BitSet over the invalid ids, low bits first: a set bit means aborted, any other id is open.
    bits = int.from_bytes(answer.abortedBits or b"", "little")
    aborted = frozenset(w for i, w in enumerate(answer.invalidWriteIds) if bits >> i & 1)
    opened = frozenset(answer.invalidWriteIds) - aborted
    return ValidWriteIds(str(table), answer.writeIdHighWaterMark, opened, aborted)


def as_writer(snapshot: ValidWriteIds, write_id: int) -> ValidWriteIds:
    """Return the snapshot for the writer of `write_id`, which sees its own rows. Later ids below it count as open."""
    high = max(snapshot.high_watermark, write_id)
    later = range(snapshot.high_watermark + 1, high)
    return ValidWriteIds(snapshot.table, high, (snapshot.open - {write_id}).union(later), snapshot.aborted)


def as_text(snapshot: ValidWriteIds) -> str:
    """Return `db.table:highWatermark:minOpen:open,…:aborted,…` (ValidReaderWriteIdList.writeToString)."""
    lowest = min(snapshot.open, default=_NONE_OPEN)
    opened, aborted = (",".join(map(str, sorted(ids))) for ids in (snapshot.open, snapshot.aborted))
    return f"{snapshot.table}:{snapshot.high_watermark}:{lowest}:{opened}:{aborted}"


def ended_transactions(metastore: Metastore, txn_ids: Iterable[int]) -> set[int]:
    """Return the subset of `txn_ids` that has committed or aborted."""
    answer = metastore.call("get_open_txns")
    bits = int.from_bytes(answer.abortedBits or b"", "little")  # as in `read_snapshot`
    still_open = {txn_id for i, txn_id in enumerate(answer.open_txns) if not bits >> i & 1}
    return {txn_id for txn_id in txn_ids if txn_id <= answer.txn_high_water_mark and txn_id not in still_open}


def committed_transactions(metastore: Metastore) -> Callable[[int], bool]:
    """Return a function that tells whether HMS now regards a transaction as committed: neither open nor aborted."""
    answer = metastore.call("get_open_txns")
    high, others = answer.txn_high_water_mark, frozenset(answer.open_txns)
    return lambda txn_id: txn_id <= high and txn_id not in others


def is_committed(metastore: Metastore, txn_id: int) -> bool:
    """Return whether HMS regards a transaction as committed: it was opened, and is neither open nor aborted."""
    return committed_transactions(metastore)(txn_id)
