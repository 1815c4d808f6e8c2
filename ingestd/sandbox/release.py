"""The releases of the metastore: 4.0.1, and 4.2.0 with an event log for replication.

Invariant: a database is upgraded once, before the first start of its metastore. HiveServer2 is 4.0.1 in both cases.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ingestd.java import find_java
from ingestd.sandbox.options import HIVESERVER2, METASTORE, METASTORE_EVENTS

_OLDEST_JAVA = 21  # the bytecode of Hive 4.2
_TASKS = "org.apache.hadoop.hive.metastore"
_SERVICES = ("AcidHouseKeeperService", "CompactionHouseKeeperService", "AcidTxnCleanerService")
_EVENT_LOG = {
    # No other Hive 4 release is published with this class.
    "hive.metastore.transactional.event.listeners": "org.apache.hive.hcatalog.listener.DbNotificationListener",
    "hive.metastore.event.db.listener.timetolive": "7d",
    # Another worker takes over a replication policy after this time.
    "metastore.scheduled.queries.execution.timeout": "20s",
    "metastore.scheduled.queries.execution.maint.task.frequency": "5s",
    # The defaults also name classes of Iceberg, which Hive's jars do not contain. One missing class ends all the
    # background threads.
    "metastore.task.threads.remote": ",".join(
        (
            *(f"{_TASKS}.txn.service.{name}" for name in (*_SERVICES, "AcidOpenTxnsCounterService")),
            f"{_TASKS}.MaterializationsRebuildLockCleanerTask",
            f"{_TASKS}.PartitionManagementTask",
        )
    ),
    "hive.compactor.table.optimizers": "org.apache.hadoop.hive.ql.txn.compactor.AcidTableOptimizer",
}
# Sessions log the files of their transactions only if they have this property.
_DML_EVENTS = {"hive.metastore.dml.events": "true"}
# By default, the cleaner of metastore 4.2 waits only for queries that have registered the tables they read, and
# HiveServer2 4.0 registers none: then a compaction may remove files under a query.
_REGISTERED_READS = {"metastore.txn.use.minhistorywriteid": "true"}


@dataclass(frozen=True, slots=True)
class Release:
    """A release of the metastore.

    `group` is its group of jars. `java` is the Java home that runs it; None is the one of the other services. `schema`
    is the version of its database, and `upgrade` the script that creates it from version 4.0.0. `properties` are added
    to the configuration of each service of Hive.
    """

    group: str = METASTORE
    java: Path | None = None
    schema: str = "4.0.0"  # which 4.0.1 did not change
    upgrade: str | None = None
    properties: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


PLAIN = Release()


def with_events() -> Release:
    """Return the release with an event log. Raises ConfigError if there is no Java 21 or 22."""
    return Release(
        group=METASTORE_EVENTS,
        java=find_java(_OLDEST_JAVA),
        schema="4.2.0",
        upgrade="upgrade-4.0.0-to-4.2.0.sql",
        properties={METASTORE: _EVENT_LOG | _DML_EVENTS, HIVESERVER2: _DML_EVENTS | _REGISTERED_READS},
    )
