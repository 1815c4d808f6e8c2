"""Runs the policies of a metastore in the daemon, some at the same time, and knows the states of all.

Invariant: the metastore decides who runs a policy (`hive/schedules.py`), so several daemons may serve one namespace. A
policy that fails leaves the others running, and none of them ends the daemon. No thread ends silently: a defect of the
worker itself stops all executions and sets `error`, because it is unknown whether a repetition would be safe. What the
rest of the daemon reads here is in memory: it never waits for the metastore or a storage.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from ingestd.clock import now, pause
from ingestd.errors import ConfigError, IngestdError
from ingestd.hive.client import Metastore
from ingestd.hive.schedules import Execution, Schedules
from ingestd.replication.cluster import Cluster
from ingestd.replication.cycle import forget
from ingestd.replication.policies import policy_events
from ingestd.replication.policies.execution import PolicyDefect, Resources, Running
from ingestd.replication.policies.holds import Holds
from ingestd.replication.policies.options import PolicyOptions, ReplicationOptions
from ingestd.replication.policies.policy_status import PolicyStatus, read_runs, read_statuses
from ingestd.replication.policies.runs import Run, Status
from ingestd.replication.policies.store import ANY_USER, Policies, Policy
from ingestd.replication.statements.grammar import PolicyChange
from ingestd.retry import Backoff
from ingestd.spark.engine import Engine

_WATCH_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Totals:
    """What the policies have done since the daemon started, by policy: executions by status, files, bytes, events."""

    executions: Mapping[tuple[str, str], int] = field(default_factory=dict)
    counts: Mapping[tuple[str, str], int] = field(default_factory=dict)


class PolicyWorker:
    """Runs policies from `start` until `stop`. All other members are safe for use from any thread."""

    def __init__(
        self, cluster: Cluster, engine: Engine | None, options: ReplicationOptions, control_database: str
    ) -> None:
        self._options = options
        self._cluster = cluster
        self._schedules = Schedules(cluster.metastore, options.namespace, executor(cluster.metastore))
        self._policies = Policies(cluster.metastore, self._schedules, control_database)
        self._holds = Holds(cluster.metastore)
        self._resources = Resources(cluster, self._schedules, self._policies, engine, options.retry, self._holds)
        self._wanted: Sequence[PolicyOptions] = options.policies
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._woken = threading.Event()
        self._is_outdated = threading.Event()
        self._running: dict[int, Running] = {}
        self._dispatcher: threading.Thread | None = None
        self._executions: Counter[tuple[str, str]] = Counter()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._recorded: set[str] = set()
        self.statuses: Sequence[PolicyStatus] = ()
        """All policies of the namespace, as they were a few seconds ago."""
        self.read_at = 0.0
        """The Unix time of the last answer of the metastore about policies."""
        self.error: PolicyDefect | None = None
        """The defect that has ended the worker; None while it runs, or if it was stopped."""

    def start(self) -> None:
        """Start to run policies."""
        self._dispatcher = self._start(self._dispatch, "policies")
        self._start(self._watch, "policies-watch")

    def define(self, wanted: Sequence[PolicyOptions]) -> None:
        """Create and alter policies as a new configuration says, soon."""
        with self._lock:
            self._wanted = wanted
        self._woken.set()

    def stop(self) -> None:
        """Let the running executions end early; the next ones continue them. Returns immediately."""
        self._stop.set()
        self._woken.set()
        self._is_outdated.set()
        with self._lock:
            for running in self._running.values():
                running.stop.set()

    @property
    def active(self) -> list[str]:
        """The names of the policies that run in this process."""
        with self._lock:
            return sorted(running.execution.name for running in self._running.values())

    @property
    def is_running(self) -> bool:
        """Whether executions run, or may begin."""
        return (self._dispatcher is not None and self._dispatcher.is_alive()) or bool(self.active)

    @property
    def totals(self) -> Totals:
        """What the policies have done since the daemon started."""
        with self._lock:
            return Totals(dict(self._executions), dict(self._counts))

    def _start(self, work: Callable[[], None], name: str) -> threading.Thread:
        thread = threading.Thread(target=self._caught, args=(work,), name=name, daemon=True)
        thread.start()
        return thread

    def _caught(self, work: Callable[[], None]) -> None:
        """Do the work of a thread. An unknown exception ends the worker, and other daemons may run its policies."""
        try:
            work()
        except Exception as defect:  # noqa: BLE001 - the last frame of the thread: no error may be lost here
            error = PolicyDefect.of(defect, where="replication")
            with self._lock:
                self.error = self.error or error
            policy_events.policies_failed(error)
            self.stop()

    # --- executions

    def _dispatch(self) -> None:
        """Begin executions that are due, while there is a free worker."""
        backoff = Backoff(cap_seconds=60.0)
        claimed: Sequence[Policy] = ()
        try:
            while not self._stop.is_set():
                self._woken.clear()
                try:
                    self._apply()
                    self._offer_again(claimed)
                    claimed = ()
                    timeout = self._schedules.timeout_seconds()
                    while len(self.active) < self._options.workers and not self._stop.is_set():
                        claimed = self._policies.all()
                        execution = self._schedules.claim()
                        claimed = ()
                        if execution is None:
                            break
                        self._begin(execution, timeout)
                    backoff.reset()
                    self.read_at = now()
                    seconds = self._options.poll
                except IngestdError as error:
                    seconds = backoff.seconds(error)
                    policy_events.policies_unavailable(error, seconds)
                pause(seconds, self._woken)
        finally:
            self._holds.close()

    def _offer_again(self, claimed: Sequence[Policy]) -> None:
        """Make policies due again of which a claim without an answer has begun an execution that nobody runs.

        The metastore does not tell which they are. They were due, are not due any more, and have no execution since. It
        hands them out when the lost execution has timed out. One that another worker runs at this moment runs again.
        """
        for policy in claimed:
            current = self._policies.find(policy.name) if policy.is_due else None
            if current is None or not current.is_enabled or current.is_due or policy.name in self.active:
                continue
            if not any(run.began >= (policy.next_execution or 0) for run in read_runs(self._schedules, policy.name)):
                self._policies.execute(policy.name)
                policy_events.policy_due_again(policy.name)

    def _begin(self, execution: Execution, timeout_seconds: float) -> None:
        running = Running(self._resources, execution, timeout_seconds)
        with self._lock:
            self._running[execution.id] = running
        if self._stop.is_set():
            running.stop.set()
        self._start(partial(self._run, running), f"policy-{execution.name}")

    def _run(self, running: Running) -> None:
        name = running.execution.name
        try:
            run = running.run()
            self._count(run)
            policy = self._policies.find(name)
            if policy is None:
                self._forget(running)
            elif name not in self._recorded:
                self._policies.record(name)
                self._recorded.add(name)
        except IngestdError as error:
            policy_events.policies_unavailable(error, self._options.poll)
        finally:
            with self._lock:
                del self._running[running.execution.id]
            self._woken.set()
            self._is_outdated.set()

    def _forget(self, running: Running) -> None:
        """Release what the policy holds, which was dropped while it ran: the command that did so could not."""
        if running.statement is not None:
            forget(self._cluster, running.execution.name, running.statement)

    def _count(self, run: Run) -> None:
        with self._lock:
            self._executions[run.policy, run.status.value] += 1
            if run.status is Status.SUCCESS:
                for name, (done, _) in run.counts.items():
                    self._counts[run.policy, name] += done

    # --- policies of the configuration

    def _apply(self) -> None:
        """Create and alter the policies of the configuration. Raises MetastoreUnavailable."""
        with self._lock:
            wanted, self._wanted = self._wanted, ()
        done = 0
        try:
            for options in wanted:
                self._apply_one(options)
                self._is_outdated.set()
                done += 1
        finally:
            with self._lock:
                self._wanted = self._wanted or wanted[done:]

    def _apply_one(self, options: PolicyOptions) -> None:
        wanted, existing = options.policy, self._policies.find(options.name)
        try:
            if existing is None:
                policy_events.policy_created(self._policies.create(wanted))
            elif _differs(existing, options):
                change = PolicyChange(wanted.schedule, wanted.user or ANY_USER, options.enabled, wanted.statement)
                policy_events.policy_altered(self._policies.alter(options.name, change))
        except ConfigError as error:
            policy_events.policy_rejected(options.name, error)

    # --- states

    def _watch(self) -> None:
        """Read the states of all policies repeatedly, and after each execution.

        Continues backlogs, and ends holds that are not needed.
        """
        while not self._stop.is_set():
            self._is_outdated.clear()
            seconds = _WATCH_SECONDS
            try:
                self.statuses = list(read_statuses(self._cluster, self._policies, self._schedules))
                self.read_at = now()
                self._continue()
                if any(status.continuing for status in self.statuses):
                    seconds = min(seconds, self._options.poll)
                self._holds.review({status.policy.name for status in self.statuses if status.policy.is_enabled})
            except IngestdError as error:
                policy_events.policies_unavailable(error, seconds)
            pause(seconds, self._is_outdated)

    def _continue(self) -> None:
        """Make policies due that have a backlog: each side as soon as the other one has done its part.

        One whose execution has begun meanwhile runs once more, and is then skipped.
        """
        for status in self.statuses:
            if status.continues and status.policy.name not in self.active:
                with suppress(ConfigError):  # disabled or dropped meanwhile
                    self._policies.execute(status.policy.name)
                self._woken.set()


def executor(metastore: Metastore) -> str:
    """Return the name of this process in `information_schema.scheduled_executions`."""
    return f"{metastore.host}-{os.getpid()}"


def _differs(policy: Policy, options: PolicyOptions) -> bool:
    wanted = options.policy
    parts = (policy.schedule.cron, policy.statement, policy.user)
    is_enabled = policy.is_enabled if options.enabled is None else options.enabled
    return parts != (wanted.schedule.cron, wanted.statement, wanted.user or ANY_USER) or is_enabled != policy.is_enabled
