"""Long leases outside transactions: an EXCLUSIVE lock on a name, kept by heartbeats, taken over when they cease.

Invariant: a lease says who *should* work; it never decides what may commit. That is the lock inside the transaction.
Source: HMS locks need no existing table (CheckLockFunction); txn-less locks are heartbeated by lock id.
"""

from __future__ import annotations

from dataclasses import dataclass

from hive_metastore import ttypes

from ingestd.errors import TransactionAborted
from ingestd.hive.client import Metastore
from ingestd.hive.tables import TableName


@dataclass(frozen=True, slots=True)
class Claim:
    """A lock on a lease: held, or waiting and so in the way of every later request; each heartbeat changes `beat`."""

    lock_id: int
    agent: str
    is_held: bool
    beat: tuple[int, int]


def lease_component(lease: TableName) -> ttypes.LockComponent:
    """The part of a lock request that takes a lease, inside a transaction or outside one."""
    return ttypes.LockComponent(
        type=ttypes.LockType.EXCLUSIVE,
        level=ttypes.LockLevel.TABLE,
        dbname=lease.database,
        tablename=lease.table,
        operationType=ttypes.DataOperationType.NO_TXN,
        isTransactional=False,
    )


def try_acquire(metastore: Metastore, lease: TableName, agent: str) -> int | None:
    """The lock id when the lease was free, else None and nothing is left waiting."""
    request = ttypes.LockRequest(
        component=[lease_component(lease)], user=metastore.user, hostname=metastore.host, agentInfo=agent[:128]
    )
    answer = metastore.call("lock", request)
    if answer.state == ttypes.LockState.ACQUIRED:
        return int(answer.lockid)
    # A waiting lock blocks later requests (fair queue), so it must not be left behind.
    release(metastore, answer.lockid)
    return None


def claims(metastore: Metastore, lease: TableName) -> list[Claim]:
    """Every lock on the lease outside a transaction: the one that is held first, then those that wait for it."""
    answer = metastore.call("show_locks", ttypes.ShowLocksRequest(dbname=lease.database, tablename=lease.table))
    found = [
        Claim(
            entry.lockid,
            entry.agentInfo or "",
            entry.state == ttypes.LockState.ACQUIRED,
            (entry.lastheartbeat or 0, entry.heartbeatCount or 0),
        )
        for entry in answer.locks or []
        if not entry.txnid
    ]
    return sorted(found, key=lambda claim: (not claim.is_held, claim.lock_id))


def heartbeat(metastore: Metastore, lock_id: int) -> bool:
    """Keep the lease alive; False when it is not ours any more."""
    try:
        metastore.call("heartbeat", ttypes.HeartbeatRequest(lockid=lock_id))
    except TransactionAborted:
        return False
    return True


def release(metastore: Metastore, lock_id: int) -> None:
    """Give a lease up, one's own or that of a holder who died; one that is gone already is fine."""
    try:
        metastore.call("unlock", ttypes.UnlockRequest(lockid=lock_id))
    except TransactionAborted:
        return


def heartbeat_transaction(metastore: Metastore, txn_id: int) -> bool:
    """Keep a transaction alive; False when it has ended."""
    answer = metastore.call("heartbeat_txn_range", ttypes.HeartbeatTxnRangeRequest(min=txn_id, max=txn_id))
    return txn_id not in answer.aborted and txn_id not in answer.nosuch
