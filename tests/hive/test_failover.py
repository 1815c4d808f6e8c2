"""Failover between two metastores that share a database."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from hive_metastore import ttypes

from ingestd.clock import Stopwatch, monotonic
from ingestd.errors import MetastoreUnavailable
from ingestd.hive.client import Metastore
from ingestd.sandbox.database import postgres as coordinates
from tests.support.metastore import Home, Process
from tests.support.postgres import postgres


@pytest.fixture(scope="module")
def pair(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Process]]:
    with postgres() as url:
        home = Home(tmp_path_factory.mktemp("pair"), coordinates(url))
        # A metastore fills several pools when it starts, and PostgreSQL accepts 100 connections.
        pool = {"datanucleus.connectionPool.maxPoolSize": "5"}
        made = [Process(home, name, pool) for name in ("first", "second")]
        try:
            for process in made:
                process.start()
            for process in made:
                process.wait()
            yield made
        finally:
            for process in made:
                process.stop()


@pytest.fixture
def both(pair: list[Process]) -> Iterator[list[Process]]:
    yield pair
    for process in pair:
        process.resume()


def _client(pair: list[Process], timeout_seconds: float = 20.0) -> Metastore:
    return Metastore(",".join(process.uri for process in pair), timeout_seconds=timeout_seconds)


def _port(metastore: Metastore) -> int:
    """Return the port that the next call uses."""
    return metastore.preferred_address[1]


def _open_transaction(metastore: Metastore) -> int:
    answer = metastore.call("open_txns", ttypes.OpenTxnRequest(1, "tests", "here"))
    return int(answer.txn_ids[0])


def test_call_when_one_metastore_hangs_then_only_the_current_call_is_delayed(both: list[Process]) -> None:
    first, second = both
    metastore = _client(both, timeout_seconds=2)
    metastore.call("get_all_databases")
    assert _port(metastore) == first.port
    first.pause()
    watch = Stopwatch()
    metastore.call("get_all_databases")
    watch.lap("current call")
    assert _port(metastore) == second.port
    metastore.call("get_all_databases")
    watch.lap("next call")
    assert watch.steps["current call"] > 1500
    assert watch.steps["next call"] < 1000
    metastore.close()


def test_call_when_one_metastore_hangs_then_calls_that_cannot_be_repeated_fail(
    both: list[Process],
) -> None:
    first, _ = both
    for pair, method in ((both, "open_txns"), ([first], "get_all_databases")):
        metastore = _client(pair, timeout_seconds=1)
        metastore.call("get_all_databases")
        assert _port(metastore) == first.port
        first.pause()
        arguments = [ttypes.OpenTxnRequest(1, "tests", "here")] if method == "open_txns" else []
        calls = metastore.calls
        try:
            with pytest.raises(MetastoreUnavailable, match=r"timed out|timeout"):
                metastore.call(method, *arguments)
            assert metastore.calls == calls + 1
        finally:
            first.resume()
            metastore.close()


def test_connect_when_the_first_metastore_hangs_then_the_second_is_used(both: list[Process]) -> None:
    first, second = both
    first.pause()
    metastore = _client(both, timeout_seconds=1)
    metastore.call("get_all_databases")
    assert _port(metastore) == second.port
    metastore.close()


def test_calls_when_the_metastores_stop_in_turn_then_all_threads_continue_on_the_one_that_runs(
    both: list[Process],
) -> None:
    """The last test of the module, because it leaves the second metastore stopped."""
    first, second = both
    metastore = _client(both)
    txn = _open_transaction(metastore)
    assert _port(metastore) == first.port
    ports: list[int] = []

    def work() -> None:
        limit = monotonic() + 30
        metastore.call("get_all_databases")
        while _port(metastore) == first.port and monotonic() < limit:
            metastore.call("get_all_databases")
        ports.append(_port(metastore))
        metastore.close()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    first.stop()
    metastore.call("heartbeat", ttypes.HeartbeatRequest(txnid=txn))
    assert _port(metastore) == second.port
    for thread in threads:
        thread.join(60)
    assert ports == [second.port] * 4

    second.stop()
    for _ in range(2):  # over a broken connection, and without a connection
        with pytest.raises(MetastoreUnavailable) as caught:
            metastore.call("get_all_databases")
    assert all(f"localhost:{process.port}" in str(caught.value) for process in both)

    first.start().wait()
    metastore.call("commit_txn", ttypes.CommitTxnRequest(txnid=txn))
    assert _port(metastore) == first.port
    metastore.close()
