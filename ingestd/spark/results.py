"""Fetches the results of jobs in blocks, through the connection over which the driver's JVM is called.

Invariant: a job leaves nothing behind in the JVM. PySpark itself lets the JVM serve each result at a socket of its own.
If that is a Unix domain socket, the JVM keeps its path until it ends. A block is a text, because the connection is slow
for bytes.
"""

from __future__ import annotations

import pickle
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from io import BytesIO
from typing import TYPE_CHECKING, Any, TypeVar

from ingestd.spark.same_version import SameVersion

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import DataFrame

A = TypeVar("A")

# The JVM holds a block several times while it sends it.
_BLOCK_BYTES = 1 << 20


def collected(values: RDD[A]) -> list[A]:
    """Run a job, and return the values of all partitions in their order. Raises the exceptions of Spark."""
    java: Any = values.mapPartitions(SameVersion(_all_blocks))._to_java_object_rdd()
    return [value for of_partition in _values(java.collect()) for value in of_partition]


def collected_blocks(frame: DataFrame) -> list[Any]:
    """Run a query whose one column has the `blocks` of values, and return these. Raises the exceptions of Spark."""
    jvm: Any = frame.sparkSession.sparkContext._jvm
    return list(_values(getattr(frame._jdf, "as")(jvm.org.apache.spark.sql.Encoders.STRING()).collectAsList()))


def blocks(value: object) -> Iterator[str]:
    """Yield the parts of a value, each of which becomes 1 MiB of a result or less."""
    content = pickle.dumps(value)
    for start in range(0, len(content), _BLOCK_BYTES):
        yield b64encode(content[start : start + _BLOCK_BYTES]).decode("ascii")


def _all_blocks(values: Iterable[object]) -> Iterator[str]:
    return blocks(list(values))


def _values(fetched: Any) -> Iterator[Any]:
    """Yield the values whose blocks are in a list of the JVM.

    An iterator of py4j would end, as if there were no more blocks, if the JVM ended meanwhile.
    """
    content = BytesIO(b"".join(b64decode(fetched.get(index)) for index in range(fetched.size())))
    while content.tell() < len(content.getbuffer()):
        yield pickle.load(content)
