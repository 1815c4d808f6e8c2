"""The metastore's transaction calls: open, allocate write ids, lock, register partitions, commit, abort.

Invariant: a table's write id is allocated before the table is locked, because the lock copies the write id into
TXN_COMPONENTS. Every lock component sets `isTransactional` and `operationType`: Python's Thrift would send defaults,
which HMS reads as "not transactional", and the table would never be compacted or cleaned (InsertTxnComponentsCommand).

A transaction may write any number of tables; it has one write id for each of them.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from hive_metastore import ttypes

from ingestd.clock import Deadline, pause
from ingestd.errors import IngestdError, MetastoreUnavailable, TransactionAborted, TransactionError
from ingestd.hive.answers import has_answered
from ingestd.hive.client import PARTITIONS_PER_CALL, Metastore
from ingestd.hive.leases import lease_component
from ingestd.hive.tables import TableName

# Limit for retries while a gap in the transaction ids makes `get_open_txns_info` fail; a gap lasts a second.
_GAP_SECONDS = 5.0
_GAP_PAUSE_SECONDS = 0.1
# The metastore opens no transaction while more are open, and does not say so (TxnHandler.openTxns).
_MOST_OPEN = "metastore.max.open.txns"
# How long to wait for a lease before late locks on it are removed.
_LATE_LOCKS_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A table parameter that a commit updates (CommitTxnKeyValue); the key must exist already."""

    table_id: int
    key: str
    value: str


class LockTimeout(MetastoreUnavailable):
    """Other transactions held the locks for too long."""


@dataclass(frozen=True, slots=True)
class Wait:
    """How long to wait for locks: until `deadline` has passed or `stop` is set.

    `patience_seconds` limits how long `lock_against_overwrites` may delay a commit. The default is longer than a
    TRUNCATE holds its lock.
    """

    deadline: Deadline
    stop: threading.Event
    patience_seconds: float = 1.0


@dataclass(frozen=True, slots=True)
class Transaction:
    """An open transaction; `agent` names its owner in SHOW TRANSACTIONS and SHOW LOCKS."""

    id: int
    agent: str


@dataclass(frozen=True, slots=True)
class WriteLock:
    """A table to lock for writing. If `partition` is the name of a partition, only that partition is locked.

    With `dynamic`, the rows determine the partitions, which are registered later.
    """

    table: TableName
    dynamic: bool = False
    partition: str = ""


def begin(metastore: Metastore, agent: str) -> Transaction:
    """Open a transaction without write ids.

    `agent` (≤ 128 characters) is also sent as the host name, because HMS lists a transaction's host, but not its agent.
    """
    return Transaction(_open(metastore, agent, 1)[0], agent)


def begin_writing(metastore: Metastore, table: TableName, agent: str) -> tuple[Transaction, int]:
    """Open a transaction and allocate its write id for `table`; use `allocate` for other tables."""
    return begin_batch(metastore, table, agent, 1)[0]


def begin_batch(metastore: Metastore, table: TableName, agent: str, count: int) -> list[tuple[Transaction, int]]:
    """Open `count` transactions, each with its write id for `table`.

    The write ids are contiguous and ascend, because one call allocates them all. HMS opens at most
    `hive.txn.max.open.batch` (1000) transactions with one call, so a large `count` takes several calls.
    """
    ids: list[int] = []
    try:
        while len(ids) < count:
            ids += _open(metastore, agent, count - len(ids))
        pairs = sorted((write_id, txn_id) for txn_id, write_id in _allocate(metastore, table, ids).items())
        # The delta of the batch would hide the delta of another writer's write id in its range (findBestWorkingDeltas).
        if pairs[-1][0] - pairs[0][0] != len(ids) - 1:
            raise TransactionError(f"write ids {pairs} are not contiguous", where=f"table {table}")
    except BaseException:  # KeyboardInterrupt, too
        with suppress(IngestdError):
            abort_all(metastore, ids)  # no other process knows these transactions
        raise
    return [(Transaction(txn_id, agent), write_id) for write_id, txn_id in pairs]


def allocate(metastore: Metastore, txn: Transaction, table: TableName) -> int:
    """Return the transaction's write id for `table`. The first call allocates it."""
    return _allocate(metastore, table, [txn.id])[txn.id]


def _allocate(metastore: Metastore, table: TableName, txn_ids: Sequence[int]) -> dict[int, int]:
    request = ttypes.AllocateTableWriteIdsRequest(dbName=table.database, tableName=table.table, txnIds=list(txn_ids))
    answer = metastore.call("allocate_table_write_ids", request)
    return {pair.txnId: pair.writeId for pair in answer.txnToWriteIds}


def _open(metastore: Metastore, agent: str, count: int) -> list[int]:
    """Open at least one and at most `count` transactions; return their ids."""
    request = ttypes.OpenTxnRequest(num_txns=count, user=metastore.user, hostname=agent[:128], agentInfo=agent[:128])
    try:
        ids = list(metastore.call("open_txns", request).txn_ids)
    except MetastoreUnavailable as error:
        if has_answered(error) and (most := _exceeded_limit(metastore)):
            error.hint = (
                f"{_MOST_OPEN} permits {most:,} open transactions: find out who leaves them open (SHOW TRANSACTIONS),"
                " or raise it"
            )
        raise
    if not ids:
        raise TransactionError("the metastore opened no transaction", where="open_txns", hint="see the metastore's log")
    return ids


def _exceeded_limit(metastore: Metastore) -> int | None:
    """Return the most open transactions that the metastore permits if as many are open; None if fewer are."""
    with suppress(IngestdError, ValueError):
        most = int(metastore.call("get_config_value", _MOST_OPEN, ""))
        answer = metastore.call("get_open_txns")
        aborted = int.from_bytes(answer.abortedBits or b"", "little").bit_count()
        return most if len(answer.open_txns) - aborted >= most else None
    return None


def lock(
    metastore: Metastore, txn: Transaction, tables: Sequence[WriteLock], *, wait: Wait, lease: TableName | None = None
) -> None:
    """Lock the tables for writing, and acquire `lease` if it is given; wait until all locks are granted.

    The lease is an EXCLUSIVE lock on a name, which need not be that of a table. It ends with `txn`. Raises
    TransactionAborted if the transaction has ended, and LockTimeout if the locks are not granted in time.
    """
    components = _components(tables, ttypes.LockType.SHARED_READ, lease)
    _wait(metastore, txn, [_request(metastore, txn, components)], wait, _listed(tables), lease)


def lock_against_overwrites(
    metastore: Metastore, txn: Transaction, tables: Sequence[WriteLock], *, wait: Wait, lease: TableName | None = None
) -> bool:
    """Lock the tables as `lock` does; return True if no TRUNCATE of the tables can begin before `txn` has ended.

    TRUNCATE requests EXCL_WRITE, which waits for a SHARED_WRITE but not for the SHARED_READ of an INSERT. UPDATE,
    DELETE and MERGE wait for SHARED_WRITE too, so call this function only immediately before the commit. If one of
    them holds a table, the function waits at most `wait.patience_seconds` for SHARED_WRITE, then acquires SHARED_READ,
    which is enough to commit. If SHARED_WRITE is not granted, the result is False, and a TRUNCATE may hide the rows
    that `txn` commits. The request for SHARED_WRITE stays in the fair queue until `txn` has ended, so a later TRUNCATE
    waits behind it.
    """
    strong = _request(metastore, txn, _components(tables, ttypes.LockType.SHARED_WRITE, lease))
    if _is_granted_soon(metastore, txn, strong, wait, _listed(tables)):
        return True
    if wait.stop.is_set() or wait.deadline.passed:
        raise _not_granted(_listed(tables))
    weak = _request(metastore, txn, _components(tables, ttypes.LockType.SHARED_READ, lease))
    # Wait for either: DDL requested between them waits for the first request, and the second request for the DDL.
    _wait(metastore, txn, [strong, weak], wait, _listed(tables), lease)
    return _is_granted(metastore, txn, strong)


def strengthen_lock(metastore: Metastore, txn: Transaction, tables: Sequence[WriteLock], *, wait: Wait) -> bool:
    """Strengthen the locks of `lock`; return True if no TRUNCATE of the tables can begin before `txn` has ended.

    In contrast to `lock_against_overwrites`, the transaction already holds locks that are enough to commit. DDL that
    waits for these is ahead of this request in the queue, so waiting longer would be a deadlock. Raises
    TransactionAborted if the transaction has ended.
    """
    components = _components(tables, ttypes.LockType.SHARED_WRITE, None)
    return _is_granted_soon(metastore, txn, _request(metastore, txn, components), wait, _listed(tables))


def lock_reading(metastore: Metastore, txn: Transaction, table: TableName, wait: Wait) -> None:
    """Lock the table as a reader does, so that DDL on it and its partitions waits. Raises the same errors as `lock`."""
    component = ttypes.LockComponent(
        type=ttypes.LockType.SHARED_READ,
        level=ttypes.LockLevel.TABLE,
        dbname=table.database,
        tablename=table.table,
        operationType=ttypes.DataOperationType.SELECT,
        isTransactional=True,
    )
    _wait(metastore, txn, [_request(metastore, txn, [component])], wait, f"table {table}")


def take_lease(metastore: Metastore, txn: Transaction, lease: TableName, wait: Wait) -> None:
    """Acquire a lease for the rest of the transaction. Raises the same errors as `lock`."""
    _wait(metastore, txn, [_request(metastore, txn, [lease_component(lease)])], wait, f"lease {lease}", lease)


def _request(metastore: Metastore, txn: Transaction, components: Sequence[ttypes.LockComponent]) -> ttypes.LockResponse:
    request = ttypes.LockRequest(
        component=list(components),
        txnid=txn.id,
        user=metastore.user,
        hostname=metastore.host,
        agentInfo=txn.agent[:128],
    )
    return metastore.call("lock", request)


def _is_granted_soon(
    metastore: Metastore, txn: Transaction, requested: ttypes.LockResponse, wait: Wait, where: str
) -> bool:
    """Wait for a lock; return whether it is granted within `wait.patience_seconds`."""
    try:
        _wait(metastore, txn, [requested], Wait(wait.deadline.capped(wait.patience_seconds), wait.stop), where)
    except LockTimeout:
        return False
    return True


def _is_granted(metastore: Metastore, txn: Transaction, requested: ttypes.LockResponse) -> bool:
    return bool(_check(metastore, txn, requested.lockid).state == ttypes.LockState.ACQUIRED)


def _check(metastore: Metastore, txn: Transaction, lock_id: int) -> ttypes.LockResponse:
    return metastore.call("check_lock", ttypes.CheckLockRequest(lockid=lock_id, txnid=txn.id))


def _wait(
    metastore: Metastore,
    txn: Transaction,
    answers: Sequence[ttypes.LockResponse],
    wait: Wait,
    where: str,
    lease: TableName | None = None,
) -> None:
    """Poll until one of the requests is granted; HMS grants a waiting lock only in `check_lock`.

    If they contain a lock of `lease`, late locks on it are removed after a second. Once is enough: later ones do not
    precede these requests in the queue.
    """
    wait_seconds = 0.005
    late_locks_due = Deadline.after(_LATE_LOCKS_SECONDS)
    while all(answer.state == ttypes.LockState.WAITING for answer in answers):
        if wait.deadline.passed or pause(wait_seconds, wait.stop):
            raise _not_granted(where)
        wait_seconds = min(wait_seconds * 1.5, 0.5)
        if lease is not None and late_locks_due.passed:
            _remove_late_locks(metastore, lease)
            lease = None
        answers = [_check(metastore, txn, answer.lockid) for answer in answers]
    if not any(answer.state == ttypes.LockState.ACQUIRED for answer in answers):
        texts = "; ".join(str(answer.errorMessage) for answer in answers)
        raise TransactionAborted(f"the metastore rejected the locks: {texts}", where=where)


def _remove_late_locks(metastore: Metastore, lease: TableName) -> None:
    """Remove the locks on `lease` whose transactions have committed.

    A metastore that was suspended while it received a `lock` request executes it when it resumes, even if the
    transaction has committed by way of another metastore since. Nothing else removes such a lock, and no later
    transaction can acquire the lease. `abort_txns` removes all locks of the given transactions, and changes the state
    of those that are open only.
    """
    request = ttypes.ShowLocksRequest(dbname=lease.database, tablename=lease.table)
    held = {entry.txnid for entry in metastore.call("show_locks", request).locks or [] if entry.txnid}
    if ended := held - {txn.id for txn in describe_transactions(metastore)}:
        metastore.call("abort_txns", ttypes.AbortTxnsRequest(txn_ids=sorted(ended)))


def _not_granted(where: str) -> LockTimeout:
    return LockTimeout("the locks were not granted in time", where=where, hint="run SHOW LOCKS to find the holder")


def _listed(tables: Sequence[WriteLock]) -> str:
    return f"table {', '.join(str(write.table) for write in tables)}"


def register_partitions(
    metastore: Metastore, txn: Transaction, table: TableName, write_id: int, names: Sequence[str]
) -> None:
    """Register the partitions of `table` that the transaction writes, which is required before files are published.

    If the transaction aborts, files of its write id in an unregistered partition become visible once HMS has purged the
    transaction.
    """
    for start in range(0, len(names), PARTITIONS_PER_CALL):
        metastore.call(
            "add_dynamic_partitions",
            ttypes.AddDynamicPartitions(
                txnid=txn.id,
                writeid=write_id,
                dbname=table.database,
                tablename=table.table,
                partitionnames=list(names[start : start + PARTITIONS_PER_CALL]),
                operationType=ttypes.DataOperationType.INSERT,
            ),
        )


def commit(metastore: Metastore, txn: Transaction, key_value: KeyValue | None = None) -> None:
    """Commit the transaction and the parameter update `key_value` atomically (TxnHandler.commitTxn, HIVE-20538)."""
    request = ttypes.CommitTxnRequest(txnid=txn.id)
    if key_value is not None:
        request.keyValue = ttypes.CommitTxnKeyValue(key_value.table_id, key_value.key, key_value.value)
    metastore.call("commit_txn", request)


def abort(metastore: Metastore, txn_id: int) -> None:
    """Abort a transaction. Does nothing when it has already aborted or committed."""
    try:
        metastore.call("abort_txn", ttypes.AbortTxnRequest(txnid=txn_id))
    except TransactionAborted:
        return


def abort_all(metastore: Metastore, txn_ids: Sequence[int]) -> None:
    """Abort transactions with one call. Transactions that have already ended are ignored."""
    if len(txn_ids) == 1:
        abort(metastore, txn_ids[0])
    elif txn_ids:
        metastore.call("abort_txns", ttypes.AbortTxnsRequest(txn_ids=list(txn_ids)))


def open_transactions(metastore: Metastore, agent_prefix: str) -> list[int]:
    """Return the ids of the open transactions whose agent begins with `agent_prefix`."""
    return [
        txn.id
        for txn in describe_transactions(metastore)
        if txn.state == ttypes.TxnState.OPEN and (txn.hostname or "").startswith(agent_prefix)
    ]


def describe_transactions(metastore: Metastore) -> Sequence[ttypes.TxnInfo]:
    """Return HMS's descriptions (TxnInfo) of all transactions that have not committed.

    HMS treats a gap among the newest transaction ids (another client is opening a transaction, or has failed to) as an
    open transaction for one second (metastore.txn.opentxn.timeout). Such a transaction has no user, so HMS cannot
    serialize it and closes the connection (GetOpenTxnsListFunction). The call is therefore retried as long as HMS
    answers `get_open_txns`, whose result contains no users.
    """
    limit = Deadline.after(_GAP_SECONDS)
    while True:
        try:
            return list(metastore.call("get_open_txns_info").open_txns)
        except MetastoreUnavailable:  # noqa: PERF203 - one attempt per iteration
            if limit.passed:
                raise
            metastore.call("get_open_txns")
            pause(_GAP_PAUSE_SECONDS)


def _components(tables: Sequence[WriteLock], kind: int, lease: TableName | None) -> list[ttypes.LockComponent]:
    writes = [
        ttypes.LockComponent(
            type=kind,
            level=ttypes.LockLevel.PARTITION if write.partition else ttypes.LockLevel.TABLE,
            dbname=write.table.database,
            tablename=write.table.table,
            partitionname=write.partition or None,
            operationType=ttypes.DataOperationType.INSERT,
            isTransactional=True,
            isDynamicPartitionWrite=write.dynamic,
        )
        for write in tables
    ]
    return [*writes, lease_component(lease)] if lease else writes
