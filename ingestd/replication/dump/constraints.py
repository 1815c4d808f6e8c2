"""Lists the constraints of tables: of those that are copied as a whole, and of those whose copies lack some.

Invariant: tables have the names in the records that they have at the end of the dump.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping
from contextlib import suppress

from ingestd.errors import InvalidTable
from ingestd.hive.attachments import list_constraints, list_references
from ingestd.hive.client import Metastore
from ingestd.hive.objects import table_names
from ingestd.hive.tables import TableName
from ingestd.replication.directory.manifest import ConstraintRecord
from ingestd.replication.dump.moves import Moves


def constraint_records(
    metastore: Metastore, name: TableName, recorded: Mapping[str, str], listed: Container[TableName] = ()
) -> Iterator[ConstraintRecord]:
    """Yield the constraints of a table, and the foreign keys that refer to it, except those of tables in `listed`.

    `recorded` contains the names of tables in the manifest, unless they are those on the source. Raises InvalidTable if
    the table does not exist, and MetastoreUnavailable.
    """
    own = list_constraints(metastore, name)
    references = list_references(metastore, name)
    for constraint in (*own, *(foreign for foreign in references if foreign.table not in listed)):
        renamed = constraint.renamed(name.database, recorded)
        yield ConstraintRecord(recorded.get(name.table, name.table), constraint.kind.value, renamed.texts)


def refused_constraints(
    metastore: Metastore, moves: Moves, tables: Collection[str], start: int, end: int
) -> dict[str, list[ConstraintRecord]]:
    """Return all constraints of tables whose copies lack some, by the names of the tables at the end of the dump.

    `tables` are the names at the event `start`, and `end` is the last event of the dump. Raises MetastoreUnavailable.
    """

    def look(places: Mapping[str, str]) -> dict[str, list[ConstraintRecord]]:
        recorded = {now: moves.name_before(end, now) or now for now in table_names(metastore, moves.database)}
        found = {}
        for table, now in places.items():
            with suppress(InvalidTable):  # dropped, or renamed: then it is looked up again
                found[table] = list(constraint_records(metastore, TableName(moves.database, now), recorded))
        return found

    moves.read()
    last_names = [last for table in tables if (last := moves.name_after(start, table, until=end))]
    return moves.look_up(last_names, lambda table: moves.name_after(end, table), look)
