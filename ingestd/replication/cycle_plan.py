"""What must be known about the events of a cycle before they are replayed.

Invariant: only events after the last replayed one count, except those that tell who has a write id.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain
from typing import Any

from ingestd.hive.objects import PartitionObject, TableObject
from ingestd.hive.tables import WHOLE_TABLE
from ingestd.replication.directory.event_records import ABORT, ALLOCATE, COMMIT, EventRecord

_MOVING = frozenset(("CREATE_TABLE", "DROP_TABLE", "DROP_PARTITION"))
ALTERATIONS = frozenset(("ALTER_TABLE", "ALTER_PARTITION", "ALTER_PARTITIONS"))


@dataclass(frozen=True, slots=True)
class AllocationEvent:
    """A write id that the source allocated to a transaction."""

    event: int
    txn_id: int
    table: str
    write_id: int


class Outcome(Enum):
    """How a transaction ends in a cycle."""

    COMMITTED = "committed"
    ABORTED = "aborted"


_ENDS = {COMMIT: Outcome.COMMITTED, ABORT: Outcome.ABORTED}


@dataclass(frozen=True, slots=True)
class Outcomes:
    """How the transactions that change definitions under a write id end.

    A metastore does not undo such a change if its transaction aborts; readers ignore it, because they know the write
    id as aborted. A target forgets aborted write ids, so it must not make the change in the first place.
    """

    _writers: dict[tuple[str, int], list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    _ends: dict[int, Outcome] = field(default_factory=dict)

    def add(self, record: EventRecord) -> None:
        """Take an event into account. The events must be added in their order."""
        if record.type == ALLOCATE:
            message = record.message
            for txn_id, write_id in zip(message["txnIdList"], message["writeIdList"], strict=True):
                self._writers[record.table, write_id].append((record.event, txn_id))
        elif record.type in _ENDS:
            self._ends[record.message["txnid"]] = _ENDS[record.type]

    def of(self, event: int, table: str, write_id: int) -> Outcome | None:
        """Return the outcome of the transaction that had the write id of a table at an event.

        None if it has not ended in this cycle, or if its write id was allocated in an earlier one.
        """
        writer = self.writer(event, table, write_id)
        return self._ends.get(writer) if writer is not None else None

    def writer(self, event: int, table: str, write_id: int) -> int | None:
        """Return the transaction that had the write id of a table at an event.

        None if its write id was allocated in an earlier cycle.
        """
        txns = [txn_id for at, txn_id in self._writers.get((table, write_id), []) if at < event]
        return txns[-1] if txns else None

    def of_change(self, record: EventRecord) -> Outcome | None:
        """Return the outcome for a change of a definition, which is committed at once if it has no write id."""
        write_id = write_id_of(record.message)
        return self.of(record.event, record.table, write_id) if write_id else Outcome.COMMITTED


@dataclass(frozen=True, slots=True)
class CyclePlan:
    """The facts about the events. `commits` maps events to transactions, and `aborted` contains transactions.

    `identities` maps names to the `TableObject.identity` of the table that has the name at its first event.
    """

    outcomes: Outcomes = field(default_factory=Outcomes)
    commits: dict[int, int] = field(default_factory=dict)
    aborted: set[int] = field(default_factory=set)
    _allocations: dict[str, list[AllocationEvent]] = field(default_factory=lambda: defaultdict(list))
    _barriers: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    _drops: dict[tuple[str, str], int] = field(default_factory=dict)
    _additions: dict[str, dict[str, int]] = field(default_factory=dict)  # to tables of which files were removed before
    _renames: list[tuple[str, str]] = field(default_factory=list)
    identities: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, records: Iterable[EventRecord], after: int) -> CyclePlan:
        """Return the plan of the records of events after `after`."""
        plan = cls()
        for record in records:
            plan.outcomes.add(record)
            if record.event > after:
                plan._add(record)
        return plan

    @property
    def allocations(self) -> Iterator[AllocationEvent]:
        """All allocations; those of one table are in the order of their events."""
        return chain.from_iterable(self._allocations.values())

    def allocations_after(self, event: int, table: str, write_id: int) -> Iterator[tuple[int, int]]:
        """Yield the transactions and write ids of a table after an allocation, up to its next barrier."""
        barriers, known = self._barriers.get(table, []), self._allocations[table]
        next_barrier = bisect_right(barriers, event)
        end = barriers[next_barrier] if next_barrier < len(barriers) else math.inf
        for place in range(bisect_left(known, event, key=lambda allocation: allocation.event), len(known)):
            allocation = known[place]
            if allocation.event > end:
                return
            if allocation.event > event or allocation.write_id > write_id:
                yield allocation.txn_id, allocation.write_id

    def last_barrier(self, event: int, table: str) -> int:
        """Return the last event before `event` that moves or removes files of a table, or creates it; 0 if none."""
        barriers = self._barriers.get(table, [])
        before = bisect_left(barriers, event)
        return barriers[before - 1] if before else 0

    def is_dropped(self, event: int, table: str, partition: str) -> bool:
        """Return whether the table or partition is dropped after `event`, so that its files may have vanished."""
        return max(self._drops.get((table, ""), 0), self._drops.get((table, partition), 0)) > event

    def is_added_again(self, event: int, table: str, partition: str) -> bool:
        """Return whether a partition of which `event` removes the files is added after it, or any if it is WHOLE_TABLE.

        A rename gives a partition the name as well, and the table may have another name by then.
        """
        additions = (self._additions.get(name, {}) for name in self.renamed(table))
        return any(at > event and partition in (name, WHOLE_TABLE) for some in additions for name, at in some.items())

    def renamed(self, table: str) -> set[str]:
        """Return the table and all tables from and to whose names it is renamed, directly or indirectly."""
        names, known = {table}, 0
        while len(names) > known:
            known = len(names)
            names.update(name for pair in self._renames if not names.isdisjoint(pair) for name in pair)
        return names

    def _add(self, record: EventRecord) -> None:
        self._add_identity(record)
        if record.type == ALLOCATE:
            message = record.message
            for txn_id, write_id in zip(message["txnIdList"], message["writeIdList"], strict=True):
                allocation = AllocationEvent(record.event, txn_id, record.table, write_id)
                self._allocations[record.table].append(allocation)
        elif record.type == COMMIT:
            self.commits[record.event] = record.message["txnid"]
        elif record.type == ABORT:
            self.aborted.add(record.message["txnid"])
        elif record.type == "ADD_PARTITION":
            self._add_additions(record)
        elif record.type in _MOVING or (record.type in ALTERATIONS and is_move(record)):
            self._add_move(record)

    def _add_move(self, record: EventRecord) -> None:
        """Add an event that moves, removes or creates the directory of a table or partition, or removes its files."""
        self._barriers[record.table].append(record.event)
        self._add_drop(record)
        if removes_files(record):
            self._additions.setdefault(record.table, {})
        elif record.type == "ALTER_PARTITION":
            self._add_additions(record)
        if record.type == "ALTER_TABLE":
            after = TableObject.parse(record.message["tableObjAfterJson"])
            self._barriers[after.name.table].append(record.event)
            self._renames.append((record.table, after.name.table))
            self.identities.setdefault(after.name.table, after.identity)
            if record.table in self._additions:
                self._additions.setdefault(after.name.table, {})

    def _add_identity(self, record: EventRecord) -> None:
        if not record.table or record.table in self.identities or record.type == ALLOCATE:
            return
        message = record.message
        if text := message.get("tableObjBeforeJson") or message.get("tableObjJson"):
            self.identities[record.table] = TableObject.parse(text).identity

    def _add_drop(self, record: EventRecord) -> None:
        if record.type == "DROP_TABLE":
            self._drops[record.table, ""] = record.event
        elif record.type == "DROP_PARTITION":
            table = TableObject.parse(record.message["tableObjJson"])
            for values in record.message["partitions"]:
                name = table.partition_name([values[key] for key in table.partition_columns])
                self._drops[record.table, name] = record.event

    def _add_additions(self, record: EventRecord) -> None:
        additions = self._additions.get(record.table)
        if additions is not None:
            table = TableObject.parse(record.message["tableObjJson"])
            for partition in partitions_in(record.message):
                additions[table.partition_name(partition.values)] = record.event


def partitions_in(message: Mapping[str, Any]) -> list[PartitionObject]:
    """Return the partitions that an event adds or alters, as they are after it. Only ALTER_PARTITION has no list."""
    texts = message.get("partitionListJson")
    return [PartitionObject.parse(text) for text in ([message["partitionObjAfterJson"]] if texts is None else texts)]


def is_truncation(message: Mapping[str, Any]) -> bool:
    """Return whether the message of an alteration is that of a TRUNCATE."""
    return str(message.get("isTruncateOp", "")).lower() == "true"


def truncating_write_id(message: Mapping[str, Any]) -> int:
    """Return the write id under which a TRUNCATE becomes visible; 0 if it removed the files, or for other changes."""
    return write_id_of(message) if is_truncation(message) else 0


def removes_files(record: EventRecord) -> bool:
    """Return whether an event drops partitions, or is a TRUNCATE without a write id: no later reader sees their files.

    No write id tells whether a copy of the table is newer than the event.
    """
    if record.type == "DROP_PARTITION":
        return True
    message = record.message if record.type in ALTERATIONS else {}
    return is_truncation(message) and not truncating_write_id(message)


def write_id_of(message: Mapping[str, Any]) -> int:
    """Return the write id of a change of a definition, 0 if it has none."""
    return max(0, int(message.get("writeId") or 0))


def is_move(record: EventRecord) -> bool:
    """Return whether an alteration renames a table or partition, or removes its files.

    A TRUNCATE with a write id removes no file.
    """
    if removes_files(record):
        return True
    message = record.message
    if record.type == "ALTER_TABLE":
        names = [TableObject.parse(message[f"tableObj{when}Json"]).name for when in ("Before", "After")]
        return names[0] != names[1]
    if record.type == "ALTER_PARTITIONS":
        return False
    values = [PartitionObject.parse(message[f"partitionObj{when}Json"]).values for when in ("Before", "After")]
    return values[0] != values[1]
