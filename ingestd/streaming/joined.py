"""A transaction that somebody else opened, locks and commits; here its rows are written and prepared.

Invariant: what was put in place stays there until the owner ends the transaction; a failure before that leaves nothing.
The owner must register the partitions (`partitions`) with the transaction before it ends it: files of an aborted write
id whose partition was never registered become visible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from ingestd.acid.routing import Part
from ingestd.hive.partitions import PartitionInfo, ensure_partitions
from ingestd.hive.tables import WHOLE_TABLE
from ingestd.publish.deltas import DeltaFiles
from ingestd.publish.staging import STREAMING, Staging
from ingestd.storage.local import Location
from ingestd.streaming.batch import Extras, Partitions, TxnState
from ingestd.streaming.delta_output import Partition, TransactionOutput
from ingestd.streaming.errors import InvalidTransactionState, TableChanged
from ingestd.streaming.session import Session, TableChange


class JoinedTransaction:
    """The same calls as `TransactionBatch`, without the metastore's transaction calls."""

    def __init__(self, session: Session, write_id: int, statement_id: int) -> None:
        self._session = session
        self._partitions = Partitions(session, self._find)
        self.write_ids = [write_id]
        self.txn_to_write_ids: dict[int, int] = {}
        self.state = TxnState.INACTIVE
        self.placed: Sequence[DeltaFiles] = ()
        self._statement = max(0, statement_id)
        self._output: TransactionOutput | None = None  # until it has begun

    @property
    def remaining(self) -> int:
        """1 before it has begun, then 0."""
        return int(self.state is TxnState.INACTIVE)

    @property
    def partitions(self) -> Mapping[str, PartitionInfo]:
        """Partitions that were written, by name."""
        return self._partitions.known

    def begin(self, look: Callable[[], TableChange]) -> bool:
        """Begin to write; True. Raises TableChanged when the metastore's table is not the one that was given.

        The lock that keeps it so is the owner's, who takes it before it shares the transaction.
        """
        self.state = TxnState.OPEN
        if look() is not TableChange.NONE:
            raise TableChanged(
                "the table changed since table_object was read",
                where=f"table {self._session.table.name}",
                hint="read the table again under the lock of the transaction, and make a new connection with it",
            )
        self._output = self._new_output()
        self._output.begin(self.write_ids[0])
        return True

    def add(self, part: Part) -> None:
        """Take rows."""
        self._require_open()
        self._files.add(part)

    def check(self) -> None:
        """Its life is its owner's business."""

    def flush(self) -> None:
        """Free memory."""
        self._files.flush()

    def commit(self, extras: Extras) -> None:
        """Put the files in their place; the owner's commit makes them visible."""
        self._require_open()
        files = self._files.finish()
        found = self._partitions.locate({*extras.partitions, *files.partitions})
        self.placed = files.place(self._session.table, self.write_ids[0], found).deltas
        files.discard()
        self.state = TxnState.PREPARED_FOR_COMMIT

    def abort(self) -> None:
        """Drop the rows; the transaction stays its owner's."""
        self._require_open()
        self._files.discard()
        self.state = TxnState.ABORTED

    def close(self) -> None:
        """Drop what was not prepared."""
        if self.state is TxnState.OPEN:
            self.abort()

    def fail(self) -> None:
        """After a failure: drop the rows that are not in place."""
        if self.state is not TxnState.OPEN:
            return
        if self._output:
            self._output.abandon()
        self.state = TxnState.ABORTED

    def _require_open(self) -> None:
        if self.state is not TxnState.OPEN:
            raise InvalidTransactionState("no transaction is open")

    @property
    def _files(self) -> TransactionOutput:
        """Where rows go, once it has begun."""
        assert self._output
        return self._output

    def _new_output(self) -> TransactionOutput:
        location = Location.of(self._session.table.location)
        staging = Staging(location, STREAMING, f"w{self.write_ids[0]}-{self._statement}")
        return TransactionOutput(self._session.shape, staging, statement=self._statement)

    def _find(self, partitions: Iterable[Partition]) -> Mapping[str, PartitionInfo]:
        table = self._session.table
        if not table.partition_columns:
            return {WHOLE_TABLE: PartitionInfo(WHOLE_TABLE, table.location, existed=True)}
        return ensure_partitions(self._session.metastore, table, {table.partition_name(p): p for p in partitions})
