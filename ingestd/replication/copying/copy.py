"""Copies a set of files from and to any storages: small sets in threads of this process, others by one Spark job.

Invariant: on return, each file is at its target, complete, or is reported as lost. A file that is at its target already
is not read, so an interrupted copy is continued by repeating it, and copying twice does no harm.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import threading
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TypeVar

from ingestd import retry
from ingestd.clock import pause
from ingestd.errors import IngestdError, OwnershipLost, StorageUnavailable
from ingestd.replication.copying.fence import Fence
from ingestd.replication.copying.transfer import (
    TEMPORARY,
    Assignment,
    Copied,
    CopyFile,
    Failed,
    Lost,
    Outcome,
    Throttle,
    Transfer,
)
from ingestd.spark.counter import Count, Counter
from ingestd.spark.engine import Engine, JobGroup
from ingestd.spark.errors import JobFailed
from ingestd.spark.shared import Reference
from ingestd.storage.contract import child
from ingestd.storage.parallel import run_all
from ingestd.storage.storages import Storages

A = TypeVar("A")
B = TypeVar("B")

_log = logging.getLogger(__name__)
_LISTING_THREADS = 32
_TASK_BYTES = 1 << 30
_TASK_FILES = 1000
# Creating a file takes about as long as copying so many bytes.
_FILE_COST = 1 << 20
# A job that copies fewer bytes per second is cancelled, and repeated for the files that are missing.
_SLOWEST = 1 << 20
_CHECK_SECONDS = 0.25


class CopyStopped(IngestdError):
    """A copy was stopped before all files were copied. Repeating it continues it."""

    is_retriable = True


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """How files are copied.

    `bytes_per_second` limits all tasks together. A set with at least `job_bytes` bytes or `job_files` files is copied
    by a Spark job. Each task, and this process, copies `threads` files at the same time. After `attempts` attempts in
    succession that copied no file, a copy gives up.
    """

    bytes_per_second: int | None = None
    job_bytes: int = 256 << 20
    job_files: int = 1000
    threads: int = 8
    attempts: int = 5


@dataclass(frozen=True, slots=True)
class Progress:
    """How many files and bytes of a copy are done, and how many there are. Equal and lost files are done as well."""

    files: int
    bytes: int
    all_files: int
    all_bytes: int


@dataclass(frozen=True, slots=True)
class CopyResult:
    """Files that a copy copied, files that were at their targets already, and files that are lost."""

    copied: tuple[Copied, ...]
    equal: tuple[CopyFile, ...]
    lost: tuple[Lost, ...]


class Copier:
    """Copies sets of files. Thread-safe. Without an engine, all sets are copied in this process."""

    def __init__(self, storages: Storages, engine: Engine | None = None, options: CopyOptions | None = None) -> None:
        self._storages = storages
        self._options = options or CopyOptions()
        self._throttle = Throttle(self._options.bytes_per_second)
        self._jobs = None if engine is None else Jobs(engine, storages, self._options)
        self.check: Callable[[], None] = lambda: None
        """Raises the error with which files must not be changed any more; see `guarded`."""
        self._fence: Fence | None = None

    def guarded(self, check: Callable[[], None], fence: Fence | None = None) -> Copier:
        """Return a copier that calls `check` until a file appears at its target, and whose error prevents that.

        The tasks of Spark jobs, which this process cannot cancel while it is suspended, check `fence` instead.
        """
        other = copy(self)
        other.check, other._fence = check, fence
        return other

    def copy(
        self,
        files: Iterable[CopyFile],
        *,
        stop: threading.Event | None = None,
        on_progress: Callable[[Progress], None] = lambda _: None,
    ) -> CopyResult:
        """Copy files, creating directories as needed. If several have the same target, only the last one is copied.

        A file is equal to its target if the lengths are equal and `is_stale` is not set. After a retriable error, such
        as StorageUnavailable, the missing files are tried again. Raises the last error when the copy gives up, other
        errors and OwnershipLost at once, and CopyStopped if `stop` is set. `on_progress` is called by one thread at a
        time.

        Coroutines must call this method in a thread.
        """
        stop = stop or threading.Event()
        run = _Run(uuid.uuid4().hex, self._storages, files, on_progress, self.check)
        try:
            _retried(partial(self._copy, run, stop), run, self._options.attempts, stop)
        except IngestdError:
            if run.may_leave_files:
                with suppress(StorageUnavailable):  # the next copy removes what is left
                    run.remove_own()
            raise
        return CopyResult(tuple(run.copied), tuple(run.equal), tuple(run.lost))

    @property
    def jobs(self) -> Jobs | None:
        """The Spark jobs that use the storages; None without an engine."""
        return self._jobs

    def close(self) -> None:
        """Remove what Spark has stored for this object, when no copy is running. Never raises."""
        if self._jobs is not None:
            self._jobs.release()

    def _copy(self, run: _Run, stop: threading.Event) -> None:
        """Copy the missing files of a run once. Raises the error of a file, if there is one."""
        assignments = run.survey()
        if self._jobs is not None and self._jobs.suit(assignments):
            run.may_leave_files = True  # Spark kills speculative tasks
            outcomes = self._jobs.copy(assignments, run, stop, self.check, self._fence)
            run.add(outcomes)
        else:
            transfer = Transfer(self._storages, run.id, self._throttle, stop, self.check)
            outcomes = transfer.copy(assignments, self._options.threads, lambda outcome: run.add([outcome]))
        errors = [outcome.error for outcome in outcomes if isinstance(outcome, Failed)]
        for error in sorted(errors, key=lambda error: error.is_retriable)[:1]:
            raise error
        if stop.is_set() and run.missing:
            raise CopyStopped(f"the copy was stopped; {len(run.missing)} files are missing")
        if run.may_leave_files:
            run.remove_own()
            run.abort_uploads()


def _retried(attempt: Callable[[], None], run: _Run, attempts: int, stop: threading.Event) -> None:
    """Repeat an attempt while it fails with a retriable error, until too many in succession copied nothing."""
    ended = threading.Event()
    fruitless = 0

    async def counted() -> None:
        nonlocal fruitless
        before = len(run.missing)
        try:
            attempt()
        except IngestdError as error:
            run.may_leave_files |= not isinstance(error, CopyStopped)
            fruitless = 0 if len(run.missing) < before else fruitless + 1
            # A lease that is lost stays lost. Whoever has taken it now copies the files.
            if fruitless >= attempts or stop.is_set() or isinstance(error, OwnershipLost):
                ended.set()
            raise

    async def sleep(seconds: float) -> None:
        pause(seconds, stop)

    def on_wait(error: IngestdError, seconds: float) -> None:
        _log.warning("%d files are not copied yet; the next attempt is in %.1f s: %s", len(run.missing), seconds, error)

    asyncio.run(retry.call(counted, stop=ended, sleep=sleep, on_wait=on_wait))


class _Run:
    """The state of one copy. `missing` contains the files that are not done, by target.

    `may_leave_files` says that temporary files of this copy may exist after a task was killed or an error was raised.
    `check` is called before what may belong to another copy is removed.
    """

    def __init__(
        self,
        run: str,
        storages: Storages,
        files: Iterable[CopyFile],
        on_progress: Callable[[Progress], None],
        check: Callable[[], None],
    ) -> None:
        self.id = run
        self.missing = {file.target: file for file in files}
        self._targets = frozenset(self.missing)
        self.copied: list[Copied] = []
        self.equal: list[CopyFile] = []
        self.lost: list[Lost] = []
        self.may_leave_files = False
        self._storages = storages
        self._directories = sorted({file.directory for file in self.missing.values()})
        self._is_first = True
        self._on_progress = on_progress
        self._check = check
        self._guard = threading.Lock()
        self._all = len(self.missing), sum(file.length for file in self.missing.values())
        self._bytes = 0

    def add(self, outcomes: Iterable[Outcome]) -> None:
        """Record the outcomes of files."""
        with self._guard:
            for outcome in outcomes:
                if isinstance(outcome, Copied):
                    self.copied.append(outcome)
                elif isinstance(outcome, Lost):
                    self.lost.append(outcome)
                else:
                    continue
                self._done(outcome.file)
            self._report(Count(0, 0))

    def report(self, count: Count) -> None:
        """Report progress, including files that a running job has copied."""
        with self._guard:
            self._report(count)

    def survey(self) -> list[Assignment]:
        """List the target directories, and return the missing files that are not equal to their targets.

        The first survey removes what earlier copies left there. Another copy that is running fails to store these
        files; it repeats them, and removes none itself, so that two copies do not go on removing each other's files.
        """
        ordered = sorted(self.missing.values(), key=lambda file: file.directory)
        calls = [
            partial(self._survey_directory, directory, list(files))
            for directory, files in groupby(ordered, key=lambda file: file.directory)
        ]
        assigned = run_all(calls, _LISTING_THREADS)
        self._is_first = False
        return [assignment for assignments in assigned for assignment in assignments]

    def remove_own(self) -> None:
        """Remove the temporary files of this copy, none of whose tasks is running."""
        run_all([partial(self._remove_own, directory) for directory in self._directories], _LISTING_THREADS)

    def abort_uploads(self) -> None:
        """Abort the uploads of tasks that were killed, when all files are at their targets."""
        run_all([partial(self._abort_uploads, directory) for directory in self._directories], _LISTING_THREADS)

    def _survey_directory(self, directory: str, files: Sequence[CopyFile]) -> list[Assignment]:
        sizes = self._storages.file_sizes(directory)
        if self._is_first:
            for name in sizes:
                if name.startswith(TEMPORARY):
                    self._check()
                    self._storages.at(directory).remove_file(child(directory, name))
            self._abort_uploads(directory)
        assignments = []
        for file in files:
            if sizes.get(file.name) == file.length and not file.is_stale:
                with self._guard:
                    self.equal.append(file)
                    self._done(file)
                    self._report(Count(0, 0))
            else:
                assignments.append(Assignment(file, replaces=file.name in sizes))
        return assignments

    def _remove_own(self, directory: str) -> None:
        for name in self._storages.file_sizes(directory):
            if name.startswith(f"{TEMPORARY}{self.id}-"):
                self._storages.at(directory).remove_file(child(directory, name))

    def _abort_uploads(self, directory: str) -> None:
        self._storages.at(directory).abort_uploads(directory, self._is_own_upload)

    def _is_own_upload(self, file: str) -> bool:
        self._check()
        return file in self._targets

    def _done(self, file: CopyFile) -> None:
        del self.missing[file.target]
        self._bytes += file.length

    def _report(self, running: Count) -> None:
        all_files, all_bytes = self._all
        done = all_files - len(self.missing)
        self._on_progress(Progress(done + running.number, self._bytes + running.bytes, all_files, all_bytes))


class Jobs:
    """Copies files, and calls functions of the storages, by Spark jobs."""

    def __init__(self, engine: Engine, storages: Storages, options: CopyOptions) -> None:
        self._engine = engine
        self._options = options
        self._access = engine.share(storages)

    def run(self, name: str, function: Callable[[Storages, A], B], items: Sequence[A]) -> list[B]:
        """Apply a function that can be pickled to each of the items by one job. Raises the errors of `Engine.run`."""
        return self._engine.run(JobGroup(name), partial(_in_task, self._access.reference(), function), items)

    def suit(self, assignments: Sequence[Assignment]) -> bool:
        """Return whether files are so many or so large that a job copies them faster than this process."""
        total = sum(assignment.file.length for assignment in assignments)
        return len(assignments) >= self._options.job_files or total >= self._options.job_bytes

    def copy(
        self,
        assignments: Sequence[Assignment],
        run: _Run,
        stop: threading.Event,
        check: Callable[[], None],
        fence: Fence | None,
    ) -> list[Outcome]:
        """Copy files by one job, which is cancelled when `stop` is set. Raises the errors of `Engine.run`.

        `check` is called repeatedly, and its error cancels the job; so does `fence`, which the tasks check.
        """
        tasks = packed(assignments, self._engine.parallelism)
        limit, rate = self._options.bytes_per_second, None
        if limit is not None:
            rate = limit / max(1, min(len(tasks), self._engine.slots))
        # Even if all tasks ran one after the other.
        seconds = sum(assignment.file.length + _FILE_COST for assignment in assignments) / min(
            _SLOWEST, (rate or _SLOWEST) / 2
        )
        counter, group, ended = self._engine.counter(), JobGroup("copy"), threading.Event()

        def watch() -> None:
            while not ended.wait(_CHECK_SECONDS):
                run.report(counter.value)
                with suppress(IngestdError):
                    check()
                    if not stop.is_set():
                        continue
                self._engine.cancel(group)

        task = _Task(self._access.reference(), counter, run.id, rate, self._options.threads, fence)
        watcher = threading.Thread(target=watch, name="copy-watch", daemon=True)
        watcher.start()
        try:
            by_task = self._engine.run(group, task, tasks, seconds=seconds)
        except JobFailed as error:
            check()
            if stop.is_set():
                raise CopyStopped("the copy was stopped") from error
            raise
        finally:
            ended.set()
            watcher.join()
            self._engine.await_tasks(group)  # a task that is killed leaves temporary files
        return [outcome for outcomes in by_task for outcome in outcomes]

    def release(self) -> None:
        """Remove the storages from Spark. Never raises."""
        self._access.release()


def _in_task(storages: Reference[Storages], function: Callable[[Storages, A], B], item: A) -> B:
    return function(storages.value, item)


@dataclass(frozen=True, slots=True)
class _Task:
    """The task of a job, which copies the files that it is called with, in `threads`. `rate` is its bandwidth."""

    storages: Reference[Storages]
    counter: Counter
    run: str
    rate: float | None
    threads: int
    fence: Fence | None

    def __call__(self, assignments: Sequence[Assignment]) -> list[Outcome]:
        throttle = Throttle(self.rate)
        transfer = Transfer(self.storages.value, self.run, throttle, threading.Event(), fence=self.fence)
        outcomes = transfer.copy(assignments, self.threads)
        copied = [outcome.file.length for outcome in outcomes if isinstance(outcome, Copied)]
        self.counter.add(Count(len(copied), sum(copied)))
        return outcomes


def packed(assignments: Sequence[Assignment], parallelism: int) -> list[list[Assignment]]:
    """Distribute files to tasks: the largest first, and each to the task that has least to do.

    A task has at most 1 GiB, unless it has one file only, and 1000 files. If possible, there are at least `parallelism`
    tasks.
    """
    ordered = sorted(assignments, key=lambda assignment: assignment.file.length, reverse=True)
    tasks = [[assignment] for assignment in ordered if assignment.file.length >= _TASK_BYTES]
    rest = ordered[len(tasks) :]
    weight = sum(assignment.file.length + _FILE_COST for assignment in rest)
    count = max(-(-weight // _TASK_BYTES), -(-len(rest) // _TASK_FILES), min(parallelism, len(rest)))
    heap: list[tuple[int, int, list[Assignment]]] = [(0, number, []) for number in range(count)]
    for assignment in rest:
        done, number, task = heapq.heappop(heap)
        task.append(assignment)
        heapq.heappush(heap, (done + assignment.file.length + _FILE_COST, number, task))
    return tasks + [task for _, _, task in sorted(heap, key=lambda entry: entry[:2], reverse=True)]
