"""Moves values between the tasks of a job by a shuffle of Spark.

Invariant: Spark stores the values in its local directories, and no longer than until the job has ended.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, TypeVar

from ingestd.spark.errors import GATEWAY_ERRORS
from ingestd.spark.results import collected
from ingestd.spark.same_version import SameVersion

if TYPE_CHECKING:
    from pyspark import RDD

A = TypeVar("A")
B = TypeVar("B")
V = TypeVar("V")

# PySpark holds a number of values in memory before it stores them, so that a large one must count as several.
_COUNTED_BYTES = 256 << 10


def exchange(
    items: RDD[A],
    send: Callable[[A], Iterable[tuple[int, V]]],
    receive: Callable[[tuple[int, Iterable[V]]], B],
    receivers: int,
) -> list[B]:
    """Apply `send` to each item, and `receive` to the number of each receiver, from 0, and the values sent to it.

    `send` yields the number of a receiver with each value. Raises the exceptions of Spark.
    """
    sending, receiving = SameVersion(send), SameVersion(receive)

    def counted(item: A) -> Iterator[tuple[int, tuple[V, ...]]]:
        for number, value in sending(item):
            yield number, (value,)
            yield from repeat((number, ()), sys.getsizeof(value) // _COUNTED_BYTES)

    def received(number: int, pairs: Iterable[tuple[int, tuple[V, ...]]]) -> Iterator[B]:
        yield receiving((number, chain.from_iterable(values for _, values in pairs)))

    sent = items.flatMap(counted).partitionBy(receivers, int)
    try:
        return collected(sent.mapPartitionsWithIndex(received))
    finally:
        _remove_stored(sent)


def _remove_stored(sent: RDD[Any]) -> None:
    """Let Spark remove what a shuffle has stored. It would otherwise wait for a garbage collection, perhaps for hours.

    Never raises, and does not wait for executors, which may be suspended.
    """
    with suppress(*GATEWAY_ERRORS):  # the job has failed for the same reason
        rdd: Any = sent._jrdd.rdd()
        rdd.cleanShuffleDependencies(False)  # noqa: FBT003 - Java has no keywords
