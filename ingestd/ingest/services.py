"""What the parts of one mapping share: recovery, the pipeline and the loop around them.

Invariant: these objects live as long as the mapping; a `Checkpoint` is valid until the next recovery only.
"""

from __future__ import annotations

from dataclasses import dataclass

from ingestd.errors import IngestdError
from ingestd.hive.client import Metastore
from ingestd.ingest import events
from ingestd.ingest.options import MappingOptions
from ingestd.ingest.ownership import Ownership
from ingestd.ingest.plan import Planner
from ingestd.ingest.signals import Signals
from ingestd.ingest.staging_area import StagingArea
from ingestd.ingest.steps import Observe
from ingestd.spark.engine import Engine


@dataclass(frozen=True, slots=True)
class Services:
    """The mapping's options, the systems it talks to, and how it is stopped and observed."""

    options: MappingOptions
    metastore: Metastore
    engine: Engine
    signals: Signals
    observe: Observe
    ownership: Ownership
    planner: Planner
    staging: StagingArea

    def on_wait(self, error: IngestdError, seconds: float) -> None:
        """Log that a step failed and is retried after `seconds`."""
        events.waiting(self.options.name, error, seconds)
