"""A database and its copy, for tests of replication: dumps and loads in this process, or in one that is killed."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from ingestd.hive.events import EventLog
from ingestd.hive.objects import find_database
from ingestd.hive.snapshot import WriterRule, read_write_ids
from ingestd.hive.tables import TableName
from ingestd.hive.transactions import abort
from ingestd.hive.write_ids import read_transactions
from ingestd.replication.cluster import Cluster
from ingestd.replication.copying.copy import Copier
from ingestd.replication.directory.protocol import Dump, DumpDirectory
from ingestd.replication.dump.bootstrap import BootstrapDumpOptions, DumpStep, dump_bootstrap
from ingestd.replication.load.bootstrap import BootstrapLoadOptions, load_bootstrap
from ingestd.replication.load.table_load import LoadStep
from ingestd.replication.statements.scope import Scope
from ingestd.storage.storages import Storages
from tests.support.patience import LIMIT
from tests.support.replica import Replica
from tests.support.replica_kills import process
from tests.support.replica_rows import (
    Rows,
    begin_locked,
    begin_with_copies,
    compact,
    insert,
    insert_into_insert_only,
    read_rows,
)
from tests.support.replica_tables import ACID, INSERT_ONLY, make_database, make_table

AT_ONCE = WriterRule(timeout_seconds=0.0)
TABLES = {
    "plain": [(1, "a"), (2, "b"), (3, "a")],
    "parted": [(1, "a"), (2, "b:c"), (3, "a"), (4, "d")],
    "compacted": [(1, "a"), (2, "b"), (9, "z")],
    "only": [(5, "e"), (6, "f")],
    "empty": [],
}


@dataclass(frozen=True)
class Copying:
    """A source database, the root of its dumps, and the name of the target database."""

    replica: Replica
    database: str
    target: str
    root: Path

    @property
    def directory(self) -> DumpDirectory:
        return DumpDirectory(Storages(), str(self.root), self.database)

    @property
    def loading(self) -> BootstrapLoadOptions:
        return BootstrapLoadOptions(self.target, f"file:{self.replica.target.external}")

    def dump(self, rule: WriterRule = AT_ONCE, observe: Callable[[DumpStep], None] = lambda _: None) -> Dump:
        """Complete the dump that is unfinished, or a new one."""
        source = Cluster(self.replica.source.metastore, Storages())
        begun = self.directory.begin_dump(Scope(self.database), EventLog(source.metastore).current_id)
        assert isinstance(begun, Dump)
        metadata = dump_bootstrap(source, begun, BootstrapDumpOptions(rule, observe), threading.Event())
        self.directory.finish_dump(begun, metadata)
        return begun

    def load(self, database: str = "", observe: Callable[[LoadStep], None] = lambda _: None) -> None:
        """Load the dump that is not loaded."""
        dump = self.directory.begin_load()
        assert isinstance(dump, Dump), dump
        self.load_last(database, observe)
        self.directory.finish_load(dump)

    def load_last(self, database: str = "", observe: Callable[[LoadStep], None] = lambda _: None) -> None:
        """Load the last dump, and do not mark it as loaded."""
        target = Cluster(self.replica.target.metastore, Storages())
        dump = self.directory.dumps()[-1]
        options = BootstrapLoadOptions(database or self.target, self.loading.external_base, observe=observe)
        metadata = self.directory.metadata(dump)
        load_bootstrap(target, dump, metadata, Copier(target.storages), options, threading.Event())

    def marks(self) -> dict[str, str]:
        """Return the properties of the target database."""
        found = find_database(self.replica.target.metastore, self.target)
        return dict(found.parameters) if found else {}

    def rows(self, *tables: str) -> dict[str, Rows]:
        """Return the rows on the target, by table."""
        return {table: read_rows(self.replica.target.metastore, TableName(self.target, table)) for table in tables}

    def run_process(self, side: str, step: Enum, count: int = 1) -> int:
        """Run a dump or a load in a process that kills itself after a step; return its exit code."""
        with self.process(side, step, count) as made:
            return made.wait(LIMIT)

    @contextmanager
    def process(
        self, side: str, step: Enum, count: int = 1, number: int = signal.SIGKILL
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Run a dump or a load in a process that sends itself the signal `number` after a step."""
        given = {
            "root": str(self.root),
            "database": self.database,
            "target": self.target,
            "source_uri": self.replica.source.uri,
            "target_uri": self.replica.target.uri,
            "external": self.loading.external_base,
            "step": step.value,
            "count": count,
            "signal": number,
        }
        with process("bootstrap_process", side, given) as made:
            yield made


def new_copying(replica: Replica, root: Path) -> Copying:
    """Create an empty source database."""
    made = Copying(replica, replica.name("here"), replica.name("there"), root)
    make_database(replica.source.metastore, made.database, {"team": "web", "repl.x": "not copied"})
    return made


def fill(copying: Copying) -> None:
    """Create tables of every kind with committed, aborted and open transactions; TABLES are their rows."""
    side, metastore = copying.replica.source, copying.replica.source.metastore
    names = {table: TableName(copying.database, table) for table in TABLES}
    for table, name in names.items():
        make_table(metastore, name, partitioned=table == "parted", parameters=INSERT_ONLY if table == "only" else ACID)
    insert(side, names["plain"], [(1, "a"), (2, "b")])
    abort(metastore, begin_with_copies(side, names["plain"]).id)
    insert(side, names["plain"], [(3, "a")])
    begin_with_copies(side, names["plain"])
    insert(side, names["parted"], [(1, "a"), (2, "b:c")], [(3, "a"), (4, "d")])
    abort(metastore, begin_with_copies(side, names["parted"], "day=a").id)
    insert(side, names["compacted"], [(1, "a"), (2, "b")])
    abort(metastore, begin_with_copies(side, names["compacted"]).id)
    compact(side, names["compacted"], write_id=2, of_write_id=1)
    insert(side, names["compacted"], [(9, "z")])
    abort(metastore, begin_locked(side, names["compacted"])[0].id)
    insert_into_insert_only(side, names["only"], [(5, "e"), (6, "f")])
    abort(metastore, begin_with_copies(side, names["only"]).id)


def same_write_ids(copying: Copying, table: str) -> bool:
    """Return whether both sides have the same write ids, once all transactions of the source have ended.

    On the target, aborted ids without rows count as valid.
    """
    source, target = (
        read_write_ids(side.metastore, [name], read_transactions(side.metastore))[name]
        for side, name in (
            (copying.replica.source, TableName(copying.database, table)),
            (copying.replica.target, TableName(copying.target, table)),
        )
    )
    same = (source.high_watermark, source.open) == (target.high_watermark, target.open)
    return same and target.aborted <= source.aborted
