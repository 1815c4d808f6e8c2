"""Runs every mapping in a thread of its own over one Spark session.

Invariant: a mapping that ends, by error or not, leaves the others running; the exit code is that of the first error.
Without its Spark engine no mapping can go on: when the engine is lost all of them end and give their leases up.
Whatever hangs, `run` returns within `_END_SECONDS` of an abort.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from ingestd.clock import Deadline, monotonic, pause
from ingestd.errors import IngestdError
from ingestd.hive.client import Metastore
from ingestd.ingest import events
from ingestd.ingest.mapping import MappingLoop, Signals
from ingestd.ingest.options import MappingOptions
from ingestd.spark.engine import Engine, EngineLost


class UnexpectedError(IngestdError):
    """A fault of ingestd itself; the mapping stops, since nothing is known about what would be safe."""

    exit_code = 70


class StillRunning(IngestdError):
    """Mappings did not end when they were told to: threads of theirs hang, so only `os._exit` ends the process."""

    exit_code = 69


# After an abort the engine is killed, which unblocks all calls that wait for it; then the process ends in any case.
_KILL_SECONDS = 5.0
_END_SECONDS = 10.0
# What is staged may still be committed without an engine, for so long.
_WITHOUT_ENGINE_SECONDS = 10.0


class Supervisor:
    """`run` blocks until every mapping has ended; `drain` makes each end when it has caught up."""

    def __init__(
        self,
        metastore: Metastore,
        engine: Engine,
        mappings: Sequence[MappingOptions],
        signals: Signals,
        *,
        drain: bool,
        shutdown_seconds: float,
    ) -> None:
        self._engine = engine
        self._loops = [MappingLoop(metastore, engine, m, signals, drain=drain) for m in mappings]
        self._signals = signals
        self._shutdown_seconds = shutdown_seconds
        self._errors: list[IngestdError] = []

    def run(self) -> list[IngestdError]:
        """Run all mappings; returns the errors that ended some of them.

        The last one is StillRunning when threads had to be left behind.
        """
        threads = [threading.Thread(target=self._run_one, args=(loop,), name=loop.options.name) for loop in self._loops]
        for thread in threads:
            thread.start()
        aborted_at: float | None = None
        limit: Deadline | None = None
        while running := [thread.name for thread in threads if thread.is_alive()]:
            pause(0.1)
            self._end_without_engine()
            if self._signals.stop.is_set() and limit is None:
                limit = Deadline.after(_WITHOUT_ENGINE_SECONDS if self._engine.lost else self._shutdown_seconds)
            if limit is not None and limit.passed:
                self._signals.abort.set()
            if self._signals.abort.is_set():
                aborted_at = aborted_at or monotonic()
                if self._abort(monotonic() - aborted_at, running):
                    break
        return self._errors

    def _end_without_engine(self) -> None:
        """Tell all mappings to end once the engine is lost; those that stand by must not take over.

        A SIGTERM to all processes ends the JVM as well: then it matters only to a mapping that still needs it.
        """
        lost = self._engine.lost
        if lost is not None and not self._signals.stop.is_set():
            events.engine_lost(lost)
            self._note(lost)
            self._signals.stop.set()

    def _note(self, error: IngestdError) -> None:
        """Keep an error; that the engine is lost is kept once and decides the exit code."""
        if not isinstance(error, EngineLost):
            self._errors.append(error)
        elif not any(isinstance(known, EngineLost) for known in self._errors):
            self._errors.insert(0, error)

    def _abort(self, seconds: float, running: list[str]) -> bool:
        """Press on with an abort that began `seconds` ago; True when it has taken too long."""
        for loop in self._loops:
            loop.cancel()
        if seconds > _KILL_SECONDS and self._engine.is_busy and not self._engine.lost:
            self._engine.kill(f"it was killed because mappings did not end within {_KILL_SECONDS:.0f} s of an abort")
        if seconds > _END_SECONDS:
            names = ", ".join(running)
            error = StillRunning(
                f"the mapping did not end within {_END_SECONDS:.0f} s of an abort",
                where=f"mapping {names}",
                hint="its transactions and its lease end by time-outs; does the metastore or the storage hang?",
            )
            self._errors.append(error)
            events.left_running(names, error)
        return seconds > _END_SECONDS

    def _run_one(self, loop: MappingLoop) -> None:
        error: IngestdError | None = None
        try:
            loop.run()
        except IngestdError as known:
            # Told to stop while it was waiting something out: what is not committed is read again by the next run.
            error = None if self._signals.stop.is_set() and known.is_retriable else known
        except Exception as unknown:  # noqa: BLE001 - the edge of a thread: nothing may vanish here
            error = UnexpectedError(f"{type(unknown).__name__}: {unknown}", where=f"mapping {loop.options.name}")
            error.__cause__ = unknown
        if error is None:
            events.stopped(loop.options.name)
        else:
            self._note(error)
            events.failed(loop.options.name, error)
