"""Finds the files that transactions wrote: where they are now, and how long they are, which no event contains.

Invariant: a file is found, or is reported as vanished, or its table or partition was dropped since, or its directory
cannot be read where it is.

A rename or drop of a table or partition moves or removes its directory, so the events after a commit tell where the
files of the commit are (`moves.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ingestd.acid.layout import SIDE_FILE_SUFFIX, Delta, parse_directory
from ingestd.acid.visibility import is_hidden
from ingestd.errors import IngestdError
from ingestd.hive.events import Write, WrittenFile
from ingestd.hive.objects import PartitionObject, TableObject
from ingestd.replication.directory.event_records import WrittenFileRecord
from ingestd.replication.dump.moves import Moves
from ingestd.storage.contract import Entry, NotFound, child, split
from ingestd.storage.parallel import run_each
from ingestd.storage.storages import Storages, is_of_location

_LISTING_THREADS = 32
# The files in a directory by name, or why it cannot be read where it is.
_Files = Mapping[str, Entry] | IngestdError
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
        """Return a write without the definitions of its table and partition, which take some ten KiB.

        Its files are those in its directory. HiveServer2 announces the files of the partition `month=10` for `month=1`
        too, because it compares their paths as texts.
        """
        kept = replace(write, table_object="", partition_object="")
        if not write.table_object:
            return cls(event, kept)
        of_partition = PartitionObject.parse(write.partition_object) if write.partition_object else None
        location = (of_partition or TableObject.parse(write.table_object)).location
        kept = replace(kept, files=tuple(file for file in write.files if _is_below(location, file.uri)))
        return cls(event, kept, location if all(is_hidden(_name(file.uri)) for file in kept.files) else "")


class WrittenFiles:
    """The files of committed writes."""

    def __init__(self, storages: Storages, moves: Moves, writes: Sequence[CommittedWrite]) -> None:
        self._storages = storages
        self._writes = writes
        # The directories of events, with where they are now and their files there.
        directories = dict.fromkeys((write.event, _parent(file)) for write in writes for file in write.write.files)
        self._listed = moves.look_up(directories, lambda directory: moves.directory_after(*directory), self._list)

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

    @property
    def are_read(self) -> bool:
        """Whether a directory could be read."""
        return any(not isinstance(present, IngestdError) for _, present in self._listed.values())

    @property
    def refused(self) -> set[str]:
        """The tables of which a directory cannot be read where it is, so that they have no records for its files."""
        places = {key for key, (_, present) in self._listed.items() if isinstance(present, IngestdError)}
        return {
            write.write.table.table
            for write in self._writes
            if any((write.event, _parent(file)) in places for file in write.write.files)
        }

    def records(self) -> Iterator[WrittenFileRecord]:
        """Yield a record for each file and side file, in the order of the events; the length of a lost one is -1.

        Hidden files are left out, and those whose table or partition was dropped since. Then the target has the table
        without these rows until it replays the drop.
        """
        for write in self._writes:
            for file in write.write.files:
                yield from self._records(write, file)

    def _records(self, write: CommittedWrite, file: WrittenFile) -> Iterator[WrittenFileRecord]:
        name, listed = _name(file.uri), self._listed.get((write.event, _parent(file)))
        if is_hidden(name) or listed is None:
            return
        (parent, present), archive = listed, _archived(file)
        if isinstance(present, IngestdError):
            return
        directory = _OF_COMPACTION.sub("", _below_location(file))
        where = (write.event, write.write.table.table, write.write.partition, write.write.write_id, directory)
        if name not in present:
            yield WrittenFileRecord(*where, name, child(parent, name), archive, self._archived_size(archive))
            return
        for sibling in (name, name + SIDE_FILE_SUFFIX):
            if sibling in present:
                own, entry = archive if sibling == name else "", present[sibling]
                yield WrittenFileRecord(*where, sibling, child(parent, sibling), own, entry.size, entry.written)

    def _list(self, places: Mapping[tuple[int, str], str]) -> Mapping[tuple[int, str], tuple[str, _Files]]:
        listed = run_each(self._files, sorted(set(places.values())), _LISTING_THREADS)
        return {directory: (place, listed[place]) for directory, place in places.items()}

    def _files(self, directory: str) -> _Files:
        try:
            return self._storages.files(directory)
        except IngestdError as error:
            if not is_of_location(error):
                raise
            return error

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


def _is_below(directory: str, uri: str) -> bool:
    """Return whether a file is in a directory of the same storage, of which only one URI may name the host."""
    above = _names(directory)
    return _names(uri)[: len(above)] == above


def _names(uri: str) -> tuple[str, ...]:
    return tuple(filter(None, split(uri).path.split("/")))


def _parent(file: WrittenFile) -> str:
    return file.uri.rpartition("/")[0]


def _below_location(file: WrittenFile) -> str:
    """Return the directory of a file below the location of its table or partition.

    `folder` is only its first level, so it lacks the directories of the parts of a UNION ALL in an insert-only table
    (AcidUtils.getFirstLevelAcidDirPath).
    """
    directory = _parent(file)
    if not file.folder:
        return ""
    start = f"{directory}/".rfind(f"/{file.folder}/")
    return directory[start + 1 :] if start >= 0 else file.folder


def _archived(file: WrittenFile) -> str:
    """Return where the change manager keeps a file that was removed (ReplChangeManager.getCMPath), '' if nowhere."""
    return child(file.archive, f"{_name(file.uri)}_{file.checksum}") if file.archive and file.checksum else ""
