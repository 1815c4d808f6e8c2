"""Recovery of a mapping. Its owner runs it before the first transaction and after each failed transaction.

Invariant: nothing in memory decides what was committed. Recovery aborts every open transaction of the mapping,
whichever daemon opened it, and then reads the state that the last commit stored. The mapping continues from this state.
Only the first recovery creates the control table: a state that has disappeared must not make a running mapping start
from the beginning.
"""

from __future__ import annotations

from dataclasses import dataclass

from ingestd.clock import Deadline
from ingestd.errors import InvalidTable
from ingestd.hive.control import ControlTable, ensure_control_table, read_state
from ingestd.hive.tables import Table
from ingestd.ingest.commit import Committer
from ingestd.ingest.services import Services
from ingestd.ingest.state import MappingState
from ingestd.ingest.target import load_target
from ingestd.publish.row_counts import RowCounts

# A new owner checks the row counts of the whole table after this delay, so that its first commit does not wait.
_SURVEY_SECONDS = 3.0
# The time limit at shutdown for checking the row counts of recent commits.
_CLOSE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The point where a mapping continues: its current table, and the state of the last commit (None before the first).

    `aborted` contains the ids of the open transactions that the recovery aborted.
    """

    table: Table
    committer: Committer
    state: MappingState | None
    aborted: list[int]


class Recovery:
    """Recovers one mapping, any number of times, and maintains the row counts of its table in between."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._options = services.options
        self._counts: RowCounts | None = None
        self._control: ControlTable | None = None

    def run(self) -> Checkpoint:
        """Abort open transactions, remove their staging directories, and read the state that the last commit stored.

        Only the owner may call this method. Raises TableMissing or an Unavailable error, or InvalidTable if the
        mapping cannot write its table.
        """
        services = self._services
        aborted = services.ownership.abort_leftovers()
        table = load_target(services.metastore, self._options)
        services.staging.sweep(table)
        self._control = control = self._control or ensure_control_table(services.metastore, self._options.control)
        committer = Committer(
            services.metastore,
            self._options,
            control,
            self._row_counts(table),
            services.signals.abort,
            services.reporter.waiting,
        )
        return Checkpoint(table, committer, self._stored_state(control), aborted)

    def release(self) -> None:
        """Stop maintaining the row counts immediately, because another daemon may own the mapping."""
        self._close(0.0)

    def close(self) -> None:
        """Check the row counts of recent commits one last time, for at most a few seconds."""
        self._close(_CLOSE_SECONDS)

    def _stored_state(self, control: ControlTable) -> MappingState | None:
        state = MappingState.parse(read_state(self._services.metastore, control))
        if state is not None and state.table != str(self._options.table):
            raise InvalidTable(
                f"the table of the mapping changed from {state.table} to {self._options.table}",
                where=f"mapping {self._options.name}",
                hint="a mapping cannot change its table: define a mapping with a new name for the new table",
            )
        return state

    def _row_counts(self, table: Table) -> RowCounts:
        """Return the `RowCounts` of this owner. The first call creates it and schedules a check of the whole table."""
        if self._counts is None:
            writer = f"{self._options.control_database}.{self._options.name}"
            self._counts = RowCounts(self._services.metastore, table.name, writer, self._services.reporter)
            self._counts.survey(_SURVEY_SECONDS)
        return self._counts

    def _close(self, seconds: float) -> None:
        if self._counts is not None:
            self._counts.close(Deadline.after(seconds), self._services.signals.abort)
        self._counts = None
