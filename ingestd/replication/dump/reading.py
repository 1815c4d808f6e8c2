"""What a dump could read where it is: the tables that it leaves out, and the witnesses for the load.

Invariant: every table that the dump leaves out because its files cannot be read has a record in the manifest. The
witnesses are tables in scope whose directories tell the load whether a storage denies everything: it knows no tables
but those that were changed (`directory/unreadable_tables.py`).
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field

from ingestd.errors import IngestdError
from ingestd.hive.tables import table_locations, tables_with_files
from ingestd.replication.cluster import Cluster
from ingestd.replication.directory.manifest import ManifestWriter, UnreadableRecord, WitnessRecord
from ingestd.replication.directory.unreadable_tables import UnreadableTables
from ingestd.replication.statements.scope import Scope

_MOST_WITNESSES = 20


@dataclass(slots=True)
class Reading:
    """What a dump could read: `refused` has the errors of tables, by their names in the manifest.

    `is_successful` says that it has read directories of other tables.
    """

    refused: dict[str, IngestdError] = field(default_factory=dict)
    is_successful: bool = False

    def store(self, source: Cluster, scope: Scope, writer: ManifestWriter, known: Collection[str]) -> None:
        """Write the witnesses, and the tables that could not be read, into a manifest; see `UnreadableTables`.

        The tables `known` could not be read in the last cycle.
        """
        witnesses = _witnesses(source, scope, {*known, *self.refused})
        for witness in witnesses:
            writer.add(witness)

        def note(table: str, reason: str) -> None:
            writer.add(UnreadableRecord(table, reason))

        unreadable = UnreadableTables(source.storages, lambda: witnesses, note, known)
        unreadable.add(self.refused, others_are_read=self.is_successful)


def _witnesses(source: Cluster, scope: Scope, others: Collection[str]) -> list[WitnessRecord]:
    """Return the witnesses: some tables in scope, except `others`."""
    tables = tables_with_files(source.metastore, scope.database)
    names = [name for name in tables if scope.contains(name) and name not in others]
    some = names[:: max(1, math.ceil(len(names) / _MOST_WITNESSES))]
    located = table_locations(source.metastore, scope.database, some)
    return [WitnessRecord(name.table, location) for name, location in located]
