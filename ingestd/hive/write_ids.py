"""Which write ids of a table a reader sees, asked from the metastore and as the text that its calls take."""

from __future__ import annotations

from collections.abc import Iterable

from hive_metastore import ttypes

from ingestd.acid.visibility import ValidWriteIds
from ingestd.hive.client import Metastore
from ingestd.hive.tables import TableName

_NONE_OPEN = 2**63 - 1


def read_snapshot(metastore: Metastore, table: TableName) -> ValidWriteIds:
    """The write ids of `table` as a query that begins now would see them."""
    request = ttypes.GetValidWriteIdsRequest(fullTableNames=[str(table)])
    answer = metastore.call("get_valid_write_ids", request).tblValidWriteIds[0]
    # A java.util.BitSet over the invalid ids, low bits first: set where the id was aborted, else it is open.
    bits = int.from_bytes(answer.abortedBits or b"", "little")
    aborted = frozenset(w for i, w in enumerate(answer.invalidWriteIds) if bits >> i & 1)
    opened = frozenset(answer.invalidWriteIds) - aborted
    return ValidWriteIds(str(table), answer.writeIdHighWaterMark, opened, aborted)


def as_writer(snapshot: ValidWriteIds, write_id: int) -> ValidWriteIds:
    """The view of the writer of `write_id`, who sees its own rows; what lies between is as good as open."""
    high = max(snapshot.high_watermark, write_id)
    later = range(snapshot.high_watermark + 1, high)
    return ValidWriteIds(snapshot.table, high, (snapshot.open - {write_id}).union(later), snapshot.aborted)


def as_text(snapshot: ValidWriteIds) -> str:
    """`db.table:highWatermark:minOpen:open,…:aborted,…` (ValidReaderWriteIdList.writeToString)."""
    lowest = min(snapshot.open, default=_NONE_OPEN)
    opened, aborted = (",".join(map(str, sorted(ids))) for ids in (snapshot.open, snapshot.aborted))
    return f"{snapshot.table}:{snapshot.high_watermark}:{lowest}:{opened}:{aborted}"


def ended_transactions(metastore: Metastore, txn_ids: Iterable[int]) -> set[int]:
    """Those of the transactions that have committed or aborted."""
    answer = metastore.call("get_open_txns")
    bits = int.from_bytes(answer.abortedBits or b"", "little")  # as in `read_snapshot`
    still_open = {txn_id for i, txn_id in enumerate(answer.open_txns) if not bits >> i & 1}
    return {txn_id for txn_id in txn_ids if txn_id <= answer.txn_high_water_mark and txn_id not in still_open}


def is_committed(metastore: Metastore, txn_id: int) -> bool:
    """Whether a transaction has committed, as far as HMS knows: it is neither open nor aborted nor in the future."""
    answer = metastore.call("get_open_txns")
    return txn_id <= answer.txn_high_water_mark and txn_id not in answer.open_txns
