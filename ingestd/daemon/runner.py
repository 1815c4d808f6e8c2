"""Runs one mapping in a thread, and runs it again when its options change or when an operator revives it.

Invariant: at most one main loop of the mapping runs at a time. No exception leaves the thread: a mapping that ends,
with or without an error, leaves the others running.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace

from ingestd.clock import monotonic
from ingestd.errors import IngestdError
from ingestd.ingest.control import RequestFailed
from ingestd.ingest.handles import Handles
from ingestd.ingest.mapping import MappingLoop
from ingestd.ingest.options import MappingOptions
from ingestd.ingest.reporter import Reporter
from ingestd.ingest.signals import Signals
from ingestd.ingest.steps import Observe


class UnexpectedError(IngestdError):
    """A defect of ingestd. The mapping stops, because it is unknown whether a retry would be safe."""

    exit_code = 70


class Runner:
    """Runs one mapping. `create` yields its main loop. All methods return immediately.

    `error` is the error that ended the mapping, at the monotonic time `failed_at`; None while it runs.
    """

    def __init__(
        self,
        create: Callable[[MappingOptions, Handles], AbstractContextManager[MappingLoop]],
        options: MappingOptions,
        observe: Observe,
    ) -> None:
        self._create = create
        self._lock = threading.Lock()
        self._handles = Handles(Reporter(options), observe=observe)
        self._loop: MappingLoop | None = None
        self._thread: threading.Thread | None = None
        self.options = options
        self.monitor = self._handles.reporter.monitor
        self.control = self._handles.control
        self.error: IngestdError | None = None
        self.failed_at = 0.0

    @property
    def is_running(self) -> bool:
        """Whether the thread of the mapping runs."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Start the thread of the mapping."""
        self.error = None
        self._handles = replace(self._handles, signals=Signals())
        self._thread = threading.Thread(target=self._run, name=self.options.name)
        self._thread.start()

    def revive_on_request(self) -> None:
        """Start a mapping again that has failed, if a request waits for it. A flush does not revive it."""
        if self.error is None or self.is_running or not self.control.changed.is_set():
            return
        requests = self.control.take()
        for request in requests:
            if request.action == "flush":
                request.done.set_exception(self._has_failed(self.error))
        self.control.put_back([request for request in requests if not request.done.done()])
        if self.control.changed.is_set():
            self.start()

    def stop(self) -> None:
        """Let the mapping finish its open transactions and end."""
        self._handles.signals.stop.set()

    def abort(self) -> None:
        """Abort the open transactions of the mapping."""
        self._handles.signals.abort.set()
        if self._loop is not None:
            self._loop.cancel()

    def _run(self) -> None:
        signals = self._handles.signals
        error: IngestdError | None = None
        try:
            with self._create(self.options, self._handles) as self._loop:
                self._loop.run()
        except IngestdError as known:
            # A retry that a stop interrupted is not a failure: the next run reads the uncommitted records again.
            error = None if signals.stop.is_set() and known.is_retriable else known
        except Exception as unknown:  # noqa: BLE001 - the last frame of the thread: no error may be lost here
            error = UnexpectedError(f"{type(unknown).__name__}: {unknown}", where=f"mapping {self.options.name}")
            error.__cause__ = unknown
        self._end(error)

    def _end(self, error: IngestdError | None) -> None:
        """Report the end of the mapping, and fail the requests that wait. A failed mapping accepts later requests."""
        if error is None:
            self._handles.reporter.stopped()
            self.control.close(RequestFailed("the mapping has stopped", where=f"mapping {self.options.name}"))
        else:
            self.error, self.failed_at = error, monotonic()
            self._handles.reporter.failed(error)
            self.control.close(self._has_failed(error))
            self.control.open()

    def _has_failed(self, error: IngestdError) -> RequestFailed:
        return RequestFailed(
            f"the mapping has failed: {error}",
            where=f"mapping {self.options.name}",
            hint="remove the cause, then resume the mapping",
        )
