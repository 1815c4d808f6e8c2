"""What the TCP proxies of the tests share: which calls and answers they lose, and how they cut a connection."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from contextlib import suppress


class Losses:
    """Counts calls by method, and decides which of them, or of their answers, are lost. Thread-safe."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self._guard = threading.Lock()
        self._lost_calls: Counter[str] = Counter()
        self._lost_answers: Counter[str] = Counter()

    def lose_call(self, method: str, times: int = 1) -> None:
        """Cut the connection at each of the next `times` calls of `method`, before the server receives the call."""
        with self._guard:
            self._lost_calls[method] += times

    def lose_answer(self, method: str, times: int = 1) -> None:
        """Let the server execute the next `times` calls of `method`, and cut the connection instead of answering."""
        with self._guard:
            self._lost_answers[method] += times

    def count(self, method: str) -> tuple[bool, bool]:
        """Count a call. Return whether to lose it, and whether to lose its answer."""
        with self._guard:
            self.calls[method] += 1
            return taken(self._lost_calls, method), taken(self._lost_answers, method)


def taken(left: Counter[str], method: str) -> bool:
    """Return whether one is left for `method`, and take it."""
    is_left = left[method] > 0
    left[method] -= is_left
    return is_left


def shut_down(*sockets: socket.socket) -> None:
    """End the connections, so that threads that wait for data or for a connection continue."""
    for connection in sockets:
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
