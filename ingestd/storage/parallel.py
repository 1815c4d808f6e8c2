"""Runs requests to a storage in parallel threads.

Invariant: when a function returns or raises, none of its calls is running, and none will start. If its thread is a
daemon thread, a process that ends does not wait for the calls: on a mount whose server is gone, they never end.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, as_completed
from functools import partial
from typing import TypeVar

from ingestd.errors import IngestdError
from ingestd.storage.contract import Entry, NoAnswer, NotFound

T = TypeVar("T")
# Listings of directories that are in progress at the same time.
LISTINGS_AT_ONCE = 32


def run_all(calls: Iterable[Callable[[], T]], threads: int) -> list[T]:
    """Run calls in at most `threads` threads and return their results in order.

    After the first failure, no further call starts. Raises the exception of that call once the running calls have
    ended.
    """
    waiting = list(calls)
    if len(waiting) == 1:
        return [waiting[0]()]
    futures: list[Future[T]] = [Future() for _ in waiting]
    pending = deque(zip(futures, waiting, strict=True))
    workers: list[threading.Thread] = []
    try:
        for _ in range(max(1, min(threads, len(waiting)))):
            worker = threading.Thread(target=_work, args=(pending,), name="storage", daemon=True)
            worker.start()
            workers.append(worker)
        return results(futures)
    finally:
        pending.clear()
        for worker in workers:
            worker.join()


def _work(pending: deque[tuple[Future[T], Callable[[], T]]]) -> None:
    """Run pending calls until there are none. After a failure, there are none."""
    while True:
        try:
            future, call = pending.popleft()
        except IndexError:  # other threads run the last calls
            return
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001  # `results` raises it
            pending.clear()
            future.set_exception(error)
        else:
            future.set_result(result)


def run_each(function: Callable[[str], T], uris: Sequence[str], threads: int) -> dict[str, T]:
    """Return the results of calls by their argument; see `run_all`."""
    return dict(zip(uris, run_all([partial(function, uri) for uri in uris], threads), strict=True))


def list_each(list_one: Callable[[str], list[Entry]], directories: Sequence[str]) -> dict[str, list[Entry]]:
    """Return the entries of directories by URI; see `run_all`. Those for which NotFound is raised are omitted."""

    def entries(directory: str) -> list[Entry] | None:
        try:
            return list_one(directory)
        except NotFound:
            return None

    listings = run_each(entries, directories, LISTINGS_AT_ONCE)
    return {directory: listed for directory, listed in listings.items() if listed is not None}


def discard_each(remove: Callable[[str], None], directories: Iterable[str], threads: int) -> None:
    """Remove directories as far as possible; never raises.

    After a request without an answer, no further one is sent: their time limits would add up.
    """
    has_no_answer = threading.Event()

    def discard(directory: str) -> None:
        if not has_no_answer.is_set():
            try:
                remove(directory)
            except NoAnswer:
                has_no_answer.set()
            except IngestdError:
                pass

    run_all([partial(discard, directory) for directory in directories], threads)


def results(futures: list[Future[T]]) -> list[T]:
    """Return the results of `futures` in order. Raises the exception of the first that fails, without waiting."""
    for future in as_completed(futures):
        future.result()
    return [future.result() for future in futures]
