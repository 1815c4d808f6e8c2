"""A query of Spark SQL between two functions, which read and write the rows of a task.

Invariant: importing this module does not import PySpark, because tasks and options contain queries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import pyarrow as pa

from ingestd.schema import Column

A = TypeVar("A")
B = TypeVar("B")
R = TypeVar("R")
V = TypeVar("V")
W = TypeVar("W")

Batches = Iterator[pa.RecordBatch]
Read = Callable[[A, Callable[[R], None]], Batches]
"""Yields the rows of an item, and calls its second argument once, after the last row, with what it reports."""
Write = Callable[[A, Batches], W]
"""Writes the rows that are the result of a query for an item, and returns what is known about them."""

VIEW = "records"


@dataclass(frozen=True, slots=True)
class Query:
    """A SELECT over the rows of the view `records` for which the predicate `where` is true.

    Without `select`, the result is these rows; without `where`, they are all rows. `columns` are those of the view.
    Timestamps of the rows and of the result are in UTC and have microseconds.
    """

    columns: tuple[Column, ...]
    where: str = ""
    select: str = ""


@dataclass(frozen=True, slots=True)
class Exchange(Generic[A, V, B]):
    """Moves the result of a query to other tasks.

    `send` yields values for the rows that are the result for an item, each with the number of its receiver, from 0.
    `receive` is applied to the number of each of the `receivers`, and the values sent to it.
    """

    send: Callable[[A, Batches], Iterable[tuple[int, V]]]
    receive: Callable[[tuple[int, Iterable[V]]], B]
    receivers: int
