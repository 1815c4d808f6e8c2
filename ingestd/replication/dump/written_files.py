"""Finds the files that transactions wrote: where they are now, and how long they are, which no event contains.

Invariant: a file is found, or is reported as vanished, or its table or partition was dropped since.

A rename or drop of a table or partition moves or removes its directory. It happens before its event is read, so the
events after a commit tell where the files of the commit are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ingestd.acid.layout import SIDE_FILE_SUFFIX, Delta, parse_directory
from ingestd.acid.visibility import is_hidden
from ingestd.hive.events import Event, EventLog, Write, WrittenFile
from ingestd.hive.objects import PartitionObject, TableObject
from ingestd.replication.directory.event_records import ABORT, ALLOCATE, COMMIT, WrittenFileRecord
from ingestd.storage.contract import NotFound, child
from ingestd.storage.parallel import run_each
from ingestd.storage.storages import Storages

_LISTING_THREADS = 32
# What need not be read to find out where files are now.
_WITHOUT_MOVES = (
    "OPEN_TXN", COMMIT, ABORT, ALLOCATE, "ADD_PARTITION", "ALTER_PARTITIONS", "CREATE_TABLE",
    "UPDATE_TBL_COL_STAT_EVENT", "UPDATE_PART_COL_STAT_EVENT",
)  # fmt: skip
_OF_COMPACTION = re.compile(r"_v[0-9]+(?=/|$)")


@dataclass(frozen=True, slots=True)
class CommittedWrite:
    """A write that became visible with the COMMIT_TXN event of the id `event`."""

    event: int
    write: Write
    location: str = ""
    """The directory of the table or partition, if the write has no visible file."""

    @classmethod
    def of(cls, event: int, write: Write) -> CommittedWrite:
        """Return a write without the definitions of its table and partition, which take some ten KiB."""
        kept = replace(write, table_object="", partition_object="")
        if not write.table_object or not all(is_hidden(_name(file.uri)) for file in write.files):
            return cls(event, kept)
        of_partition = PartitionObject.parse(write.partition_object) if write.partition_object else None
        return cls(event, kept, (of_partition or TableObject.parse(write.table_object)).location)


@dataclass(frozen=True, slots=True)
class Move:
    """The rename or drop of a table or partition, which moves its directory, or removes it (`after` is None)."""

    event: int
    before: str
    after: str | None

    def concerns(self, directory: str) -> bool:
        """Return whether the directory is moved or removed."""
        return directory == self.before or directory.startswith(self.before + "/")


def moves_since(log: EventLog, event: int, database: str) -> list[Move]:
    """Return the moves of directories after an event, up to now: those of events after the dump have happened too."""
    events = log.scan(event, _WITHOUT_MOVES)
    return [
        move for logged in events if logged.database == database or _names(logged, database) for move in _moves(logged)
    ]


def _names(event: Event, database: str) -> bool:
    """Return whether an event of another database may be the rename of a table out of `database`."""
    return event.type == "ALTER_TABLE" and database in event.text


def _moves(event: Event) -> Iterator[Move]:
    message = event.message
    if event.type == "ALTER_TABLE":
        old, new = (TableObject.parse(message[f"tableObj{when}Json"]).location for when in ("Before", "After"))
    elif event.type == "ALTER_PARTITION":
        old, new = (PartitionObject.parse(message[f"partitionObj{when}Json"]).location for when in ("Before", "After"))
    else:
        if event.type in {"DROP_TABLE", "DROP_PARTITION"}:
            table = TableObject.parse(message["tableObjJson"])
            parts = message.get("partitions")
            names = [table.partition_name([part[key] for key in table.partition_columns]) for part in parts or ()]
            for place in [child(table.location, name) for name in names] if parts else [table.location]:
                yield Move(event.id, place, None)
        return
    if old and old != new:
        yield Move(event.id, old, new)


def place_after(moves: Sequence[Move], event: int, directory: str) -> str | None:
    """Return where a directory of an event is after the moves; None if it was removed."""
    for move in moves:
        if move.event > event and move.concerns(directory):
            if move.after is None:
                return None
            directory = move.after + directory[len(move.before) :]
    return directory


class WrittenFiles:
    """The files of committed writes."""

    def __init__(self, storages: Storages, moves: Sequence[Move], writes: Sequence[CommittedWrite]) -> None:
        self._storages = storages
        self._moves = moves
        self._writes = writes
        places = {self._directory(write.event, file) for write in writes for file in write.write.files}
        parents = sorted(parent for parent in places if parent is not None)
        self._listed = run_each(storages.files, parents, _LISTING_THREADS)

    def unusable(self) -> dict[str, str]:
        """Return the tables whose commits cannot be copied file by file, each with a reason.

        The transactions of a batch append to the same file, which a copy cannot follow, because it can neither be read
        while it grows nor without the rows of those that are aborted.
        """
        reasons: dict[str, str] = {}
        for record in self.records():
            directory = parse_directory(record.directory.partition("/")[0])
            if record.length < 0:
                reasons[record.table] = f"the file {record.source} has vanished"
            elif isinstance(directory, Delta) and directory.min_write_id < directory.max_write_id:
                reasons.setdefault(record.table, f"transactions share the file {record.source}")
        return reasons

    def records(self) -> Iterator[WrittenFileRecord]:
        """Yield a record for each file and side file, in the order of the events; the length of a lost one is -1.

        Hidden files are left out, and those whose table or partition was dropped since. Then the target has the table
        without these rows until it replays the drop.
        """
        for write in self._writes:
            for file in write.write.files:
                yield from self._records(write, file)

    def _records(self, write: CommittedWrite, file: WrittenFile) -> Iterator[WrittenFileRecord]:
        name, parent = _name(file.uri), self._directory(write.event, file)
        if is_hidden(name) or parent is None:
            return
        present, archive = self._listed[parent], _archived(file)
        directory = _OF_COMPACTION.sub("", _below_location(file))
        where = (write.event, write.write.table.table, write.write.partition, write.write.write_id, directory)
        if name not in present:
            yield WrittenFileRecord(*where, name, child(parent, name), archive, self._archived_size(archive))
            return
        for sibling in (name, name + SIDE_FILE_SUFFIX):
            if sibling in present:
                own, entry = archive if sibling == name else "", present[sibling]
                yield WrittenFileRecord(*where, sibling, child(parent, sibling), own, entry.size, entry.written)

    def _directory(self, event: int, file: WrittenFile) -> str | None:
        return place_after(self._moves, event, file.uri.rpartition("/")[0])

    def _archived_size(self, archive: str) -> int:
        """Return the length of a file that the change manager keeps; -1 if it does not."""
        if not archive:
            return -1
        try:
            stream = self._storages.at(archive).stream(archive)
        except NotFound:
            return -1
        stream.close()
        return stream.size


def _name(uri: str) -> str:
    return uri.rpartition("/")[2]


def _below_location(file: WrittenFile) -> str:
    """Return the directory of a file below the location of its table or partition.

    `folder` is only its first level, so it lacks the directories of the parts of a UNION ALL in an insert-only table
    (AcidUtils.getFirstLevelAcidDirPath).
    """
    directory = file.uri.rpartition("/")[0]
    if not file.folder:
        return ""
    start = f"{directory}/".rfind(f"/{file.folder}/")
    return directory[start + 1 :] if start >= 0 else file.folder


def _archived(file: WrittenFile) -> str:
    """Return where the change manager keeps a file that was removed (ReplChangeManager.getCMPath), '' if nowhere."""
    return child(file.archive, f"{_name(file.uri)}_{file.checksum}") if file.archive and file.checksum else ""
