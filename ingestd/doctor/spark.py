"""A check of the Spark cluster: executors exist, can run stages, and reach Kafka and the schema registry.

Invariant: with a local master the check finds nothing, because this machine is the executor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ingestd.doctor.finding import Check, Verdict, ok
from ingestd.spark.examine import examine_executors
from ingestd.spark.options import SparkOptions

# The part of the time limit of a check, which also covers the end of Spark.
_PART = 0.8


@dataclass(frozen=True, slots=True)
class Cluster:
    """What is examined: Spark, `bootstrap.servers` of each Kafka cluster, the addresses of schema registries.

    `limit_seconds` is the time limit.
    """

    options: SparkOptions
    kafka_clusters: tuple[str, ...]
    registries: tuple[str, ...]
    limit_seconds: float


def _executors(cluster: Cluster) -> Iterator[Verdict]:
    if cluster.options.has_executors:
        services = cluster.kafka_clusters, cluster.registries
        yield ok(examine_executors(cluster.options, *services, cluster.limit_seconds * _PART))


CHECKS: tuple[Check[Cluster], ...] = (Check("spark.executors", _executors),)
