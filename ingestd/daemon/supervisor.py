"""Runs every mapping in a thread of its own over one Spark session.

Invariant: a mapping that ends, by error or not, leaves the others running; the exit code is that of the first error.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from ingestd.clock import Deadline, pause
from ingestd.errors import AGAIN, IngestdError
from ingestd.hive.client import Metastore
from ingestd.ingest import events
from ingestd.ingest.mapping import MappingLoop, Signals
from ingestd.ingest.options import MappingOptions
from ingestd.spark.engine import Engine, EngineLost


class UnexpectedError(IngestdError):
    """A fault of ingestd itself; the mapping stops, since nothing is known about what would be safe."""

    exit_code = 70


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
        self._loops = [MappingLoop(metastore, engine, m, signals, drain=drain) for m in mappings]
        self._signals = signals
        self._shutdown_seconds = shutdown_seconds
        self._errors: list[IngestdError] = []

    def run(self) -> list[IngestdError]:
        """Run all mappings; returns the errors that ended some of them."""
        threads = [threading.Thread(target=self._run_one, args=(loop,), name=loop.options.name) for loop in self._loops]
        for thread in threads:
            thread.start()
        limit: Deadline | None = None
        while any(thread.is_alive() for thread in threads):
            pause(0.1)
            if self._signals.stop.is_set() and limit is None:
                limit = Deadline.after(self._shutdown_seconds)
            if limit is not None and limit.passed:
                self._signals.abort.set()
            if self._signals.abort.is_set():
                self._cancel()
        return self._errors

    def _cancel(self) -> None:
        for loop in self._loops:
            loop.cancel()

    def _run_one(self, loop: MappingLoop) -> None:
        error: IngestdError | None = None
        try:
            loop.run()
        except IngestdError as known:
            # Told to stop while it was waiting something out: what is not committed is read again by the next run.
            error = None if self._signals.stop.is_set() and known.reaction in AGAIN else known
        except Exception as unknown:  # noqa: BLE001 - the edge of a thread: nothing may vanish here
            error = UnexpectedError(f"{type(unknown).__name__}: {unknown}", where=f"mapping {loop.options.name}")
            error.__cause__ = unknown
        if error is not None:
            self._errors.append(error)
        events.stopped(loop.options.name, error)
        if isinstance(error, EngineLost):
            self._signals.stop.set()
