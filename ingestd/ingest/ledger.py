"""Opens and commits the transactions of one mapping from a checkpoint on, and knows the stored state.

Invariant: `state` is the state that the last commit stored, and every commit replaces it under the lease. A transaction
without ranges changes only the state: the start of the first run, or what an operator requested.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from ingestd.errors import IngestdError
from ingestd.hive import transactions
from ingestd.hive.tables import Table, require_writable_database
from ingestd.hive.transactions import Transaction
from ingestd.ingest.commit import PendingTransaction, Target
from ingestd.ingest.monitoring import events
from ingestd.ingest.plan import Plan
from ingestd.ingest.recovery import Checkpoint
from ingestd.ingest.services import Services
from ingestd.ingest.state import MappingState
from ingestd.ingest.steps import StepWatch
from ingestd.ingest.table.columns import columns_of
from ingestd.ingest.table.target import letters_name, load_target
from ingestd.kafka.ranges import Position
from ingestd.publish.staging import DAEMON, Staging


@dataclass(frozen=True, slots=True)
class Change:
    """What an operator changes: the committed position, whether the mapping is paused, or the columns that it accepts.

    `columns` contains the types of columns that the table must still be able to store, by name. `text` describes the
    change, and `by` names its author.
    """

    position: Position
    paused: bool
    columns: Mapping[str, str]
    text: str
    by: str


class Ledger:
    """Opens and commits transactions. `on_commit` is called after each commit. One thread commits at a time.

    `table` is the definition of the table at the checkpoint, and `letters` that of the table of dead letters, if any.
    """

    def __init__(self, services: Services, checkpoint: Checkpoint, on_commit: Callable[[], None]) -> None:
        self._services = services
        self._options = services.options
        self._committer = checkpoint.committer
        self.table, self.letters = checkpoint.table, checkpoint.letters
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

    def read_table(self) -> Table:
        """Return the current definition of the table.

        Raises InvalidTable if the mapping must not write it or, because its database has become a target of
        replication, the control table.
        """
        metastore, options = self._services.metastore, self._options
        table = load_target(metastore, options)
        if options.control_database != options.table.database:
            require_writable_database(metastore, options.control)
        return table

    def open(self, plan: Plan, table: Table, letters: Table | None = None) -> PendingTransaction:
        """Open a transaction and allocate its write ids, which the stage writes into every row.

        `letters` is the table of dead letters, None if the transaction writes none there.
        """
        self._services.ownership.check()
        watch = StepWatch(self._services.observe)
        txn, targets = begin(self._services, [table] if letters is None else [table, letters])
        pending = PendingTransaction(plan, txn, targets[0], watch, targets[1] if letters is not None else None)
        self._services.reporter.opened(pending)
        watch.lap("opened")
        return pending

    def commit(self, pending: PendingTransaction) -> None:
        """Commit the rows and the position of a staged transaction (see `Committer.commit`)."""
        rows = self._state.rows + pending.rows
        columns, letters = columns_of(pending.table), letters_name(self._options)
        after = replace(self._state, position=pending.plan.after, rows=rows, columns=columns, letters=letters)
        self._commit(pending, after)

    def store_start(self, start: Position) -> None:
        """Commit the start position of the mapping's very first run, before any record is read.

        Otherwise, with `start: latest`, a crash before the first commit would skip records.
        """
        plan = Plan((), Position(), start)
        self.commit(self.open(plan, self.table))

    def store_letters(self) -> None:
        """Commit the name of another table of dead letters, before a transaction writes there.

        A new owner fences the former one in this table, whatever its own configuration is.
        """
        name, position = letters_name(self._options), self._state.position
        if self._state.letters != name:
            self._commit(self.open(Plan((), position, position), self.table), replace(self._state, letters=name))

    def change(self, change: Change) -> None:
        """Commit what an operator changes.

        The lease is confirmed inside the transaction: a process that was suspended changes nothing after a takeover.
        """
        plan = Plan((), self._state.position, change.position)
        self._services.observe("planned")
        pending = self.open(plan, self.read_table())
        self._services.ownership.confirm()
        self._services.ownership.check()
        author = replace(self._state, changed_by=change.by, changed_at=_now(), change=change.text)
        after = replace(author, position=change.position, paused=change.paused, columns=change.columns)
        self._commit(pending, after)
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
        for target in pending.targets:
            self._services.compaction[target.table.name].committed(target.table, target.files)
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


def begin(services: Services, tables: Sequence[Table]) -> tuple[Transaction, list[Target]]:
    """Open a transaction that writes these tables, and allocate a write id of each.

    Before that, checks that the directories of the tables exist. Raises StorageUnavailable or MetastoreUnavailable.
    """
    metastore, storages = services.metastore, services.warehouse.storages
    locations = [storages.location(table.location) for table in tables]
    txn, write_id = transactions.begin_writing(metastore, tables[0].name, services.ownership.agent)
    services.ownership.track(txn.id)
    write_ids = [write_id, *(transactions.allocate(metastore, txn, table.name) for table in tables[1:])]
    stagings = [Staging(storages, location, DAEMON, str(txn.id)) for location in locations]
    return txn, [Target(*parts) for parts in zip(tables, write_ids, stagings, strict=True)]


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
