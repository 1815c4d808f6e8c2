"""The records of dumps about events: what events lack, the writes of commits with their files, and transactions.

Invariant: the records of each kind are in the order of the events. A record of a write or file names the event of the
commit that made it visible.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from ingestd.hive.objects import ColumnField

ALLOCATE = "ALLOC_WRITE_ID_EVENT"
COMMIT = "COMMIT_TXN"
ABORT = "ABORT_TXN"


@dataclass(frozen=True, slots=True)
class EventRecord:
    """An event in scope. `type` is Hive's, `text` the JSON of the message; `table` is empty if it concerns no table."""

    kind: ClassVar[str] = "events"
    event: int
    type: str
    table: str
    text: str

    @property
    def message(self) -> dict[str, Any]:
        """The parsed message."""
        parsed: dict[str, Any] = json.loads(self.text)
        return parsed


@dataclass(frozen=True, slots=True)
class WriteRecord:
    """What a transaction wrote to a table or partition; `partition` is the escaped name, '' for a whole table."""

    kind: ClassVar[str] = "writes"
    event: int
    table: str
    partition: str
    write_id: int


@dataclass(frozen=True, slots=True)
class WrittenFileRecord:
    """A file of a write.

    `directory` is the path of its directory, relative to the location of the table or partition. `source` is the URI
    of the file, `archive` the URI at which the source's change manager keeps it when it is removed, or ''. `length` is
    its size in bytes, -1 if the file had vanished when it was dumped. `written` is the time of `Entry.written`, 0 if
    the file is in the archive, and in dumps of earlier releases.
    """

    kind: ClassVar[str] = "written_files"
    event: int
    table: str
    partition: str
    write_id: int
    directory: str
    name: str
    source: str
    archive: str
    length: int
    written: int = 0


@dataclass(frozen=True, slots=True)
class EmptyBaseRecord:
    """An empty directory `base_N` of the write id N, to be created when `event` is replayed.

    `partition` is the escaped name, '' for a table.
    """

    kind: ClassVar[str] = "empty_bases"
    event: int
    table: str
    partition: str
    write_id: int


@dataclass(frozen=True, slots=True)
class PartitionColumnsRecord:
    """The columns of partitions after an event that changed the columns of their table.

    `text` is the JSON of the columns, each of which is a list of its name, type and comment. `partitions` contains the
    escaped names; none if all partitions of the table have its columns.
    """

    kind: ClassVar[str] = "partition_columns"
    event: int
    text: str
    partitions: tuple[str, ...]

    @property
    def columns(self) -> tuple[ColumnField, ...]:
        """The columns."""
        return tuple(ColumnField(*column) for column in json.loads(self.text))


@dataclass(frozen=True, slots=True)
class TransactionsRecord:
    """The source's transactions (text of ValidTransactions). All ends of transactions in it are among the events.

    A dump that was cut by its limit has no such record.
    """

    kind: ClassVar[str] = "transactions"
    text: str


@dataclass(frozen=True, slots=True)
class BootstrapRecord:
    """The tables that are copied as a whole: all tables, or those that have no events in an incremental dump.

    Those with a TableRecord (`manifest.py`) are replaced by a copy, and the others do not exist on the source. The
    copies may contain changes of events after the dump, but of none after `settled`.
    """

    kind: ClassVar[str] = "bootstrapped"
    tables: tuple[str, ...]
    settled: int


class _OfEvent(Protocol):
    @property
    def event(self) -> int: ...


R = TypeVar("R", bound=_OfEvent)


class Cursor(Generic[R]):
    """Records in the order of their events, read once."""

    def __init__(self, records: Iterable[R]) -> None:
        self._groups = groupby(records, key=lambda record: record.event)
        self._next: tuple[int, list[R]] | None = None

    def take(self, event: int) -> list[R]:
        """Return the records of an event, which is after those of earlier calls."""
        while self._next is None or self._next[0] < event:
            group = next(self._groups, None)
            if group is None:
                return []
            self._next = (group[0], list(group[1]))
        return self._next[1] if self._next[0] == event else []
