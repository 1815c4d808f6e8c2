"""The objects that the parts of a mapping share, by how long they live.

- `Clients` live as long as the daemon, and all its mappings share them.
- `Handles` belong to one mapping, and outlive its main loop: a mapping that is restarted keeps its monitor, counters,
  requests and lease.
- `Services` belong to one main loop, its recovery, its ledger and its pipelines. They are made of the other two.
- A `Checkpoint` (`recovery.py`) is valid until the next recovery.

Invariant: what lives longer knows nothing of what lives shorter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from ingestd.compaction.pacing import Pace
from ingestd.compaction.watch import TableWatch
from ingestd.errors import IngestdError
from ingestd.hive.client import Metastore
from ingestd.hive.tables import TableName
from ingestd.ingest.control import Control, Signals
from ingestd.ingest.monitoring import events
from ingestd.ingest.monitoring.monitor import Monitor
from ingestd.ingest.monitoring.reporter import CompactionReport, Reporter
from ingestd.ingest.options import MappingOptions
from ingestd.ingest.ownership.liveness import Liveness
from ingestd.ingest.ownership.owner import Ownership
from ingestd.ingest.staging_area import StagingArea
from ingestd.ingest.steps import Observe, ignore
from ingestd.ingest.table.refused import RefusedPartitions
from ingestd.kafka.admin import Broker
from ingestd.kafka.shared import KafkaClients
from ingestd.publish.warehouse import Warehouse
from ingestd.spark.engine import Engine


@dataclass(frozen=True, slots=True)
class Clients:
    """The clients, the Spark session and the heartbeats, which all mappings share. A mapping never closes them."""

    warehouse: Warehouse
    engine: Engine
    liveness: Liveness
    kafka: KafkaClients = field(default_factory=KafkaClients)

    @property
    def metastore(self) -> Metastore:
        """The metastore of the warehouse."""
        return self.warehouse.metastore


@dataclass(frozen=True, slots=True)
class Handles:
    """Through these objects, the rest of the process observes, controls and stops one mapping."""

    reporter: Reporter
    ownership: Ownership
    signals: Signals = field(default_factory=Signals)
    control: Control = field(default_factory=Control)
    observe: Observe = ignore

    @classmethod
    def of(
        cls, metastore: Metastore, liveness: Liveness, options: MappingOptions, *, observe: Observe = ignore
    ) -> Handles:
        """Create the handles of a mapping, which does not run yet."""
        reporter = Reporter(options)
        on_lost = partial(events.lease_lost, options.name)
        ownership = Ownership(metastore, options, reporter.monitor, liveness, on_lost=on_lost)
        return cls(reporter, ownership, observe=observe)


@dataclass(frozen=True, slots=True)
class Services:
    """The options of a mapping, its clients, the signals that end it, and what observes it.

    `compaction` contains a watch for each table that the mapping writes. `refused` knows which partitions the metastore
    has refused.
    """

    options: MappingOptions
    warehouse: Warehouse
    signals: Signals
    observe: Observe
    reporter: Reporter
    ownership: Ownership
    staging: StagingArea
    kafka: KafkaClients
    pace: Pace
    compaction: Mapping[TableName, TableWatch]
    refused: RefusedPartitions = field(default_factory=RefusedPartitions)

    @classmethod
    def of(
        cls,
        warehouse: Warehouse,
        kafka: KafkaClients,
        options: MappingOptions,
        handles: Handles,
    ) -> Services:
        """Create the services of a mapping, which connect when they are used. Raises ConfigError."""
        reporter, ownership = handles.reporter, handles.ownership
        pace = Pace(options.pacing, options.commit.interval, reporter.paced)
        reporter.paced(pace.now)  # instead of the pace of an earlier run
        return cls(
            options,
            warehouse,
            handles.signals,
            reporter.observing(handles.observe),
            reporter,
            ownership,
            StagingArea(warehouse, options.name),
            kafka,
            pace,
            _watches(options, pace, reporter.monitor, ownership.agent),
        )

    @property
    def metastore(self) -> Metastore:
        """The metastore of the warehouse."""
        return self.warehouse.metastore

    @property
    def broker(self) -> Broker:
        """The client for requests to the mapping's Kafka cluster."""
        return self.kafka.broker(self.options.kafka)

    def close(self) -> None:
        """Abort open transactions and release the lease.

        If the metastore is unavailable, the transactions and the lease remain until they time out.
        """
        try:
            try:
                if self.ownership.confirm():
                    self.reporter.aborted(self.ownership.abort_leftovers())
            finally:
                self.ownership.release()
        except IngestdError as error:
            self.reporter.left_open(error)


def _watches(options: MappingOptions, pace: Pace, monitor: Monitor, agent: str) -> dict[TableName, TableWatch]:
    """Return the watch of each table. Only that of the mapping's table sets the pace, and notes its status."""
    report = CompactionReport(options.name, monitor, monitor.compacted)
    watches = {options.table: TableWatch(options.table, options.compaction, pace, report, agent)}
    if options.dead_letter is not None and (name := options.dead_letter.table) is not None:
        report = CompactionReport(options.name, monitor, lambda _status: None)
        unpaced = Pace(options.pacing, options.commit.interval, lambda _pacing: None)
        watches[name] = TableWatch(name, options.compaction, unpaced, report, agent)
    return watches
