"""Runs each mapping in its own thread. All mappings share one Spark session.

Invariant: a mapping that ends, with or without an error, leaves the others running. When the Spark engine is lost, all
mappings end and release their leases, because none can continue without it. `run` returns at most `_END_SECONDS` after
an abort, even if a mapping hangs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from ingestd.clock import Deadline, monotonic, pause
from ingestd.compaction.compactor import Compactor
from ingestd.config.document import Document
from ingestd.errors import ConfigError, IngestdError
from ingestd.hive.client import Metastore
from ingestd.ingest import events
from ingestd.ingest.clients import Clients
from ingestd.ingest.commit import LOCK_SECONDS
from ingestd.ingest.control import Control
from ingestd.ingest.liveness import Liveness
from ingestd.ingest.mapping import MappingLoop
from ingestd.ingest.monitor import Limits, Monitor, is_stuck
from ingestd.ingest.options import MappingOptions
from ingestd.ingest.signals import Signals
from ingestd.ingest.steps import Observe, ignore
from ingestd.spark.engine import Engine
from ingestd.spark.errors import EngineLost


class UnexpectedError(IngestdError):
    """A defect of ingestd. The mapping stops, because it is unknown whether a retry would be safe."""

    exit_code = 70


class StillRunning(IngestdError):
    """Mappings did not end after an abort. Their threads hang, so only `os._exit` can end the process."""

    exit_code = 69


_POLL_SECONDS = 0.1
# Seconds from an abort until the engine is killed, which ends all calls that wait for it, and until `run` returns.
_KILL_SECONDS = 5.0
_END_SECONDS = 10.0
# After the engine is lost, transactions that are already staged have this long to commit.
_WITHOUT_ENGINE_SECONDS = 10.0


class Supervisor:
    """Runs mappings until they end by themselves or `signals` ends them.

    Uses the caller's `metastore` and `engine`, and does not stop them. Installs no signal handler, configures no
    logging and reads no environment variable. With `drain`, a mapping ends when it has caught up. `signals.abort` is
    set `shutdown.timeout` after `signals.stop`. `observe` is called with the name of each step of each transaction, in
    the thread that completed the step.
    """

    def __init__(
        self,
        document: Document,
        metastore: Metastore,
        engine: Engine,
        signals: Signals,
        *,
        drain: bool,
        observe: Observe = ignore,
    ) -> None:
        self._document = document
        self._metastore = metastore
        self._engine = engine
        self._clients = Clients(metastore, engine, Liveness(metastore, document.control.database))
        self._signals = signals
        self._drain = drain
        self._observe = observe
        self._errors: list[IngestdError] = []
        self._loops: Sequence[MappingLoop] = ()
        self._compactor = Compactor(metastore)

    @property
    def monitors(self) -> dict[str, Monitor]:
        """What each mapping reports, by its name. Safe for use from any thread; empty before `run`."""
        return {loop.options.name: loop.reporter.monitor for loop in self._loops}

    @property
    def controls(self) -> dict[str, Control]:
        """The requests to each mapping, by its name. Mappings do not take requests yet."""
        return {}

    def reload(self) -> None:
        """Read the configuration again. Raises ConfigError, because this is not possible yet."""
        raise ConfigError("the configuration cannot be reloaded yet", hint="restart the daemon")

    def stuck(self) -> list[str]:
        """Return the names of the mappings that have made no progress for longer than their longest wait."""
        metastore, spark = self._document.metastore, self._document.spark
        limits = Limits(
            # A step contains one wait for locks, and calls that each may try every address.
            step_seconds=LOCK_SECONDS + metastore.timeout * (len(self._metastore.addresses) + 1),
            job_seconds=spark.stage_timeout + spark.answer_timeout,
        )
        return [name for name, monitor in self.monitors.items() if is_stuck(monitor, limits)]

    def run(self, on_check: Callable[[], None] = lambda: None) -> list[IngestdError]:
        """Run all mappings until they have ended, and return the errors that ended some of them.

        `on_check` is called ten times a second, by the loop that supervises the mappings; it must not block.
        The first error decides the exit code. If the engine was lost, it is EngineLost. The last error is StillRunning
        if threads are still running.
        """
        self._loops = loops = [self._loop(mapping) for mapping in self._document.mappings]
        threads = [threading.Thread(target=self._run_one, args=(loop,), name=loop.options.name) for loop in loops]
        for loop in loops:
            self._compactor.add(loop.compaction)
        self._compactor.start()
        for thread in threads:
            thread.start()
        limit: Deadline | None = None
        aborted_at: float | None = None
        while running := [thread.name for thread in threads if thread.is_alive()]:
            pause(_POLL_SECONDS)
            on_check()
            self._stop_without_engine()
            if self._signals.stop.is_set() and limit is None:
                limit = Deadline.after(
                    _WITHOUT_ENGINE_SECONDS if self._engine.lost else self._document.shutdown.timeout
                )
            if limit is not None and limit.passed:
                self._signals.abort.set()
            if self._signals.abort.is_set():
                aborted_at = aborted_at or monotonic()
                for loop in loops:
                    loop.cancel()
                if self._has_hung(monotonic() - aborted_at, running):
                    break
        self._compactor.stop()
        self._clients.liveness.close()
        return self._errors

    def _loop(self, mapping: MappingOptions) -> MappingLoop:
        return MappingLoop(self._clients, mapping, self._signals, drain=self._drain, observe=self._observe)

    def _stop_without_engine(self) -> None:
        """Stop all mappings once the engine is lost, because a standby must not take over without an engine.

        During a shutdown, do nothing: a SIGTERM to the whole process group also ends the JVM. Then only a mapping that
        still needs the engine fails.
        """
        lost = self._engine.lost
        if lost is not None and not self._signals.stop.is_set():
            events.engine_lost(lost)
            self._add_error(lost)
            self._signals.stop.set()

    def _add_error(self, error: IngestdError) -> None:
        """Add an error to the result. EngineLost, which every mapping raises, is added once and comes first."""
        if not isinstance(error, EngineLost):
            self._errors.append(error)
        elif not any(isinstance(known, EngineLost) for known in self._errors):
            self._errors.insert(0, error)

    def _has_hung(self, seconds: float, running: list[str]) -> bool:
        """Handle mappings that are still `running` some `seconds` after an abort; return True to stop waiting for them.

        The engine is killed first, if it is busy. Later, StillRunning is added to the errors.
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
        self._errors.append(error)
        events.left_running(names, error)
        return True

    def _run_one(self, loop: MappingLoop) -> None:
        error: IngestdError | None = None
        try:
            loop.run()
        except IngestdError as known:
            # A retry that a stop interrupted is not a failure: the next run reads the uncommitted records again.
            error = None if self._signals.stop.is_set() and known.is_retriable else known
        except Exception as unknown:  # noqa: BLE001 - the last frame of the thread: no error may be lost here
            error = UnexpectedError(f"{type(unknown).__name__}: {unknown}", where=f"mapping {loop.options.name}")
            error.__cause__ = unknown
        if error is None:
            loop.reporter.stopped()
        else:
            self._add_error(error)
            loop.reporter.failed(error)
