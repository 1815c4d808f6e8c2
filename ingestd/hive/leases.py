"""Leases: EXCLUSIVE metastore locks on a name, held outside transactions and kept alive by heartbeats.

Invariant: a lease decides which daemon works, never which transaction may commit; the transaction's lock does that.
Source: HMS locks need no existing table (CheckLockFunction); a lock outside a transaction has its own heartbeat.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    answer = metastore.call("show_locks", ttypes.ShowLocksRequest(dbname=lease.database, tablename=lease.table))
    found = [
        Claim(
            entry.lockid,
            entry.agentInfo or "",
            entry.state == ttypes.LockState.ACQUIRED,
            (entry.lastheartbeat or 0, entry.heartbeatCount or 0),
            entry.hostname or "",
        )
        for entry in answer.locks or []
        if not entry.txnid
    ]
    return sorted(found, key=lambda claim: (not claim.is_held, claim.lock_id))


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
    answer = metastore.call("heartbeat_txn_range", ttypes.HeartbeatTxnRangeRequest(min=txn_id, max=txn_id))
    return txn_id not in answer.aborted and txn_id not in answer.nosuch
