"""Staging directories of ended transactions are removed; a transaction without its directory is aborted."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from ingestd.acid.writer_pool import StagingFiles, WriterPool
from ingestd.errors import StorageUnavailable, TransactionAborted
from ingestd.hive import transactions
from ingestd.hive.partitions import PartitionInfo
from ingestd.hive.tables import WHOLE_TABLE, Table, TableName, load_acid_table
from ingestd.hive.transactions import Transaction
from ingestd.publish import deltas, staging
from ingestd.publish.deltas import StagedFiles
from ingestd.publish.staging import Staging
from ingestd.publish.warehouse import Warehouse
from ingestd.schema import Column, HiveType
from ingestd.storage.contract import StagedDelta, child
from ingestd.storage.local import LocalLocation, local_path
from ingestd.storage.storages import Storages
from tests.support.stack import Stack
from tests.support.tables import make_table

COLUMNS = (Column("id", HiveType.parse("int")), Column("note", HiveType.parse("string")))


@pytest.fixture
def table(stack: Stack) -> Table:
    name = TableName("default", stack.name)
    make_table(stack.metastore, name)
    return load_acid_table(stack.metastore, name)


def _begin(stack: Stack, table: Table) -> tuple[Transaction, int]:
    return transactions.begin_writing(stack.metastore, table.name, "tests")


def test_sweep_when_transactions_have_ended_then_only_their_directories_are_removed(stack: Stack, table: Table) -> None:
    location, warehouse = LocalLocation.of(table.location), Warehouse(stack.metastore, Storages())
    (aborted, write_id), (committed, _), (living, living_id) = (_begin(stack, table) for _ in range(3))
    transactions.abort(stack.metastore, aborted.id)
    transactions.commit(stack.metastore, committed)
    calls = stack.metastore.calls
    assert staging.sweep(warehouse, table) == []
    assert stack.metastore.calls == calls
    gone = [
        (staging.DAEMON, str(aborted.id)),
        (staging.STREAMING, str(committed.id)),
        (staging.STREAMING, f"w{write_id}-0"),
        (staging.DAEMON, "an earlier mapping", str(aborted.id)),
    ]
    kept = [
        (staging.DAEMON, str(living.id)),
        (staging.DAEMON, str(living.id + 1_000_000)),
        (staging.STREAMING, f"w{living_id}-1"),
        (staging.STREAMING, "notes"),
    ]
    for parts in (*gone, *kept):
        Path(location.make_directory(*parts), "file").touch()

    removed = staging.sweep(warehouse, table)

    assert sorted(removed) == sorted(child(table.location, *parts) for parts in gone)
    assert all(location.path.joinpath(*parts, "file").exists() for parts in kept)
    transactions.abort(stack.metastore, living.id)


def test_place_when_the_next_owner_removed_the_staged_files_then_transaction_aborted_and_nothing_is_left(
    stack: Stack, table: Table
) -> None:
    txn, write_id = _begin(stack, table)
    storages = Storages()
    own = Staging(storages, storages.location(table.location), staging.DAEMON, str(txn.id))
    staged = StagingFiles(own.storage.outbox(own.make(), "task"), COLUMNS, write_id)
    pool = WriterPool(staged)
    pool.add((), 0, pa.record_batch({"id": pa.array([1], pa.int32()), "note": ["x"]}))
    pool.close()
    transactions.abort(stack.metastore, txn.id)
    staging.sweep(Warehouse(stack.metastore, Storages()), table)
    partitions = {WHOLE_TABLE: PartitionInfo(WHOLE_TABLE, table.location, existed=True)}

    with pytest.raises(TransactionAborted, match="staged files were removed"):
        StagedFiles(staged.closed, own).place(table, write_id, partitions)
    with pytest.raises(TransactionAborted, match="has ended the transaction"):
        deltas.check_alive(stack.metastore, txn)
    assert not list(local_path(own.location.uri).glob("delta_*"))


def test_location_when_another_directory_has_replaced_it_then_nothing_is_written(tmp_path: Path) -> None:
    place = tmp_path / "table"
    place.mkdir()
    location = LocalLocation.of(f"file:{place}")
    place.rename(tmp_path / "moved")
    with pytest.raises(StorageUnavailable, match="does not exist"):
        location.make_directory("below")
    place.mkdir()
    for step in (location.check, location.names, lambda: location.make_directory("below")):
        with pytest.raises(StorageUnavailable, match="another directory has replaced"):
            step()
    with pytest.raises(StorageUnavailable, match="another directory has replaced"):
        location.receive(tmp_path / "moved", StagedDelta(location, "delta", {}, {}, "", ".delta"))
    assert list(place.iterdir()) == []
