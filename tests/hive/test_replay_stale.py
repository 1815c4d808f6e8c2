"""A source transaction whose transaction on the target is gone is opened again, and one ended by others is noticed.

The state is made by a metastore for which each opening of a transaction takes too long: it deletes the transaction that
it has opened, and keeps its mapping.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from hive_metastore import ttypes

from ingestd.errors import BootstrapRequired, MetastoreUnavailable
from ingestd.hive.client import Metastore
from ingestd.hive.replay import AGENT, INCOMPATIBLE, LAST_ID, Allocation, Replay
from ingestd.hive.tables import TableName
from ingestd.hive.transactions import abort_all, describe_transactions
from ingestd.hive.write_ids import read_snapshot
from ingestd.sandbox.release import with_events
from tests.support.metastore import Home, metastore
from tests.support.tables import make_table

_OPEN = ttypes.TxnState.OPEN
MAPPED, FINISHED = Allocation.MAPPED, Allocation.FINISHED
_HASTY = {"metastore.txn.opentxn.timeout": "0ms", "metastore.hmshandler.retry.interval": "1ms"}


_DATABASES = 7
_STALE = 901
"""The source transaction whose mapping is stale in each database."""


@pytest.fixture(scope="module")
def target(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Metastore]:
    home = Home(tmp_path_factory.mktemp("stale") / "home", release=with_events())
    with metastore(home, "hasty", _HASTY) as process, closing(Metastore(process.uri)) as client:
        for number in range(_DATABASES):
            _make_database(client, TableName(f"stale_{number}", "t"))
        process.stop()
        process.properties.clear()
        process.start().wait()
        yield client


def _make_database(hasty: Metastore, table: TableName) -> None:
    hasty.call("create_database", ttypes.Database(name=table.database, parameters={LAST_ID: "1"}))
    make_table(hasty, table)
    with pytest.raises(MetastoreUnavailable):
        _replay(hasty, table).allocate(_STALE, table, 1)
    assert _replay(hasty, table).open_transactions == frozenset()


@pytest.fixture(scope="module")
def tables() -> Iterator[TableName]:
    return (TableName(f"stale_{number}", "t") for number in range(_DATABASES))


@pytest.fixture
def table(target: Metastore, tables: Iterator[TableName]) -> TableName:
    """Return a table without write ids, in a database of its own."""
    return next(tables)


def _replay(metastore: Metastore, table: TableName) -> Replay:
    return Replay(metastore, table.database, accepts_gaps=lambda _: False)


def _agents(metastore: Metastore, table: TableName) -> dict[str, int]:
    """Return the agents of the open transactions of a database, and the ids of these."""
    agents = {str(txn.hostname): int(txn.id) for txn in describe_transactions(metastore) if txn.state == _OPEN}
    return {agent: txn_id for agent, txn_id in agents.items() if agent.endswith(f"/{table.database}")}


def _attempt(metastore: Metastore, table: TableName, txn_id: int) -> int:
    """Return the attempt of the only open transaction, that of `txn_id`. A slow metastore causes further attempts."""
    [agent] = _agents(metastore, table)
    *names, attempt, _ = agent.split("/")
    assert names == [AGENT, str(txn_id)]
    return int(attempt)


def _valid(metastore: Metastore, table: TableName, last: int) -> list[int]:
    snapshot = read_snapshot(metastore, table)
    return [write_id for write_id in range(1, last + 1) if snapshot.is_valid(write_id)]


def _database(metastore: Metastore, table: TableName) -> dict[str, str]:
    return dict(metastore.call("get_database", table.database).parameters)


def test_transaction_when_the_metastore_has_deleted_it_then_opened_again_and_known_after_a_restart(
    target: Metastore, table: TableName
) -> None:
    assert _replay(target, table).allocate(_STALE, table, 1) is MAPPED
    assert _attempt(target, table, _STALE) >= 1
    to = _replay(target, table)
    assert to.open_transactions == {_STALE}
    assert to.allocate(_STALE, table, 1) is MAPPED
    assert to.allocate(7, table, 2) is MAPPED
    assert _valid(target, table, 2) == []
    to = _replay(target, table)
    to.commit(_STALE, [], 10)
    to.abort(7)
    assert _database(target, table)[LAST_ID] == "10"
    assert _valid(target, table, 2) == [1]
    assert _agents(target, table) == {}
    to = _replay(target, table)
    assert [to.allocate(_STALE, table, 1), to.allocate(7, table, 2)] == [FINISHED, FINISHED]
    assert to.highest_write_id(table) == 2


def test_transaction_when_another_load_opens_it_again_then_its_attempt_has_another_number(
    target: Metastore, table: TableName
) -> None:
    attempts = set()
    for write_id in (1, 2, 3):
        to = _replay(target, table)
        assert to.allocate(_STALE, table, write_id) is MAPPED
        attempts.add(_attempt(target, table, _STALE))
        to.abort(_STALE)
    assert len(attempts) == 3
    assert 0 not in attempts
    assert _agents(target, table) == {}
    assert INCOMPATIBLE not in _database(target, table)


@pytest.mark.parametrize("stale", [1, 3, 5])
def test_ids_when_allocated_ahead_and_a_transaction_has_vanished_then_each_transaction_has_its_own(
    target: Metastore, table: TableName, stale: int
) -> None:
    txn_ids = {write_id: _STALE if write_id == stale else write_id for write_id in range(1, 6)}
    following = [(txn_id, write_id) for write_id, txn_id in txn_ids.items()]
    to = _replay(target, table)
    for write_id, txn_id in txn_ids.items():
        assert to.allocate(txn_id, table, write_id, following[write_id:]) is MAPPED
    assert len(_agents(target, table)) == 5
    order = (3, 5, 1, 4, 2)
    for count, write_id in enumerate(order, 1):
        to = _replay(target, table)
        assert to.allocate(txn_ids[write_id], table, write_id) is MAPPED
        to.commit(txn_ids[write_id], [], 10 + count)
        assert _valid(target, table, 5) == sorted(order[:count])
    assert _agents(target, table) == {}


@pytest.mark.parametrize("event", [9, 15])
def test_commit_when_another_client_has_ended_the_transaction_then_reported_and_nothing_is_stored(
    target: Metastore, table: TableName, event: int
) -> None:
    database = target.call("get_database", table.database)
    database.parameters = {"aaa": "15", LAST_ID: "3"}  # HMS does not store an id that is the value of another property
    target.call("alter_database", table.database, database)
    to = _replay(target, table)
    assert to.allocate(5, table, 1) is MAPPED
    abort_all(target, list(_agents(target, table).values()))
    with pytest.raises(BootstrapRequired, match="was ended by another client"):
        to.commit(5, [], event)
    assert _valid(target, table, 1) == []
    properties = _database(target, table)
    assert (properties[LAST_ID], properties[INCOMPATIBLE]) == ("3", "true")
