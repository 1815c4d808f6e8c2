"""Failover between two metastores that share a database."""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hive_metastore import ttypes

from ingestd.clock import Deadline, Stopwatch, monotonic, pause
from ingestd.errors import MetastoreUnavailable
from ingestd.hive.client import Metastore
from ingestd.hive.tables import Table, TableName, load_acid_table
from ingestd.hive.transactions import open_transactions
from ingestd.publish.deltas import create_partitions
from ingestd.sandbox import Addresses
from ingestd.sandbox.database import postgres as coordinates
from ingestd.storage.local import LocalLocation
from tests.support.daemon import Daemon
from tests.support.flow import Flow, proceed, rows, wait_for_rows
from tests.support.metastore import Home, Process
from tests.support.patience import LIMIT
from tests.support.postgres import postgres
from tests.support.stack import Stack, eventually
from tests.support.tables import make_table, visible_ids

# Short, because tests wait for it. The metastore that does not hang answers faster, even on a busy machine.
_TIMEOUT_SECONDS = 10.0


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
    metastore = _client(both, timeout_seconds=_TIMEOUT_SECONDS)
    metastore.call("get_all_databases")
    assert _port(metastore) == first.port
    first.pause()
    watch = Stopwatch()
    metastore.call("get_all_databases")
    watch.lap("current call")
    assert watch.steps["current call"] > _TIMEOUT_SECONDS * 900
    assert _port(metastore) == second.port
    sent = metastore.calls
    metastore.call("get_all_databases")
    assert metastore.calls == sent + 1  # and not first to the metastore that hangs
    metastore.close()


def test_call_when_one_metastore_hangs_then_calls_that_cannot_be_repeated_fail(
    both: list[Process],
) -> None:
    first, _ = both
    for pair, method in ((both, "open_txns"), ([first], "get_all_databases")):
        metastore = _client(pair, timeout_seconds=_TIMEOUT_SECONDS)
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
    metastore = _client(both, timeout_seconds=_TIMEOUT_SECONDS)
    metastore.call("get_all_databases")
    assert _port(metastore) == second.port
    metastore.close()


@pytest.mark.parametrize("rounds", [1, pytest.param(20, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])])
def test_daemon_when_the_metastores_are_killed_or_suspended_in_turn_then_every_id_arrives_once(
    both: list[Process], addresses: Addresses, tmp_path: Path, rounds: int
) -> None:
    uri = ",".join(process.uri for process in both)
    with Stack(replace(addresses, metastore=uri), f"failover_{rounds}", tmp_path) as stack:
        stack.topic(2)
        name = TableName("default", stack.name)
        make_table(stack.metastore, name)
        mapping = {"commit": {"interval": "300ms"}}
        daemon = stack.start(stack.config(mapping, metastore={"uri": uri, "timeout": "3s"}))
        with Flow(addresses.kafka, stack.name) as flow:
            proceed(daemon, stack.name, flow)
            for _ in range(rounds):
                _disturb(stack.name, both, daemon, flow)
        wait_for_rows(daemon, stack.name, flow.sent)
        daemon.terminate()
        assert daemon.wait() == 0, daemon.text()[-3000:]
        assert visible_ids(stack.metastore, name) == list(range(flow.sent))
        assert daemon.events("failed") == []
        assert open_transactions(stack.metastore, f"ingestd/ingestd/{stack.name}/") == []


def _disturb(mapping: str, both: list[Process], daemon: Daemon, flow: Flow) -> None:
    """Kill each metastore, and suspend each until the other has committed or has not answered, at random moments.

    A metastore that is suspended while it holds locks in the database blocks the other one, too.
    """
    for process in both:
        pause(random.uniform(0, 0.5))  # the moment within a transaction
        process.kill()
        proceed(daemon, mapping, flow)
        process.start().wait()
    for process in both:
        pause(random.uniform(0, 0.5))
        retries, stored = len(daemon.events("waiting")), flow.sent + 1
        process.pause()
        eventually("a commit or a retry", partial(_has_reacted, daemon, mapping, stored, retries))
        process.resume()
        proceed(daemon, mapping, flow)


def _has_reacted(daemon: Daemon, mapping: str, stored: int, retries: int) -> bool:
    return rows(daemon, mapping) >= stored or len(daemon.events("waiting")) > retries


def test_partition_when_two_metastores_create_it_then_the_one_that_fails_does_not_remove_its_files(
    both: list[Process],
) -> None:
    """The first metastore creates so many partitions that the second is faster with one of them.

    The second starts later and later within the time that the first needs alone, until the first fails.
    """
    slow, quick = (Metastore(process.uri) for process in both)
    one = ["z"]
    many = [[str(number)] for number in range(199)] + [one]
    _, seconds = _create(slow, many)
    for attempt in range(60):
        files: list[Path] = []
        calls, _ = _create(slow, many, partial(_write, quick, one, seconds * attempt / 30, files))
        assert all(file.exists() for file in files)
        # It looks for the partitions, creates them, and looks for the one that exists. After a failure, it tries parts.
        if files and calls > 3:
            break
    else:
        pytest.fail("the first metastore has never failed")
    for metastore in (slow, quick):
        metastore.close()


def _write(
    metastore: Metastore, values: list[str], delay: float, files: list[Path], table: Table, location: LocalLocation
) -> None:
    """Create the partition and a file in it, which is added to `files`, unless the metastore fails."""
    pause(delay)
    with suppress(MetastoreUnavailable):
        create_partitions(metastore, table, location, [values])
        file = location.path / table.partition_name(values) / "rows"
        file.touch()
        files.append(file)


def _create(
    metastore: Metastore, partitions: list[list[str]], rival: Callable[[Table, LocalLocation], None] | None = None
) -> tuple[int, float]:
    """Create `partitions` of a new table; return the number of calls and the seconds since the call that creates them.

    `rival` is called when that call is about to be sent.
    """
    name = TableName("default", f"raced_{uuid.uuid4().hex[:8]}")
    make_table(metastore, name, partitioned=True)
    table = load_acid_table(metastore, name)
    location = LocalLocation.of(table.location)
    calls: list[float] = []
    begun = threading.Event()

    def count() -> None:
        calls.append(monotonic())
        if len(calls) == 2:
            begun.set()

    with ThreadPoolExecutor(1) as pool:
        created = pool.submit(create_partitions, metastore.guarded(count), table, location, partitions)
        assert begun.wait(LIMIT)
        if rival:
            rival(table, location)
        assert len(created.result()) == len(partitions)
    return len(calls), monotonic() - calls[1]


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
        limit = Deadline.after(LIMIT)
        metastore.call("get_all_databases")
        while _port(metastore) == first.port and not limit.passed:
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
        thread.join(LIMIT)
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
