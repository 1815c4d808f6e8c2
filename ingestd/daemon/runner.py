"""Runs one mapping, and restarts it when its options change or when an operator resumes it after a failure.

Invariant: at most one main loop of the mapping runs at a time. A main loop that restarts keeps the lease, so that no
standby takes over. No exception leaves the runner: a mapping that ends, with or without an error, leaves the others
running.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import replace

from ingestd.clock import monotonic
from ingestd.errors import IngestdError
from ingestd.ingest.control import RequestFailed, Signals
from ingestd.ingest.mapping import MappingLoop
from ingestd.ingest.options import MappingOptions
from ingestd.ingest.services import Handles
from ingestd.ingest.workers import Worker, Workers


class UnexpectedError(IngestdError):
    """A defect of ingestd. The mapping stops, because it is unknown whether a retry would be safe."""

    exit_code = 70

    @classmethod
    def of(cls, unknown: Exception, *, where: str) -> UnexpectedError:
        """Return the error that reports an unknown exception."""
        error = cls(f"{type(unknown).__name__}: {unknown}", where=where)
        error.__cause__ = unknown
        return error


class Runner:
    """Runs one mapping with its `handles`. `create` yields its main loop. All methods return immediately.

    `is_running` is True until the last main loop has ended. `error` is the error that ended the mapping at the
    monotonic time `failed_at`; None while the mapping runs, or if it ended without an error.
    """

    def __init__(
        self,
        create: Callable[[MappingOptions, Handles, Worker], AbstractContextManager[MappingLoop]],
        options: MappingOptions,
        workers: Workers,
        handles: Handles,
    ) -> None:
        self._create = create
        self._lock = threading.Lock()
        self._workers = workers
        self._worker = workers.worker()
        self._handles = handles
        self._loop: MappingLoop | None = None
        # The options of the next run, if the mapping restarts when the current run has ended.
        self._next: MappingOptions | None = None
        self.options = options
        self.monitor = self._handles.reporter.monitor
        self.control = self._handles.control
        self.is_running = False
        self.error: IngestdError | None = None
        self.failed_at = 0.0

    def start(self) -> None:
        """Start the main loop of the mapping."""
        with self._lock:
            self._start()

    def restart(self, options: MappingOptions) -> None:
        """Run the mapping with other options, as soon as its open transactions have ended."""
        with self._lock:
            self._next = options
            self._handles.signals.stop.set()
            self._worker.wake()
            if not self.is_running:
                self._prepare(options)
                self._start()

    def serve_requests(self) -> None:
        """If a request waits, wake the mapping, or restart it if it has failed. A flush does not restart it."""
        if not self.control.changed.is_set():
            return
        with self._lock:
            if self.is_running:
                self._worker.wake()
            if self.error is None or self.is_running:
                return
            requests = self.control.take()
            for request in requests:
                if request.action == "flush":
                    request.done.set_exception(self._refusal(self.error))
            self.control.put_back([request for request in requests if not request.done.done()])
            if self.control.changed.is_set():
                self._start()

    def stop(self) -> None:
        """Let the mapping finish its open transactions and end. If it has ended, refuse requests from now on."""
        with self._lock:
            self._next = None
            self._handles.signals.stop.set()
            self._worker.wake()
            if not self.is_running:
                self._refuse_requests()

    def abort(self) -> None:
        """Abort the open transactions of the mapping."""
        self._handles.signals.abort.set()
        if self._loop is not None:
            self._loop.cancel()

    def _start(self) -> None:
        self.is_running, self.error = True, None
        self._handles = replace(self._handles, signals=Signals())
        self.control.open()
        self._workers.start(self._run())

    def _prepare(self, options: MappingOptions) -> None:
        self.options, self._next = options, None
        self.monitor.restarted(options)

    async def _run(self) -> None:
        while True:
            error = await self._caught(self._run_loop())
            with self._lock:
                is_last = self._next is None
                if not is_last:
                    self._begin_next(error)
            if is_last:
                failure = await self._caught(self._close_loop())
                error = error or failure
                with self._lock:
                    if self._next is None:
                        self._end(error)
                        return
                    self._begin_next(error)

    def _begin_next(self, error: IngestdError | None) -> None:
        """Prepare the next main loop, which cannot be prevented any more: if it is stopped, it ends as it begins."""
        assert self._next is not None
        if error is not None:
            self._handles.reporter.failed(error)
        self._prepare(self._next)
        self._handles = replace(self._handles, signals=Signals())

    async def _run_loop(self) -> None:
        if self._loop is not None:
            await self._loop.hand_over()
        with self._create(self.options, self._handles, self._worker) as self._loop:
            await self._loop.run()

    async def _close_loop(self) -> None:
        if self._loop is not None:
            await self._loop.close()

    async def _caught(self, work: Awaitable[None]) -> IngestdError | None:
        """Return the error that ended some work of the main loop."""
        signals = self._handles.signals
        try:
            await work
        except IngestdError as known:
            # A retry that a stop interrupted is not a failure: the next run reads the uncommitted records again.
            return None if signals.stop.is_set() and known.is_retriable else known
        except Exception as unknown:  # noqa: BLE001 - the last frame of the coroutine: no error may be lost here
            return UnexpectedError.of(unknown, where=f"mapping {self.options.name}")
        return None

    def _end(self, error: IngestdError | None) -> None:
        """Report the end of the mapping, and fail the waiting requests. After a failure, it accepts new ones."""
        self.is_running = False
        if error is None:
            self._handles.reporter.stopped()
            self._refuse_requests()
        else:
            self.error, self.failed_at = error, monotonic()
            self.control.close(self._refusal(error))
            self.control.open()
            # Last: whoever reads it may send the next request at once.
            self._handles.reporter.failed(error)

    def _refuse_requests(self) -> None:
        self.control.close(RequestFailed("the mapping has stopped", where=f"mapping {self.options.name}"))

    def _refusal(self, error: IngestdError) -> RequestFailed:
        return RequestFailed(
            f"the mapping has failed: {error}",
            where=f"mapping {self.options.name}",
            hint="remove the cause, then resume the mapping",
        )
