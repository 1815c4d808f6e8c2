"""A source database and a target database that follows it by events, for tests of incremental replication."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from itertools import count
from pathlib import Path

from ingestd.acid.layout import without_visibility
from ingestd.acid.visibility import is_hidden, visible_directories
from ingestd.clock import Deadline
from ingestd.hive.client import Metastore
from ingestd.hive.events import EventLog
from ingestd.hive.notifications import WrittenPartition, notify_writes
from ingestd.hive.objects import all_partition_names, find_database, find_partitions, table_names
from ingestd.hive.tables import Table, TableName
from ingestd.hive.transactions import Transaction, Wait, WriteLock, begin_writing, commit, lock
from ingestd.hive.write_ids import committed_transactions, read_snapshot
from ingestd.replication.cluster import Cluster
from ingestd.replication.copying.copy import Copier
from ingestd.replication.copying.report import LoadReport
from ingestd.replication.directory.dump_files import DumpMetadata, Phase
from ingestd.replication.directory.protocol import Dump, DumpDirectory
from ingestd.replication.dump.bootstrap import DumpStep
from ingestd.replication.dump.incremental import EVENTS_PER_CYCLE, IncrementalDumpOptions, dump_incremental
from ingestd.replication.load.incremental import IncrementalLoadOptions, load_incremental
from ingestd.replication.marks import LAST_ID, TARGET_FOR
from ingestd.replication.statements.scope import Scope
from ingestd.storage.local import local_path
from ingestd.storage.storages import Storages
from tests.support.patience import LIMIT
from tests.support.replica import Replica, Side
from tests.support.replica_copying import AT_ONCE
from tests.support.replica_kills import process
from tests.support.replica_rows import table_of
from tests.support.replica_tables import make_database

State = dict[str, object]


@dataclass(frozen=True)
class Following:
    """The databases, and the directory of the dumps."""

    replica: Replica
    database: str
    target: str
    root: Path

    @property
    def directory(self) -> DumpDirectory:
        return DumpDirectory(Storages(), str(self.root), self.database)

    def name(self, table: str) -> TableName:
        """Return the name of a table of the source."""
        return TableName(self.database, table)

    def dump(
        self,
        scope: Scope | None = None,
        events: int = EVENTS_PER_CYCLE,
        observe: Callable[[DumpStep], None] = lambda _: None,
        metastore: Metastore | None = None,
    ) -> Dump:
        """Dump the events after the last dump, in the scope of the last dump by default.

        `metastore` is another connection to the source.
        """
        source = Cluster(metastore or self.replica.source.metastore, Storages())
        scope = scope or self.directory.dumps()[-1].state.scope
        dump = self.directory.begin_dump(scope, EventLog(source.metastore).current_id)
        assert isinstance(dump, Dump), dump
        options = IncrementalDumpOptions(events, AT_ONCE, observe=observe)
        metadata = dump_incremental(source, dump, options, threading.Event())
        self.directory.finish_dump(dump, metadata)
        return dump

    def load(
        self,
        observe: Callable[[Enum], None] = lambda _: None,
        stop: threading.Event | None = None,
        metastore: Metastore | None = None,
    ) -> LoadReport:
        """Load the dump that is not loaded. `metastore` is another connection to the target."""
        dump = self.directory.begin_load()
        assert isinstance(dump, Dump), dump
        report = self.load_last(observe, stop, metastore=metastore)
        self.directory.finish_load(dump)
        return report

    def load_interrupted(self) -> int:
        """Load the dump that is not loaded: each attempt is interrupted a step later. Return the number of attempts."""
        for attempts in count(1):
            try:
                self.load(interrupt_after(attempts))
            except Interrupted:
                continue
            break
        return attempts

    def load_last(
        self,
        observe: Callable[[Enum], None] = lambda _: None,
        stop: threading.Event | None = None,
        copier: Copier | None = None,
        metastore: Metastore | None = None,
    ) -> LoadReport:
        """Load the last dump, and do not mark it as loaded. `metastore` is another connection to the target."""
        target = Cluster(metastore or self.replica.target.metastore, Storages())
        dump = self.directory.dumps()[-1]
        options = IncrementalLoadOptions(self.target, f"file:{self.replica.target.external}", observe=observe)
        copier, metadata = copier or Copier(target.storages), self.directory.metadata(dump)
        return load_incremental(target, dump, metadata, copier, options, stop or threading.Event())

    def other_target(self) -> Following:
        """Create another target, with the same last event."""
        made = Following(self.replica, self.database, self.replica.name("to"), self.root)
        make_database(self.replica.target.metastore, made.target, {LAST_ID: str(self.last_event()), TARGET_FOR: "true"})
        return made

    def cycle(self) -> LoadReport:
        """Dump and load."""
        self.dump()
        return self.load()

    def run_process(self, side: str, step: Enum, count: int = 1) -> int:
        """Dump, or load the last dump, in a process that kills itself after the step; return its exit code."""
        with self.process(side, step, count) as made:
            return made.wait(LIMIT)

    @contextmanager
    def process(
        self, side: str, step: Enum, count: int = 1, number: int = signal.SIGKILL, uri: str = ""
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Dump, or load the last dump, in a process that sends itself the signal `number` after the step.

        `uri` is another address of the metastore.
        """
        given = {
            "root": str(self.root),
            "database": self.database,
            "target": self.target,
            "uri": uri or (self.replica.source if side == "dump" else self.replica.target).uri,
            "external": f"file:{self.replica.target.external}",
            "step": step.value,
            "count": count,
            "signal": number,
        }
        with process("incremental_process", side, given) as made:
            yield made

    def last_event(self) -> int:
        """Return the last event of the target."""
        return int(self.marks()[LAST_ID])

    def marks(self) -> dict[str, str]:
        """Return the properties of the target database."""
        found = find_database(self.replica.target.metastore, self.target)
        assert found is not None
        return dict(found.parameters)

    def states(self) -> tuple[State, State]:
        """Return what readers see on the source and on the target."""
        return state(self.replica.source, self.database), state(self.replica.target, self.target)


def new_following(replica: Replica, root: Path, ahead: int = 0) -> Following:
    """Create an empty source database, and a target that is a complete copy of it.

    The last event of the copy is `ahead` of the source, as if the source's metastore had been restored from a backup.
    """
    made = Following(replica, replica.name("from"), replica.name("to"), root)
    make_database(replica.source.metastore, made.database)
    last = EventLog(replica.source.metastore).current_id() + ahead
    make_database(replica.target.metastore, made.target, {LAST_ID: str(last), TARGET_FOR: "true"})
    dump = made.directory.begin_dump(Scope(made.database), lambda: last)
    assert isinstance(dump, Dump)
    made.directory.finish_dump(dump, DumpMetadata(Phase.BOOTSTRAP, last, last, Scope(made.database)))
    made.directory.finish_load(dump)
    return made


def state(side: Side, database: str) -> State:
    """Return, by table, its columns and the contents of all files that a reader opens."""
    found: State = {}
    for table in table_names(side.metastore, database):
        one = table_of(side.metastore, TableName(database, table))
        columns = [(field.name, field.type) for field in one.raw.sd.cols]
        places = {"": one.location}
        if one.partition_columns:
            names = all_partition_names(side.metastore, one.name)
            partitions = find_partitions(side.metastore, one.name, names)
            places = {one.partition_name(each.values): each.location for each in partitions}
        is_acid = one.kind.is_transactional
        contents = {place: _contents(side, one.name, uri) if is_acid else None for place, uri in places.items()}
        found[table] = (columns, contents)
    return found


def _contents(side: Side, name: TableName, location: str) -> dict[str, bytes]:
    ids, root = read_snapshot(side.metastore, name), local_path(location)
    names = [entry.name for entry in root.iterdir()] if root.is_dir() else []
    seen = visible_directories(names, ids, committed_transactions(side.metastore))
    folders = [seen.base.name] if seen.base else []
    folders += [delta.name for delta in seen.deltas] + [delta.name for delta in seen.delete_deltas]
    return {
        f"{without_visibility(folder)}/{file.name}": file.read_bytes()
        for folder in folders
        for file in sorted((root / folder).iterdir())
        if not is_hidden(file.name)
    }


def write(
    side: Side, name: TableName, *folders: str, partition: str = "", then: Callable[[Transaction], None] | None = None
) -> Transaction:
    """Write a file to each folder in one transaction, announce it, and commit, or call `then` instead.

    `{w}` in a folder is replaced by the write id with seven digits: `delta_{w}_{w}_0000` is an INSERT,
    `delete_delta_{w}_{w}_0000` a DELETE, and `base_{w}` an INSERT OVERWRITE.
    """
    txn, write_id = begin_writing(side.metastore, name, "tests/writer")
    place_files(side, name, txn, write_id, folders, partition)
    (then or (lambda transaction: commit(side.metastore, transaction)))(txn)
    return txn


def place_files(
    side: Side, name: TableName, txn: Transaction, write_id: int, folders: tuple[str, ...], partition: str = ""
) -> None:
    """Lock the table or partition, as every writer does, then place and announce the files of a transaction."""
    lock(
        side.metastore,
        txn,
        [WriteLock(name, partition=partition)],
        wait=Wait(Deadline.after(LIMIT), threading.Event()),
    )
    raw = table_of(side.metastore, name)
    values: tuple[str, ...] = ()
    location = raw.location
    if partition:
        (found,) = find_partitions(side.metastore, name, [partition])
        values, location = found.values, found.location
    written = []
    for folder in folders:
        actual = folder.format(w=f"{write_id:07d}")
        directory = local_path(location) / actual
        directory.mkdir(parents=True)
        (directory / "bucket_00000").write_bytes(f"{name.table} {actual} {txn.id}".encode())
        (directory / "_orc_acid_version").write_bytes(b"2")
        written += [(f"{location}/{actual}/{file}", actual) for file in ("bucket_00000", "_orc_acid_version")]
    table = Table(name, 0, raw.location, (), (), None, frozenset(), {}, raw.raw)
    notify_writes(side.metastore, txn, table, write_id, [WrittenPartition(values, written)])


class Interrupted(BaseException):
    """Ends a load as if the process had been killed."""


def interrupt_after(count: int) -> Callable[[Enum], None]:
    """Return an observer that raises Interrupted at the `count`-th step."""
    left = count

    def observe(_step: Enum) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Interrupted

    return observe
