"""One transaction that writes two tables: both become visible with one commit, or neither does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pytest

from ingestd.acid.layout import parse_directory
from ingestd.acid.writer_pool import StagingFiles, WriterPool
from ingestd.clock import Deadline
from ingestd.errors import CommitOutcomeUnknown, IngestdError, TransactionAborted
from ingestd.hive import transactions
from ingestd.hive.client import Metastore
from ingestd.hive.tables import Table, TableName, load_acid_table, read_table
from ingestd.hive.transactions import Transaction
from ingestd.hive.write_ids import is_committed
from ingestd.publish import staging
from ingestd.publish.deltas import StagedFiles
from ingestd.publish.outcome import CommitRequest
from ingestd.publish.protocol import Observer, Publication, TableWrite, publish
from ingestd.publish.row_counts import RowCounts
from ingestd.publish.staging import Staging
from ingestd.publish.warehouse import Warehouse
from ingestd.storage.local import local_path
from ingestd.storage.storages import Storages
from tests.support.counters import number
from tests.support.patience import LIMIT
from tests.support.proxy import Proxy, proxy
from tests.support.stack import Stack
from tests.support.tables import make_table, visible_ids

STEPS = ["registered", "placed", "announced", "counted", "committed"]
DAY = "2026-11-01"


class _NoReport:
    """Ignores reports about row counts."""

    def repaired(self, table: TableName, names: Sequence[str]) -> None: ...

    def delayed(self, table: TableName, error: IngestdError) -> None: ...


@dataclass
class Case:
    """An open transaction with staged rows: ids 0 to 9 for `plain`, 10 to 14 for the partitioned table `by_day`."""

    metastore: Metastore
    between: Proxy
    txn: Transaction
    plain: TableWrite
    by_day: TableWrite

    def publish(
        self, observe: Observer = lambda _step: None, has_committed: Callable[[], bool] | None = None
    ) -> dict[TableName, Publication]:
        ask = has_committed or partial(is_committed, self.metastore, self.txn.id)
        request = CommitRequest(ask, lambda _error, _seconds: None)
        return publish(Warehouse(self.metastore, Storages()), self.txn, [self.plain, self.by_day], request, observe)

    def deltas(self) -> list[str]:
        """Return the names of the delta directories of both tables."""
        places = [local_path(write.table.location) for write in (self.plain, self.by_day)]
        found = [path.name for place in places for path in place.rglob("delta_*") if path.is_dir()]
        return [name for name in found if parse_directory(name)]


def _staged(metastore: Metastore, txn: Transaction, table: Table, ids: range) -> TableWrite:
    write_id = transactions.allocate(metastore, txn, table.name)
    storages = Storages()
    own = Staging(storages, storages.location(table.location), staging.DAEMON, str(txn.id))
    staged = StagingFiles(own.storage.outbox(own.make(), "task"), table.columns, write_id)
    pool = WriterPool(staged)
    rows = pa.record_batch({"id": pa.array(ids, pa.int32()), "note": pa.array([None] * len(ids), pa.string())})
    pool.add((DAY,) if table.partition_columns else (), 0, rows)
    pool.close()
    counts = RowCounts(Warehouse(metastore, Storages()), table.name, f"tests.{txn.id}", _NoReport())
    return TableWrite(table, write_id, own.location, StagedFiles(staged.closed, own), counts)


@pytest.fixture
def case(stack: Stack) -> Iterator[Case]:
    names = [TableName("default", f"{stack.name}_{suffix}") for suffix in ("plain", "day")]
    for name in names:
        make_table(stack.metastore, name, partitioned=name is names[1])
    with proxy(stack.addresses.metastore) as between, closing(Metastore(between.uri)) as metastore:
        txn = transactions.begin(metastore, f"tests/{stack.name}")
        plain, by_day = (load_acid_table(metastore, name) for name in names)
        writes = _staged(metastore, txn, plain, range(10)), _staged(metastore, txn, by_day, range(10, 15))
        locks = [transactions.WriteLock(plain.name), transactions.WriteLock(by_day.name, dynamic=True)]
        wait = transactions.Wait(Deadline.after(LIMIT), threading.Event())
        assert transactions.lock_against_overwrites(metastore, txn, locks, wait=wait)
        yield Case(metastore, between, txn, *writes)
        transactions.abort(stack.metastore, txn.id)
        for write in writes:
            write.counts.close(Deadline.after(LIMIT), threading.Event())


def _visible(case: Case) -> list[list[int]]:
    return [visible_ids(case.metastore, write.table.name) for write in (case.plain, case.by_day)]


def test_two_tables_when_published_then_both_are_visible_with_one_commit(stack: Stack, case: Case) -> None:
    steps: list[str] = []
    seen: dict[str, list[list[int]]] = {}

    def observe(step: str) -> None:
        steps.append(step)
        seen[step] = _visible(case)

    done = case.publish(observe)

    assert steps == STEPS
    assert seen["counted"] == [[], []]
    assert seen["committed"] == [list(range(10)), list(range(10, 15))]
    assert case.between.calls["commit_txn"] == 1
    assert [len(done[write.table.name].deltas) for write in (case.plain, case.by_day)] == [1, 1]
    assert not any(publication.hidden for publication in done.values())
    assert number(stack, table=case.plain.table.name.table) == 10
    assert number(stack, f"day={DAY}", case.by_day.table.name.table) == 5
    for write in (case.plain, case.by_day):
        assert not list((local_path(write.table.location) / staging.DAEMON).iterdir())


@pytest.mark.parametrize("step", STEPS[1:4])
def test_two_tables_when_a_step_before_the_commit_fails_then_the_files_of_both_are_withdrawn(
    case: Case, step: str
) -> None:
    placed: list[str] = []

    def fail(reached: str) -> None:
        if reached == step:
            placed.extend(case.deltas())
            raise TransactionAborted("by the test")

    with pytest.raises(TransactionAborted, match="by the test"):
        case.publish(fail)

    assert len(placed) == 2
    assert case.deltas() == []
    assert "commit_txn" not in case.between.calls
    assert _visible(case) == [[], []]


def test_two_tables_when_the_files_of_one_cannot_be_placed_then_those_of_the_other_are_withdrawn(case: Case) -> None:
    """Tables are placed in the order of their names: `…_day`, then `…_plain`."""
    case.plain.files.discard()

    with pytest.raises(TransactionAborted, match="staged files were removed"):
        case.publish()

    assert case.deltas() == []
    assert _visible(case) == [[], []]


def test_transaction_when_it_has_ended_then_nothing_is_placed(stack: Stack, case: Case) -> None:
    transactions.abort(stack.metastore, case.txn.id)
    steps: list[str] = []

    with pytest.raises(TransactionAborted, match=r"has ended|abort"):
        case.publish(steps.append)

    assert "placed" not in steps
    assert case.deltas() == []


def test_commit_when_its_outcome_stays_unknown_then_the_files_stay(case: Case) -> None:
    def has_committed() -> bool:
        raise CommitOutcomeUnknown("the metastore cannot tell")

    case.between.lose_answer("commit_txn")
    with pytest.raises(CommitOutcomeUnknown):
        case.publish(has_committed=has_committed)

    assert len(case.deltas()) == 2
    assert _visible(case) == [list(range(10)), list(range(10, 15))]  # it had committed


def test_transaction_without_rows_when_published_then_only_its_key_value_is_stored(stack: Stack, case: Case) -> None:
    """The daemon stores a mapping's first position in this way."""
    key = "_meta.position"
    raw = read_table(stack.metastore, case.plain.table.name)
    raw.parameters[key] = " "
    stack.metastore.call("alter_table", raw.dbName, raw.tableName, raw)
    key_value = transactions.KeyValue(raw.id, key, "7")
    request = CommitRequest(lambda: False, lambda _error, _seconds: None, key_value=key_value)

    assert publish(Warehouse(case.metastore, Storages()), case.txn, [], request) == {}

    assert read_table(stack.metastore, case.plain.table.name).parameters[key] == "7"
    assert _visible(case) == [[], []]
