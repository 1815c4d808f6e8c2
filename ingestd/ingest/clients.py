"""The clients of the daemon, which all its mappings share.

Invariant: a mapping never closes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ingestd.hive.client import Metastore
from ingestd.ingest.liveness import Liveness
from ingestd.kafka.shared import KafkaClients
from ingestd.spark.engine import Engine


@dataclass(frozen=True, slots=True)
class Clients:
    """The metastore client, the Spark session, the heartbeats of the daemon, and the clients of Kafka."""

    metastore: Metastore
    engine: Engine
    liveness: Liveness
    kafka: KafkaClients = field(default_factory=KafkaClients)
