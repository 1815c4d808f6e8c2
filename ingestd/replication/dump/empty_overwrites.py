"""Finds overwrites without rows, whose empty base hides older rows, and which no event names.

`INSERT OVERWRITE … SELECT` of no rows leaves an empty directory `base_N`. HiveServer2 announces no write that has no
files (Hive.addWriteNotificationLog), but it alters the table or partition under the write id N. Other writers announce
a write without files. So each of both is looked up in the file system, unless the write has announced files.

Invariant: a base in the result is empty, and the transaction of its write id has committed. The write ids are read
first, because the metastore forgets an aborted one after its directory was removed. They are those of the table, which
may have another name by now, and another table may have its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ingestd.acid.layout import Base, parse_directory
from ingestd.acid.visibility import ValidWriteIds
from ingestd.hive.objects import PartitionObject, TableObject
from ingestd.hive.tables import WHOLE_TABLE, TableName
from ingestd.hive.write_ids import read_snapshots
from ingestd.replication.cluster import Cluster
from ingestd.replication.cycle_plan import ALTERATIONS, is_truncation, write_id_of
from ingestd.replication.directory.event_records import EmptyBaseRecord, EventRecord
from ingestd.replication.dump.moves import Moves
from ingestd.replication.dump.table_files import all_files
from ingestd.replication.dump.written_files import CommittedWrite
from ingestd.storage.contract import NotFound, child
from ingestd.storage.parallel import run_all

_LISTING_THREADS = 32


@dataclass(frozen=True, slots=True)
class Candidate:
    """A table, or the partition `partition`, that may have been overwritten without rows under a write id.

    `table` is the name at the event, and `location` the directory. `has_rows` says that its statistics count some.
    """

    event: int
    table: str
    partition: str
    write_id: int
    location: str
    has_rows: bool = False

    @property
    def record(self) -> EmptyBaseRecord:
        """The record of the base."""
        return EmptyBaseRecord(self.event, self.table, self.partition, self.write_id)


def candidates(events: Iterable[EventRecord], writes: Sequence[CommittedWrite]) -> list[Candidate]:
    """Return the candidates in events and writes, each once, in the order of the events."""
    named = {_key(write) for write in writes if not write.location}
    found = {}
    for write in writes:
        if write.location and _key(write) not in named:
            found[_key(write)] = Candidate(write.event, *_key(write), write.location)
    for event in events:
        if event.type not in ALTERATIONS:
            continue
        message = event.message
        write_id = write_id_of(message)
        if write_id == 0 or is_truncation(message) or (event.table, WHOLE_TABLE, write_id) in named:
            continue
        table, altered = _altered(event.type, message)
        if not table.kind.is_transactional:
            continue
        for partition, described in altered:
            key = event.table, partition, write_id
            if key not in named:
                found[key] = Candidate(event.event, *key, described.location, _has_rows(described))
    return sorted(found.values(), key=lambda candidate: candidate.event)


def _key(write: CommittedWrite) -> tuple[str, str, int]:
    return write.write.table.table, write.write.partition, write.write.write_id


def _has_rows(described: TableObject | PartitionObject) -> bool:
    """Return whether statistics count rows; the count is absent or negative if it is not known."""
    return int(described.parameters.get("numRows") or -1) > 0


def _altered(
    kind: str, message: Mapping[str, Any]
) -> tuple[TableObject, Iterator[tuple[str, TableObject | PartitionObject]]]:
    """Return the table of an alteration of the type `kind`, and what it has altered, by name."""
    if kind == "ALTER_TABLE":
        before, after = (TableObject.parse(message[f"tableObj{when}Json"]) for when in ("Before", "After"))
        is_candidate = before.name == after.name and not after.partition_columns
        return after, iter([(WHOLE_TABLE, after)] if is_candidate else [])
    table = TableObject.parse(message["tableObjJson"])
    texts = message.get("partitionListJson") or [message["partitionObjAfterJson"]]
    partitions = map(PartitionObject.parse, texts)
    return table, ((table.partition_name(partition.values), partition) for partition in partitions)


@dataclass(frozen=True, slots=True)
class _Place:
    """The name that a table has now, and where the directory of a candidate is."""

    table: str
    location: str


@dataclass(frozen=True, slots=True)
class _Finding:
    """Whether a candidate has an empty base of a committed transaction; `unknown` is the reason if nobody knows."""

    is_empty: bool = False
    unknown: str = ""


@dataclass(frozen=True, slots=True)
class EmptyOverwrites:
    """The empty bases, in the order of the events.

    `unknown` contains the names at their events of tables of which that is not known, each with a reason.
    """

    records: list[EmptyBaseRecord] = field(default_factory=list)
    unknown: dict[str, str] = field(default_factory=dict)

    @classmethod
    def find(cls, source: Cluster, moves: Moves, candidates: Sequence[Candidate]) -> EmptyOverwrites:
        """Look the candidates up under the names that their tables have now, and where their directories are now.

        Raises StorageUnavailable and MetastoreUnavailable.
        """

        def place(candidate: Candidate) -> _Place | None:
            table = moves.name_after(candidate.event, candidate.table)
            location = moves.directory_after(candidate.event, candidate.location)
            return _Place(table, location) if table is not None and location is not None else None

        findings = moves.look_up(candidates, place, partial(_look_up_all, source, moves.database))
        overwrites = cls()
        for candidate in candidates:
            finding = findings.get(candidate, _Finding())
            if finding.is_empty:
                overwrites.records.append(candidate.record)
            elif finding.unknown:
                overwrites.unknown[candidate.table] = finding.unknown
        return overwrites


def _look_up_all(source: Cluster, database: str, places: Mapping[Candidate, _Place]) -> Mapping[Candidate, _Finding]:
    names = {place.table: TableName(database, place.table) for place in places.values()}
    ids = read_snapshots(source.metastore, list(names.values()))
    calls = [
        partial(_look_up, source, candidate, place.location, ids[names[place.table]])
        for candidate, place in places.items()
    ]
    return dict(zip(places, run_all(calls, _LISTING_THREADS), strict=True))


def _look_up(source: Cluster, candidate: Candidate, location: str, ids: ValidWriteIds) -> _Finding:
    """Look a candidate up in its directory; `ids` are the write ids of its table."""
    write_id = candidate.write_id
    if write_id in ids.aborted:
        return _Finding()
    storage = source.storages.at(location)
    try:
        parsed = [parse_directory(entry.name) for entry in storage.entries(location) if entry.is_directory]
        bases = [directory for directory in parsed if isinstance(directory, Base)]
        own = next((base for base in bases if base.write_id == write_id and not base.visibility_txn), None)
        is_empty = own is not None and not any(True for _ in all_files(storage, child(location, own.name)))
    except NotFound:  # a metastore renames a directory before anybody can read of it
        return _unless_with_rows(candidate, f"{location} is missing")
    if own is None:
        is_compacted = any(base.visibility_txn and base.write_id >= write_id for base in bases)
        return _unless_with_rows(candidate, f"{location} was compacted") if is_compacted else _Finding()
    if is_empty and not ids.is_valid(write_id):
        return _Finding(unknown=f"write {write_id} overwrites {location} and has not ended")
    return _Finding(is_empty)


def _unless_with_rows(candidate: Candidate, reason: str) -> _Finding:
    """Return that nobody knows about a candidate, unless its statistics count rows."""
    if candidate.has_rows:
        return _Finding()
    return _Finding(unknown=f"{reason}, so write {candidate.write_id} may have overwritten it")
