"""Which tables the source has changed since the last event of a target, so that they may differ.

Invariant: a change that a reader of the source saw before it asked is known, because HMS stores a change and its event
together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ingestd.hive.client import Metastore
from ingestd.hive.events import Event, EventLog
from ingestd.hive.objects import ColumnField, PartitionObject, TableObject
from ingestd.replication.marks import source_kind

COMPACTION, _REBALANCE = "COMMIT_COMPACTION_EVENT", "REBALANCE"
# Types of events that change neither a definition nor the set of partitions.
_SKIPPED = (
    "OPEN_TXN",
    "COMMIT_TXN",
    "ABORT_TXN",
    "ALLOC_WRITE_ID_EVENT",
    "UPDATE_TBL_COL_STAT_EVENT",
    "UPDATE_PART_COL_STAT_EVENT",
)
_OF_PARTITIONS = frozenset(("ADD_PARTITION", "DROP_PARTITION", "ALTER_PARTITION", "ALTER_PARTITIONS"))


class UnreplayedChanges:
    """The changes of a source database after the event `last`; None: no change is known. Not thread-safe."""

    def __init__(self, source: Metastore, database: str, last: int | None) -> None:
        self._log = EventLog(source)
        self._database = database
        self._last = last
        self._defined: set[str] = set()
        self._partitioned: set[str] = set()

    def concern_definition(self, table: str) -> bool:
        """Return whether a table was created, dropped, renamed, altered or rebalanced. Raises MetastoreUnavailable."""
        self._read()
        return table in self._defined

    def concern_partitions(self, table: str) -> bool:
        """Return whether partitions of a table were added, dropped, renamed or altered. Raises MetastoreUnavailable."""
        self._read()
        return table in self._partitioned or table in self._defined

    def _read(self) -> None:
        if self._last is None:
            return
        for event in self._log.scan(self._last, _SKIPPED):
            self._last = event.id
            if event.type == COMPACTION:
                self._defined.update(rebalanced(event, self._database))
            elif event.database == self._database and event.table:
                self._add(event)

    def _add(self, event: Event) -> None:
        if event.type in _OF_PARTITIONS:
            self._partitioned.add(event.table)
        elif event.type != "ALTER_TABLE":
            self._defined.add(event.table)
        else:
            message = event.message
            before, after = (TableObject.parse(message[f"tableObj{when}Json"]) for when in ("Before", "After"))
            if before.name != after.name or compare_definitions(before, after):
                self._defined |= {before.name.table, after.name.table}


def rebalanced(event: Event, database: str) -> Iterator[str]:
    """Yield the table of a database that the commit of a compaction concerns, if it has given new ids to rows.

    Only REBALANCE does that: it numbers the rows of the whole table. Later deletes name the new ids, which the rows of
    a copy do not have. Other compactions change nothing that a target has.
    """
    message = event.message
    if message.get("type") == _REBALANCE and message["dbname"].lower() == database:
        yield message["tableName"].lower()


def compare_definitions(original: TableObject, copy: TableObject) -> list[str]:
    """Return the differences between the definitions of two tables that matter to a reader."""
    return _differences(
        ("kind", original.kind.value, source_kind(copy).value),
        ("columns", _fields(original.columns), _fields(copy.columns)),
        ("partition columns", _fields(original.partition_fields), _fields(copy.partition_fields)),
        ("input format", original.input_format, copy.input_format),
        ("serde", original.serde, copy.serde),
    )


def compare_partitions(original: PartitionObject, copy: PartitionObject) -> list[str]:
    """Return the differences between the definitions of two partitions that matter to a reader."""
    return _differences(
        ("columns", _fields(original.columns), _fields(copy.columns)),
        ("input format", original.input_format, copy.input_format),
        ("serde", original.serde, copy.serde),
    )


def _differences(*compared: tuple[str, str | None, str | None]) -> list[str]:
    return [
        f"the {what} of the source: {here}; of the target: {there}" for what, here, there in compared if here != there
    ]


def _fields(fields: Sequence[ColumnField]) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in fields)
