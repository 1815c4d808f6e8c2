"""Opens and commits the transactions of one mapping from a checkpoint on, and knows the stored state.

Invariant: `state` is the state that the last commit stored, and every commit replaces it under the lease. A transaction
without ranges changes only the state: the start of the first run, or what an operator requested.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from ingestd.errors import IngestdError
from ingestd.hive import transactions
from ingestd.hive.tables import Table
from ingestd.ingest import events
from ingestd.ingest.commit import PendingTransaction
from ingestd.ingest.plan import Plan
from ingestd.ingest.recovery import Checkpoint
from ingestd.ingest.services import Services
from ingestd.ingest.state import MappingState
from ingestd.ingest.steps import StepWatch
from ingestd.ingest.target import load_target
from ingestd.kafka.ranges import Position
from ingestd.publish.staging import DAEMON, Staging
from ingestd.storage.local import Location


@dataclass(frozen=True, slots=True)
class Change:
    """What an operator changes: the committed position, and whether the mapping is paused.

    `text` describes the change, and `by` names its author.
    """

    position: Position
    paused: bool
    text: str
    by: str


class Ledger:
    """Opens and commits transactions. `on_commit` is called after each commit. One thread commits at a time.

    `table` is the definition of the table at the checkpoint.
    """

    def __init__(self, services: Services, checkpoint: Checkpoint, on_commit: Callable[[], None]) -> None:
        self._services = services
        self._options = services.options
        self._committer = checkpoint.committer
        self.table = checkpoint.table
        self._on_commit = on_commit
        self._state = checkpoint.state or MappingState(str(services.options.table))

    @property
    def state(self) -> MappingState:
        """The state that the last commit stored."""
        return self._state

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that the mapping reads."""
        return self._options.topics

    def open(self, plan: Plan, table: Table) -> PendingTransaction:
        """Open a transaction and allocate its write id, which the stage writes into every row."""
        self._services.ownership.check()
        watch = StepWatch(self._services.observe)
        # Checks that the table's directory exists, before the transaction is opened.
        location = Location.of(table.location)
        agent = self._services.ownership.agent
        txn, write_id = transactions.begin_writing(self._services.metastore, table.name, agent)
        self._services.ownership.track(txn.id)
        directory = Staging(location, DAEMON, str(txn.id))
        pending = PendingTransaction(plan, table, txn, write_id, (), directory, 0, 0, 0, (), watch)
        self._services.reporter.opened(pending)
        watch.lap("opened")
        return pending

    def commit(self, pending: PendingTransaction) -> None:
        """Commit the rows and the position of a staged transaction (see `Committer.commit`)."""
        rows = self._state.rows + pending.rows
        self._commit(pending, replace(self._state, position=pending.plan.after, rows=rows))

    def store_start(self, start: Position) -> None:
        """Commit the start position of the mapping's very first run, before any record is read.

        Otherwise, with `start: latest`, a crash before the first commit would skip records.
        """
        plan = Plan((), Position(), start)
        self.commit(self.open(plan, self.table))

    def change(self, change: Change) -> None:
        """Commit what an operator changes.

        The lease is confirmed inside the transaction: a process that was suspended changes nothing after a takeover.
        """
        plan = Plan((), self._state.position, change.position)
        self._services.observe("planned")
        pending = self.open(plan, load_target(self._services.metastore, self._options))
        self._services.ownership.confirm()
        self._services.ownership.check()
        author = replace(self._state, changed_by=change.by, changed_at=_now(), change=change.text)
        self._commit(pending, replace(author, position=change.position, paused=change.paused))
        events.changed(self._options.name, pending.txn.id, change.text, change.by)

    def _commit(self, pending: PendingTransaction, after: MappingState) -> None:
        """Commit `after`, mirror the offsets to Kafka, and report the commit."""
        after = replace(
            after, txn=pending.txn.id, write_id=pending.write_id, owner=self._services.ownership.agent, at=_now()
        )
        self._services.reporter.staged(pending)
        self._services.ownership.check()
        result = self._committer.commit(pending, self._state, after)
        self._services.ownership.untrack(pending.txn.id)
        self._services.staging.forget(pending.txn)
        self._state = after
        self._on_commit()
        self._services.compaction.committed(pending.table, pending.files)
        self._services.pace.committed(sum(pending.watch.steps[step] for step in ("opened", "committed")) / 1000)
        self._mirror_offsets(after)
        pending.watch.lap("mirrored")
        self._services.reporter.committed(result)

    def _mirror_offsets(self, after: MappingState) -> None:
        """Commit the offsets to the consumer group, for lag tools only. A failure is logged and ignored."""
        try:
            self._services.kafka.mirror(self._options.kafka, self._options.consumer_group, after.position.offsets)
        except IngestdError as error:
            events.mirror_failed(self._options.name, after.txn, error)


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
