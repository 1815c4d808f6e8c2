"""Creates the constraints of tables that were copied as a whole, and those that the target has refused before.

Invariant: a constraint that the metastore refuses hinders no other one, and no table; the next load tries again
(`directory/refused_constraints.py`).
"""

from __future__ import annotations

from itertools import groupby

from ingestd.hive.attachments import Constraint, ConstraintKind, add_constraints
from ingestd.hive.client import Metastore
from ingestd.hive.objects import find_table
from ingestd.replication.directory.lost_tables import LostTables
from ingestd.replication.directory.manifest import ConstraintRecord, Manifest
from ingestd.replication.directory.refused_constraints import RefusedConstraints


def create_constraints(
    metastore: Metastore,
    manifest: Manifest,
    source: str,
    database: str,
    lost: LostTables,
    refused: RefusedConstraints,
) -> None:
    """Create the constraints in the manifest of a dump of the database `source`, foreign keys last, unless they exist.

    The metastore drops a foreign key with the table to which it refers, so one of a table that is not copied again may
    have to be created again. Those of lost tables are left out. Raises the errors of the metastore, and of
    `RefusedConstraints.noting`.
    """
    constraints = _copies(manifest, source, database, lost)
    for is_foreign in (False, True):
        some = [constraint for constraint in constraints if (constraint.parent is not None) == is_foreign]
        for name, of_table in groupby(some, key=lambda constraint: constraint.table):
            if find_table(metastore, name) is not None:
                with refused.noting(name.table):
                    add_constraints(metastore, name, list(of_table))


def _copies(manifest: Manifest, source: str, database: str, lost: LostTables) -> list[Constraint]:
    """Return each constraint once, sorted by its table; earlier releases list a foreign key with both of them."""
    copies = {}
    for record in manifest.read(ConstraintRecord):
        constraint = Constraint.parse(ConstraintKind(record.constraint), record.texts)
        parent = constraint.parent
        if record.table not in lost or (parent and parent.database == source and parent.table not in lost):
            copied = constraint.copied(source, database)
            copies[copied.kind, copied.table, copied.name] = copied
    return sorted(copies.values(), key=lambda constraint: constraint.table.table)
