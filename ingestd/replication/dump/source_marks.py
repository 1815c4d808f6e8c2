"""Marks a source database with the policies that dump it, which makes its change manager keep removed files.

Invariant: while a policy dumps a database, the database has its mark, also if another policy has begun the dumps of its
directory. A policy takes the place of runs by hand (BY_HAND), which nobody drops.
"""

from __future__ import annotations

from ingestd.errors import InvalidTable
from ingestd.hive.client import Metastore
from ingestd.hive.objects import DatabaseObject, change_database, find_database
from ingestd.replication.marks import SOURCE_FOR

BY_HAND = "by_hand"
"""The mark of runs by hand, in place of the name of a policy."""


def require_source(metastore: Metastore, name: str) -> DatabaseObject:
    """Return a database. Raises InvalidTable if it does not exist."""
    database = find_database(metastore, name)
    if database is None:
        raise InvalidTable(
            "the database does not exist", where=f"database {name}", hint="create it, or correct its name"
        )
    return database


def mark_source(metastore: Metastore, name: str, policy: str) -> None:
    """Mark a database, if it exists, with a policy, '' for runs by hand."""
    database = find_database(metastore, name)
    if database is not None:
        kept = [listed for listed in _policies(database) if not (policy and listed == BY_HAND)]
        _store(metastore, database, [*kept, *({policy or BY_HAND} - set(kept))])


def unmark_source(metastore: Metastore, name: str, policy: str) -> None:
    """Remove a policy from the mark of a database, if it exists."""
    database = find_database(metastore, name)
    if database is not None:
        _store(metastore, database, [listed for listed in _policies(database) if listed != policy])


def _policies(database: DatabaseObject) -> list[str]:
    return [name.strip() for name in database.parameters.get(SOURCE_FOR, "").split(",") if name.strip()]


def _store(metastore: Metastore, database: DatabaseObject, policies: list[str]) -> None:
    """Store the policies, if they are other ones: each change of a database is an event."""
    if policies != _policies(database):
        change_database(metastore, database.name, {SOURCE_FOR: ",".join(policies) or None})
