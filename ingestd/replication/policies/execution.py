"""One execution of a policy: runs its step, keeps the execution active meanwhile, and reports its result.

Invariant: a step runs only while the metastore considers the execution active. If the metastore has ended it, or could
not be reached for the time after which it does so, the step is stopped and its result is not reported: another worker
may run the policy. An error is retried by its class, as those of mappings are; any other error ends the execution.
"""

from __future__ import annotations

import asyncio
import threading
import traceback
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from ingestd import retry
from ingestd.clock import Deadline, now, pause
from ingestd.errors import ConfigError, IngestdError, MetastoreUnavailable, OwnershipLost
from ingestd.hive.schedules import Execution, Schedules
from ingestd.replication import cycle
from ingestd.replication.cluster import Cluster
from ingestd.replication.cycle import Progress, Result, Step
from ingestd.replication.directory.protocol import Dump, DumpDirectory, NonRecoverable
from ingestd.replication.policies import policy_events
from ingestd.replication.policies.holds import Holds
from ingestd.replication.policies.runs import Run, Stage, Status
from ingestd.replication.policies.store import ANY_USER, Policies, Policy
from ingestd.replication.statements.grammar import ReplDump, ReplLoad
from ingestd.retry import Backoff
from ingestd.spark.engine import Engine

_REPORTS_PER_TIMEOUT = 4
_SHORTEST_SECONDS, _LONGEST_SECONDS = 1.0, 30.0
_FINISH_RETRY_SECONDS = 1.0
_LONGEST_WAIT = 60.0


class PolicyDefect(IngestdError):
    """A defect of ingestd ended an execution, or the worker. It is unknown whether a repetition would be safe."""

    exit_code = 70

    @classmethod
    def of(cls, defect: Exception, *, where: str) -> PolicyDefect:
        """Return the error that reports an unknown exception, with the line that raised it."""
        place = traceback.extract_tb(defect.__traceback__)[-1]
        error = cls(f"{type(defect).__name__}: {defect} ({Path(place.filename).name}:{place.lineno})", where=where)
        error.__cause__ = defect
        return error


@dataclass(frozen=True, slots=True)
class Resources:
    """What all executions of a process share. `retry_seconds` limits the retries of an execution."""

    cluster: Cluster
    schedules: Schedules
    policies: Policies
    engine: Engine | None
    retry_seconds: float
    holds: Holds


@dataclass
class Running:
    """An execution that runs. `stop` lets its step end early; the next execution continues it.

    `statement` is what it runs; None before it is known.
    """

    resources: Resources
    execution: Execution
    timeout_seconds: float
    stop: threading.Event = field(default_factory=threading.Event)
    statement: ReplDump | ReplLoad | None = field(default=None, init=False)
    _guard: threading.Lock = field(default_factory=threading.Lock, init=False)
    _ended: threading.Event = field(default_factory=threading.Event, init=False)
    _woken: threading.Event = field(default_factory=threading.Event, init=False)
    _lost: IngestdError | None = field(default=None, init=False)
    _defect: Exception | None = field(default=None, init=False)
    _note: str = field(default="", init=False)
    _next_time: int | None = field(default=None, init=False)
    _run: Run = field(init=False)

    def run(self) -> Run:
        """Run the policy to its end, and return what was done.

        Never raises an IngestdError; any other exception is a defect outside of the step.
        """
        moment = now()
        self._run = Run(
            self.execution.id,
            self.execution.name,
            Stage.DUMP,
            Status.IN_PROGRESS,
            "",
            began=moment,
            updated=moment,
            namespace=self.resources.schedules.namespace,
        )
        statement, fault = self._statement()
        self.statement = statement
        if statement is not None:
            stage = Stage.LOAD if isinstance(statement, ReplLoad) else Stage.DUMP
            self._change(stage=stage, database=statement.database)
        policy_events.policy_started(self._run)
        reporter = threading.Thread(target=self._keep, name=f"policy-{self.execution.name}-report", daemon=True)
        reporter.start()
        try:
            if statement is None:
                assert fault is not None
                self._fail(fault)
            else:
                self._end(asyncio.run(self._retried(statement)))
        except IngestdError as error:
            self._fail(error)
        finally:
            self._ended.set()
            self._woken.set()
            reporter.join()
        if self._defect is not None:
            raise self._defect
        self._finish()
        return self._run

    # --- the step

    def _statement(self) -> tuple[ReplDump | ReplLoad | None, IngestdError | None]:
        """Return what the policy runs, or why it cannot run here.

        Without an answer, the metastore is asked again, but not until the execution times out: nobody reports it yet.
        """
        name, user = self.execution.name, self.resources.cluster.metastore.user
        limit = min(self.resources.retry_seconds, self.timeout_seconds / 2)
        try:
            policy = retry.retry(self._policy, limit_seconds=limit, stop=self.stop, on_wait=self._on_wait)
        except IngestdError as error:
            return None, error
        self._note, self._next_time = "", policy.next_execution
        if policy.user not in (ANY_USER, user):
            hint = f"alter the policy, or run a daemon as {policy.user}; ingestd does not impersonate users"
            what = f"it is executed as {policy.user}, and this daemon is {user}"
            return None, ConfigError(what, where=f"policy {name}", hint=hint)
        return policy.statement, policy.problem

    def _policy(self) -> Policy:
        self.resources.policies.align(self.execution.name)
        return self.resources.policies.get(self.execution.name)

    def _on_wait(self, error: IngestdError, seconds: float) -> None:
        self._note = str(error)
        self._woken.set()
        policy_events.policy_retried(self._run, error, seconds)

    async def _retried(self, statement: ReplDump | ReplLoad) -> Result:
        """Run the step until it succeeds, for at most `retry_seconds` after the first error."""
        given_up = threading.Event()
        deadline: Deadline | None = None

        async def attempt() -> Result:
            nonlocal deadline
            try:
                return await asyncio.to_thread(self._step, statement)
            except IngestdError:
                deadline = deadline or Deadline.after(self.resources.retry_seconds)
                if deadline.passed or self.stop.is_set():
                    given_up.set()
                raise

        async def sleep(seconds: float) -> None:
            await asyncio.to_thread(pause, seconds, self.stop)

        backoff = Backoff(cap_seconds=_LONGEST_WAIT)
        return await retry.call(attempt, stop=given_up, sleep=sleep, on_wait=self._on_wait, backoff=backoff)

    def _step(self, statement: ReplDump | ReplLoad) -> Result:
        shared = self.resources
        step = Step(self.execution.name, self.execution.id, self._next_time, self._progress, self._confirm)
        try:
            if isinstance(statement, ReplDump):
                step = replace(step, hold=partial(self._hold, statement.settings.hold_seconds))
                return cycle.dump(shared.cluster, statement, step, self.stop)
            others = shared.policies.loads(self.execution.name)
            return cycle.load(shared.cluster, statement, others, shared.engine, step, self.stop)
        except IngestdError:
            raise
        except Exception as defect:
            raise PolicyDefect.of(defect, where=f"policy {self.execution.name}") from defect

    def _hold(self, seconds: float, directory: DumpDirectory, dump: Dump) -> None:
        self.resources.holds.begin(self.execution.name, directory, dump, seconds)

    def _progress(self, progress: Progress) -> None:
        is_first, self._note = self._run.directory != progress.directory, ""
        self._change(
            phase=progress.phase,
            directory=progress.directory,
            dump_execution=progress.dump_execution,
            counts=dict(progress.counts),
        )
        if is_first:
            self._woken.set()

    def _confirm(self) -> None:
        """Raise OwnershipLost unless the execution is active. Called before a result is stored for the other side."""
        try:
            self.resources.schedules.report(self.execution)
        except OwnershipLost as error:
            self._give_up(error)
            raise

    # --- the result

    def _end(self, result: Result) -> None:
        self._change(
            status=Status.SKIPPED if result.skipped else Status.SUCCESS,
            ended=now(),
            reason=result.skipped,
            last_event=result.last_event,
            lost=result.lost,
            missing=result.missing,
        )
        (policy_events.policy_skipped if result.skipped else policy_events.policy_finished)(self._run)
        if result.lost:
            policy_events.policy_lost_tables(self._run)
        if result.missing:
            policy_events.policy_missing_directories(self._run)

    def _fail(self, error: IngestdError) -> None:
        is_final = cycle.is_final(error) or isinstance(error, PolicyDefect)
        self._change(
            status=Status.FAILED_ADMIN if is_final else Status.FAILED,
            ended=now(),
            error=str(error),
            error_class=type(error).__name__,
            marker=error.where if isinstance(error, NonRecoverable) else "",
        )
        if self._lost is not None:
            policy_events.policy_lost(self._run, self._lost)
        elif self.stop.is_set() and error.is_retriable:
            policy_events.policy_stopped(self._run)
        else:
            policy_events.policy_failed(self._run, error)

    def _finish(self) -> None:
        """Report the result, for as long as the metastore considers the execution active."""
        deadline = Deadline.after(self.timeout_seconds)
        while self._lost is None:
            error = self._report_result()
            if error is None:
                return
            if not isinstance(error, MetastoreUnavailable) or deadline.passed:
                policy_events.policy_lost(self._run, error)
                return
            pause(_FINISH_RETRY_SECONDS)

    def _report_result(self) -> IngestdError | None:
        """Report the result, and return the error that prevents it."""
        try:
            self._store()
            text = self._run.error if self._run.status.has_failed else None
            self.resources.schedules.finish(self.execution, text)
            if self.stop.is_set() and self._run.status is Status.FAILED:
                # Another worker, or this one after its restart, continues at once.
                with suppress(ConfigError):  # disabled meanwhile
                    self.resources.policies.execute(self.execution.name)
        except IngestdError as error:
            return error
        return None

    # --- reports

    def _keep(self) -> None:
        """Keep the execution active until the step has ended; stop the step if that fails.

        The metrics are stored when the dump is known, because the metastore never changes the dump of a row.
        """
        interval = min(_LONGEST_SECONDS, max(_SHORTEST_SECONDS, self.timeout_seconds / _REPORTS_PER_TIMEOUT))
        limit = Deadline.after(self.timeout_seconds)
        while not self._ended.is_set() and self._lost is None:
            try:
                self.resources.schedules.report(self.execution, self._note)
                limit = Deadline.after(self.timeout_seconds)
                if self._run.directory or self._note:
                    self._store()
            except IngestdError as error:
                if not isinstance(error, MetastoreUnavailable) or limit.passed:
                    self._give_up(error)
            except Exception as defect:  # noqa: BLE001 - `run` raises it
                # Without reports, another worker may run the policy as well.
                self._defect = defect
                self.stop.set()
                return
            pause(interval, self._woken)
            self._woken.clear()

    def _give_up(self, error: IngestdError) -> None:
        self._lost = error
        self.stop.set()

    def _store(self) -> None:
        self._change(updated=now())
        self.resources.schedules.store(self._run.row())

    def _change(self, **fields: Any) -> None:
        with self._guard:
            self._run = replace(self._run, **fields)
