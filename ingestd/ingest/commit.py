"""Makes one staged transaction visible in Hive exactly once: the page everybody must read.

Invariant: rows become readable and the offsets they came from become recorded in the same metastore commit, or neither
does. Killing the process between any two lines below changes nothing of this.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ingestd.acid.writer_pool import StagingFile
from ingestd.clock import Deadline, Stopwatch
from ingestd.errors import CommitOutcomeUnknown, IngestdError, OwnershipLost, StorageUnavailable, TableChanged
from ingestd.hive import transactions
from ingestd.hive.client import Metastore
from ingestd.hive.control import ControlTable, read_state
from ingestd.hive.partitions import PartitionInfo
from ingestd.hive.tables import Table, load_acid_table
from ingestd.hive.transactions import Transaction, Wait, WriteLock
from ingestd.ingest.options import MappingOptions
from ingestd.ingest.plan import Plan
from ingestd.ingest.state import MappingState
from ingestd.kafka.ranges import Position
from ingestd.publish import counting, deltas, outcome
from ingestd.publish.deltas import Placed
from ingestd.publish.notifications import announce
from ingestd.publish.outcome import Doubt
from ingestd.publish.row_counts import RowCounts
from ingestd.publish.staging import Staging

_LOCK_SECONDS = 120.0
# How long to wait for the lock that excludes TRUNCATE; not so long while a long UPDATE keeps it from us every time.
_PATIENCE_SECONDS = 1.0
_LITTLE_PATIENCE_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Work:
    """One transaction between stage and commit: its plan, its table as planned, and the files that were staged."""

    plan: Plan
    table: Table
    txn: Transaction
    write_id: int
    files: tuple[StagingFile, ...]
    staging: Staging
    records: int
    skipped: int
    bytes: int
    watch: Stopwatch = field(compare=False)

    @property
    def rows(self) -> int:
        """Rows that the commit adds."""
        return sum(file.rows for file in self.files)


@dataclass(frozen=True, slots=True)
class Committed:
    """What a commit did.

    `hidden` names partitions (or WHOLE_TABLE) whose new rows nobody can see, with the base directory that hides them: a
    TRUNCATE got in between.
    """

    work: Work
    state: MappingState
    hidden: Mapping[str, str]


class Committer:
    """Carries the staged transactions of one mapping through the metastore, one after the other.

    `on_wait(error, seconds)` is told before each wait for the answer to a commit that was lost.
    """

    def __init__(
        self,
        metastore: Metastore,
        options: MappingOptions,
        control: ControlTable,
        counts: RowCounts,
        stop: threading.Event,
        on_wait: Callable[[IngestdError, float], None],
    ) -> None:
        self._metastore = metastore
        self._options = options
        self._control = control
        self._counts = counts
        self._stop = stop
        self._on_wait = on_wait
        self._patience_seconds = _PATIENCE_SECONDS

    def commit(self, work: Work, after: MappingState) -> Committed:
        """Commit `work`; on return its rows are readable and `after` is the stored state.

        Steps 1 to 3, plan, open and stage, came before (`mapping.py`); 10, the mirror in Kafka, comes after.

        4. lock and fence   the table and the lease, both at once; then the offsets must still be where we began
        5. register         partitions, before any file appears under them
        6. place            the deltas, each by one rename
        7. announce         the files, to a metastore that keeps an event log
        8. count            the row counts that Hive answers from; what is in doubt is recounted later (`row_counts.py`)
        9. commit           the one visible moment

        Raises OwnershipLost when somebody else committed meanwhile, TableChanged, TransactionAborted, or an
        Unavailable: in each case nothing of `work` is or will become visible, and no delta of it is left in place. Only
        after CommitOutcomeUnknown it may.
        """
        before, alone = self._lock_and_fence(work)
        partitions = self._register(work)
        placed = self._place(work, partitions)
        added = counting.added_rows(work.table, work.files)
        with deltas.withdrawn_unless_committed(placed):
            self._done(work, "placed")
            self._announce(work, placed)
            with self._counts.counted_up(work.table, work.txn, work.write_id, added, self._stop):
                self._done(work, "counted")
                if not alone:
                    deltas.refuse_overtaken(partitions, work.write_id)
                self._commit(work, before, after)
        self._done(work, "committed")
        hidden = {} if alone else self._hidden(work, partitions)
        work.staging.discard()
        return Committed(work, after, hidden)

    def _lock_and_fence(self, work: Work) -> tuple[str, bool]:
        """Take the locks, then see that neither the offsets nor the table moved since they were planned.

        Only under the lease is the answer final: a rival gets the lease when our transaction has ended, and an ended
        transaction cannot commit. Returns the text of the stored state, and False when a TRUNCATE may still get in
        between.
        """
        alone = transactions.lock_against_overwrites(
            self._metastore,
            work.txn,
            [WriteLock(work.table.name, dynamic=bool(work.table.partition_columns))],
            wait=Wait(Deadline.after(_LOCK_SECONDS), self._stop, self._patience_seconds),
            lease=self._options.commit_lease,
        )
        self._patience_seconds = _PATIENCE_SECONDS if alone else _LITTLE_PATIENCE_SECONDS
        text = read_state(self._metastore, self._control)
        stored = MappingState.parse(text)
        if (stored.position if stored else Position()) != work.plan.before:
            raise OwnershipLost("the offsets were moved by another daemon", where=f"mapping {self._options.name}")
        if load_acid_table(self._metastore, work.table.name) != work.table:
            raise TableChanged("the table's columns or place changed", where=f"table {work.table.name}")
        self._done(work, "locked")
        return text, alone

    def _register(self, work: Work) -> dict[str, PartitionInfo]:
        """Make missing partitions and register all that are written."""
        partitions = deltas.register(
            self._metastore,
            work.txn,
            work.table,
            work.write_id,
            work.staging.location,
            [file.partition for file in work.files],
        )
        self._done(work, "registered")
        return partitions

    def _place(self, work: Work, partitions: Mapping[str, PartitionInfo]) -> list[Placed]:
        """Rename the staged deltas to their place: each appears whole or not at all."""
        if work.files:
            deltas.check_alive(self._metastore, work.txn)
        return deltas.place(work.table, work.write_id, work.files, partitions, work.staging)

    def _announce(self, work: Work, placed: Sequence[Placed]) -> None:
        """Name the files to whoever replicates the table: the event of the commit does not."""
        announce(self._metastore, work.table, work.txn, work.write_id, placed)
        self._done(work, "announced")

    def _commit(self, work: Work, before: str, after: MappingState) -> None:
        """Commit rows and state at once; an answer that was lost is asked for: the control row has it.

        Once another daemon has committed, the control row tells nothing about this transaction any more: then its
        deltas, which may be committed, must stay.
        """
        text = after.text()

        def has_happened() -> bool:
            stored = read_state(self._metastore, self._control)
            if stored not in (before, text):
                raise CommitOutcomeUnknown(
                    "the answer to the commit was lost, and another daemon has committed since",
                    where=f"mapping {self._options.name}, transaction {work.txn.id}",
                    hint="nothing is lost: the mapping continues at the position that is stored",
                )
            return stored == text

        doubt = Doubt(has_happened, self._on_wait, self._stop)
        outcome.commit(self._metastore, work.txn, self._control.key_value(text), doubt)

    @staticmethod
    def _hidden(work: Work, partitions: Mapping[str, PartitionInfo]) -> dict[str, str]:
        """Where a TRUNCATE overtook the commit, which stands all the same; an error when that cannot be seen now."""
        try:
            return deltas.overtaken(partitions, work.write_id)
        except StorageUnavailable as error:
            return {str(work.table.name): f"not known: {error}"}

    @staticmethod
    def _done(work: Work, step: str) -> None:
        work.watch.lap(step)
