"""A transaction that another client, its owner, opens, locks and commits. This client only writes rows in it.

Invariant: published files stay until the owner ends the transaction. A failure before publishing leaves no files. The
owner must register `partitions` with the transaction before ending it, because files of an aborted write id become
visible in a partition that was never registered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from ingestd.acid.routing import Part
from ingestd.hive.partitions import PartitionInfo
from ingestd.publish.deltas import DeltaFiles
from ingestd.publish.staging import STREAMING, Staging
from ingestd.storage.contract import Location
from ingestd.streaming.batch import Extras, Partitions, TxnState
from ingestd.streaming.delta_output import Partition, TransactionOutput
from ingestd.streaming.errors import InvalidTransactionState, TableChanged
from ingestd.streaming.session import Session, TableChange


class JoinedTransaction:
    """Implements the methods of `TransactionBatch` without its transaction calls to the metastore."""

    def __init__(self, session: Session, write_id: int, statement_id: int) -> None:
        self._session = session
        self._partitions = Partitions(session, self._find)
        self.write_ids = [write_id]
        self.txn_to_write_ids: dict[int, int] = {}
        self.state = TxnState.INACTIVE
        self.deltas: Sequence[DeltaFiles] = ()
        """The deltas that `commit` published."""
        self._statement = max(0, statement_id)
        # The transaction sets both when it begins.
        self._location: Location | None = None
        self._output: TransactionOutput | None = None

    @property
    def remaining(self) -> int:
        """Number of transactions that have not begun: 1 or 0."""
        return int(self.state is TxnState.INACTIVE)

    @property
    def partitions(self) -> Mapping[str, PartitionInfo]:
        """Partitions of the transaction, by name."""
        return self._partitions.known

    def begin(self, refresh_table: Callable[[], TableChange]) -> bool:
        """Start writing. Always returns True. Raises TableChanged when the table differs from `table_object`.

        The owner acquires the lock against further changes before it shares the transaction.
        """
        self.state = TxnState.OPEN
        if refresh_table() is not TableChange.NONE:
            raise TableChanged(
                "the table changed since table_object was read",
                where=f"table {self._session.table.name}",
                hint="read the table again under the lock of the transaction, and open a new connection with it",
            )
        self._location = self._session.warehouse.storages.location(self._session.table.location)
        self._output = self._new_output(self._location)
        self._output.begin(self.write_ids[0])
        return True

    def add(self, part: Part) -> None:
        """Add rows to the transaction."""
        self._require_open()
        self._files.add(part)

    def check(self) -> None:
        """Do nothing, because the owner keeps the transaction alive."""

    def flush(self) -> None:
        """Write buffered rows to their files, to free memory."""
        self._files.flush()

    def commit(self, extras: Extras) -> None:
        """Publish the files. The owner's commit makes their rows visible."""
        self._require_open()
        files = self._files.finish()
        located = self._partitions.locate({*extras.partitions, *files.partitions})
        self.deltas = files.place(self._session.table, self.write_ids[0], located).deltas
        files.discard()
        self.state = TxnState.PREPARED_FOR_COMMIT

    def abort(self) -> None:
        """Discard the rows. The transaction itself stays open for its owner."""
        self._require_open()
        self._files.discard()
        self.state = TxnState.ABORTED

    def close(self) -> None:
        """Discard rows that were not committed."""
        if self.state is TxnState.OPEN:
            self.abort()

    def fail(self) -> None:
        """After an error, discard the rows that are not yet published. Never raises."""
        if self.state is not TxnState.OPEN:
            return
        if self._output:
            self._output.abandon()
        self.state = TxnState.ABORTED

    def _require_open(self) -> None:
        if self.state is not TxnState.OPEN:
            raise InvalidTransactionState("no transaction is open", where=f"table {self._session.table.name}")

    @property
    def _files(self) -> TransactionOutput:
        """The output that stores the rows; it exists once the transaction has begun."""
        assert self._output
        return self._output

    def _new_output(self, location: Location) -> TransactionOutput:
        storages = self._session.warehouse.storages
        staging = Staging(storages, location, STREAMING, f"w{self.write_ids[0]}-{self._statement}")
        return TransactionOutput(self._session.shape, staging, statement=self._statement)

    def _find(self, partitions: Iterable[Partition]) -> Mapping[str, PartitionInfo]:
        assert self._location
        return self._session.create_partitions(self._location, partitions)
