"""Snapshots of transactions and of a table's write ids, and their text forms in metastore calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hive_metastore import ttypes

from ingestd.acid.visibility import ValidWriteIds
from ingestd.hive.client import Metastore
from ingestd.hive.tables import TableName

_NONE_OPEN = 2**63 - 1
_TABLES_PER_CALL = 1000


def read_snapshot(metastore: Metastore, table: TableName) -> ValidWriteIds:
    """Return the valid write ids of `table` for a query that begins now."""
    return read_snapshots(metastore, [table])[table]


def read_snapshots(
    metastore: Metastore, tables: Sequence[TableName], transactions: str | None = None
) -> dict[TableName, ValidWriteIds]:
    """Return the valid write ids of each table for a query that begins now, or that has the snapshot `transactions`."""
    snapshots = {}
    for start in range(0, len(tables), _TABLES_PER_CALL):
        some = {str(table): table for table in tables[start : start + _TABLES_PER_CALL]}
        request = ttypes.GetValidWriteIdsRequest(fullTableNames=list(some), validTxnList=transactions)
        for answer in metastore.call("get_valid_write_ids", request).tblValidWriteIds:
            snapshots[some[answer.fullTableName.lower()]] = _snapshot(answer)
    return snapshots


def highest_write_id(metastore: Metastore, table: TableName) -> int:
    """Return the highest write id that was ever allocated for a table; 0 if none was, or there is no such table."""
    request = ttypes.MaxAllocatedTableWriteIdRequest(dbName=table.database, tableName=table.table)
    return int(metastore.call("get_max_allocated_table_write_id", request).maxWriteId)


def _snapshot(answer: Any) -> ValidWriteIds:
    # A java.util.BitSet over the invalid ids, low bits first: a set bit means aborted, any other id is open.
    bits = int.from_bytes(answer.abortedBits or b"", "little")
    aborted = frozenset(w for i, w in enumerate(answer.invalidWriteIds) if bits >> i & 1)
    opened = frozenset(answer.invalidWriteIds) - aborted
    return ValidWriteIds(answer.fullTableName, answer.writeIdHighWaterMark, opened, aborted)


def as_writer(snapshot: ValidWriteIds, write_id: int) -> ValidWriteIds:
    """Return the snapshot for the writer of `write_id`, which sees its own rows. Later ids below it count as open."""
    high = max(snapshot.high_watermark, write_id)
    later = range(snapshot.high_watermark + 1, high)
    return ValidWriteIds(snapshot.table, high, (snapshot.open - {write_id}).union(later), snapshot.aborted)


def as_text(snapshot: ValidWriteIds) -> str:
    """Return `db.table:highWatermark:minOpen:open,…:aborted,…` (ValidReaderWriteIdList.writeToString).

    A metastore does not use the name, but fails to parse one with a colon, so that becomes an underscore.
    """
    lowest = min(snapshot.open, default=_NONE_OPEN)
    opened, aborted = (",".join(map(str, sorted(ids))) for ids in (snapshot.open, snapshot.aborted))
    return f"{snapshot.table.replace(':', '_')}:{snapshot.high_watermark}:{lowest}:{opened}:{aborted}"


def parse(text: str) -> ValidWriteIds:
    """Parse the text of `as_text`. Raises ValueError if it is malformed."""
    table, high, _lowest, opened, aborted = text.split(":")
    ids = [frozenset(int(number) for number in part.split(",") if number) for part in (opened, aborted)]
    return ValidWriteIds(table, int(high), *ids)


@dataclass(frozen=True, slots=True)
class ValidTransactions:
    """A snapshot of the transactions (ValidTxnList): all ids up to the high watermark, except open and aborted ones.

    READ_ONLY transactions are not among the open ones.
    """

    high_watermark: int
    open: frozenset[int]
    aborted: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> ValidTransactions:
        """Parse `text`. Raises ValueError if it is malformed."""
        high, _lowest, *lists = text.split(":")
        opened, aborted = (frozenset(int(number) for number in ids.split(",") if number) for ids in lists)
        return cls(int(high), opened, aborted)

    @property
    def text(self) -> str:
        """The text in metastore calls: `highWatermark:minOpen:open,…:aborted,…` (ValidReadTxnList.writeToString)."""
        opened, aborted = (",".join(map(str, sorted(ids))) for ids in (self.open, self.aborted))
        return f"{self.high_watermark}:{min(self.open, default=_NONE_OPEN)}:{opened}:{aborted}"

    def has_ended(self, txn_id: int) -> bool:
        """Return whether the transaction has committed or aborted."""
        return txn_id <= self.high_watermark and txn_id not in self.open

    def is_committed(self, txn_id: int) -> bool:
        """Return whether the transaction has committed: it was opened, and is neither open nor aborted."""
        return self.has_ended(txn_id) and txn_id not in self.aborted


def read_transactions(metastore: Metastore) -> ValidTransactions:
    """Return the snapshot of the transactions for a query that begins now. Raises MetastoreUnavailable."""
    answer = metastore.call("get_open_txns")
    bits = int.from_bytes(answer.abortedBits or b"", "little")  # as in `read_snapshot`
    aborted = frozenset(txn_id for i, txn_id in enumerate(answer.open_txns) if bits >> i & 1)
    return ValidTransactions(answer.txn_high_water_mark, frozenset(answer.open_txns) - aborted, aborted)


def ended_transactions(metastore: Metastore, txn_ids: Iterable[int]) -> set[int]:
    """Return the subset of `txn_ids` that has committed or aborted."""
    return set(filter(read_transactions(metastore).has_ended, txn_ids))


def committed_transactions(metastore: Metastore) -> Callable[[int], bool]:
    """Return a function that tells whether HMS now regards a transaction as committed: neither open nor aborted."""
    return read_transactions(metastore).is_committed


def is_committed(metastore: Metastore, txn_id: int) -> bool:
    """Return whether HMS regards a transaction as committed: it was opened, and is neither open nor aborted."""
    return read_transactions(metastore).is_committed(txn_id)
