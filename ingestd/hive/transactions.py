"""One Hive transaction as a client sees it: open, allocate, lock, register, commit, abort.

Invariant: the write id is allocated before any lock is asked for (the lock copies it into TXN_COMPONENTS), and every
component says `isTransactional` and `operationType` itself: Python's Thrift sends defaults, which HMS takes as
"not transactional", and then nothing is ever compacted or cleaned (InsertTxnComponentsCommand).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from hive_metastore import ttypes

from ingestd.clock import Deadline, pause
from ingestd.errors import IngestdError, MetastoreUnavailable, TransactionAborted, TransactionError
from ingestd.hive.client import PARTITIONS_PER_CALL, Metastore
from ingestd.hive.leases import lease_component
from ingestd.hive.tables import TableName

# How long an id gap may keep HMS from describing transactions; it lasts a second.
_GAP_SECONDS = 5.0
_GAP_PAUSE_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A table parameter that the commit itself updates (CommitTxnKeyValue); the key must exist already."""

    table_id: int
    key: str
    value: str


class LockTimeout(MetastoreUnavailable):
    """Locks were not granted in time; others hold them."""


@dataclass(frozen=True, slots=True)
class Wait:
    """How long to wait for locks, and what ends the wait at once.

    `patience_seconds` is how long a commit may be delayed by the wish for `lock_against_overwrites`: by default longer
    than a TRUNCATE holds its lock.
    """

    deadline: Deadline
    stop: threading.Event
    patience_seconds: float = 1.0


@dataclass(frozen=True, slots=True)
class Transaction:
    """An open transaction that writes one table; `id` is the transaction's, `write_id` the table's number for it."""

    id: int
    write_id: int
    table: TableName
    agent: str


def begin(metastore: Metastore, table: TableName, agent: str) -> Transaction:
    """Open a transaction and allocate its write id (see `begin_batch`)."""
    return begin_batch(metastore, table, agent, 1)[0]


def begin_reading(metastore: Metastore, table: TableName, agent: str) -> Transaction:
    """Open a transaction that will write no rows: it has no write id (0), and is there to hold a lease."""
    request = ttypes.OpenTxnRequest(num_txns=1, user=metastore.user, hostname=agent[:128], agentInfo=agent[:128])
    return Transaction(metastore.call("open_txns", request).txn_ids[0], 0, table, agent)


def begin_batch(metastore: Metastore, table: TableName, agent: str, count: int) -> list[Transaction]:
    """Open `count` transactions; their write ids are contiguous and ascend, because one call allocates them all.

    `agent` (≤ 128 characters) goes into the host name too: HMS lists a transaction's host, but not its agent.
    HMS opens at most `hive.txn.max.open.batch` (1000) with one call, so there are as many calls as `count` needs.
    """
    ids: list[int] = []
    try:
        while len(ids) < count:
            ids += _open(metastore, agent, count - len(ids))
        pairs = sorted((write_id, txn_id) for txn_id, write_id in allocate(metastore, table, ids).items())
        # A delta whose range held somebody else's write id would hide that one's delta (findBestWorkingDeltas).
        if pairs[-1][0] - pairs[0][0] != len(ids) - 1:
            raise TransactionError(f"write ids {pairs} are not contiguous", where=f"table {table}")
    except BaseException:  # Ctrl-C, too
        with suppress(IngestdError):
            abort_all(metastore, ids)  # no other process knows these transactions
        raise
    return [Transaction(txn_id, write_id, table, agent) for write_id, txn_id in pairs]


def allocate(metastore: Metastore, table: TableName, txn_ids: Sequence[int]) -> dict[int, int]:
    """The write id of each of these transactions for `table`; one call allocates those that have none."""
    request = ttypes.AllocateTableWriteIdsRequest(dbName=table.database, tableName=table.table, txnIds=list(txn_ids))
    answer = metastore.call("allocate_table_write_ids", request)
    return {pair.txnId: pair.writeId for pair in answer.txnToWriteIds}


def _open(metastore: Metastore, agent: str, count: int) -> list[int]:
    """Ids of new transactions, at least one and at most `count`."""
    request = ttypes.OpenTxnRequest(num_txns=count, user=metastore.user, hostname=agent[:128], agentInfo=agent[:128])
    ids = list(metastore.call("open_txns", request).txn_ids)
    if not ids:
        raise TransactionError("the metastore opened no transaction", where="open_txns", hint="see its log")
    return ids


def lock(
    metastore: Metastore,
    txn: Transaction,
    *,
    dynamic: bool,
    wait: Wait,
    lease: TableName | None = None,
    partition: str = "",
) -> None:
    """Lock the table for writing and take the lease, if one is named, both at once; wait until they are granted.

    With `partition`, its name, only that one is locked: an overwrite of another one need not wait.

    The lease is an EXCLUSIVE lock on a name that needs no table; a rival gets it only when `txn` has ended.
    Raises TransactionAborted when the transaction is gone, LockTimeout when the locks do not come in time.
    """
    components = _components(txn, ttypes.LockType.SHARED_READ, partition, dynamic=dynamic, lease=lease)
    _wait(metastore, txn, [_request(metastore, txn, components)], wait)


def lock_against_overwrites(
    metastore: Metastore,
    txn: Transaction,
    *,
    dynamic: bool,
    wait: Wait,
    lease: TableName | None = None,
    partition: str = "",
) -> bool:
    """As `lock`, and True when from now on no TRUNCATE begins before `txn` has ended.

    TRUNCATE takes EXCL_WRITE, which waits for a SHARED_WRITE but not for the SHARED_READ of an INSERT. So do UPDATE,
    DELETE and MERGE: take this lock only for the moment of a commit. Where one of them has the table already, this does
    not wait for it for longer than `wait.patience_seconds`: SHARED_READ is enough to commit, but the answer is False,
    and a TRUNCATE may hide what `txn` commits (see `deltas.refuse_overtaken`). The first request is left in the queue,
    which is fair: a TRUNCATE that is asked for later waits behind it. It ends with the transaction.
    """
    components = _components(txn, ttypes.LockType.SHARED_WRITE, partition, dynamic=dynamic, lease=lease)
    strong = _request(metastore, txn, components)
    if _is_granted_soon(metastore, txn, strong, wait):
        return True
    if wait.stop.is_set() or wait.deadline.passed:
        raise _not_granted(txn)
    components = _components(txn, ttypes.LockType.SHARED_READ, partition, dynamic=dynamic, lease=lease)
    # For either: DDL that was asked for between the two waits for the first, and the second waits for the DDL.
    _wait(metastore, txn, [strong, _request(metastore, txn, components)], wait)
    return _is_granted(metastore, txn, strong)


def strengthen_lock(metastore: Metastore, txn: Transaction, *, dynamic: bool, wait: Wait, partition: str = "") -> bool:
    """True when from now on no TRUNCATE begins before `txn` has ended, which has got its lock by `lock` already.

    As `lock_against_overwrites`, but what the transaction has is enough to commit: DDL that waits for it is before this
    request in the queue, so that neither would come to an end. Raises TransactionAborted when the transaction is gone.
    """
    components = _components(txn, ttypes.LockType.SHARED_WRITE, partition, dynamic=dynamic, lease=None)
    return _is_granted_soon(metastore, txn, _request(metastore, txn, components), wait)


def lock_reading(metastore: Metastore, txn: Transaction, wait: Wait) -> None:
    """Lock the table as a reader does, which DDL of the table and its partitions waits for; raises as `lock` does."""
    component = ttypes.LockComponent(
        type=ttypes.LockType.SHARED_READ,
        level=ttypes.LockLevel.TABLE,
        dbname=txn.table.database,
        tablename=txn.table.table,
        operationType=ttypes.DataOperationType.SELECT,
        isTransactional=True,
    )
    _wait(metastore, txn, [_request(metastore, txn, [component])], wait)


def take_lease(metastore: Metastore, txn: Transaction, lease: TableName, wait: Wait) -> None:
    """Take a lease for the rest of the transaction; raises as `lock` does."""
    _wait(metastore, txn, [_request(metastore, txn, [lease_component(lease)])], wait)


def _request(metastore: Metastore, txn: Transaction, components: Sequence[ttypes.LockComponent]) -> ttypes.LockResponse:
    request = ttypes.LockRequest(
        component=list(components),
        txnid=txn.id,
        user=metastore.user,
        hostname=metastore.host,
        agentInfo=txn.agent[:128],
    )
    return metastore.call("lock", request)


def _is_granted_soon(metastore: Metastore, txn: Transaction, asked: ttypes.LockResponse, wait: Wait) -> bool:
    """Whether the lock comes within `wait.patience_seconds`."""
    try:
        _wait(metastore, txn, [asked], Wait(wait.deadline.capped(wait.patience_seconds), wait.stop))
    except LockTimeout:
        return False
    return True


def _is_granted(metastore: Metastore, txn: Transaction, asked: ttypes.LockResponse) -> bool:
    return bool(_check(metastore, txn, asked.lockid).state == ttypes.LockState.ACQUIRED)


def _check(metastore: Metastore, txn: Transaction, lock_id: int) -> ttypes.LockResponse:
    return metastore.call("check_lock", ttypes.CheckLockRequest(lockid=lock_id, txnid=txn.id))


def _wait(metastore: Metastore, txn: Transaction, answers: Sequence[ttypes.LockResponse], wait: Wait) -> None:
    """Wait until one of the requests is granted: HMS grants a lock only when it is asked about it."""
    wait_seconds = 0.005
    while all(answer.state == ttypes.LockState.WAITING for answer in answers):
        if wait.deadline.passed or pause(wait_seconds, wait.stop):
            raise _not_granted(txn)
        wait_seconds = min(wait_seconds * 1.5, 0.5)
        answers = [_check(metastore, txn, answer.lockid) for answer in answers]
    if not any(answer.state == ttypes.LockState.ACQUIRED for answer in answers):
        texts = "; ".join(str(answer.errorMessage) for answer in answers)
        raise TransactionAborted(f"the locks were refused: {texts}", where=f"table {txn.table}")


def _not_granted(txn: Transaction) -> LockTimeout:
    return LockTimeout("the locks were not granted in time", where=f"table {txn.table}", hint="see SHOW LOCKS")


def register_partitions(metastore: Metastore, txn: Transaction, names: Sequence[str]) -> None:
    """Tell HMS which partitions the transaction writes; must precede any file under them.

    An aborted write id whose partition was never registered becomes visible once HMS forgets the transaction.
    """
    for start in range(0, len(names), PARTITIONS_PER_CALL):
        metastore.call(
            "add_dynamic_partitions",
            ttypes.AddDynamicPartitions(
                txnid=txn.id,
                writeid=txn.write_id,
                dbname=txn.table.database,
                tablename=txn.table.table,
                partitionnames=list(names[start : start + PARTITIONS_PER_CALL]),
                operationType=ttypes.DataOperationType.INSERT,
            ),
        )


def commit(metastore: Metastore, txn: Transaction, key_value: KeyValue | None = None) -> None:
    """Make the transaction and its key-value visible, both or neither (TxnHandler.commitTxn, HIVE-20538)."""
    request = ttypes.CommitTxnRequest(txnid=txn.id)
    if key_value is not None:
        request.keyValue = ttypes.CommitTxnKeyValue(key_value.table_id, key_value.key, key_value.value)
    metastore.call("commit_txn", request)


def abort(metastore: Metastore, txn_id: int) -> None:
    """Abort a transaction. One that is gone already is fine: nothing of it is visible, or it had committed."""
    try:
        metastore.call("abort_txn", ttypes.AbortTxnRequest(txnid=txn_id))
    except TransactionAborted:
        return


def abort_all(metastore: Metastore, txn_ids: Sequence[int]) -> None:
    """Abort transactions by one call; those that are gone already are passed over, as `abort` does."""
    if len(txn_ids) == 1:
        abort(metastore, txn_ids[0])
    elif txn_ids:
        metastore.call("abort_txns", ttypes.AbortTxnsRequest(txn_ids=list(txn_ids)))


def open_transactions(metastore: Metastore, agent_prefix: str) -> list[int]:
    """Ids of the open transactions whose agent begins with `agent_prefix`."""
    return [
        txn.id
        for txn in _described(metastore)
        if txn.state == ttypes.TxnState.OPEN and (txn.hostname or "").startswith(agent_prefix)
    ]


def _described(metastore: Metastore) -> Sequence[ttypes.TxnInfo]:
    """What HMS knows of all transactions that have not committed.

    An id that is missing among the newest (somebody opens a transaction just now, or has failed to) counts as open for
    a second (metastore.txn.opentxn.timeout). It has no user, and HMS cannot write an answer without one: it closes the
    connection (GetOpenTxnsListFunction). So it is asked again while it answers `get_open_txns`, which has no names.
    """
    limit = Deadline.after(_GAP_SECONDS)
    while True:
        try:
            return list(metastore.call("get_open_txns_info").open_txns)
        except MetastoreUnavailable:  # noqa: PERF203 - one try a question is what this loop is about
            if limit.passed:
                raise
            metastore.call("get_open_txns")
            pause(_GAP_PAUSE_SECONDS)


def _components(
    txn: Transaction, kind: int, partition: str, *, dynamic: bool, lease: TableName | None
) -> list[ttypes.LockComponent]:
    write = ttypes.LockComponent(
        type=kind,
        level=ttypes.LockLevel.PARTITION if partition else ttypes.LockLevel.TABLE,
        dbname=txn.table.database,
        tablename=txn.table.table,
        partitionname=partition or None,
        operationType=ttypes.DataOperationType.INSERT,
        isTransactional=True,
        isDynamicPartitionWrite=dynamic,
    )
    return [write, lease_component(lease)] if lease else [write]
