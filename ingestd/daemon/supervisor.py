"""Runs all mappings of a configuration, and its replication policies, which share one Spark session.

Invariant: a mapping that ends leaves the others running (`runner.py`). When the Spark engine is lost, all
mappings end and release their leases, because none can continue without it. `run` stops waiting for the mappings
`_END_SECONDS` after an abort, even if one of them hangs. An abort also interrupts all requests to Kafka.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

from ingestd.clock import Deadline, monotonic, pause
from ingestd.compaction.compactor import Compactor
from ingestd.config.document import Document, Scope
from ingestd.daemon.reload import Changes, find_changes
from ingestd.daemon.runner import Runner, UnexpectedError
from ingestd.errors import ConfigError, IngestdError
from ingestd.ingest.commit import LOCK_SECONDS
from ingestd.ingest.control import Control, Signals
from ingestd.ingest.inspection.preview import AtOffset, AtTime, Preview, preview
from ingestd.ingest.mapping import MappingLoop
from ingestd.ingest.monitoring import events
from ingestd.ingest.monitoring.monitor import Limits, Monitor, is_stuck
from ingestd.ingest.options import MappingOptions
from ingestd.ingest.services import Clients, Handles
from ingestd.ingest.steps import Observe, ignore
from ingestd.ingest.workers import Worker, Workers
from ingestd.replication.cluster import Cluster
from ingestd.replication.policies.policy_status import PolicyStatus
from ingestd.replication.policies.worker import PolicyWorker, Totals
from ingestd.spark.engine import JobGroup
from ingestd.spark.errors import EngineLost

_POLL_SECONDS = 0.1
# The number of concurrent Spark jobs: enough to keep the cores busy while some jobs wait for Kafka or the storage.
_LEAST_STAGES = 4
_STAGES_PER_CORE = 2
# Seconds from an abort until the engine is killed, which ends all calls that wait for it, and until mappings that hang
# are left running. The process must end within 10 s, and closing its clients also takes time if a service hangs.
_KILL_SECONDS = 3.0
_END_SECONDS = 5.0
# After the engine is lost, transactions that are already staged have this long to commit.
_WITHOUT_ENGINE_SECONDS = 10.0


class StillRunning(IngestdError):
    """Mappings did not end after an abort. Their threads hang, so only `os._exit` can end the process."""

    exit_code = 69


class Supervisor:
    """Runs mappings until they end by themselves or `signals` ends them.

    Uses the caller's `clients`, and closes only their heartbeats and their Kafka consumers. Installs no signal handler,
    configures no logging and reads no environment variable. With `drain`, a mapping ends when it has caught up.
    `signals.abort` is set `shutdown.timeout` after `signals.stop`. `read` reads the configuration again. `observer_of`
    returns the observer of a mapping, by its name, which is called in the thread that completed a step.
    """

    def __init__(
        self,
        document: Document,
        clients: Clients,
        signals: Signals,
        *,
        drain: bool,
        read: Callable[[], Document],
        observer_of: Callable[[str], Observe] = lambda _mapping: ignore,
    ) -> None:
        self._document = document
        self._clients = clients
        self._engine = clients.engine
        self._signals = signals
        self._drain = drain
        self._read = read
        self._observer_of = observer_of
        self._workers = Workers(max(_LEAST_STAGES, _STAGES_PER_CORE * document.spark.cores))
        self._runners = [self._runner(mapping) for mapping in document.mappings]
        # Runners of mappings that a reload has removed, while they finish their open transactions.
        self._leaving: list[Runner] = []
        self._has_ended = False
        self._has_reported_delay = False
        self._reloading: Future[None] = Future()
        self._reloading.set_result(None)
        self._compactor = Compactor(clients.warehouse)
        self._policies = None if drain else self._policy_worker()
        self._lock = threading.Lock()
        self._lost: list[EngineLost] = []
        self._hung: list[StillRunning] = []
        self._stop_limit: Deadline | None = None
        self._aborted_at: float | None = None

    @property
    def scope(self) -> Scope:
        """Where the state of the mappings is stored. A reload cannot change it."""
        return self._document.scope

    @property
    def monitors(self) -> dict[str, Monitor]:
        """What each mapping reports, by its name. Safe for use from any thread."""
        return {runner.options.name: runner.monitor for runner in self._runners}

    @property
    def policies(self) -> Sequence[PolicyStatus]:
        """The replication policies of the namespace, as they were a few seconds ago."""
        return self._policies.statuses if self._policies else ()

    @property
    def policies_read_at(self) -> float | None:
        """The Unix time at which the metastore was last asked for policies, 0 before; None if none run here."""
        return self._policies.read_at if self._policies else None

    @property
    def policies_error(self) -> IngestdError | None:
        """The error that has ended the replication; None while it runs, or if none runs here."""
        return self._policies.error if self._policies else None

    @property
    def policy_totals(self) -> Totals:
        """What replication policies have done in this process."""
        return self._policies.totals if self._policies else Totals()

    @property
    def controls(self) -> dict[str, Control]:
        """The requests to each mapping, by its name. Safe for use from any thread."""
        return {runner.options.name: runner.control for runner in self._runners}

    def preview(self, name: str, limit: int, start: AtTime | AtOffset | None, group: JobGroup) -> Preview:
        """Decode records of a mapping with its current options. Raises the errors of `inspection.preview.preview`."""
        known = {runner.options.name: runner.options for runner in self._runners}
        if name not in known:
            raise ConfigError("a reload has removed the mapping", where=f"mapping {name}")
        return preview(self._clients.metastore, known[name], limit, start, lambda: self._engine, group)

    def cancel(self, group: JobGroup) -> None:
        """Let the running Spark jobs of a preview fail. Returns immediately."""
        self._engine.cancel(group)

    def reload(self) -> Future[None]:
        """Begin to reload the configuration. The future raises ConfigError if the new one is rejected.

        New mappings start. Removed and changed mappings finish their open transactions, then end or restart. Other
        mappings are not affected. Never blocks: a thread reads the files, because a file system that hangs blocks it.
        """
        done: Future[None] = Future()
        done.set_running_or_notify_cancel()  # from now on, it cannot be cancelled
        with self._lock:
            if not self._reloading.done():
                done.set_exception(ConfigError("the configuration is already being read", hint="retry in a moment"))
                return done
            self._reloading = done
        threading.Thread(target=self._reload, args=(done,), name="reload", daemon=True).start()
        return done

    def _reload(self, done: Future[None]) -> None:
        try:
            if self._drain:
                raise ConfigError("--until-caught-up does not reload the configuration")
            document = self._read()
            changes = find_changes(self._document, document)
            self._apply(document, changes)
        except Exception as error:  # noqa: BLE001 - the last frame of the thread: no error may be lost here
            known = error if isinstance(error, IngestdError) else UnexpectedError.of(error, where="reload")
            events.reload_rejected(known)
            done.set_exception(known)
        else:
            events.reloaded(*([mapping.name for mapping in some] for some in changes))
            done.set_result(None)

    def _apply(self, document: Document, changes: Changes) -> None:
        with self._lock:
            if self._has_ended or self._signals.stop.is_set():
                raise ConfigError("the daemon is stopping")
            known = {runner.options.name: runner for runner in (*self._leaving, *self._runners)}
            for options in changes.removed:
                known[options.name].stop()
            for options in changes.changed:
                known[options.name].restart(options)
            for options in changes.added:
                if options.name in known:  # an earlier reload has removed it
                    known[options.name].restart(options)
                else:
                    known[options.name] = self._runner(options)
                    known[options.name].start()
            names = [options.name for options in document.mappings]
            self._runners = [known[name] for name in names]
            if self._policies and document.replication:
                self._policies.define(document.replication.policies)
            self._leaving = [runner for name, runner in known.items() if name not in names and runner.is_running]
            self._document = document

    def _reload_on_signal(self) -> None:
        """Begin a reload if SIGHUP requested one. `_reload` logs its result."""
        if self._signals.reload.is_set() and self._reloading.done():
            self._signals.reload.clear()
            self.reload()

    def stuck(self) -> list[str]:
        """Return the names of the mappings that have made no progress for longer than their longest wait."""
        metastore, spark = self._document.metastore, self._document.spark
        limits = Limits(
            # A step contains one wait for locks, and calls that each may try every address.
            step_seconds=LOCK_SECONDS + metastore.timeout * (len(self._clients.metastore.addresses) + 1),
            job_seconds=spark.stage_timeout + spark.answer_timeout,
        )
        return [name for name, monitor in self.monitors.items() if is_stuck(monitor, limits)]

    def run(self, on_check: Callable[[], None] = lambda: None) -> list[IngestdError]:
        """Run all mappings and policies until they have ended, and return the errors that ended some of them.

        `on_check` is called ten times a second, by the loop that supervises the mappings; it must not block.
        The first error decides the exit code. If the engine was lost, it is EngineLost. The last error is StillRunning
        if threads are still running.
        """
        if self._signals.stop.is_set():
            return []
        self._compactor.start()
        for runner in self._runners:
            runner.start()
        if self._policies:
            self._policies.start()
        while (running := self._running()) or self._must_wait_for_engine():
            pause(_POLL_SECONDS)
            on_check()
            self._report_delay()
            self._stop_without_engine()
            if self._signals.stop.is_set():
                self._stop_all()
            else:
                self._reload_on_signal()
                for runner in self._runners:
                    runner.serve_requests()
            if self._signals.abort.is_set() and self._gives_up(self._abort_all(), running):
                break
        for runner in self._runners:
            runner.stop()  # requests to a mapping that has failed are no longer served
        self._compactor.stop()
        self._clients.liveness.close()
        self._clients.kafka.close()
        if not self._hung:
            self._workers.close()
        return self._all_errors()

    def _running(self) -> list[str]:
        """Return the names of the mappings and policies that run. Once there are none, no reload can add one."""
        with self._lock:
            running = [runner.options.name for runner in (*self._leaving, *self._runners) if runner.is_running]
            if self._policies and self._policies.is_running:
                running += [f"policy {name}" for name in self._policies.active] or ["replication"]
            self._has_ended = not running
            return running

    def _must_wait_for_engine(self) -> bool:
        """Return whether all mappings have caught up before it is known whether Spark starts.

        Without records to read they do not need it, but an exit code of 0 must not depend on that.
        """
        has_failed = any(runner.error is not None for runner in self._runners)
        return self._drain and not (self._signals.stop.is_set() or has_failed or self._engine.has_started)

    def _stop_all(self) -> None:
        """Stop all mappings, and set `signals.abort` when their time to finish is over."""
        patience = _WITHOUT_ENGINE_SECONDS if self._engine.lost else self._document.shutdown.timeout
        self._stop_limit = self._stop_limit or Deadline.after(patience)
        for runner in (*self._leaving, *self._runners):
            runner.stop()
        if self._policies:
            self._policies.stop()
        if self._stop_limit.passed:
            self._signals.abort.set()

    def _abort_all(self) -> float:
        """Abort all mappings; return the seconds since the first call."""
        self._aborted_at = self._aborted_at or monotonic()
        self._clients.kafka.interrupt()
        for runner in (*self._leaving, *self._runners):
            runner.abort()
        return monotonic() - self._aborted_at

    def _policy_worker(self) -> PolicyWorker | None:
        """Return what runs the policies; None if the configuration has no section `replication`."""
        options, warehouse = self._document.replication, self._clients.warehouse
        if options is None:
            return None
        cluster = Cluster(warehouse.metastore, warehouse.storages)
        return PolicyWorker(cluster, self._engine, options, self._document.control.database)

    def _runner(self, options: MappingOptions) -> Runner:
        clients = self._clients
        observe = self._observer_of(options.name)
        handles = Handles.of(clients.metastore, clients.liveness, options, observe=observe)
        return Runner(self._create, options, self._workers, handles)

    @contextmanager
    def _create(self, options: MappingOptions, handles: Handles, worker: Worker) -> Iterator[MappingLoop]:
        """Yield the main loop of a mapping, whose tables are watched during the `with` block."""
        loop = MappingLoop(self._clients, options, handles, worker, drain=self._drain)
        with self._lock:
            for watch in loop.compaction:
                self._compactor.add(watch)
        try:
            yield loop
        finally:
            with self._lock:
                for watch in loop.compaction:
                    self._compactor.remove(watch)

    def _report_delay(self) -> None:
        """Log once that Spark has not started yet. Until it has, mappings only plan."""
        if not self._has_reported_delay and (delay := self._engine.delay) is not None:
            self._has_reported_delay = True
            events.engine_delayed(delay)

    def _stop_without_engine(self) -> None:
        """Stop all mappings once the engine is lost, because a standby must not take over without an engine.

        During a shutdown, do nothing: a SIGTERM to the whole process group also ends the JVM. Then only a mapping that
        still needs the engine fails.
        """
        lost = self._engine.lost
        if lost is not None and not self._signals.stop.is_set():
            events.engine_lost(lost)
            self._lost.append(lost)
            self._signals.stop.set()

    def _all_errors(self) -> list[IngestdError]:
        """Return the errors that ended mappings, and the replication.

        EngineLost, which every mapping raises, comes first and only once.
        """
        failed = sorted((r for r in self._runners if r.error is not None), key=lambda runner: runner.failed_at)
        errors = [runner.error for runner in failed if runner.error is not None]
        lost = [*self._lost, *(error for error in errors if isinstance(error, EngineLost))]
        others = [error for error in errors if not isinstance(error, EngineLost)]
        replication = [self.policies_error] if self.policies_error else []
        return [*lost[:1], *others, *replication, *self._hung]

    def _gives_up(self, seconds: float, running: list[str]) -> bool:
        """Return whether to stop waiting for mappings that are still `running` some `seconds` after an abort.

        Kills the engine first, if it is busy. Adds StillRunning to the errors when it gives up.
        """
        if seconds > _KILL_SECONDS and self._engine.is_busy and not self._engine.lost:
            self._engine.kill(f"it was killed because mappings did not end within {_KILL_SECONDS:.0f} s of an abort")
        if seconds <= _END_SECONDS:
            return False
        names = ", ".join(running)
        error = StillRunning(
            f"the mapping did not end within {_END_SECONDS:.0f} s of an abort",
            where=f"mapping {names}",
            hint="its transactions and its lease will time out; check whether the metastore or the storage hangs",
        )
        self._hung.append(error)
        events.left_running(names, error)
        return True
