"""The connections of a metastore client are bounded, reused, and closed when they are idle."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from ingestd.errors import MetastoreUnavailable
from ingestd.hive import leases
from ingestd.hive.client import Metastore
from ingestd.hive.pool import Pool
from tests.support.patience import LIMIT
from tests.support.proxy import proxy
from tests.support.stack import Stack, eventually


class _Connection:
    def __init__(self) -> None:
        self.is_open = True

    def close(self) -> None:
        self.is_open = False


def _pool(idle_seconds: float = 60.0) -> tuple[Pool[_Connection], list[_Connection]]:
    """Return a pool with two idle connections, of which the second was used last."""
    pool: Pool[_Connection] = Pool(3, idle_seconds)
    made = [_Connection(), _Connection()]
    with pool.borrowed(1) as last, pool.borrowed(1) as first:
        assert last is not None
        assert first is not None
        first.connection, last.connection = made
        first.address, last.address = 0, 1
    return pool, made


def test_pool_when_all_are_borrowed_then_the_next_waits_for_the_first_that_is_returned() -> None:
    pool, made = _pool()
    borrowed = threading.Event()
    got = []

    def wait() -> None:
        with pool.borrowed(LIMIT) as slot:
            got.append(slot.connection if slot else None)

    waiting = threading.Thread(target=wait)
    with pool.borrowed(1) as last:
        with pool.borrowed(1):
            with pool.borrowed(0.01) as none:
                assert none is None
            waiting.start()
            assert not borrowed.wait(0.05)
            assert got == []
        waiting.join(LIMIT)
        assert got == [made[0]]
        assert last is not None
        assert last.connection is made[1]


def test_pool_when_closed_then_borrowed_connections_are_closed_on_return_and_later_ones_are_kept() -> None:
    pool, (first, last) = _pool()
    with pool.borrowed(1) as slot:
        pool.close()
        assert not first.is_open
        assert last.is_open
        assert slot is not None
    assert not last.is_open
    later = _Connection()
    with pool.borrowed(1) as slot:
        assert slot is not None
        assert slot.connection is None
        slot.connection = later
    assert later.is_open


def test_pool_when_one_address_fails_then_only_its_idle_connections_are_closed() -> None:
    pool, (first, last) = _pool()
    pool.close_idle(0)
    assert (first.is_open, last.is_open) == (False, True)


def test_pool_when_a_connection_is_not_used_then_it_is_closed() -> None:
    pool, (first, last) = _pool(idle_seconds=0.0)
    with pool.borrowed(1):
        pass
    assert (first.is_open, last.is_open) == (False, True)


def test_calls_when_made_by_many_threads_then_share_the_connections(stack: Stack) -> None:
    with (
        proxy(stack.addresses.metastore) as between,
        closing(Metastore(between.uri, connections=3)) as metastore,
        ThreadPoolExecutor(30) as threads,
    ):
        assert all("default" in threads.submit(metastore.call, "get_all_databases").result() for _ in range(60))
        answers = [threads.submit(metastore.call, "get_all_databases") for _ in range(300)]
        assert all(answer.result() for answer in answers)
        assert between.accepted <= 3


def test_heartbeat_when_all_other_connections_are_in_use_then_does_not_wait_for_them(stack: Stack) -> None:
    with (
        proxy(stack.addresses.metastore) as between,
        closing(Metastore(between.uri, timeout_seconds=LIMIT, connections=3)) as metastore,
        ThreadPoolExecutor(5) as threads,
    ):
        between.hold("get_all_databases")
        slow = [threads.submit(metastore.call, "get_all_databases") for _ in range(5)]
        eventually("two calls to be in progress", lambda: between.calls["get_all_databases"] == 2)
        assert not leases.heartbeat(metastore, 1 << 60)  # there is no such lease
        assert between.calls["get_all_databases"] == 2
        between.shut()
        assert all(isinstance(call.exception(), MetastoreUnavailable) for call in slow)


def test_call_when_all_connections_are_in_use_for_too_long_then_fails_and_says_so(stack: Stack) -> None:
    with (
        proxy(stack.addresses.metastore) as between,
        closing(Metastore(between.uri, timeout_seconds=2, connections=1)) as metastore,
    ):
        between.flowing.clear()
        # When the first call times out, one of the others may get its connection.
        with ThreadPoolExecutor(4) as threads:
            calls = [threads.submit(metastore.call, "getName") for _ in range(4)]
            errors = [call.exception() for call in calls]
        between.flowing.set()
    assert all(isinstance(error, MetastoreUnavailable) for error in errors)
    assert "all 1 connections were in use for 2 s" in f"{errors}"
