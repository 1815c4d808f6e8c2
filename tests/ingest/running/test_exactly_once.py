"""After SIGKILL at each step and at random moments, each table contains every id exactly once."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ingestd.clock import pause
from ingestd.hive.transactions import open_transactions
from ingestd.ingest.steps import STEPS
from tests.support.stack import Stack, eventually

RECORDS = 1_600


def _orders(first: int, last: int) -> list[dict[str, object]]:
    return [{"id": i, "note": f"note {i}", "dt": f"2026-11-{i % 3 + 1:02d}"} for i in range(first, last)]


# Keys of mappings, the steps after which a mapping with them is killed, and the ids that it stores of 100 records.
_TRANSFORM = {"transform": {"select": "SELECT id * 2 AS id, upper(note) AS note, dt FROM records"}}
_KILLED: list[tuple[dict[str, Any], Sequence[str], Sequence[int]]] = [
    (_TRANSFORM, STEPS[::2], range(0, 200, 2)),
    (_TRANSFORM | {"where": "id % 2 = 0"}, STEPS[1::2], range(0, 200, 4)),
    ({}, ("placed",), range(100)),
]


def _prepare(
    stack: Stack, tables: int, insert_only: int = 0, keys: Sequence[dict[str, Any]] = (), **commit: Any
) -> tuple[Path, list[str]]:
    """Create a topic and tables that each contain all of its records. Return the configuration and the table names.

    The last `insert_only` of the tables are insert-only. The mappings have these keys, each its own.
    """
    stack.topic(4)
    names = [f"{stack.name}_{number}" for number in range(tables)]
    for number, name in enumerate(names):
        kind = "default" if number < tables - insert_only else "insert_only"
        stack.table("id bigint, note string", "dt string", f"default.{name}", transactional_properties=kind)
    mappings = [{"name": _mapping(name), "table": f"default.{name}", "commit": commit} for name in names]
    each = keys or [{}] * tables
    return stack.config(*(mapping | more for mapping, more in zip(mappings, each, strict=True))), names


def _mapping(table: str) -> str:
    return table[-40:]


def _open(stack: Stack) -> list[int]:
    return open_transactions(stack.metastore, f"ingestd/ingestd/{stack.name}_")


def _assert_no_id_twice(stack: Stack, tables: list[str], when: str) -> None:
    for table in tables:
        visible = stack.ids(table)
        assert visible == sorted(set(visible)), f"{table} {when}"


def _assert_exactly_once(stack: Stack, tables: list[str], records: int) -> None:
    for table in tables:
        assert stack.ids(table) == list(range(records))
        assert stack.count(name=table) == records
    assert _open(stack) == []


def test_kill_after_each_step_when_restarted_then_every_id_is_stored_once_and_no_lock_remains(stack: Stack) -> None:
    """Kill a process in which a transaction waits after each step.

    Each mapping has one transaction and waits after the step that `_KILLED` names. After each step, one waits that
    computes its rows with `transform`; every second one of these also routes the records with `where`.
    """
    each = [(keys, step, ids) for keys, steps, ids in _KILLED for step in steps]
    config, tables = _prepare(stack, len(each), keys=[keys for keys, _, _ in each], rows=100, interval="1s")
    stored = {table: list(ids) for table, (_, _, ids) in zip(tables, each, strict=True)}
    step_of = {table: step for table, (_, step, _) in zip(tables, each, strict=True)}
    stack.drain(config)  # stores the start positions, so that the next transactions contain records
    stack.produce(_orders(0, 100))
    killed, _ = stack.start_held(config, [f"{_mapping(table)}:{step}" for table, step in step_of.items()])
    killed.kill()
    assert killed.wait() == -9, killed.text()
    left = _open(stack)
    assert len(left) >= STEPS.index("committed") - STEPS.index("opened")
    visible = {table: ids for table in tables if (ids := stack.ids(table))}
    assert visible == {table: stored[table] for table in visible}
    assert visible.keys() == {table for table, step in step_of.items() if step in ("committed", "mirrored")}
    # The locks and leases of the killed process would block this daemon for `hive.txn.timeout`, which is longer.
    daemon = stack.drain(config)
    aborted = [txn for event in daemon.events("owner") for txn in event["aborted_transactions"]]
    assert set(left) <= set(aborted)
    assert len(aborted) == len(set(aborted))
    for table, ids in stored.items():
        assert stack.ids(table) == ids
        assert stack.count(name=table) == len(ids)
    assert _open(stack) == []


@pytest.mark.soak
def test_kill_after_each_step_in_turn_when_restarted_each_time_then_every_id_is_stored_once(stack: Stack) -> None:
    """Each daemon recovers from the previous kill and is itself killed in its second transaction, one step later."""
    config, tables = _prepare(stack, 1, rows=500, interval="1s")
    produced = stack.produce(_orders(0, RECORDS))
    for step in STEPS:
        killed = stack.start_process(
            config, "--until-caught-up", INGESTD_TESTING="1", INGESTD_FAILPOINT=f"{step}@2=kill"
        )
        assert killed.wait() == -9, f"after {step}:\n{killed.text()}"
        killed.kill()
        assert killed.events("owner"), f"before {step}"
        _assert_no_id_twice(stack, tables, f"after {step}")
        produced += stack.produce(_orders(produced, produced + 500))
    daemon = stack.drain(config)
    assert daemon.events("owner")
    _assert_exactly_once(stack, tables, produced)


@pytest.mark.soak
def test_kill_at_random_moments_when_restarted_each_time_then_every_id_is_stored_once(stack: Stack) -> None:
    """Each kill finds two mappings at different steps, of which one fills an insert-only table."""
    config, tables = _prepare(stack, 2, insert_only=1, rows=400, interval="200ms")
    produced = stack.produce(_orders(0, RECORDS))
    chance = random.Random(7)
    for _ in range(10):
        daemon = stack.start_process(config)
        eventually("a mapping to be owned", partial(daemon.events, "owner"))
        produced += stack.produce(_orders(produced, produced + 800))
        pause(chance.uniform(0.1, 1.5))
        daemon.kill()
        _assert_no_id_twice(stack, tables, "after the kill")
    stack.drain(config)
    _assert_exactly_once(stack, tables, produced)
    assert stack.count("WHERE dt = '2026-11-02'", tables[0]) == sum(i % 3 == 1 for i in range(produced))


def test_failpoint_when_not_testing_then_is_refused(stack: Stack) -> None:
    daemon = stack.start_process(stack.config(), INGESTD_FAILPOINT="opened=kill")
    assert daemon.wait() == 78
    assert "failpoints are for tests only" in daemon.text()
