"""Replays dead letters of one mapping: their records become rows of its table, each exactly once.

A replay is one transaction with two tables. It writes the rows of the records that now fit, and for each of their
letters a mark to the table of dead letters. Letters whose records do not fit remain, without a mark.

Invariant: rows and marks become visible in the same commit, or neither does. A transaction holds the lease of replays
from before it reads the marks until it ends. So no two transactions replay the same letter, and a replay that was
killed can be repeated. The lease of the daemon that runs the mapping is another one, so both can commit.

The steps of a replay:

1. own              end the open transactions of earlier replays, and fence their staging files
2. open             open a transaction, allocate its write ids, and take the lease of replays
3. stage            read the letters without marks, decode their records, write rows and marks into hidden directories
                    (`replay_stage.py`)
4. lock             lock both tables; check that their definitions are unchanged
5. publish          register, place, announce, count and commit (`publish/protocol.py`)
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from ingestd.clock import Deadline
from ingestd.errors import CommitOutcomeUnknown, ConfigError, TableChanged
from ingestd.formats.registry import Registry
from ingestd.hive import transactions
from ingestd.hive.partitions import PartitionsRefused
from ingestd.hive.tables import Table, TableName, load_acid_table, require_writable_database
from ingestd.hive.transactions import Transaction, Wait
from ingestd.hive.write_ids import is_committed
from ingestd.ingest.commit import LOCK_SECONDS, Target
from ingestd.ingest.ledger import begin
from ingestd.ingest.letters.groups import LetterGroup
from ingestd.ingest.letters.reader import LetterRows, Selection, letter_target
from ingestd.ingest.letters.table import LetterTable, Replay, load_letter_table
from ingestd.ingest.offline.change import owned
from ingestd.ingest.offline.replay_stage import ReplayStage, Staged, replay_task
from ingestd.ingest.options import MappingOptions
from ingestd.ingest.ownership.owner import OwnerAlive
from ingestd.ingest.services import Services
from ingestd.ingest.stage.task import Access
from ingestd.ingest.steps import Observe, ignore
from ingestd.ingest.table.refused import RecordsRefused
from ingestd.ingest.table.target import check_query, load_target, partitioning_of
from ingestd.publish.outcome import CommitRequest
from ingestd.publish.protocol import publish
from ingestd.publish.row_counts import RowCounts
from ingestd.publish.warehouse import Warehouse
from ingestd.spark.engine import Engine

# The time limit for checking the row counts of both tables at the end.
_CLOSE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What a replay has done, or a dry run would do. `transaction` is None if nothing was committed.

    `replayed` is the number of letters whose records fit, `rows` and `partitions` the numbers of their rows, after
    `where` and `transform`, and of the partitions of these rows. `remaining` contains the groups of letters whose
    records do not fit, with their present reasons. `hidden` contains the partitions whose rows a concurrent TRUNCATE of
    the mapping's table hides, or that could not be checked for it.
    """

    replayed: int
    rows: int
    partitions: int
    remaining: tuple[LetterGroup, ...]
    transaction: int | None = None
    hidden: tuple[str, ...] = ()

    @classmethod
    def of(cls, staged: Staged) -> ReplayResult:
        """Return what a commit of the staged files would do."""
        rows = sum(row.rows for row in staged.rows)
        partitions = len({row.partition for row in staged.rows})
        return cls(staged.replayed, rows, partitions, staged.remaining)


def replay(
    warehouse: Warehouse,
    options: MappingOptions,
    selection: Selection,
    engine: Callable[[], Engine],
    observe: Observe = ignore,
) -> ReplayResult:
    """Replay the selected letters that have not been replayed. `observe` is called with the name of each step.

    A daemon may run the mapping meanwhile. `engine` returns Spark on this machine, and is called only for a mapping
    with `where` or `transform`. Raises ConfigError if the mapping has no table of dead letters or its SQL is invalid,
    OwnerAlive if another replay of it runs, TableMissing, InvalidTable, TooManyPartitions, TableChanged,
    TransactionAborted, an Unavailable error, or an error of `ReplayStage.run`; nothing is replayed then. After
    CommitOutcomeUnknown, the replay can be repeated safely.
    """
    letters = _letter_table(options)
    try:
        with owned(warehouse, options.of_replays(), observe) as services:
            services.ownership.abort_leftovers()
            tables = _load_tables(warehouse, options, letters, engine)
            services.staging.fence(tables)
            with _counted(services, tables) as counts:
                return _Replay(services, options, selection, tables, counts, engine).run_without_refused()
    except OwnerAlive as error:
        agent = error.what.rpartition(" ")[2]
        hint = "wait until it has ended; one that was killed no longer counts after a few seconds"
        raise OwnerAlive(f"another replay of the mapping runs: {agent}", where=error.where, hint=hint) from None
    except CommitOutcomeUnknown as error:
        hint = "repeat the command: letters that were replayed are not replayed again"
        raise CommitOutcomeUnknown(error.what, where=error.where, hint=hint) from error


def try_replay(
    warehouse: Warehouse, options: MappingOptions, selection: Selection, engine: Callable[[], Engine]
) -> ReplayResult:
    """Return what `replay` would do now. Nothing is changed in Hive; the rows are written to a temporary directory.

    Raises the errors of `replay` that do not concern its transaction.
    """
    table, letters_table = _load_tables(warehouse, options, _letter_table(options), engine)
    rows = LetterRows.read(warehouse, letters_table, options.name)
    with tempfile.TemporaryDirectory(prefix="ingestd-rows-") as rows_at, tempfile.TemporaryDirectory() as marks_at:
        stage = ReplayStage(
            Access({}, warehouse.storages, Registry.of(options.registry)),
            replay_task(options, table, 1, Path(rows_at).as_uri()),
            LetterTable(letters_table.shape, 1, Path(marks_at).as_uri()),
            Replay("", datetime.now(timezone.utc)),
            engine,
        )
        return ReplayResult.of(stage.run(rows.remaining(rows.replays(), selection)))


def _letter_table(options: MappingOptions) -> TableName:
    target = letter_target(options)
    if target.table is None:
        raise ConfigError(
            "only dead letters in a table can be replayed, because a topic cannot store exactly once what was replayed",
            where=f"mapping {options.name}, dead_letter.table",
            hint="set dead_letter.table for later letters; `ingestd offsets rewind` reads the records again",
        )
    return target.table


def _load_tables(
    warehouse: Warehouse, options: MappingOptions, letters: TableName, engine: Callable[[], Engine]
) -> tuple[Table, Table]:
    """Read and check the table of the mapping, with its SQL, and that of its dead letters, which is written too."""
    table = load_target(warehouse.metastore, options)
    require_writable_database(warehouse.metastore, letters)
    if options.where or options.transform:
        check_query(table, options, engine().examine)
    return table, load_letter_table(warehouse.metastore, letters)


@contextmanager
def _counted(services: Services, tables: Iterable[Table]) -> Iterator[dict[TableName, RowCounts]]:
    """Maintain the row counts of the tables during the block. Repairs those that a killed replay left wrong."""
    writer = f"{services.options.control_database}.{services.options.name}"
    counts = {table.name: RowCounts(services.warehouse, table.name, writer, services.reporter) for table in tables}
    try:
        for count in counts.values():
            count.survey(0.0)
        yield counts
    finally:
        deadline = Deadline.after(_CLOSE_SECONDS)
        for count in counts.values():
            count.close(deadline, services.signals.abort)


class _Replay:
    """One replay by the owner of the mapping's replays. `tables` are the mapping's table and that of its letters."""

    def __init__(
        self,
        services: Services,
        options: MappingOptions,
        selection: Selection,
        tables: tuple[Table, Table],
        counts: dict[TableName, RowCounts],
        engine: Callable[[], Engine],
    ) -> None:
        self._services = services
        self._metastore = services.metastore
        self._options = options
        self._selection = selection
        self._table, self._letters = tables
        self._counts = counts
        self._engine = engine

    def run_without_refused(self) -> ReplayResult:
        """Perform the steps from 2 on, again without the letters whose partitions the metastore has refused."""
        while True:
            try:
                return self.run()
            except PartitionsRefused as error:  # noqa: PERF203 - the loop is there to repeat the replay
                learned = self._services.refused.learn(error, partitioning_of(self._table, self._options))
                if not isinstance(learned, RecordsRefused):
                    raise
                self._services.ownership.abort_leftovers()

    def run(self) -> ReplayResult:
        """Perform the steps from 2 on. Aborts the transaction if there is nothing to replay."""
        txn, rows, marks = self._open()
        directories = (rows.staging, marks.staging)
        try:
            self._services.staging.make(txn, directories)
            staged = self._stage(txn, rows, marks)
            self._services.observe("staged")
            if not staged.replayed:
                transactions.abort(self._metastore, txn.id)
                self._services.ownership.untrack(txn.id)
                return ReplayResult.of(staged)
            hidden = self._publish(txn, replace(rows, files=staged.rows), replace(marks, files=staged.marks))
            self._services.staging.forget(txn)
            return replace(ReplayResult.of(staged), transaction=txn.id, hidden=hidden)
        finally:
            self._services.staging.discard()

    def _open(self) -> tuple[Transaction, Target, Target]:
        """Open a transaction with write ids for both tables, and take the lease of replays."""
        services = self._services
        txn, (rows, marks) = begin(services, [self._table, self._letters])
        services.observe("opened")
        transactions.take_lease(self._metastore, txn, services.options.commit_lease, self._wait())
        return txn, rows, marks

    def _stage(self, txn: Transaction, rows: Target, marks: Target) -> Staged:
        """Stage the letters that the present snapshot shows: under the lease, no other replay adds marks to it."""
        stored = LetterRows.read(self._services.warehouse, self._letters, self._options.name)
        stage = ReplayStage(
            Access({}, self._services.warehouse.storages, Registry.of(self._options.registry)),
            replay_task(self._options, self._table, rows.write_id, rows.staging.uri, self._services.refused.reasons),
            LetterTable(self._letters.shape, marks.write_id, marks.staging.uri),
            Replay(f"transaction {txn.id}, write id {rows.write_id}", datetime.now(timezone.utc)),
            self._engine,
        )
        return stage.run(stored.remaining(stored.replays(), self._selection))

    def _publish(self, txn: Transaction, *targets: Target) -> tuple[str, ...]:
        """Lock the tables, publish and commit. Return the partitions whose rows are or may be hidden."""
        services = self._services
        services.ownership.check()
        locks = [target.lock for target in targets]
        excludes_overwrites = transactions.lock_against_overwrites(self._metastore, txn, locks, wait=self._wait())
        for target in targets:
            if load_acid_table(self._metastore, target.table.name) != target.table:
                hint = "repeat the command"
                raise TableChanged("the definition of the table changed", where=f"table {target.table.name}", hint=hint)
        services.observe("locked")
        writes = [
            target.table_write(self._counts[target.table.name], excludes_overwrites=excludes_overwrites)
            for target in targets
        ]
        has_committed = partial(is_committed, self._metastore, txn.id)
        request = CommitRequest(has_committed, services.reporter.waiting, services.signals.abort)
        done = publish(services.warehouse, txn, writes, request, services.observe)[self._table.name]
        services.ownership.untrack(txn.id)
        return (f"unknown: {done.unchecked}",) if done.unchecked else tuple(done.hidden)

    def _wait(self) -> Wait:
        return Wait(Deadline.after(LOCK_SECONDS), self._services.signals.abort)
