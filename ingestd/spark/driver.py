"""Supervises the Spark driver's JVM: detects that it has ended or hangs, kills it and reports the reason.

Invariant: the thread that makes the decisions never calls the JVM, so a hanging JVM cannot block it. Once `lost` is
set, the JVM and its child processes are killed, and every call that waits for them raises an error.
"""

from __future__ import annotations

import threading
from contextlib import suppress

from pyspark import SparkContext

from ingestd.clock import pause
from ingestd.spark.errors import GATEWAY_ERRORS, STOPPED, EngineLost, calling, first_line
from ingestd.spark.launch import Launch
from ingestd.spark.slots import live_slots

_CHECK_SECONDS = 0.25
_PROBE_SECONDS = 1.0


class Driver:
    """The JVM of `launch` with its Spark context. It is killed if a probe is unanswered for `silence_seconds`.

    After half of that time, the JVM is asked to print what its threads do and how full its heap is.
    `slots` is the number of tasks that the live executors run at the same time, as of the last probe.
    """

    def __init__(self, context: SparkContext, launch: Launch, silence_seconds: float) -> None:
        self._context = context
        self._silence_seconds = silence_seconds
        self._launch = launch
        self._process = launch.process
        self._guard = threading.Lock()
        self._reason = ""
        self._unanswered_seconds = 0.0
        self._stopped = threading.Event()
        self.slots = 0
        self._has_probed = threading.Event()
        for work in (self._watch, self._probe):
            threading.Thread(target=work, name=f"spark{work.__name__}", daemon=True).start()

    @property
    def lost(self) -> EngineLost | None:
        """The error that says why the JVM can no longer be used; None while it can be used."""
        return self._error() if self._reason else None

    def wait_for_probe(self) -> None:
        """Wait until `slots` is known. Raises EngineLost."""
        self._has_probed.wait()
        self.check()

    def check(self) -> None:
        """Raise EngineLost if the JVM has ended or has been found to hang."""
        if self._process.poll() is not None:
            raise self.kill(self.exit_reason())
        if (lost := self.lost) is not None:
            raise lost

    def has_stopped(self) -> bool:
        """Ask the JVM whether Spark has stopped; False if the JVM does not say."""
        try:
            with calling(self._context):
                return bool(self._context._jsc.sc().isStopped())
        except GATEWAY_ERRORS:
            return False

    def kill(self, reason: str) -> EngineLost:
        """Kill the JVM and its child processes with SIGKILL, and return the error to raise.

        The error contains the reason passed to the first call.
        """
        with self._guard:
            self._reason = self._reason or reason
        self._has_probed.set()
        self._launch.kill()
        return self._error()

    def exit_reason(self) -> str:
        """Return how the process ended, such as `it was killed by signal 9`, or '' while it runs."""
        reason = self._launch.exit_reason()
        return f"it {reason}" if reason else ""

    def stop(self, seconds: float) -> None:
        """Stop Spark, kill processes that have not ended within `seconds`, and stop supervising them. Never raises."""
        if not self._reason:
            self._stopped.set()
            stopping = threading.Thread(target=self._stop_context, name="spark-stop", daemon=True)
            stopping.start()
            stopping.join(seconds)
        self._stopped.set()
        self._launch.kill()

    def _stop_context(self) -> None:
        with suppress(*GATEWAY_ERRORS):  # `stop` kills the processes anyway
            self._context.stop()

    def _watch(self) -> None:
        """Detect that the JVM has ended or does not answer.

        Counts ticks instead of reading the clock, because ingestd itself may have been suspended.
        """
        has_asked = False
        while not pause(_CHECK_SECONDS, self._stopped):
            if self._process.poll() is not None:
                self.kill(self.exit_reason())
                return
            self._unanswered_seconds += _CHECK_SECONDS
            is_slow = self._unanswered_seconds > self._silence_seconds / 2
            if is_slow and not has_asked:
                self._launch.print_threads()
            has_asked = is_slow
            if self._unanswered_seconds > self._silence_seconds:
                self.kill(f"it has not answered for {self._silence_seconds:.0f} s")
                return

    def _probe(self) -> None:
        """Ask the JVM every second for its state. This thread may block; `_watch` measures how long."""
        while not pause(_PROBE_SECONDS if self._has_probed.is_set() else 0.0, self._stopped):
            try:
                with calling(self._context):
                    is_stopped = self._context._jsc.sc().isStopped()
                    self.slots = 0 if is_stopped else live_slots(self._context)
            except GATEWAY_ERRORS as error:
                if not self._stopped.is_set():
                    self.kill(self.exit_reason() or first_line(error))
                return
            self._unanswered_seconds = 0.0
            self._has_probed.set()
            if is_stopped and not self._stopped.is_set():
                self.kill(STOPPED)
                return

    def _error(self) -> EngineLost:
        return EngineLost(
            f"the Spark driver's JVM is lost: {self._reason}",
            where=f"spark.master {self._launch.master} (process {self._process.pid})",
            hint="restart ingestd; check that the Spark master is running and reachable, and the kernel log for the OOM"
            " killer; raise spark.driver.memory if needed",
        )
