"""Functions that run only on executors with the same version of ingestd as the driver.

Invariant: the versions are compared before anything else of a job is unpickled. Another version could not read it, or
would read it with another meaning.
"""

from __future__ import annotations

import pickle
import socket
from collections.abc import Callable
from typing import Generic, TypeVar

from pyspark import cloudpickle

from ingestd import __version__

A = TypeVar("A")
B = TypeVar("B")


class SameVersion(Generic[A, B]):
    """A function of one argument. Unpickling it raises ImportError where ingestd has another version."""

    def __init__(self, function: Callable[[A], B]) -> None:
        self._function = function

    def __call__(self, item: A) -> B:
        """Call the function."""
        return self._function(item)

    def __reduce__(self) -> tuple[object, ...]:
        return _unpickled, (__version__, cloudpickle.dumps(self._function))  # type: ignore[no-untyped-call]


def _unpickled(version: str, function: bytes) -> object:
    if version != __version__:
        raise ImportError(f"executor on {socket.gethostname()} has ingestd {__version__}, and the driver has {version}")
    return pickle.loads(function)
