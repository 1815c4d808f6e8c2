"""The clients of the daemon, which all its mappings share.

Invariant: a mapping never closes them.
"""

from __future__ import annotations

from dataclasses import dataclass

from ingestd.hive.client import Metastore
from ingestd.ingest.liveness import Liveness
from ingestd.spark.engine import Engine


@dataclass(frozen=True, slots=True)
class Clients:
    """The metastore client, the Spark session, and the heartbeats of the daemon."""

    metastore: Metastore
    engine: Engine
    liveness: Liveness
