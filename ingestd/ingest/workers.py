"""Runs the main loops of all mappings in one thread, and their blocking calls in a bounded number of threads.

Invariant: a main loop that waits holds no thread. It is a coroutine of an event loop that never blocks: whatever reads
the network or a disk runs in one of three groups of threads. Commits, which may wait for locks, and stages, which wait
for Spark, do not delay other calls. A call that hangs delays others for a few seconds only: then another thread may
start. Mappings that wait for a stage take turns; the one with the fewest goes first.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from ingestd.clock import Deadline

T = TypeVar("T")
P = ParamSpec("P")

# How many calls and commits run at the same time, and how many threads there are if some of them hang.
_CALLS, _CALL_THREADS = 16, 64
_COMMITS, _COMMIT_THREADS = 32, 128


class Workers:
    """The threads of a daemon. `stages` is the number of Spark jobs that run at the same time.

    A call or commit that takes longer than `patience_seconds` waits for a table that is locked, or for a storage or a
    broker that does not answer. The mappings of other tables, storages and brokers must not wait for it.
    """

    def __init__(self, stages: int, *, patience_seconds: float = 2.0) -> None:
        self._loop = asyncio.new_event_loop()
        self._lanes = _Lanes(
            _Lane("call", _CALLS, _CALL_THREADS, patience_seconds),
            _Lane("commit", _COMMITS, _COMMIT_THREADS, patience_seconds),
            ThreadPoolExecutor(stages, "stage"),
            _Turns(stages),
        )
        threading.Thread(target=self._run, name="mappings", daemon=True).start()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine in the event loop, and return its future. Call this method from any other thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def worker(self) -> Worker:
        """Return the access to the threads for one more main loop."""
        return Worker(self._loop, self._lanes)

    def close(self) -> None:
        """Stop the event loop, which must have no running coroutine. Threads end when their calls do."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        for threads in (self._lanes.calls.threads, self._lanes.commits.threads, self._lanes.stages):
            threads.shutdown(wait=False)

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.close()


class Worker:
    """One main loop's access to the threads. All methods but `wake` are called by its coroutine."""

    def __init__(self, loop: asyncio.AbstractEventLoop, lanes: _Lanes) -> None:
        self._loop = loop
        self._lanes = lanes
        self._woken = asyncio.Event()

    async def call(self, function: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """Run a call that usually takes milliseconds."""
        return await self._lanes.calls.run(lambda: function(*arguments, **options))

    async def commit(self, function: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """Run a call that may wait for locks."""
        return await self._lanes.commits.run(lambda: function(*arguments, **options))

    async def stage(
        self, queued: AbstractContextManager[None], function: Callable[P, T], *arguments: P.args, **options: P.kwargs
    ) -> T:
        """Run a call that waits for a Spark job. Before that, wait inside `queued` for the turn of this main loop."""
        with queued:
            await self._lanes.turns.acquire(self)
        try:
            return await self._loop.run_in_executor(self._lanes.stages, lambda: function(*arguments, **options))
        finally:
            self._lanes.turns.release(self)

    def wake(self) -> None:
        """Let `wait` evaluate its condition again. Never blocks, and may be called from any thread."""
        with suppress(RuntimeError):  # the event loop is closed, so nothing waits
            self._loop.call_soon_threadsafe(self._woken.set)

    async def wait(self, seconds: float, until: Callable[[], bool]) -> bool:
        """Wait for `seconds` or until the condition is true; return whether it is true.

        The condition is evaluated immediately and after each `wake`, so no change that is followed by `wake` is missed.
        """
        limit = Deadline.after(seconds)
        while True:
            self._woken.clear()
            if until():
                return True
            if limit.passed:
                return False
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._woken.wait(), limit.left)


class _Lane:
    """A group of at most `most` threads, in which `size` calls run at the same time, in addition to those that hang."""

    def __init__(self, name: str, size: int, most: int, patience_seconds: float) -> None:
        self.threads = ThreadPoolExecutor(most, name)
        self._free = asyncio.Semaphore(size)
        self._patience = patience_seconds

    async def run(self, call: Callable[[], T]) -> T:
        """Run a call, and return its result or raise its exception."""
        async with self._free:
            running = asyncio.get_running_loop().run_in_executor(self.threads, call)
            await asyncio.wait([running], timeout=self._patience)
        return await running


class _Turns:
    """Limits the number of stages. Used by coroutines of one event loop only."""

    def __init__(self, size: int) -> None:
        self._free = size
        self._running: Counter[Worker] = Counter()
        self._last: Counter[Worker] = Counter()  # the number of the last turn of each
        self._count = 0
        self._waiting: dict[asyncio.Future[None], Worker] = {}  # in the order of their requests

    async def acquire(self, worker: Worker) -> None:
        """Wait for a turn."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[turn] = worker
        self._next()
        await turn

    def release(self, worker: Worker) -> None:
        """End a turn."""
        self._free += 1
        self._running[worker] -= 1
        if not self._running[worker]:
            del self._running[worker]
        self._next()

    def _next(self) -> None:
        while self._free and self._waiting:
            turn = min(self._waiting, key=lambda future: self._rank(self._waiting[future]))
            worker = self._waiting.pop(turn)
            self._free -= 1
            self._count += 1
            self._last[worker] = self._count
            self._running[worker] += 1
            turn.set_result(None)

    def _rank(self, worker: Worker) -> tuple[int, int]:
        return self._running[worker], self._last[worker]


@dataclass(frozen=True, slots=True)
class _Lanes:
    """The groups of threads, and the turns of the stages."""

    calls: _Lane
    commits: _Lane
    stages: ThreadPoolExecutor
    turns: _Turns
