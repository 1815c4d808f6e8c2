"""Follows tables, partitions and their directories through renames and drops: their names now, and their places.

Invariant: an answer takes all renames and drops into account whose events the last call of `Moves.read` could read.
What was looked up under a name or in a directory is looked up again if that has changed meanwhile (`Moves.look_up`), or
its listing begins again (`Moves.has_moved`).
Events after the end of a dump count as well, because they have happened too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from ingestd.hive.events import Event, EventLog
from ingestd.hive.objects import PartitionObject, TableObject
from ingestd.replication.directory.event_records import ABORT, ALLOCATE, COMMIT
from ingestd.storage.contract import child

K = TypeVar("K")
P = TypeVar("P")
V = TypeVar("V")
# What need not be read to find out where tables and files are now.
_WITHOUT_MOVES = (
    "OPEN_TXN", COMMIT, ABORT, ALLOCATE, "ADD_PARTITION", "ALTER_PARTITIONS", "CREATE_TABLE",
    "UPDATE_TBL_COL_STAT_EVENT", "UPDATE_PART_COL_STAT_EVENT",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Move:
    """The rename or drop of a table or partition, which moves its directory, or removes it (`after` is None)."""

    event: int
    before: str
    after: str | None

    def concerns(self, directory: str) -> bool:
        """Return whether the directory is moved or removed."""
        return directory == self.before or directory.startswith(self.before + "/")


@dataclass(frozen=True, slots=True)
class Rename:
    """The rename of a table from `old` to `new`; '' stands for no name in the database, as after a drop."""

    event: int
    old: str
    new: str


def events_with_moves(log: EventLog) -> Callable[[int], Iterator[Event]]:
    """Return the function with which `Moves` reads the events after one."""
    return lambda after: log.scan(after, _WITHOUT_MOVES)


class Moves:
    """The renames and drops in `database` after the event `start`. `events` reads events. Not thread-safe."""

    def __init__(self, events: Callable[[int], Iterable[Event]], database: str, start: int) -> None:
        self.database = database
        self.position = start
        """The last event that was read."""
        self._events = events
        self._moves: list[Move] = []
        self._renames: list[Rename] = []

    def read(self) -> bool:
        """Read the events since the last call; return whether there were any renames or drops.

        Raises MetastoreUnavailable.
        """
        before = len(self._moves) + len(self._renames)
        for event in self._events(self.position):
            self.position = event.id
            # The event of a rename to or from another database may have that database.
            if event.database == self.database or (event.type == "ALTER_TABLE" and self.database in event.text):
                self._add(event)
        return len(self._moves) + len(self._renames) > before

    def look_up(
        self,
        subjects: Iterable[K],
        place: Callable[[K], P | None],
        look: Callable[[Mapping[K, P]], Mapping[K, V]],
    ) -> dict[K, V]:
        """Return what `look` finds at the places of subjects, each of which was there before and after.

        `place` returns the place of a subject according to the events that were read, None if it has none any more.
        Such a subject has no result.
        """
        keys = list(subjects)
        if not keys:
            return {}
        self.read()
        places = _places(keys, place)
        results = dict(look(places))
        while self.read():
            before, places = places, _places(keys, place)
            changed = {key: now for key, now in places.items() if before.get(key) != now}
            results = {key: result for key, result in results.items() if key in places and key not in changed}
            if changed:
                results |= look(changed)
        return results

    def directory_after(self, event: int, directory: str) -> str | None:
        """Return where a directory of an event is now; None if it was removed."""
        for move in self._moves:
            if move.event > event and move.concerns(directory):
                if move.after is None:
                    return None
                directory = move.after + directory[len(move.before) :]
        return directory

    def name_after(self, event: int, table: str, until: int | None = None) -> str | None:
        """Return the name that a table of an event has after the event `until`, or now; None if it has none."""
        for rename in self._renames:
            if rename.event > event and rename.old == table and (until is None or rename.event <= until):
                if not rename.new:
                    return None
                table = rename.new
        return table

    def has_moved(self, event: int, table: str, directory: str) -> bool:
        """Return whether a table with this name and directory at an event was renamed, moved or dropped since."""
        is_renamed = any(rename.event > event and rename.old == table for rename in self._renames)
        return is_renamed or any(move.event > event and move.concerns(directory) for move in self._moves)

    def has_moved_below(self, event: int, directory: str) -> bool:
        """Return whether a partition below the directory of its table was renamed since an event."""
        later = (move for move in self._moves if move.event > event and move.after is not None)
        return any(move.before.startswith(f"{directory}/") for move in later)

    def name_before(self, event: int, table: str) -> str | None:
        """Return the name that a table had at an event; None if it came later, as far as renames and drops tell."""
        for rename in reversed(self._renames):
            if rename.event <= event:
                break
            if rename.old == table or (rename.new == table and not rename.old):
                return None  # another table gave the name up, or the table came from another database
            if rename.new == table:
                table = rename.old
        return table

    def _add(self, event: Event) -> None:
        message = event.message
        if event.type == "ALTER_TABLE":
            tables = [TableObject.parse(message[f"tableObj{when}Json"]) for when in ("Before", "After")]
            old, new = (table.name.table if table.name.database == self.database else "" for table in tables)
            if old != new:
                self._renames.append(Rename(event.id, old, new))
            self._move(event.id, tables[0].location, tables[1].location)
        elif event.type == "ALTER_PARTITION":
            partitions = (PartitionObject.parse(message[f"partitionObj{when}Json"]) for when in ("Before", "After"))
            self._move(event.id, *(partition.location for partition in partitions))
        elif event.type in {"DROP_TABLE", "DROP_PARTITION"}:
            self._add_drop(event.id, TableObject.parse(message["tableObjJson"]), message.get("partitions"))

    def _move(self, event: int, before: str, after: str) -> None:
        if before and before != after:
            self._moves.append(Move(event, before, after))

    def _add_drop(self, event: int, table: TableObject, partitions: Iterable[Mapping[str, str]] | None) -> None:
        """Add the drop of a table, or of some of its partitions."""
        if not partitions:
            self._renames.append(Rename(event, table.name.table, ""))
            self._moves.append(Move(event, table.location, None))
        for values in partitions or ():
            name = table.partition_name([values[key] for key in table.partition_columns])
            self._moves.append(Move(event, child(table.location, name), None))


def _places(subjects: Iterable[K], place: Callable[[K], P | None]) -> dict[K, P]:
    return {subject: now for subject in subjects if (now := place(subject)) is not None}
