"""Events of a source's log that rename and drop tables, for tests that need no metastore."""

from __future__ import annotations

import json

from hive_metastore import ttypes

from ingestd.hive import thrift_json
from ingestd.hive.events import Event
from ingestd.replication.dump.moves import Moves


def moves_of(database: str, *events: Event) -> Moves:
    """Return the moves of a log that contains these events."""
    return Moves(lambda after: [event for event in events if event.id > after], database, 0)


def table_renamed(event: int, old: str, new: str, before: str = "file:/w/a", after: str = "file:/w/b") -> Event:
    """Return the rename of a table `database.table`, whose directory moves as well."""
    texts = {"tableObjBeforeJson": _table(old, before), "tableObjAfterJson": _table(new, after)}
    return _event(event, "ALTER_TABLE", old, texts)


def dropped(event: int, table: str, location: str = "file:/w/a") -> Event:
    """Return the drop of a table `database.table`."""
    return _event(event, "DROP_TABLE", table, {"tableObjJson": _table(table, location)})


def _event(event: int, kind: str, table: str, message: dict[str, str]) -> Event:
    database, name = table.split(".")
    return Event(event, 0, kind, database, name, json.dumps(message))


def _table(name: str, location: str) -> str:
    database, table = name.split(".")
    storage = ttypes.StorageDescriptor(location=location)
    return thrift_json.encode(ttypes.Table(dbName=database, tableName=table, sd=storage))
