"""Recovery of a mapping. Its owner runs it before the first transaction and after each failed transaction.

Invariant: nothing in memory decides what was committed. Recovery aborts every open transaction of the mapping,
whichever daemon opened it, fences the former owner in the storage, and then reads the state that the last commit
stored. The mapping continues from this state. Only the first recovery creates the control table: a state that has
disappeared must not make a running mapping start from the beginning.
"""

from __future__ import annotations

from dataclasses import dataclass

from ingestd.clock import Deadline
from ingestd.hive.control import ControlTable, ensure_control_table, read_state
from ingestd.hive.tables import Table, TableName
from ingestd.ingest.commit import Committer
from ingestd.ingest.services import Services
from ingestd.ingest.state import MappingState
from ingestd.ingest.table.creation import ensure_letters, ensure_target
from ingestd.ingest.table.target import existing_tables, letters_name, require_same
from ingestd.publish.row_counts import RowCounts

# A new owner checks the row counts of the whole table after this delay, so that its first commit does not wait.
_SURVEY_SECONDS = 3.0
# The time limit at shutdown for checking the row counts of recent commits.
_CLOSE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The point where a mapping continues: its current table, and the state of the last commit (None before the first).

    `letters` is the table of dead letters, None if the mapping has none. `aborted` contains the ids of the open
    transactions that the recovery aborted.
    """

    table: Table
    letters: Table | None
    committer: Committer
    state: MappingState | None
    aborted: list[int]


class Recovery:
    """Recovers one mapping, any number of times, and maintains the row counts of its tables in between."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._options = services.options
        self._counts: dict[TableName, RowCounts] = {}
        self._control: ControlTable | None = None

    def run(self) -> Checkpoint:
        """Abort open transactions, remove their staging directories, and read the state that the last commit stored.

        The staging directories include those in a table of dead letters that the configuration no longer names.

        Creates the table before the first commit, if the configuration says so, and a missing table of dead letters.
        Only the owner may call this method. Raises TableMissing, InvalidTable if the mapping cannot write its table, or
        an Unavailable error, also if a staging directory cannot be removed (`StagingArea.fence`).
        """
        services = self._services
        aborted = services.ownership.abort_leftovers()
        table = ensure_target(services.metastore, self._options)
        letters = ensure_letters(services.metastore, self._options)
        tables = [target for target in (table, letters) if target is not None]
        services.staging.fence(tables)
        self._control = control = self._control or ensure_control_table(services.metastore, self._options.control)
        committer = Committer(
            services.warehouse,
            self._options,
            control,
            {target.name: self._row_counts(target) for target in tables},
            services.signals.abort,
            services.reporter.waiting,
        )
        state = self._stored_state(control)
        if state is not None and state.letters != letters_name(self._options):
            services.staging.fence(existing_tables(services.metastore, [state.letters]))
        return Checkpoint(table, letters, committer, state, aborted)

    def release(self) -> None:
        """Stop maintaining the row counts immediately, because another daemon may own the mapping."""
        self._close(0.0)

    def close(self) -> None:
        """Check the row counts of recent commits one last time, for at most a few seconds."""
        self._close(_CLOSE_SECONDS)

    def _stored_state(self, control: ControlTable) -> MappingState | None:
        state = MappingState.parse(read_state(self._services.metastore, control))
        if state is not None:
            require_same(state.table, self._options)
        return state

    def _row_counts(self, table: Table) -> RowCounts:
        """Return the `RowCounts` of this owner. The first call creates it and schedules a check of the whole table."""
        if table.name not in self._counts:
            writer = f"{self._options.control_database}.{self._options.name}"
            counts = RowCounts(self._services.warehouse, table.name, writer, self._services.reporter)
            counts.survey(_SURVEY_SECONDS)
            self._counts[table.name] = counts
        return self._counts[table.name]

    def _close(self, seconds: float) -> None:
        deadline = Deadline.after(seconds)
        for counts in self._counts.values():
            counts.close(deadline, self._services.signals.abort)
        self._counts.clear()
