"""Finds alterations that need not be replayed, because a later one replaces the statistics that they store.

Invariant: a reader never trusts statistics that do not count exactly the rows it sees. Each commit of ingestd is
preceded by an alteration that changes nothing but statistics. The last of them is replayed in place of the first, and
the others are left out. Until its write id is committed, a metastore regards the statistics as those of a concurrent
writer, and readers read the rows (ObjectStore.isCurrentStatsValidForTheQuery). An earlier one may not be replayed in
place of a later one: its write id would be valid, although later commits have added rows.

A run contains the alterations of one table, or of the same partitions, between which no other event concerns the table.
It ends with the last one whose transaction commits in the same dump.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from ingestd.hive.objects import PartitionObject, TableObject
from ingestd.replication.cycle_plan import partitions_in
from ingestd.replication.directory.event_records import ABORT, ALLOCATE, COMMIT, EventRecord
from ingestd.replication.load.definitions import is_repeatable

_STATISTICS = frozenset((
    "COLUMN_STATS_ACCURATE", "numFiles", "numFilesErasureCoded", "numRows", "rawDataSize", "totalSize",
    "transient_lastDdlTime",
))  # fmt: skip
_OF_ROW_COUNTS = "ingestd."
_TABLE = ()
_Values = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Alteration:
    """The objects that an event alters, which are partitions by their values or _TABLE, without their statistics."""

    objects: tuple[_Values, ...]
    definition: str
    write_id: int

    @classmethod
    def of(cls, record: EventRecord) -> _Alteration | None:
        """Return the alteration, None if the event may change more than statistics of write ids."""
        if not record.type.startswith("ALTER_") or not record.table or not is_repeatable(record):
            return None
        message = record.message
        objects: dict[_Values, TableObject | PartitionObject]
        if record.type == "ALTER_TABLE":
            objects = {_TABLE: TableObject.parse(message["tableObjAfterJson"])}
        else:
            objects = {partition.values: partition for partition in partitions_in(message)}
        write_id = int(message.get("writeId") or 0)
        if write_id <= 0 or any(object_.has_column_statistics for object_ in objects.values()):
            return None
        definition = "\n".join([record.type, *(_without_statistics(object_) for _, object_ in sorted(objects.items()))])
        return cls(tuple(sorted(objects)), definition, write_id)


def _without_statistics(described: TableObject | PartitionObject) -> str:
    parameters = {
        key: value
        for key, value in sorted(described.parameters.items())
        if key not in _STATISTICS and not key.startswith(_OF_ROW_COUNTS)
    }
    return described.with_write_id(None).with_parameters(parameters).text


@dataclass(slots=True)
class _Run:
    """Alterations of the same objects with the same definition; `last` is the last one that is known to commit."""

    objects: tuple[_Values, ...]
    definition: str
    events: list[int] = field(default_factory=list)
    last: EventRecord | None = None
    is_closed: bool = False


class StatisticsRuns:
    """The runs of a cycle."""

    def __init__(self) -> None:
        self._replaced: dict[int, EventRecord] = {}
        self._left_out: set[int] = set()
        # While the records are read: the run of each object by table, and what transactions have allocated and altered.
        self._open: dict[str, dict[_Values, _Run]] = defaultdict(dict)
        self._allocated: dict[int, list[tuple[str, int]]] = defaultdict(list)
        self._pending: dict[tuple[str, int], list[tuple[_Run, EventRecord]]] = defaultdict(list)

    @classmethod
    def of(cls, records: Iterable[EventRecord], after: int) -> StatisticsRuns:
        """Return the runs in the records of the events after `after`."""
        runs = cls()
        for record in records:
            if record.event > after:
                runs._add(record)
        for table in list(runs._open):
            runs._close_all(table)
        return runs

    def replayed(self, record: EventRecord) -> EventRecord | None:
        """Return the record to replay in place of a record; None if it is left out."""
        return None if record.event in self._left_out else self._replaced.get(record.event, record)

    def _add(self, record: EventRecord) -> None:
        if record.type == ALLOCATE:
            message = record.message
            for txn_id, write_id in zip(message["txnIdList"], message["writeIdList"], strict=True):
                self._allocated[txn_id].append((record.table, write_id))
        elif record.type in (COMMIT, ABORT):
            for key in self._allocated.pop(record.message["txnid"], ()):
                self._end(key, is_committed=record.type == COMMIT)
        elif (alteration := _Alteration.of(record)) is not None:
            self._extend(record, alteration)
        else:
            for table in [record.table] if record.table else list(self._open):
                self._close_all(table)

    def _extend(self, record: EventRecord, alteration: _Alteration) -> None:
        """Add an alteration to its run, or begin one."""
        of_table = self._open[record.table]
        if (_TABLE in of_table) != (_TABLE in alteration.objects):
            self._close_all(record.table)
        run = of_table.get(alteration.objects[0])
        if run is None or (run.objects, run.definition) != (alteration.objects, alteration.definition):
            for object_ in alteration.objects:
                if object_ in of_table:
                    self._close(of_table, of_table[object_])
            run = _Run(alteration.objects, alteration.definition)
            of_table |= dict.fromkeys(alteration.objects, run)
        run.events.append(record.event)
        self._pending[record.table, alteration.write_id].append((run, record))

    def _end(self, key: tuple[str, int], *, is_committed: bool) -> None:
        for run, record in self._pending.pop(key, ()):
            if is_committed and not run.is_closed and (run.last is None or run.last.event < record.event):
                run.last = record

    def _close_all(self, table: str) -> None:
        of_table = self._open[table]
        while of_table:
            self._close(of_table, next(iter(of_table.values())))

    def _close(self, of_table: dict[_Values, _Run], run: _Run) -> None:
        for object_ in run.objects:
            del of_table[object_]
        run.is_closed = True
        last, first = run.last, run.events[0]
        if last is not None and last.event > first:
            self._replaced[first] = EventRecord(first, last.type, last.table, last.text)
            self._left_out.update(event for event in run.events[1:] if event <= last.event)
