"""The transactions behind a connection, opened and ended by us.

Invariant: a transaction ends exactly once, as committed or aborted, and when anything but a bad record fails, all that
is open is aborted: after an error nothing of the transaction is or will become visible, unless its commit is in doubt
and the error says so.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial

from ingestd.acid.routing import Part
from ingestd.clock import Deadline
from ingestd.errors import CommitOutcomeUnknown, IngestdError
from ingestd.hive import transactions
from ingestd.hive.partitions import PartitionInfo
from ingestd.hive.tables import WHOLE_TABLE, Table
from ingestd.hive.transactions import KeyValue, Transaction, Wait, WriteLock
from ingestd.hive.write_ids import is_committed
from ingestd.publish import deltas
from ingestd.publish.deltas import DeltaFiles
from ingestd.publish.outcome import RESOLVE_SECONDS, CommitRequest
from ingestd.publish.protocol import Publication, Step, TableWrite, publish
from ingestd.publish.staging import STREAMING, Staging
from ingestd.storage.local import Location
from ingestd.streaming.delta_output import BatchOutput, Output, Partition, TransactionOutput
from ingestd.streaming.errors import CREATING_PARTITION, InvalidTransactionState, streaming_errors
from ingestd.streaming.heartbeat import Heartbeat
from ingestd.streaming.session import Session, TableChange

_log = logging.getLogger(__name__)


class TxnState(Enum):
    """State of a transaction, with Java's letters (StreamingTransaction, TxnState)."""

    INACTIVE = "I"
    OPEN = "O"
    COMMITTED = "C"
    ABORTED = "A"
    PREPARED_FOR_COMMIT = "P"


@dataclass(frozen=True, slots=True)
class Extras:
    """What a commit carries besides its rows: partitions to report as written, and a table parameter to set."""

    partitions: tuple[Partition, ...] = ()
    key_value: KeyValue | None = None


class Partitions:
    """The partitions of the open transaction; each is made and registered once."""

    def __init__(
        self, session: Session, register: Callable[[Iterable[Partition]], Mapping[str, PartitionInfo]]
    ) -> None:
        self._session = session
        self._register = register
        self.known: dict[str, PartitionInfo] = {}

    def clear(self) -> None:
        """Begin a transaction."""
        self.known = {}

    def locate(self, partitions: Iterable[Partition]) -> Mapping[str, PartitionInfo]:
        """All partitions of the transaction, these among them."""
        name = self._session.table.partition_name
        missing = [one for one in partitions if name(one) not in self.known]
        if missing:
            with streaming_errors(CREATING_PARTITION):
                found = self._register(missing)
            stats = self._session.stats
            stats.created_partitions += sum(not info.existed for info in found.values())
            stats.total_partitions += sum(info.name != WHOLE_TABLE for info in found.values())
            self.known |= found
        return self.known


class TransactionBatch:
    """`size` transactions opened at once. With 1 a transaction has its own files, with more they share theirs."""

    def __init__(self, session: Session, size: int) -> None:
        self._session = session
        self._guard = threading.RLock()
        self._partitions = Partitions(session, self._register)
        self._left = deque(transactions.begin_batch(session.metastore, session.table.name, session.agent, size))
        self.txn_to_write_ids = {txn.id: write_id for txn, write_id in self._left}
        self.write_ids = list(self.txn_to_write_ids.values())
        self.state = TxnState.INACTIVE
        self.current: Transaction | None = None
        self.placed: Sequence[DeltaFiles] = ()
        self._closed = False
        self._in_doubt = False  # whether the open transaction has been committed
        self._age = Deadline.after(session.batch_seconds)
        # Both are made when the first transaction has its lock and the table was compared.
        self._location: Location | None = None
        self._output: Output | None = None
        interval = session.heartbeat_seconds
        if len(self._left) > 1:
            interval = min(interval, session.batch_seconds)
        self._heartbeat = Heartbeat(session.metastore, list(self.txn_to_write_ids), interval, self._retire)

    @property
    def current_write_id(self) -> int | None:
        """Write id of the open transaction."""
        return self.txn_to_write_ids[self.current.id] if self.current else None

    @property
    def remaining(self) -> int:
        """Transactions that have not begun."""
        return 0 if self._closed else len(self._left)

    @property
    def partitions(self) -> Mapping[str, PartitionInfo]:
        """Partitions of the transaction that is or was last open, by name."""
        return self._partitions.known

    def begin(self, look: Callable[[], TableChange]) -> bool:
        """Begin the next transaction: take its lock, then let `look` compare the table, which nobody changes from here.

        False when the batch has ended instead, because it grew old or its files or write ids do not fit the table any
        more: the next batch can be begun.
        """
        with self._guard:
            if not self.remaining:
                return False
            is_first = len(self._left) == len(self.write_ids)
            txn, write_id = self._left.popleft()
            self._heartbeat.check(txn.id)
            self.current, self.state = txn, TxnState.OPEN
            self._partitions.clear()
            transactions.lock(
                self._session.metastore,
                txn,
                self._locks,
                wait=self._wait(),
            )
            change = look()
            if change is TableChange.RECREATED or (change is TableChange.DEFINITION and not is_first):
                self._finish_files()
                self._abort_rest()
                self.state = TxnState.ABORTED
                return False
            if self._output is None:
                self._location = Location.of(self._table.location)
                self._output = self._new_output()
            self._output.begin(write_id)
            return True

    def add(self, part: Part) -> None:
        """Take rows of the open transaction."""
        with self._guard:
            self._open_transaction()  # which a stream that is being read, or a signal handler, may have ended
            self._files.add(part)

    def check(self) -> None:
        """Raise TransactionError when the metastore has given up the open transaction."""
        if self.current is not None:
            self._heartbeat.check(self.current.id)

    def flush(self) -> None:
        """Free memory."""
        with self._guard:
            self._files.flush()

    def commit(self, extras: Extras) -> None:
        """Make the open transaction's rows visible."""
        with self._guard:
            txn = self._open_transaction()
            self._heartbeat.check(txn.id)
            try:
                publication = self._publish(txn, extras)
            except CommitOutcomeUnknown:
                self._in_doubt = True
                raise
            self.placed = publication.deltas
            self.current, self.state = None, TxnState.COMMITTED
            self._session.stats.committed_transactions += 1
            _warn_if_hidden(publication, txn)
            if not self._left:
                self._finish_files()
                self._end()

    def abort(self) -> None:
        """Abort the open transaction; the batch goes on with its next one."""
        with self._guard:
            txn = self._open_transaction()
            if self._output:
                self._output.discard()
            self._heartbeat.remove(txn.id)
            transactions.abort(self._session.metastore, txn.id)
            self.current, self.state = None, TxnState.ABORTED
            self._session.stats.aborted_transactions += 1
            if not self._left:
                self._finish_files()
                self._end()

    def close(self) -> None:
        """Abort what is open or unused and finish the files."""
        with self._guard:
            if self._closed:
                return
            try:
                if self.current is not None:
                    self.abort()
                self._finish_files()
                self._abort_rest()
            except IngestdError:
                self.fail()
                raise

    def fail(self) -> None:
        """After a failure: abort all that is open; what fails meanwhile is left to the metastore's time-outs."""
        with self._guard:
            if self._closed:
                return
            if self._output:
                self._output.abandon()
            self._session.stats.aborted_transactions += self.current is not None and not self._in_doubt
            self._abort_rest()
            self.state = TxnState.ABORTED

    @property
    def _table(self) -> Table:
        return self._session.table

    @property
    def _files(self) -> Output:
        """Where rows go, once a transaction has begun."""
        assert self._output
        return self._output

    def _open_transaction(self) -> Transaction:
        if self.current is None:
            raise InvalidTransactionState("no transaction is open", where=f"table {self._table.name}")
        return self.current

    def _new_output(self) -> Output:
        if len(self.write_ids) > 1:
            return BatchOutput(
                self._table, self._session.shape, self._partitions.locate, (self.write_ids[0], self.write_ids[-1])
            )
        assert self._location
        staging = Staging(self._location, STREAMING, str(min(self.txn_to_write_ids)))
        return TransactionOutput(self._session.shape, staging)

    def _register(self, partitions: Iterable[Partition]) -> Mapping[str, PartitionInfo]:
        assert self._location
        txn = self._open_transaction()
        write_id = self.txn_to_write_ids[txn.id]
        return deltas.register(self._session.metastore, txn, self._table, write_id, self._location, partitions)

    @property
    def _locks(self) -> list[WriteLock]:
        """What each transaction locks: with static partition values only their partition."""
        partition = self._table.partition_name(self._session.static) if self._session.static else ""
        return [WriteLock(self._table.name, dynamic=self._session.is_dynamic, partition=partition)]

    def _wait(self) -> Wait:
        return Wait(Deadline.after(self._session.lock_seconds), threading.Event())

    def _publish(self, txn: Transaction, extras: Extras) -> Publication:
        """Publish the rows and commit. The heartbeat ends before the commit, so that it reports no lost transaction."""
        metastore = self._session.metastore
        write = self._table_write(txn, extras)

        def observe(step: Step) -> None:
            if step == "counted":
                self._heartbeat.remove(txn.id)

        request = CommitRequest(
            partial(is_committed, metastore, txn.id),
            _warn_of_wait,
            key_value=extras.key_value,
            resolve_seconds=RESOLVE_SECONDS,
        )
        return publish(metastore, txn, [write], request, observe)[self._table.name]

    def _table_write(self, txn: Transaction, extras: Extras) -> TableWrite:
        """What the transaction adds to the table, with all partitions registered and the table locked for the commit.

        The lock against TRUNCATE is taken this late because UPDATE and DELETE wait for it too, and a transaction may
        take hours.
        """
        assert self._location
        files = self._files.finish()
        try:
            found = self._partitions.locate({*extras.partitions, *files.partitions})
            excludes_overwrites = not found or transactions.strengthen_lock(
                self._session.metastore, txn, self._locks, wait=self._wait()
            )
        except IngestdError:
            # The metastore may have forgotten the transaction already: then rows that are in place are visible.
            files.withdraw(())
            raise
        write_id, batch = self.txn_to_write_ids[txn.id], None
        if len(self.write_ids) > 1:
            batch = (self.write_ids[0], self.write_ids[-1])
        counts = self._session.counts
        return TableWrite(self._table, write_id, self._location, files, counts, excludes_overwrites, found, batch)

    def _retire(self) -> None:
        """The heartbeat's thread ends a batch that has become old between two transactions."""
        if len(self.write_ids) == 1 or not self._age.passed or not self._guard.acquire(blocking=False):
            return
        try:
            if self.current is None and not self._closed:
                self._finish_files()
                self._abort_rest()
        except IngestdError:
            self.fail()
        finally:
            self._guard.release()

    def _finish_files(self) -> None:
        """What was committed is readable whether or not its files can be finished: then the side files stay."""
        if self._output is None:
            return
        try:
            self._output.close()
        except IngestdError as error:
            _log.warning("files of a batch are left unfinished, which readers can deal with: %s", error)
            self._output.abandon()

    def _abort_rest(self) -> None:
        open_now = [*([self.current] if self.current else []), *(txn for txn, _ in self._left)]
        try:
            transactions.abort_all(self._session.metastore, [txn.id for txn in open_now])
        except IngestdError as error:
            _log.warning("transactions are left to time out: %s", error)
        self.current = None
        self._left.clear()
        self._end()

    def _end(self) -> None:
        self._closed = True
        self._heartbeat.stop()


def _warn_of_wait(error: IngestdError, seconds: float) -> None:
    _log.warning("the outcome of a commit is unknown, asking again in %.1f s: %s", seconds, error)


def _warn_if_hidden(publication: Publication, txn: Transaction) -> None:
    """Log where a TRUNCATE that ran beside the commit hides its rows."""
    if publication.unchecked:
        _log.warning("whether a TRUNCATE hides transaction %s is unknown: %s", txn.id, publication.unchecked)
    for base in publication.hidden.values():
        _log.error(
            "rows of transaction %s were committed beside a TRUNCATE and are hidden by %s; if it was not meant to"
            " remove them, write them again",
            txn.id,
            base,
        )
