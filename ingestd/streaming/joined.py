"""A transaction that somebody else opened, locks and commits; here its rows are written and prepared.

Invariant: what was put in place stays there until the owner ends the transaction; a failure before that leaves nothing.
The owner must register the partitions (`partitions`) with the transaction before it ends it: files of an aborted write
id whose partition was never registered become visible.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ingestd.acid.spread import Part
from ingestd.hive.deltas import Placed
from ingestd.hive.partitions import PartitionInfo, ensure_partitions
from ingestd.hive.staging import STREAMING, Staging
from ingestd.hive.statistics import WHOLE_TABLE
from ingestd.storage.local import Location
from ingestd.streaming.batch import Extras, Partitions, TxnState
from ingestd.streaming.errors import InvalidTransactionState
from ingestd.streaming.output import OwnFiles, Partition
from ingestd.streaming.session import Session


class JoinedTransaction:
    """The same calls as `TransactionBatch`, without the metastore's transaction calls."""

    def __init__(self, session: Session, write_id: int, statement_id: int) -> None:
        self._session = session
        self._partitions = Partitions(session, self._find)
        self.write_ids = [write_id]
        self.txn_to_write_ids: dict[int, int] = {}
        self.state = TxnState.INACTIVE
        self.placed: Sequence[Placed] = ()
        location = Location.of(session.table.location)
        staging = Staging(location, STREAMING, f"w{write_id}-{max(0, statement_id)}")
        self._output = OwnFiles(
            session.table, session.shape, self._partitions.locate, staging, statement=max(0, statement_id)
        )

    @property
    def remaining(self) -> int:
        """1 before it has begun, then 0."""
        return int(self.state is TxnState.INACTIVE)

    @property
    def partitions(self) -> Mapping[str, PartitionInfo]:
        """Partitions that were written, by name."""
        return self._partitions.known

    def begin(self) -> None:
        """Begin to write. Raises InvalidTransactionState the second time."""
        if not self.remaining:
            raise InvalidTransactionState("a joined transaction can be begun once")
        self.state = TxnState.OPEN
        self._output.begin(self.write_ids[0])

    def add(self, part: Part) -> None:
        """Take rows."""
        self._output.add(part)

    def check(self) -> None:
        """Its life is its owner's business."""

    def flush(self) -> None:
        """Free memory."""
        self._output.flush()

    def commit(self, extras: Extras) -> None:
        """Put the files in their place; the owner's commit makes them visible."""
        if self.state is not TxnState.OPEN:
            raise InvalidTransactionState("no transaction is open")
        self._partitions.locate(extras.partitions)
        self.placed = self._output.finish().placed
        self.state = TxnState.PREPARED_FOR_COMMIT

    def abort(self) -> None:
        """Drop the rows; the transaction stays its owner's."""
        if self.state is not TxnState.OPEN:
            raise InvalidTransactionState("no transaction is open")
        self._output.discard()
        self.state = TxnState.ABORTED

    def close(self) -> None:
        """Drop what was not prepared."""
        if self.state is TxnState.OPEN:
            self.abort()

    def kill(self) -> None:
        """After a failure: drop the rows that are not in place."""
        if self.state is not TxnState.OPEN:
            return
        self._output.abandon()
        self.state = TxnState.ABORTED

    def _find(self, partitions: Iterable[Partition]) -> Mapping[str, PartitionInfo]:
        table = self._session.table
        if not table.partition_columns:
            return {WHOLE_TABLE: PartitionInfo(WHOLE_TABLE, table.location, existed=True)}
        return ensure_partitions(self._session.metastore, table, {table.partition_name(p): p for p in partitions})
