"""Runs calls that cannot be cancelled, with a time limit.

Invariant: `run` ends within the time limit. A call that takes longer goes on in its thread, which no other call uses
until it has ended. The number of such calls is limited.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class TimeLimit:
    """Runs calls in threads that it keeps for further calls. While `most_overdue` calls are overdue, it runs none.

    It lives as long as the process.
    """

    def __init__(self, most_overdue: int) -> None:
        self._most_overdue = most_overdue
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """Forget the threads of the parent process, which do not exist in a child."""
        self._guard = threading.Lock()
        self._idle: list[SimpleQueue[_Call]] = []
        self._overdue = 0

    def run(self, function: Callable[[], T], seconds: float, close: Callable[[T], object] | None = None) -> T:
        """Return the result of `function`, or raise its exception. Raises TimeoutError after `seconds`.

        `close` receives the result of a call that ends later; it must not raise.
        """
        call = _Call(function, close)
        with self._guard:
            if self._overdue >= self._most_overdue:
                raise TimeoutError
            inbox = self._idle.pop() if self._idle else None
        (inbox or self._new_thread()).put(call)
        if not call.has_ended.wait(seconds):
            with self._guard:
                if not call.has_ended.is_set():
                    self._overdue += 1
                    call.is_overdue = True
                    raise TimeoutError
        result: T = call.result()
        return result

    def _new_thread(self) -> SimpleQueue[_Call]:
        inbox: SimpleQueue[_Call] = SimpleQueue()
        # A daemon thread: the process ends without waiting for a call that is overdue.
        threading.Thread(target=self._work, args=(inbox,), name="limited", daemon=True).start()
        return inbox

    def _work(self, inbox: SimpleQueue[_Call]) -> None:
        while True:
            call = inbox.get()
            call.run()
            with self._guard:
                call.has_ended.set()
            if call.is_overdue:
                call.close()
            with self._guard:
                self._overdue -= call.is_overdue
                self._idle.append(inbox)
            del call  # it holds the result


class _Call:
    """A call without arguments, and later its result or its exception."""

    def __init__(self, function: Callable[[], Any], close: Callable[[Any], object] | None) -> None:
        self._function = function
        self._close = close
        self._result: Any = None
        self._error: BaseException | None = None
        self.has_ended = threading.Event()
        self.is_overdue = False

    def run(self) -> None:
        """Call the function."""
        try:
            self._result = self._function()
        except BaseException as error:  # noqa: BLE001  # `result` raises it
            self._error = error

    def close(self) -> None:
        """Close the result, which nobody receives."""
        if self._close and self._error is None:
            self._close(self._result)

    def result(self) -> Any:
        """Return the result of the function, or raise its exception."""
        if self._error is not None:
            raise self._error
        return self._result
