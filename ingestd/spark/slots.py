"""How many tasks Spark can run at the same time, and how many tasks a job should have.

Invariant: the numbers follow the executors that are alive, which appear and disappear while Spark runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import SparkContext

# The number of tasks while no executor has registered, if the properties do not say how many there will be.
_UNKNOWN = 4


def live_slots(context: SparkContext) -> int:
    """Return the number of tasks that the live executors can run at the same time; 0 if there is no executor."""
    spark: Any = context._jsc.sc()
    return int(spark.maxNumConcurrentTasks(spark.resourceProfileManager().defaultResourceProfile()))


def tasks_per_job(slots: int, properties: Mapping[str, str]) -> int:
    """Return the largest useful number of tasks of a job for `slots` live slots and the properties of the session.

    With dynamic allocation, Spark requests executors only for tasks that wait. So a job has twice as many tasks as
    slots, up to the largest number of executors.
    """
    if fixed := _number(properties, "spark.default.parallelism"):
        return fixed
    cores = _number(properties, "spark.executor.cores") or 1
    if properties.get("spark.dynamicAllocation.enabled") == "true":
        wanted = max(2 * slots, _UNKNOWN)
        return min(wanted, cores * (_number(properties, "spark.dynamicAllocation.maxExecutors") or wanted))
    return slots or cores * _number(properties, "spark.executor.instances") or _UNKNOWN


def _number(properties: Mapping[str, str], key: str) -> int:
    """Return the value of a property, or 0 if it is missing or not a number, which Spark reports."""
    value = properties.get(key, "").strip()
    return int(value) if value.isdecimal() else 0
