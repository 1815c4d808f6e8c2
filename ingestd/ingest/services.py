"""The objects that the main loop, the recovery and the pipeline of one mapping share.

Invariant: these objects live as long as the main loop. A `Checkpoint`, in contrast, is valid until the next recovery.
"""

from __future__ import annotations

from dataclasses import dataclass

from ingestd.compaction.pacing import Pace
from ingestd.compaction.watch import TableWatch
from ingestd.hive.client import Metastore
from ingestd.ingest.options import MappingOptions
from ingestd.ingest.ownership import Ownership
from ingestd.ingest.plan import Planner
from ingestd.ingest.reporter import Reporter
from ingestd.ingest.signals import Signals
from ingestd.ingest.staging_area import StagingArea
from ingestd.ingest.steps import Observe
from ingestd.spark.engine import Engine, JobGroup


@dataclass(frozen=True, slots=True)
class Services:
    """The options of a mapping, its clients, the signals that end it, and what observes it."""

    options: MappingOptions
    metastore: Metastore
    engine: Engine
    jobs: JobGroup
    signals: Signals
    observe: Observe
    reporter: Reporter
    ownership: Ownership
    planner: Planner
    staging: StagingArea
    pace: Pace
    compaction: TableWatch
