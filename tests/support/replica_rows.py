"""Writes rows to tables of a replication test, and reads them as a Hive query would, without HiveServer2."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyarrow import orc

from ingestd.acid.layout import batch_delta_name, bucket_property, delta_name
from ingestd.acid.visibility import ValidWriteIds, is_hidden, visible_directories
from ingestd.clock import Deadline
from ingestd.hive.client import Metastore
from ingestd.hive.objects import TableKind, TableObject, all_partition_names, find_partitions, find_table
from ingestd.hive.tables import TableName
from ingestd.hive.transactions import (
    Transaction,
    Wait,
    WriteLock,
    abort,
    abort_all,
    begin,
    begin_batch,
    begin_writing,
    commit,
    describe_transactions,
    lock,
    register_partitions,
)
from ingestd.hive.write_ids import committed_transactions, read_snapshot
from ingestd.storage.contract import child
from ingestd.storage.local import LocalStorage, local_path
from ingestd.streaming import ArrowWriter, HiveStreamingConnection
from tests.support.patience import LIMIT
from tests.support.replica import Side
from tests.support.stack import eventually

Rows = list[tuple[int, str]]


def table_of(metastore: Metastore, name: TableName) -> TableObject:
    """Return an existing table."""
    found = find_table(metastore, name)
    assert found is not None
    return found


def insert(side: Side, name: TableName, *transactions: Rows) -> None:
    """Write rows to a full ACID table, in one transaction for each argument."""
    with _connection(side, name, batch_size=1) as connection:
        for rows in transactions:
            connection.begin_transaction()
            connection.write(_table(rows))
            connection.commit_transaction()


def insert_batch(side: Side, name: TableName, *transactions: Rows, aborted: Collection[int]) -> None:
    """Write rows to a full ACID table in a batch of transactions, which announces its files.

    `aborted` contains the positions of the transactions that abort.
    """
    with _connection(side, name, len(transactions)) as connection:
        for at, rows in enumerate(transactions):
            connection.begin_transaction()
            connection.write(_table(rows))
            if at in aborted:
                connection.abort_transaction()
            else:
                connection.commit_transaction()


def _connection(side: Side, name: TableName, batch_size: int) -> HiveStreamingConnection:
    return HiveStreamingConnection(
        database=name.database,
        table=name.table,
        metastore_uri=side.uri,
        record_writer=ArrowWriter(),
        transaction_batch_size=batch_size,
    )


def _table(rows: Rows) -> pa.Table:
    return pa.table({"id": [row for row, _ in rows], "day": [day for _, day in rows]})


def insert_into_insert_only(side: Side, name: TableName, rows: Rows) -> None:
    """Write rows to an unpartitioned insert-only table, in one transaction."""
    txn, write_id = begin_writing(side.metastore, name, "test")
    directory = local_path(child(table_of(side.metastore, name).location, delta_name(write_id, 0)))
    directory.mkdir()
    orc.write_table(_table(rows), directory / "000000_0")
    commit(side.metastore, txn)


def write_batch(
    side: Side, name: TableName, rows: Sequence[Rows], aborted: Collection[int], partition: str = ""
) -> None:
    """Write rows to a full ACID table in a batch of transactions, whose rows are in one file (Hive Streaming).

    `aborted` contains the positions of the transactions in `rows` that abort.
    """
    batch = begin_batch(side.metastore, name, "test", len(rows))
    first, last = batch[0][1], batch[-1][1]
    directory = local_path(child(table_of(side.metastore, name).location, *filter(None, [partition])))
    directory = directory / batch_delta_name(first, last, 0)
    directory.mkdir(parents=True)
    table = pa.Table.from_pylist(
        [
            {
                "operation": 0,
                "originalTransaction": write_id,
                "bucket": bucket_property(0, 0),
                "rowId": number,
                "currentTransaction": write_id,
                "row": {"id": row[0]} if partition else {"id": row[0], "day": row[1]},
            }
            for (_, write_id), some in zip(batch, rows, strict=True)
            for number, row in enumerate(some)
        ]
    )
    orc.write_table(table, directory / "bucket_00000")
    for at, (txn, write_id) in enumerate(batch):
        if partition:
            register_partitions(side.metastore, txn, name, write_id, [partition])
        else:
            _lock(side, txn, name)
        if at in aborted:
            abort(side.metastore, txn.id)
        else:
            commit(side.metastore, txn)


def _lock(side: Side, txn: Transaction, name: TableName, partition: str = "") -> None:
    wait = Wait(Deadline.after(LIMIT), threading.Event())
    lock(side.metastore, txn, [WriteLock(name, partition=partition)], wait=wait)


def begin_locked(side: Side, name: TableName, partition: str = "") -> tuple[Transaction, int]:
    """Open a transaction that locks a table or a partition, as every writer does; return it with its write id.

    If it aborts, HMS remembers its write id; it forgets aborted transactions without locks in a few seconds.
    """
    txn, write_id = begin_writing(side.metastore, name, "test")
    _lock(side, txn, name, partition)
    return txn, write_id


def forget_aborted_transactions(metastore: Metastore) -> None:
    """Wait until HMS has forgotten the aborted transactions without locks; it keeps the newest transaction."""
    first, last = begin(metastore, "test"), begin(metastore, "test")
    abort_all(metastore, [first.id, last.id])
    eventually(
        "the cleaning", lambda: first.id not in {transaction.id for transaction in describe_transactions(metastore)}
    )


def begin_with_copies(side: Side, name: TableName, partition: str = "", of_write_id: int = 1) -> Transaction:
    """Open a transaction whose delta contains the files of an earlier write id, and leave it open."""
    txn, write_id = begin_locked(side, name, partition)
    table = table_of(side.metastore, name)
    location = local_path(child(table.location, *filter(None, [partition])))
    shutil.copytree(location / delta_name(of_write_id, 0), location / delta_name(write_id, 0))
    return txn


def delete_like(side: Side, name: TableName, write_id: int) -> str:
    """Write a delete delta with as many events as an earlier delta has rows; return its name."""
    txn, its_id = begin_locked(side, name)
    location = local_path(table_of(side.metastore, name).location)
    deletes = f"delete_{delta_name(its_id, 0)}"
    shutil.copytree(location / delta_name(write_id, 0), location / deletes)
    commit(side.metastore, txn)
    return deletes


def compact(side: Side, name: TableName, write_id: int, of_write_id: int) -> None:
    """Put the base of a compaction in place of one delta: `base_N_vT`, named after `write_id`, and remove the delta."""
    txn = begin(side.metastore, "compaction")
    location = local_path(table_of(side.metastore, name).location)
    delta = location / delta_name(of_write_id, 0)
    delta.rename(location / f"base_{write_id:07d}_v{txn.id:07d}")
    commit(side.metastore, txn)


def read_rows(metastore: Metastore, name: TableName) -> Rows:
    """Return the rows that a query reads, sorted."""
    table = table_of(metastore, name)
    ids, is_committed = read_snapshot(metastore, name), committed_transactions(metastore)
    found: Rows = []
    for location, day in _locations(metastore, table):
        for file in _files(table, location, ids, is_committed):
            found += _rows(file, table.kind, ids, day)
    return sorted(found)


def _locations(metastore: Metastore, table: TableObject) -> Iterator[tuple[str, str | None]]:
    if not table.partition_columns:
        yield table.location, None
        return
    for partition in find_partitions(metastore, table.name, all_partition_names(metastore, table.name)):
        yield partition.location, partition.values[0]


def _files(
    table: TableObject, location: str, ids: ValidWriteIds, is_committed: Callable[[int], bool]
) -> Iterator[Path]:
    root = local_path(location)
    if not table.kind.is_transactional:
        yield from (path for path in sorted(root.rglob("*")) if path.is_file() and not is_hidden(path.name))
        return
    names = [entry.name for entry in LocalStorage().entries(location)]
    seen = visible_directories(names, ids, is_committed)
    assert not seen.delete_deltas, "this reader knows only inserts"
    for directory in [*([seen.base.name] if seen.base else []), *(delta.name for delta in seen.deltas)]:
        yield from sorted(path for path in (root / directory).iterdir() if not is_hidden(path.name))


def _rows(file: Path, kind: TableKind, ids: ValidWriteIds, day: str | None) -> Rows:
    content = orc.read_table(file)
    if kind is TableKind.FULL_ACID:
        valid = [ids.is_valid(number.as_py()) for number in content["currentTransaction"]]
        content = pa.Table.from_pylist(
            [row for row, kept in zip(content["row"].to_pylist(), valid, strict=True) if kept]
        )
    days: Sequence[str] = [day] * len(content) if day is not None else content["day"].to_pylist()
    return list(zip(content["id"].to_pylist(), days, strict=True))
