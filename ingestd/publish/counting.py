"""How row counts are kept around a commit: count up before it, look at it later, recount what is wrong.

Invariant: numRows is written only by the holder of the table's counting lease, because it can only be read, added to
and written back; a writer that cannot get the lease leaves `unknown` beside it (`row_count_parameters.py`).

The lease is held from the count to the end of the transaction. It never delays a commit by more than 5 s: a writer
that was killed between its count and its commit holds it until the metastore times its transaction out, and meanwhile
the other commits only try for a moment. A recount also locks the table as a reader, so that no partition is dropped
and created again between reading its files and writing its number.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from ingestd.acid.visibility import ValidWriteIds, visible_rows
from ingestd.clock import Deadline
from ingestd.errors import IngestdError, InvalidTable, StorageUnavailable, TransactionAborted
from ingestd.hive import leases, transactions
from ingestd.hive.client import Metastore
from ingestd.hive.tables import Table, TableName
from ingestd.hive.transactions import LockTimeout, Transaction, Wait
from ingestd.hive.write_ids import is_committed, read_snapshot
from ingestd.publish import row_count_parameters
from ingestd.publish.counted_ids import Known
from ingestd.publish.row_count_parameters import Counters, Increment, Moment, Writer
from ingestd.storage.local import local_path

_LEASE_SECONDS = 5.0
# The wait once others have kept the lease for longer, until it is free again.
_TRY_SECONDS = 0.2
# A recount gives way to commits after this time and goes on later.
_RECOUNT_SECONDS = 2.0


@dataclass(slots=True)
class _Turn:
    """Writers of this process take turns at the lease, so that they do not all poll the metastore for it."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    is_stuck: bool = False


# By process, too: a turn that another thread had at the moment of a fork never ends in the child.
_turns: dict[tuple[int, str], _Turn] = {}
_registry = threading.Lock()


@dataclass(frozen=True, slots=True)
class Look:
    """What a look at one partition found: whether its number is right, and which compactions its directory has."""

    counters: Counters
    is_right: bool
    compactions: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Repair:
    """What a repair did: the names that it corrected, those that are left to do, and those whose files are broken."""

    corrected: Sequence[str]
    left: Sequence[str]
    failed: Mapping[str, IngestdError]


@dataclass(frozen=True, slots=True)
class Counter:
    """Counts for one writer; `known` tells by partition what it knows of its own write ids."""

    metastore: Metastore
    writer: str
    known: Callable[[str], Known]

    @contextmanager
    def counted_up(
        self, table: Table, txn: Transaction, write_id: int, added: Mapping[str, Increment], stop: threading.Event
    ) -> Iterator[frozenset[str]]:
        """Count the rows up and keep the lease for the block, which commits; yields the names to recount later.

        Raises TransactionAborted when `stop` is set, and what the metastore answers.
        """
        if not added:
            yield frozenset()
            return
        wait = Wait(_patience(table), stop)
        with _in_turn(self.metastore, table, txn, wait) as alone:
            moment = Moment(read_snapshot(self.metastore, table.name), alone, self.known, wait)
            writer = Writer(self.writer, write_id)
            yield row_count_parameters.count_up(self.metastore, table, writer, added, moment)

    def look(self, table: Table, names: Sequence[str]) -> dict[str, Look]:
        """Look at the numbers of these partitions, or the whole table; what does not exist is not in the answer.

        It takes no lock, so a number that looks wrong must be looked at again under the lease, which `repair` does.
        Raises IngestdError when the metastore does not answer; a directory that cannot be listed looks right.
        """
        snapshot = read_snapshot(self.metastore, table.name)
        found = {}
        for counters in row_count_parameters.read_counters(self.metastore, table, names):
            try:
                content = counters.content()
            except (StorageUnavailable, InvalidTable):
                found[counters.name] = Look(counters, is_right=True)
                continue
            right = row_count_parameters.is_right(counters, content, snapshot, self.known(counters.name))
            found[counters.name] = Look(counters, right, content.compactions)
        return found

    def repair(self, table: Table, names: Sequence[str], stop: threading.Event) -> Repair:
        """Recount those of these partitions that are wrong.

        Rows are counted from the footers of the ORC files, for some seconds at most, at least one partition; commits
        of others wait meanwhile. Raises LockTimeout when the table or the lease is locked for longer than that.
        """
        txn = transactions.begin(self.metastore, f"ingestd/counting/{self.writer}")
        try:
            # First the table, then the lease: a recount that waits for DDL must not delay commits.
            transactions.lock_reading(self.metastore, txn, table.name, Wait(_patience(table), stop))
            wait = Wait(_patience(table), stop)
            with _in_turn(self.metastore, table, txn, wait) as alone:
                if not alone:
                    raise LockTimeout("another writer keeps the counting lease", where=f"table {table.name}")
                return self._recount(table, names, txn, wait)
        finally:
            transactions.abort(self.metastore, txn.id)

    def _recount(self, table: Table, names: Sequence[str], txn: Transaction, wait: Wait) -> Repair:
        until = Deadline.after(_RECOUNT_SECONDS)
        snapshot = read_snapshot(self.metastore, table.name)
        rows: dict[str, int] = {}
        failed: dict[str, IngestdError] = {}
        left = set(names)
        for counters in row_count_parameters.read_counters(self.metastore, table, names):
            if (rows or failed) and until.passed:
                break
            left.discard(counters.name)
            try:
                if not row_count_parameters.is_right(counters, counters.content(), snapshot, self.known(counters.name)):
                    rows[counters.name] = self._visible_rows(counters, snapshot)
            except (InvalidTable, StorageUnavailable) as error:
                failed[counters.name] = error
        else:
            left.clear()  # those do not exist
        if rows:
            if not leases.heartbeat_transaction(self.metastore, txn.id):
                raise TransactionAborted("counting took longer than the metastore waits", where=f"table {table.name}")
            # HiveServer2 would go on answering from a wrong number that it has read, without a new write id.
            own = transactions.allocate(self.metastore, txn, table.name)
            row_count_parameters.set_rows(self.metastore, table, rows, snapshot, own, wait)
            transactions.commit(self.metastore, txn)
        return Repair(sorted(rows), sorted(left), failed)

    def _visible_rows(self, counters: Counters, snapshot: ValidWriteIds) -> int:
        path = local_path(counters.location)
        return visible_rows(path, snapshot, lambda txn_id: is_committed(self.metastore, txn_id))


def _lease(table: Table) -> TableName:
    return TableName(table.name.database, f"{table.name.table}#ingestd.counting")


def _turn(table: Table) -> _Turn:
    with _registry:
        return _turns.setdefault((os.getpid(), str(table.name)), _Turn())


def _patience(table: Table) -> Deadline:
    return Deadline.after(_TRY_SECONDS if _turn(table).is_stuck else _LEASE_SECONDS)


@contextmanager
def _in_turn(metastore: Metastore, table: Table, txn: Transaction, wait: Wait) -> Iterator[bool]:
    """Take the turn and the lease; yields whether both came in time. The lease stays with the transaction."""
    turn = _turn(table)
    has_turn = False
    while not has_turn and not wait.deadline.passed:
        if wait.stop.is_set():
            raise TransactionAborted("stopped while others counted rows", where=f"table {table.name}")
        has_turn = turn.lock.acquire(timeout=min(0.5, wait.deadline.left))
    try:
        alone = has_turn and _take_lease(metastore, table, txn, wait)
        turn.is_stuck = not alone
        yield alone
    finally:
        if has_turn:
            turn.lock.release()


def _take_lease(metastore: Metastore, table: Table, txn: Transaction, wait: Wait) -> bool:
    try:
        transactions.take_lease(metastore, txn, _lease(table), wait)
    except LockTimeout:
        if wait.stop.is_set():
            raise TransactionAborted("stopped while others counted rows", where=f"table {table.name}") from None
        return False
    return True
