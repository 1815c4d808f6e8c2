"""Leases: EXCLUSIVE metastore locks on a name, held outside transactions and kept alive by heartbeats.

Invariant: a lease decides which daemon works, never which transaction may commit; the transaction's lock does that.
Source: HMS locks need no existing table (CheckLockFunction); a lock outside a transaction has its own heartbeat.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from hive_metastore import ttypes

from ingestd.errors import TransactionAborted
from ingestd.hive.client import Metastore
from ingestd.hive.tables import TableName


@dataclass(frozen=True, slots=True)
class Claim:
    """A lock on a lease, which is held, or waits and blocks later requests.

    Each heartbeat changes `beat`, which begins with its time in milliseconds since 1970 by the metastore's clock.
    `host` is the host name of the client.
    """

    lease: TableName
    lock_id: int
    agent: str
    is_held: bool
    beat: tuple[int, int]
    host: str = ""


def lease_component(lease: TableName) -> ttypes.LockComponent:
    """Return the component of a lock request that acquires a lease, inside or outside a transaction."""
    return ttypes.LockComponent(
        type=ttypes.LockType.EXCLUSIVE,
        level=ttypes.LockLevel.TABLE,
        dbname=lease.database,
        tablename=lease.table,
        operationType=ttypes.DataOperationType.NO_TXN,
        isTransactional=False,
    )


def try_acquire(metastore: Metastore, lease: TableName, agent: str) -> int | None:
    """Acquire the lease and return the lock id; return None if another client holds or requests it."""
    request = ttypes.LockRequest(
        component=[lease_component(lease)], user=metastore.user, hostname=metastore.host, agentInfo=agent[:128]
    )
    answer = metastore.call("lock", request)
    if answer.state == ttypes.LockState.ACQUIRED:
        return int(answer.lockid)
    # The queue is fair: a request that keeps waiting would block later ones.
    release(metastore, answer.lockid)
    return None


def claims(metastore: Metastore, lease: TableName) -> list[Claim]:
    """Return the locks on the lease outside transactions: first the one that is held, then those that wait."""
    return _claims(metastore, ttypes.ShowLocksRequest(dbname=lease.database, tablename=lease.table))


def all_claims(metastore: Metastore, database: str) -> list[Claim]:
    """Return the claims of all leases whose name is in `database`, in the order of `claims`, with one call."""
    return _claims(metastore, ttypes.ShowLocksRequest(dbname=database))


def _claims(metastore: Metastore, request: ttypes.ShowLocksRequest) -> list[Claim]:
    answer = metastore.call("show_locks", request)
    unsorted = [
        Claim(
            TableName(entry.dbname, entry.tablename or ""),
            entry.lockid,
            entry.agentInfo or "",
            entry.state == ttypes.LockState.ACQUIRED,
            (entry.lastheartbeat or 0, entry.heartbeatCount or 0),
            entry.hostname or "",
        )
        for entry in answer.locks or []
        if not entry.txnid
    ]
    return sorted(unsorted, key=lambda claim: (not claim.is_held, claim.lock_id))


def heartbeat(metastore: Metastore, lock_id: int) -> bool:
    """Keep a lease alive; return False if it has ended."""
    try:
        metastore.call("heartbeat", ttypes.HeartbeatRequest(lockid=lock_id))
    except TransactionAborted:
        return False
    return True


def release(metastore: Metastore, lock_id: int) -> None:
    """Release a lease of this process or of a dead one. Does nothing if the lease has already ended."""
    try:
        metastore.call("unlock", ttypes.UnlockRequest(lockid=lock_id))
    except TransactionAborted:
        return


def heartbeat_transaction(metastore: Metastore, txn_id: int) -> bool:
    """Keep a transaction alive; return False if it has ended."""
    return not heartbeat_transactions(metastore, [txn_id])


def heartbeat_transactions(metastore: Metastore, txn_ids: Iterable[int]) -> set[int]:
    """Keep transactions alive, and return the ids of those that have ended.

    Transactions with adjacent ids share a call. A range with gaps would keep foreign transactions alive.
    """
    ids = sorted(txn_ids)
    ended: set[int] = set()
    for _, run in groupby(enumerate(ids), lambda pair: pair[1] - pair[0]):
        adjacent = [txn_id for _, txn_id in run]
        request = ttypes.HeartbeatTxnRangeRequest(min=adjacent[0], max=adjacent[-1])
        answer = metastore.call("heartbeat_txn_range", request)
        ended |= set(answer.aborted) | set(answer.nosuch)
    return ended
