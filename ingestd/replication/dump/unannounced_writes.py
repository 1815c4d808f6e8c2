"""Finds committed writes of which no event names the files: overwrites without rows, and unannounced writes.

`INSERT OVERWRITE … SELECT` of no rows leaves an empty directory `base_N`, which hides older rows. HiveServer2 announces
no write that has no files (Hive.addWriteNotificationLog), but it alters the table or partition under the write id N.
Other writers announce a write without files. A client without `hive.metastore.dml.events` announces nothing, and its
files are found in the same way. So each of these is looked up in the file system, unless the write has announced files.

Invariant: a base in the result is empty, and the transaction of its write id has committed. The table of a write whose
files will not be announced is copied as a whole, unless the write is aborted. The write ids are read first, because the
metastore forgets an aborted one after its directory was removed. They are those of the table, which may have another
name by now, and another table may have its name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ingestd.acid.layout import Base, DeleteDelta, Delta, parse_directory
from ingestd.acid.visibility import ValidWriteIds
from ingestd.errors import IngestdError
from ingestd.hive.client import Metastore
from ingestd.hive.events import EventLog
from ingestd.hive.objects import PartitionObject, TableObject
from ingestd.hive.tables import WHOLE_TABLE, TableName
from ingestd.hive.write_ids import read_snapshots, read_transactions
from ingestd.replication.cluster import Cluster
from ingestd.replication.cycle_plan import ALTERATIONS, is_truncation, partitions_in, write_id_of
from ingestd.replication.directory.event_records import EmptyBaseRecord, EventRecord
from ingestd.replication.dump.moves import Moves
from ingestd.replication.dump.table_files import all_files
from ingestd.replication.dump.written_files import CommittedWrite
from ingestd.storage.contract import NotFound, Storage, child
from ingestd.storage.parallel import run_all
from ingestd.storage.storages import is_of_location

_LISTING_THREADS = 32
_ROWS = "numRows"
_CREATIONS = frozenset(("CREATE_TABLE", "ADD_PARTITION"))
_Described = TableObject | PartitionObject
_ANNOUNCE = "set hive.metastore.dml.events=true for every HiveServer2, and use clients that send write notifications"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A table, or the partition `partition`, that may have been written under a write id without announced files.

    `table` is the name at the event, and `location` the directory. `has_rows` says that its statistics count some.
    `is_repeated` says that it had this write id already before the event: one that changes no rows, such as the rename
    of a partition, repeats the last write id, which was dumped before.
    """

    event: int
    table: str
    partition: str
    write_id: int
    location: str
    has_rows: bool = False
    is_repeated: bool = False

    @property
    def record(self) -> EmptyBaseRecord:
        """The record of the base."""
        return EmptyBaseRecord(self.event, self.table, self.partition, self.write_id)

    def after(self, earlier: Candidate | None) -> Candidate:
        """Return the candidate with what an earlier event of the same write tells."""
        return self if earlier is None else replace(self, is_repeated=self.is_repeated and earlier.is_repeated)


def candidates(events: Iterable[EventRecord], writes: Sequence[CommittedWrite]) -> list[Candidate]:
    """Return the candidates in events and writes, each once, in the order of the events."""
    named = {_key(write) for write in writes if not write.location}
    found = {}
    for write in writes:
        if write.location and _key(write) not in named:
            found[_key(write)] = Candidate(write.event, *_key(write), write.location)
    for event in events:
        for candidate in _of_event(event):
            key = candidate.table, candidate.partition, candidate.write_id
            if named.isdisjoint((key, (candidate.table, WHOLE_TABLE, candidate.write_id))):
                found[key] = candidate.after(found.get(key))
    return sorted(found.values(), key=lambda candidate: candidate.event)


def _of_event(event: EventRecord) -> Iterator[Candidate]:
    """Yield the candidates of an event: what it has altered under a write id, or created and filled."""
    if event.type in _CREATIONS:
        yield from _created(event)
        return
    if event.type not in ALTERATIONS:
        return
    message = event.message
    write_id = write_id_of(message)
    if write_id == 0 or is_truncation(message):
        return
    table, altered = _altered(event.type, message)
    if not table.kind.is_transactional:
        return
    for partition, described, before in altered:
        is_repeated = before is not None and before.write_id == write_id
        where = event.event, event.table, partition, write_id, described.location
        yield Candidate(*where, _has_rows(described), is_repeated)


def _created(event: EventRecord) -> Iterator[Candidate]:
    """Yield the candidates of a creation. A table that a query fills, or its partition, has the write id of the query.

    They cover no older rows, so only the files of the write matter.
    """
    table = TableObject.parse(event.message["tableObjJson"])
    if not table.kind.is_transactional:
        return
    objects: dict[str, _Described] = {WHOLE_TABLE: table}
    if event.type == "ADD_PARTITION":
        objects = {table.partition_name(partition.values): partition for partition in partitions_in(event.message)}
    elif table.partition_columns:
        return
    for name, made in objects.items():
        if made.write_id > 0:
            yield Candidate(event.event, event.table, name, made.write_id, made.location, has_rows=True)


def _key(write: CommittedWrite) -> tuple[str, str, int]:
    return write.write.table.table, write.write.partition, write.write.write_id


def _has_rows(described: _Described) -> bool:
    """Return whether statistics count rows; the count is absent or negative if it is not known."""
    count = described.parameters.get(_ROWS, "")
    return count.isdecimal() and int(count) > 0


def _altered(
    kind: str, message: Mapping[str, Any]
) -> tuple[TableObject, Iterator[tuple[str, _Described, _Described | None]]]:
    """Return the table of an alteration of the type `kind`, and what it has altered: name, after, and before.

    Nobody knows how partitions were before if many were altered together.
    """
    if kind == "ALTER_TABLE":
        before, after = (TableObject.parse(message[f"tableObj{when}Json"]) for when in ("Before", "After"))
        is_candidate = before.name == after.name and not after.partition_columns
        return after, iter([(WHOLE_TABLE, after, before)] if is_candidate else [])
    table = TableObject.parse(message["tableObjJson"])
    text = message.get("partitionObjBeforeJson")
    old = None if text is None else PartitionObject.parse(text)
    return table, ((table.partition_name(partition.values), partition, old) for partition in partitions_in(message))


@dataclass(frozen=True, slots=True)
class _Place:
    """The name that a table has now, and where the directory of a candidate is."""

    table: str
    location: str


@dataclass(frozen=True, slots=True)
class EarlierWriters:
    """The transactions that may have write ids that were allocated before the events, and had not committed by then.

    `opened` were open before the events were read. The keys of `committed` were opened before the events and commit in
    them. Each value contains the write ids for which the transaction has announced nothing; None if nobody knows.
    """

    opened: frozenset[int]
    committed: Mapping[int, frozenset[int] | None]

    def exclude(self, metastore: Metastore, tables: Sequence[TableName]) -> Callable[[TableName, int], bool]:
        """Return a function that says whether a write id of a table certainly belongs to none of these transactions.

        Such a write id is valid in a snapshot in which all of them are open. But the metastore forgets the write ids of
        a transaction when it and all older ones have ended (CleanTxnToWriteIdTableFunction). After that, only
        `committed` can tell. Raises MetastoreUnavailable.
        """
        writers = self.opened.union(self.committed)
        now = read_transactions(metastore)
        ids = read_snapshots(metastore, tables, replace(now, open=now.open | writers).text)
        oldest = min(read_transactions(metastore).open, default=math.inf)
        forgotten = [self.committed.get(writer) for writer in writers if writer < oldest]

        def excludes(table: TableName, write_id: int) -> bool:
            return ids[table].is_valid(write_id) and all(
                known is not None and write_id not in known for known in forgotten
            )

        return excludes


@dataclass(frozen=True, slots=True)
class _Finding:
    """Whether a candidate has an empty base of a committed transaction; `unknown` is the reason if nobody knows.

    `written` tells where the files of the write are, if it has any. `is_earlier` says that its write id certainly
    belongs to none of the `EarlierWriters`. `is_refused` says that the directory cannot be read where it is.
    """

    is_empty: bool = False
    is_refused: bool = False
    unknown: str = ""
    written: str = ""
    is_earlier: bool = False


@dataclass(frozen=True, slots=True)
class UnannouncedWrites:
    """The empty bases, in the order of the events.

    `unknown` contains the names at their events of the tables that must be copied as a whole, each with a reason, and
    `refused` of those whose directories cannot be read where they are.
    """

    records: list[EmptyBaseRecord] = field(default_factory=list)
    unknown: dict[str, str] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)

    @classmethod
    def find(
        cls,
        source: Cluster,
        moves: Moves,
        candidates: Sequence[Candidate],
        writers: Callable[[Candidate], Collection[int] | None],
        earlier: EarlierWriters,
        *,
        is_copy: bool,
    ) -> UnannouncedWrites:
        """Look the candidates up under the names that their tables have now, and where their directories are now.

        `writers` returns the transaction that has the write id of a candidate, if the events do not contain its commit,
        and None if it was allocated before them, to one of `earlier` or to one that committed before them. With
        `is_copy`, loads write to the database, which announce files only when they commit. Raises StorageUnavailable
        and MetastoreUnavailable.
        """

        def place(candidate: Candidate) -> _Place | None:
            table = moves.name_after(candidate.event, candidate.table)
            location = moves.directory_after(candidate.event, candidate.location)
            return _Place(table, location) if table is not None and location is not None else None

        findings = moves.look_up(candidates, place, partial(_look_up_all, source, moves.database, earlier))
        announced = _Announced(EventLog(source.metastore), moves.database)
        found = cls()
        for candidate in candidates:
            finding = findings.get(candidate, _Finding())
            if finding.is_empty:
                found.records.append(candidate.record)
            elif finding.is_refused:
                found.refused.add(candidate.table)
            elif finding.unknown:
                found.unknown.setdefault(candidate.table, finding.unknown)
            elif finding.written and not candidate.is_repeated and not is_copy:
                transactions = writers(candidate)
                if transactions is None and finding.is_earlier:
                    continue
                if announced.contains(candidate, earlier.opened if transactions is None else transactions):
                    continue
                reason = f"no event names the files of write {candidate.write_id} in {finding.written}; {_ANNOUNCE}"
                found.unknown[candidate.table] = reason
        return found


@dataclass(frozen=True, slots=True)
class _Announced:
    """The writes that transactions have announced, whose commits are not among the events."""

    log: EventLog
    database: str
    _known: dict[int, set[tuple[str, str, int]]] = field(default_factory=dict)

    def contains(self, candidate: Candidate, transactions: Collection[int]) -> bool:
        """Return whether one of the transactions has announced files of a candidate. Raises MetastoreUnavailable."""
        key = candidate.table, candidate.partition, candidate.write_id
        return any(key in self._of(transaction) for transaction in transactions)

    def _of(self, transaction: int) -> set[tuple[str, str, int]]:
        if transaction not in self._known:
            writes = self.log.writes(transaction, self.database)
            with_files = (CommittedWrite.of(0, write) for write in writes)
            self._known[transaction] = {_key(write) for write in with_files if not write.location}
        return self._known[transaction]


def _look_up_all(
    source: Cluster, database: str, earlier: EarlierWriters, places: Mapping[Candidate, _Place]
) -> Mapping[Candidate, _Finding]:
    names = {place.table: TableName(database, place.table) for place in places.values()}
    ids = read_snapshots(source.metastore, list(names.values()))
    excludes = earlier.exclude(source.metastore, list(names.values()))
    calls = [
        partial(_look_up, source, candidate, place.location, ids[names[place.table]])
        for candidate, place in places.items()
    ]
    findings = zip(places.items(), run_all(calls, _LISTING_THREADS), strict=True)
    return {
        candidate: replace(finding, is_earlier=excludes(names[place.table], candidate.write_id))
        for (candidate, place), finding in findings
    }


@dataclass(frozen=True, slots=True)
class _Listed:
    """The directories that may have rows of a write: its own, those of compactions, and one of it alone with files."""

    own: Sequence[Base | Delta | DeleteDelta]
    compacted: Sequence[Base | Delta | DeleteDelta]
    written: str

    @classmethod
    def of(cls, storage: Storage, location: str, write_id: int) -> _Listed:
        """List a directory for a write. Raises NotFound and StorageUnavailable."""
        parsed = (parse_directory(entry.name) for entry in storage.entries(location) if entry.is_directory)
        found = [directory for directory in parsed if directory is not None and _may_have(directory, write_id)]
        own = [directory for directory in found if not directory.visibility_txn]
        places = (child(location, directory.name) for directory in own if _is_of(directory, write_id))
        written = next((place for place in places if any(True for _ in all_files(storage, place))), "")
        return cls(own, [directory for directory in found if directory.visibility_txn], written)


def _may_have(directory: Base | Delta | DeleteDelta, write_id: int) -> bool:
    """Return whether a directory may have rows of a write id."""
    if not isinstance(directory, Base):
        return directory.min_write_id <= write_id <= directory.max_write_id
    return directory.write_id == write_id or (directory.visibility_txn > 0 and directory.write_id > write_id)


def _is_of(directory: Base | Delta | DeleteDelta, write_id: int) -> bool:
    """Return whether a directory of no compaction has rows of one write only."""
    return isinstance(directory, Base) or directory.min_write_id == directory.max_write_id == write_id


def _look_up(source: Cluster, candidate: Candidate, location: str, ids: ValidWriteIds) -> _Finding:
    """Look a candidate up in its directory; `ids` are the write ids of its table."""
    if candidate.write_id in ids.aborted:
        return _Finding()
    try:
        listed = _Listed.of(source.storages.at(location), location, candidate.write_id)
    except NotFound:  # a metastore renames a directory before anybody can read of it
        return _unless_with_rows(candidate, f"{location} is missing")
    except IngestdError as error:
        if not is_of_location(error):
            raise
        return _Finding(is_refused=True)
    if listed.written:
        return _Finding(written=listed.written)
    if any(isinstance(directory, Base) for directory in listed.own):
        has_ended = ids.is_valid(candidate.write_id)
        reason = f"write {candidate.write_id} overwrites {location} and has not ended"
        return _Finding(is_empty=has_ended, unknown="" if has_ended else reason)
    is_compacted = any(isinstance(directory, Base) for directory in listed.compacted)
    return _unless_with_rows(candidate, f"{location} was compacted") if is_compacted else _Finding()


def _unless_with_rows(candidate: Candidate, reason: str) -> _Finding:
    """Return that nobody knows about a candidate, unless its statistics count rows."""
    if candidate.has_rows:
        return _Finding()
    return _Finding(unknown=f"{reason}, so write {candidate.write_id} may have overwritten it")
