"""What is known about a policy: its state, its last execution, and how far the target is behind the source.

Invariant: everything is read from the metastore and the dump directory, so a command and the daemon, and two daemons,
report the same. What cannot be read is reported as a problem of the policy, and the rest is still shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from ingestd.clock import now
from ingestd.errors import BootstrapRequired, IngestdError
from ingestd.hive.events import EventLog
from ingestd.hive.objects import find_database
from ingestd.hive.schedules import Schedules
from ingestd.replication.cluster import Cluster
from ingestd.replication.directory.dump_files import Phase
from ingestd.replication.directory.protocol import Dump, DumpDirectory, Side
from ingestd.replication.marks import last_event
from ingestd.replication.policies.runs import Run, Status
from ingestd.replication.policies.store import Policies, Policy
from ingestd.replication.statements.grammar import ReplDump, ReplLoad

# An execution that has not been updated for so many time-outs of the metastore has ended without a result.
_TIMEOUTS = 2.0
_MOST_NAMES = 10


class State(str, Enum):
    """The state of a policy."""

    IDLE = "idle"
    """The last execution was successful or skipped, or there was none yet."""
    RUNNING = "running"
    FAILED = "failed"
    """The last execution has failed; the next one tries again."""
    NEEDS_RESUME = "needs_resume"
    """An error that a repetition cannot fix has stopped the policies of both sides, until one of them is resumed."""
    NEEDS_BOOTSTRAP = "needs_bootstrap"
    """The changes since the last dump are no longer available: `resume --bootstrap` copies the database again."""
    DISABLED = "disabled"
    INVALID = "invalid"
    """Another client has stored a text that is not a statement of replication."""


@dataclass(frozen=True, slots=True)
class Lag:
    """How far the target is behind the source.

    For a dump, `events` is the number of events of the source's log that the target does not have, and `seconds` the
    age of the oldest of them, or that of the last dump while it is not loaded. For a load, `events` is the number of
    dumped events that are not loaded, and `seconds` is the time since the source had the state that the target has now,
    or that of the last dump while it is not loaded. `overdue` are those seconds that the schedule of the dump does not
    explain: if the last dump is loaded, those before the planned time of the next dump are left out.
    """

    events: int
    seconds: float
    overdue: float

    @classmethod
    def at(cls, moment: float, events: int, since: float, due: float | None = None) -> Lag:
        """Return the lag at `moment` of what began at `since`; until `due`, the schedule of the dump explains it.

        All are Unix times.
        """
        seconds = moment - since
        overdue = seconds if due is None else min(seconds, moment - due)
        return cls(max(0, events), max(0.0, seconds), max(0.0, overdue))


@dataclass(frozen=True, slots=True)
class PolicyStatus:
    """A policy with its executions, the latest first.

    `problem` is the last error, or what the last successful execution has left out; '' if there is neither.
    `continuing` is the side that continues a backlog (`DumpDirectory.continuing_side`). `unreadable` has the tables
    that are not copied, because their files cannot be read (`DumpDirectory.unreadable`); None if that is unknown.
    """

    policy: Policy
    state: State
    runs: Sequence[Run] = ()
    lag: Lag | None = None
    problem: str = ""
    continuing: Side | None = None
    unreadable: Mapping[str, str] | None = None

    @property
    def continues(self) -> bool:
        """Whether the policy is to continue a backlog now. After an error, it waits for its schedule."""
        side = Side.SOURCE if isinstance(self.policy.statement, ReplDump) else Side.TARGET
        is_waiting = self.state is State.IDLE and self.policy.is_enabled and not self.policy.is_due
        return is_waiting and self.continuing is side

    @property
    def last(self) -> Run | None:
        """The latest execution of the last seven days."""
        return self.runs[0] if self.runs else None

    @property
    def complete(self) -> Run | None:
        """The latest execution that was successful, and had something to do."""
        return next((run for run in self.runs if run.status is Status.SUCCESS), None)

    @property
    def left_out(self) -> str:
        """What the last cycle could not copy; '' if that is nothing."""
        return "; ".join(filter(None, (describe_unreadable(self.unreadable or {}), self._missing)))

    @property
    def _missing(self) -> str:
        run = self.complete
        if run is None or not run.missing:
            return ""
        others = run.counts.get("MISSING", (1, 1))[0] - 1
        more = f" and {others} more" if others else ""
        return f"the source lacks directories of external tables, whose copies keep their files: {run.missing[0]}{more}"


def describe_unreadable(tables: Mapping[str, str]) -> str:
    """Return a sentence about tables that are not copied, with the first reason of `tables`; '' if there are none."""
    if not tables:
        return ""
    names = ", ".join(list(tables)[:_MOST_NAMES]) + (", …" if len(tables) > _MOST_NAMES else "")
    what = f"the tables {names} are" if len(tables) > 1 else f"the table {names} is"
    reason = next(filter(None, tables.values()), "their files cannot be read")
    return f"{what} not copied: {reason}"


def read_statuses(cluster: Cluster, policies: Policies, schedules: Schedules) -> Iterator[PolicyStatus]:
    """Yield the status of each policy by name. Raises MetastoreUnavailable."""
    timeout = schedules.timeout_seconds()
    for policy in policies.all():
        yield read_status(cluster, policy, schedules, timeout)


def read_runs(schedules: Schedules, policy: str) -> list[Run]:
    """Return the executions of a policy in the last seven days, the latest first. Raises MetastoreUnavailable."""
    runs = (Run.of(row) for row in schedules.metrics(policy))
    return [run for run in runs if run is not None and run.namespace == schedules.namespace]


def read_status(cluster: Cluster, policy: Policy, schedules: Schedules, timeout_seconds: float) -> PolicyStatus:
    """Return the status of a policy; `timeout_seconds` is that of executions. Raises MetastoreUnavailable."""
    runs = read_runs(schedules, policy.name)
    if policy.statement is None:
        return PolicyStatus(policy, State.INVALID, runs, problem=str(policy.problem))
    try:
        seen = _examine(cluster, policy.statement)
    except BootstrapRequired as error:
        return PolicyStatus(policy, State.NEEDS_BOOTSTRAP, runs, problem=str(error))
    except IngestdError as error:
        return PolicyStatus(policy, _state(policy, runs, "", timeout_seconds), runs, problem=str(error))
    last = next(iter(runs), None)
    problem = seen.marker or (last.error if last else "")
    if not problem and last is not None and _is_lost(last, timeout_seconds):
        problem = f"execution {last.execution} has ended without a result: its worker was killed or suspended"
    state = _state(policy, runs, seen.marker, timeout_seconds)
    status = PolicyStatus(policy, state, runs, seen.lag, problem, seen.continuing, seen.unreadable)
    return status if problem else replace(status, problem=status.left_out)


def _state(policy: Policy, runs: Sequence[Run], marker: str, timeout_seconds: float) -> State:
    if marker:
        return State.NEEDS_BOOTSTRAP if _is_bootstrap(marker) else State.NEEDS_RESUME
    last = next(iter(runs), None)
    is_lost = last is not None and _is_lost(last, timeout_seconds)
    if last is not None and last.status is Status.IN_PROGRESS and not is_lost:
        return State.RUNNING
    if not policy.is_enabled:
        return State.DISABLED
    return State.FAILED if last is not None and (is_lost or last.status.has_failed) else State.IDLE


def _is_lost(run: Run, timeout_seconds: float) -> bool:
    """Return whether an execution has ended without a result."""
    return run.status is Status.IN_PROGRESS and now() - run.updated >= _TIMEOUTS * timeout_seconds


def _is_bootstrap(reason: str) -> bool:
    """Return whether a reason, which begins with the class of an error, is that a bootstrap is required."""
    kinds: list[type[IngestdError]] = [BootstrapRequired, *BootstrapRequired.__subclasses__()]
    return reason.partition(":")[0] in {kind.__name__ for kind in kinds}


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the dump directory tells for a status. `marker` is why the policy is stopped, '' if it is not."""

    marker: str
    lag: Lag | None
    continuing: Side | None
    unreadable: Mapping[str, str]


def _examine(cluster: Cluster, statement: ReplDump | ReplLoad) -> _Seen:
    """Read the dump directory. Raises EventsExpired."""
    directory = DumpDirectory(cluster.storages, statement.settings.root, statement.source)
    dumps = directory.dumps()
    marker = directory.failure(dumps[-1]) if dumps else ""
    if isinstance(statement, ReplDump):
        lag = _dump_lag(cluster, directory, dumps)
    else:
        lag = _load_lag(cluster, directory, dumps, statement.target)
    return _Seen(marker, lag, directory.continuing_side(dumps), directory.unreadable(dumps))


def _dump_lag(cluster: Cluster, directory: DumpDirectory, dumps: Sequence[Dump]) -> Lag | None:
    log = EventLog(cluster.metastore)
    finished = [dump for dump in dumps if dump.is_finished]
    if not finished:
        return None
    last = finished[-1]
    metadata = directory.metadata(last)
    oldest = log.read(metadata.to_event, 1)
    if last.is_loaded:
        if not oldest:
            return Lag(0, 0.0, 0.0)
        events, due = log.current_id() - metadata.to_event, directory.next_dump(last, metadata)
        return Lag.at(now(), events, oldest[0].seconds, due)
    if last.state.phase is Phase.BOOTSTRAP:
        return None
    # The log may lack the events of the dump already. The oldest one is at least as old as the dump.
    events = log.current_id() - last.state.from_event
    return Lag.at(now(), events, last.state.began) if events else Lag(0, 0.0, 0.0)


def _load_lag(cluster: Cluster, directory: DumpDirectory, dumps: Sequence[Dump], target: str) -> Lag | None:
    finished, loaded = [dump for dump in dumps if dump.is_finished], [dump for dump in dumps if dump.is_loaded]
    database = find_database(cluster.metastore, target)
    last = None if database is None else last_event(database.parameters)
    if not finished or last is None:
        return None
    events = directory.metadata(finished[-1]).to_event - last
    if not loaded:  # a dump that is not loaded has replaced the last one that was
        return Lag.at(now(), events, finished[-1].state.began)
    metadata = directory.metadata(loaded[-1])
    since = directory.complete_until(loaded[-1], metadata)
    return Lag.at(now(), events, since, directory.next_dump(loaded[-1], metadata))
