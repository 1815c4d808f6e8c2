"""A Spark session that starts in the background, while the daemon does everything that does not need Spark.

Invariant: importing this module does not import PySpark. A start that fails or is cancelled leaves no process.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from typing import TYPE_CHECKING

from ingestd.clock import pause
from ingestd.spark.errors import EngineLost, EngineUnavailable, StartCancelled
from ingestd.spark.launch import Launch
from ingestd.spark.standalone import connection_fault

if TYPE_CHECKING:
    from pyspark import SparkContext

_CHECK_SECONDS = 0.05
# A standalone master that refuses connections is reported after the first time. A slow start is, after the second.
_REFUSED_SECONDS = 5.0
_SLOW_SECONDS = 30.0
# How long a start may take to end after its JVM was killed.
_END_SECONDS = 3.0


class Session:
    """The session of `master`, a Spark master URL such as `local[*]`; `conf` overrides ingestd's defaults.

    The constructor starts the JVM and returns. The start ends when `cancelled` is set. Raises ConfigError if no Java is
    found, and EngineLost if the JVM cannot be started.
    """

    def __init__(self, master: str, conf: Mapping[str, str], cancelled: threading.Event | None = None) -> None:
        self.launch = Launch(master, conf)
        self._cancelled = cancelled or threading.Event()
        self._is_closed = False
        self._context: Future[SparkContext] = Future()
        self._delay: EngineUnavailable | None = None
        for work in (self._start, self._watch, self._diagnose):
            threading.Thread(target=work, name=f"spark{work.__name__}", daemon=True).start()

    @property
    def has_started(self) -> bool:
        """Whether Spark has started, so that no call waits for it."""
        return self._context.done() and self._context.exception() is None

    @property
    def failure(self) -> EngineLost | None:
        """The error that ended the start; None while Spark starts and once it has started."""
        error = self._context.exception() if self._context.done() else None
        return error if isinstance(error, EngineLost) else None

    @property
    def delay(self) -> EngineUnavailable | None:
        """What Spark waits for, if it has not started for some seconds; None before and once it has started."""
        return None if self._context.done() else self._delay

    def context(self) -> SparkContext:
        """Wait until Spark has started. Raises EngineLost if it does not start, and StartCancelled."""
        return self._context.result()

    def cancel(self) -> None:
        """End the start, for which `context` then raises StartCancelled. A session that has started is not affected."""
        self._is_closed = True
        if not self._context.done():
            self.launch.kill()

    def close(self) -> None:
        """Kill the JVM and remove its temporary files. Never raises."""
        self.cancel()
        with suppress(FutureTimeoutError):  # a file system hangs from which the start imports PySpark
            self._context.exception(_END_SECONDS)  # the start uses the files until it has ended
        self.launch.close()

    def _start(self) -> None:
        try:
            from ingestd.spark.context import connect  # noqa: PLC0415 - takes long, and the JVM starts meanwhile

            self._context.set_result(connect(self.launch))
        except BaseException as error:  # noqa: BLE001 - the last frame of the thread: `context` raises it
            is_known = isinstance(error, EngineLost)
            lost = error if is_known else self.launch.failed(f"{type(error).__name__}: {error}")
            self.launch.kill()
            is_cancelled = self._is_closed or self._cancelled.is_set()
            self._context.set_exception(StartCancelled("Spark was stopped while it started") if is_cancelled else lost)

    def _watch(self) -> None:
        """Kill the JVM if the start is cancelled."""
        while not self._context.done():
            if pause(_CHECK_SECONDS, self._cancelled):
                self.cancel()
                return

    def _diagnose(self) -> None:
        """Find out what Spark waits for. Spark itself tries for a minute or longer, and reports nothing meanwhile."""
        wait([self._context], _REFUSED_SECONDS)
        fault = "" if self._context.done() else connection_fault(self.launch.master)
        if not fault:
            wait([self._context], _SLOW_SECONDS - _REFUSED_SECONDS)
            if self._context.done():
                return
            fault = connection_fault(self.launch.master) or "the cluster has not answered"
        self._delay = self.launch.unavailable(f"Spark has not started yet: {fault}")
