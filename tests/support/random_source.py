"""A source database that changes at random, by statements, transactions and files of every kind.

Some tables keep an invariant that a reader of a copy can check at any time (`INVARIANT`, `assert_invariant`): each of
their transactions adds the same rows to `left_side` and `right_side`, or moves an amount between rows of `accounts`.
They are not compacted on the source, because a table that is copied as a whole may be ahead of other tables.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path
from typing import Any

import pyarrow as pa

from ingestd.acid.visibility import is_hidden
from ingestd.errors import InvalidTable
from ingestd.hive.client import Metastore
from ingestd.hive.compactions import CompactionRefused, Kind, request_compaction
from ingestd.hive.objects import (
    TableKind,
    TableObject,
    all_partition_names,
    find_database,
    find_partitions,
    find_table,
    table_names,
)
from ingestd.hive.tables import WHOLE_TABLE, TableName
from ingestd.storage.local import local_path
from ingestd.streaming import ArrowWriter, HiveStreamingConnection
from tests.support.replica import Replica
from tests.support.replica_rows import table_of
from tests.support.replica_statements import ACID, INSERT_ONLY

INVARIANT = (
    "SELECT l.n, l.s, r.n, r.s, a.n, a.s FROM (SELECT count(*) AS n, sum(id) AS s FROM {db}.left_side) l"
    " CROSS JOIN (SELECT count(*) AS n, sum(id) AS s FROM {db}.right_side) r"
    " CROSS JOIN (SELECT count(*) AS n, sum(v) AS s FROM {db}.accounts) a"
)
_ACCOUNTS = 4
_MOST_TABLES, _FEWEST_TABLES = 7, 3
_DAYS = ("a", "b", "c d", "e:f/g")
_NAMES = tuple(f"t{number}" for number in range(_MOST_TABLES))


def assert_invariant(answers: Sequence[tuple[Any, ...]]) -> None:
    """Assert that the answers of INVARIANT, in the order in which they were given, are states of the source."""
    for left, left_sum, right, right_sum, accounts, total in answers:
        assert (left, left_sum, accounts, total) == (right, right_sum, _ACCOUNTS, 0)
    counts = [answer[0] for answer in answers]
    assert counts == sorted(counts)


class _Kind(Enum):
    PLAIN = "plain"
    PARTED = "parted"
    ONLY = "only"
    EXTERNAL = "external"


_EVERY = tuple(_Kind)
_FULL = (_Kind.PLAIN, _Kind.PARTED)
_TRANSACTIONAL = (*_FULL, _Kind.ONLY)
_PARTITIONED = (_Kind.PARTED, _Kind.EXTERNAL)


class RandomSource:
    """The database `database` of the source, whose copy is the database `target`.

    `dice` decides everything. External tables are in `folder`. `done` describes the changes, with the time of each.
    """

    def __init__(self, replica: Replica, database: str, target: str, folder: Path, dice: random.Random) -> None:
        self._replica = replica
        self._database = database
        self._target = target
        self._folder = folder
        self._dice = dice
        self._kinds: dict[str, _Kind] = {}
        self._columns: dict[str, int] = {}
        self._next = 100
        self.done: list[str] = []
        self._held: HiveStreamingConnection | None = None
        # How often each change is made, and to tables of which kinds.
        self._changes: list[tuple[int, Callable[[str], None], tuple[_Kind, ...]]] = [
            (8, self._insert, _EVERY),
            (5, self._stream, _FULL),
            (3, self._update, _FULL),
            (3, self._delete, _FULL),
            (3, self._merge, _FULL),
            (2, self._overwrite, _TRANSACTIONAL),
            (2, self._overwrite_partition, _PARTITIONED),
            (2, self._truncate, _TRANSACTIONAL),
            (2, self._rename, _EVERY),
            (2, self._rename_partition, (_Kind.PARTED,)),
            (2, self._add_partition, _PARTITIONED),
            (2, self._drop_partition, _PARTITIONED),
            (2, self._add_column, _EVERY),
            (2, self._drop, _EVERY),
            (3, self._create, _EVERY),
            (4, self._compact, _TRANSACTIONAL),
            (4, self._compact_target, _EVERY),
            (3, self._change_files, (_Kind.EXTERNAL,)),
            (4, self._hold, _EVERY),
            (8, self._keep_invariant, _EVERY),
        ]

    def create(self) -> None:
        """Create the tables of the invariant, and one table of each kind."""
        for name in ("left_side", "right_side", "held"):
            self._run(f"CREATE TABLE {{db}}.{name} (id INT) {ACID}")
        self._run(f"CREATE TABLE {{db}}.accounts (id INT, v INT) {ACID}")
        rows = ", ".join(f"({number}, 0)" for number in range(_ACCOUNTS))
        self._run(f"INSERT INTO {{db}}.accounts VALUES {rows}")
        for kind in _Kind:
            self._create_table(kind)
            self._insert(list(self._kinds)[-1])

    def change(self) -> None:
        """Make one change."""
        possible = [
            (weight, act, [name for name, kind in self._kinds.items() if kind in kinds])
            for weight, act, kinds in self._changes
        ]
        weights = [weight if names else 0 for weight, _, names in possible]
        ((_, act, names),) = self._dice.choices(possible, weights)
        act(self._dice.choice(names))

    def end(self) -> None:
        """End the transaction that is open."""
        if self._held is not None:
            self._hold("")

    # --- rows

    def _insert(self, table: str) -> None:
        is_parted = self._kinds[table] in _PARTITIONED
        day = f", '{self._dice.choice(_DAYS)}'" if is_parted else ""
        rows = ", ".join(f"({self._id()}, {self._dice.randrange(100)}{day})" for _ in range(3))
        self._run(f"INSERT INTO {{db}}.{table} (id, v{', day' if is_parted else ''}) VALUES {rows}")

    def _stream(self, table: str) -> None:
        """Write transactions with the streaming API; some abort, and some are in a batch."""
        size = self._dice.choice((1, 1, 1, 2))
        self._note(f"stream a batch of {size} into {table}")
        with self._connection(table, size) as connection:
            for _ in range(size):
                connection.begin_transaction()
                columns: dict[str, list[Any]] = {"id": [self._id(), self._id()], "v": [1, 2]}
                if self._kinds[table] is _Kind.PARTED:
                    columns["day"] = self._dice.choices(_DAYS, k=2)
                connection.write(pa.table(columns))
                if self._dice.random() < 0.3:
                    connection.abort_transaction()
                else:
                    connection.commit_transaction()

    def _update(self, table: str) -> None:
        self._run(f"UPDATE {{db}}.{table} SET v = v + 1 WHERE id % 3 = {self._dice.randrange(3)}")

    def _delete(self, table: str) -> None:
        self._run(f"DELETE FROM {{db}}.{table} WHERE id % 5 = {self._dice.randrange(5)}")

    def _merge(self, table: str) -> None:
        old = self._dice.randrange(100, self._next)
        into, day = ("id, v, day", ", 'a'") if self._kinds[table] is _Kind.PARTED else ("id, v", "")
        self._run(
            f"MERGE INTO {{db}}.{table} AS t USING (SELECT stack(2, {old}, -1, {self._id()}, -2) AS (id, v)) AS s"
            f" ON t.id = s.id WHEN MATCHED AND s.id % 4 = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET v = s.v"
            f" WHEN NOT MATCHED THEN INSERT ({into}) VALUES (s.id, s.v{day})"
        )

    def _overwrite(self, table: str) -> None:
        partition = "PARTITION (day)" if self._kinds[table] is _Kind.PARTED else ""
        self._run(
            f"INSERT OVERWRITE TABLE {{db}}.{table} {partition} SELECT * FROM {{db}}.{table}"
            f" WHERE id % 4 <> {self._dice.randrange(4)}"
        )

    def _overwrite_partition(self, table: str) -> None:
        columns = ", ".join(["id", "v", *(f"c{number}" for number in range(self._columns[table]))])
        day = self._dice.choice(_DAYS)
        self._run(
            f"INSERT OVERWRITE TABLE {{db}}.{table} PARTITION (day='{day}') SELECT {columns} FROM {{db}}.{table}"
            f" WHERE day = '{day}' AND id % 4 <> {self._dice.randrange(4)}"
        )

    def _truncate(self, table: str) -> None:
        days = self._days(table)
        partition = f" PARTITION (day='{self._dice.choice(days)}')" if days else ""
        self._run(f"TRUNCATE TABLE {{db}}.{table}{partition}")

    def _hold(self, _: str) -> None:
        """Begin a transaction that stays open during other changes, or end the one that is open."""
        if self._held is None:
            self._note("open a transaction")
            self._held = self._connection("held", 1)
            self._held.begin_transaction()
            self._held.write(pa.table({"id": [self._id()]}))
            return
        is_aborted = self._dice.random() < 0.3
        self._note(f"{'abort' if is_aborted else 'commit'} the open transaction")
        if is_aborted:
            self._held.abort_transaction()
        else:
            self._held.commit_transaction()
        self._held.close()
        self._held = None

    def _keep_invariant(self, _: str) -> None:
        first, second = self._dice.sample(range(_ACCOUNTS), 2)
        if self._dice.random() < 0.5:
            amount = self._dice.randrange(1, 9)
            self._run(
                f"UPDATE {{db}}.accounts SET v = v + CASE WHEN id = {first} THEN {amount} ELSE -{amount} END"
                f" WHERE id IN ({first}, {second})"
            )
        else:
            self._run(
                f"FROM (SELECT stack(2, {self._id()}, {self._id()}) AS id) AS s"
                " INSERT INTO {db}.left_side SELECT id INSERT INTO {db}.right_side SELECT id"
            )

    # --- definitions

    def _rename(self, table: str) -> None:
        if free := self._free_names():
            name = self._dice.choice(free)
            self._run(f"ALTER TABLE {{db}}.{table} RENAME TO {{db}}.{name}")
            self._kinds[name], self._columns[name] = self._kinds.pop(table), self._columns.pop(table)

    def _rename_partition(self, table: str) -> None:
        found = self._days(table)
        free = [day for day in (*_DAYS, "h") if day not in found]
        if found and free:
            before, after = (f"PARTITION (day='{self._dice.choice(days)}')" for days in (found, free))
            self._run(f"ALTER TABLE {{db}}.{table} {before} RENAME TO {after}")

    def _add_partition(self, table: str) -> None:
        day = self._dice.choice(_DAYS)
        place = ""
        if self._kinds[table] is _Kind.EXTERNAL and self._dice.random() < 0.5:
            place = f" LOCATION 'file:{self._folder}/outside{self._id()}'"
        self._run(f"ALTER TABLE {{db}}.{table} ADD IF NOT EXISTS PARTITION (day='{day}'){place}")

    def _drop_partition(self, table: str) -> None:
        if days := self._days(table):
            self._run(f"ALTER TABLE {{db}}.{table} DROP PARTITION (day='{self._dice.choice(days)}')")

    def _add_column(self, table: str) -> None:
        cascade = " CASCADE" if self._kinds[table] in _PARTITIONED else ""
        self._run(f"ALTER TABLE {{db}}.{table} ADD COLUMNS (c{self._columns[table]} INT){cascade}")
        self._columns[table] += 1

    def _create(self, _: str) -> None:
        if self._free_names():
            self._create_table(self._dice.choice(_EVERY))

    def _create_table(self, kind: _Kind) -> None:
        name = self._dice.choice(self._free_names())
        parted = " PARTITIONED BY (day STRING)" if kind in _PARTITIONED else ""
        if kind is _Kind.EXTERNAL:
            place = f"STORED AS ORC LOCATION 'file:{self._folder}/external{self._id()}'"
            self._run(f"CREATE EXTERNAL TABLE {{db}}.{name} (id INT, v INT){parted} {place}")
        elif kind is not _Kind.PARTED and self._dice.random() < 0.4:
            properties = INSERT_ONLY if kind is _Kind.ONLY else ACID
            self._run(f"CREATE TABLE {{db}}.{name} {properties} AS SELECT id, v FROM {{db}}.accounts")
        else:
            self._run(
                f"CREATE TABLE {{db}}.{name} (id INT, v INT){parted} {INSERT_ONLY if kind is _Kind.ONLY else ACID}"
            )
        self._kinds[name], self._columns[name] = kind, 0

    def _drop(self, table: str) -> None:
        if len(self._kinds) > _FEWEST_TABLES:
            self._run(f"DROP TABLE {{db}}.{table}")
            del self._kinds[table], self._columns[table]

    # --- compactions and files

    def _compact(self, table: str) -> None:
        metastore = self._replica.source.metastore
        self._request(metastore, table_of(metastore, TableName(self._database, table)))

    def _compact_target(self, _: str) -> None:
        """Compact a table of the copy, if it has one: also one of the invariant."""
        metastore = self._replica.target.metastore
        if find_database(metastore, self._target) is None:
            return
        tables = (find_table(metastore, TableName(self._target, name)) for name in table_names(metastore, self._target))
        if full := [table for table in tables if table is not None and table.kind is TableKind.FULL_ACID]:
            with suppress(InvalidTable):  # a load has dropped or renamed it meanwhile
                self._request(metastore, self._dice.choice(full))

    def _request(self, metastore: Metastore, table: TableObject) -> None:
        partitions = [WHOLE_TABLE]
        if table.partition_columns:
            partitions = sorted(all_partition_names(metastore, table.name))
        if not partitions:
            return
        partition = self._dice.choice(partitions)
        kind: Kind = self._dice.choice(("minor", "major"))
        self._note(f"{kind} compaction of {table.name} {partition}")
        with suppress(CompactionRefused):  # the previous one has not ended
            request_compaction(metastore, table.name, partition, kind, "tests")

    def _change_files(self, table: str) -> None:
        """Copy, replace or delete a file of an external table."""
        root = local_path(table_of(self._replica.source.metastore, TableName(self._database, table)).location)
        files = sorted(path for path in root.rglob("*") if path.is_file() and not is_hidden(path.name))
        if not files:
            return
        file, other = self._dice.choice(files), self._dice.choice(files)
        change = self._dice.choice(("copy", "replace", "delete"))
        self._note(f"{change} {file}")
        if change == "copy":
            shutil.copy(file, file.with_name(f"copy{self._id()}"))
        elif change == "delete":
            file.unlink()
        elif other != file:
            # Hadoop's local file system keeps a checksum in a file beside it, which would no longer fit.
            file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
            shutil.copy(other, file)

    # --- names and statements

    def _note(self, change: str) -> None:
        self.done.append(f"{datetime.now(timezone.utc):%H:%M:%S} {change}")

    def _run(self, statement: str) -> None:
        self._note(statement)
        self._replica.source.sql(statement.replace("{db}", self._database))

    def _connection(self, table: str, size: int) -> HiveStreamingConnection:
        return HiveStreamingConnection(
            database=self._database,
            table=table,
            metastore_uri=self._replica.source.uri,
            record_writer=ArrowWriter(),
            transaction_batch_size=size,
        )

    def _id(self) -> int:
        self._next += 1
        return self._next

    def _free_names(self) -> list[str]:
        return [name for name in _NAMES if name not in self._kinds]

    def _days(self, table: str) -> list[str]:
        """Return the values of the partitions of a table; none if it has no partitions."""
        metastore, name = self._replica.source.metastore, TableName(self._database, table)
        if not table_of(metastore, name).partition_columns:
            return []
        names = all_partition_names(metastore, name)
        return sorted(partition.values[0] for partition in find_partitions(metastore, name, names))
