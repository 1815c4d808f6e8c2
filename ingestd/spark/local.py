"""Spark on this machine for a command that examines or previews queries.

Invariant: Spark starts only when the first query needs it, and has ended when the command ends.
"""

from __future__ import annotations

from types import TracebackType

from ingestd.spark.engine import Engine, EngineLimits
from ingestd.spark.session import Session

_MASTER = "local[2]"
_STOP_SECONDS = 3.0


class LocalEngine:
    """A function that returns the engine, which the first call starts and the end of the `with` block stops."""

    def __init__(self) -> None:
        self._engine: Engine | None = None

    def __enter__(self) -> LocalEngine:
        return self

    def __call__(self) -> Engine:
        """Return the engine. Raises ConfigError if no Java is found, and EngineLost."""
        if self._engine is None:
            self._engine = Engine(Session(_MASTER, {}), EngineLimits(stop_seconds=_STOP_SECONDS))
        return self._engine

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._engine is not None:
            self._engine.stop()
