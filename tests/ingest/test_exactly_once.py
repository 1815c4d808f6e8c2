"""After SIGKILL at each step and at random moments, the table contains every id exactly once."""

from __future__ import annotations

import random
from functools import partial

from ingestd.clock import pause
from ingestd.hive.transactions import open_transactions
from ingestd.ingest.steps import STEPS
from tests.support.stack import Stack, eventually

RECORDS = 3_000


def _orders(first: int, last: int) -> list[dict[str, object]]:
    return [{"id": i, "note": f"note {i}", "dt": f"2026-11-{i % 3 + 1:02d}"} for i in range(first, last)]


def _prepare(stack: Stack) -> None:
    stack.topic(4)
    stack.produce(_orders(0, RECORDS))
    stack.table("id bigint, note string", "dt string")


def _assert_exactly_once(stack: Stack, records: int) -> None:
    assert stack.ids() == list(range(records))
    assert stack.count() == records
    assert stack.count("WHERE dt = '2026-11-02'") == sum(i % 3 == 1 for i in range(records))


def test_kill_after_each_step_when_restarted_each_time_then_every_id_is_stored_once(stack: Stack) -> None:
    """Each daemon recovers from the previous kill and is itself killed in its second transaction, one step later."""
    _prepare(stack)
    config = stack.config({"commit": {"rows": 1000, "interval": "1s"}})
    produced = RECORDS
    for step in STEPS:
        killed = stack.start_process(
            config, "--until-caught-up", INGESTD_TESTING="1", INGESTD_FAILPOINT=f"{step}@2=kill"
        )
        assert killed.wait() == -9, f"after {step}:\n{killed.text()}"
        killed.kill()
        assert len(killed.events("owner")) == 1, f"before {step}"
        visible = stack.ids()
        assert visible == sorted(set(visible)), f"after {step}"
        stack.produce(_orders(produced, produced + 1_000))
        produced += 1_000
    daemon = stack.drain(config)
    _assert_exactly_once(stack, produced)
    assert open_transactions(stack.metastore, f"ingestd/ingestd/{stack.name}/") == []
    assert len(daemon.events("owner")) == 1


def test_kill_at_random_moments_when_restarted_each_time_then_every_id_is_stored_once(stack: Stack) -> None:
    _prepare(stack)
    config = stack.config({"commit": {"rows": 400, "interval": "200ms"}})
    chance = random.Random(7)
    produced = RECORDS
    for _ in range(4):
        daemon = stack.start_process(config)
        eventually("the mapping to be owned", partial(daemon.events, "owner"))
        stack.produce(_orders(produced, produced + 1_500))
        produced += 1_500
        pause(chance.uniform(0.1, 2.5))
        daemon.kill()
    stack.drain(config)
    _assert_exactly_once(stack, produced)


def test_failpoint_when_not_testing_then_is_refused(stack: Stack) -> None:
    daemon = stack.start_process(stack.config(), INGESTD_FAILPOINT="opened=kill")
    assert daemon.wait() == 78
    assert "failpoints are for tests only" in daemon.text()
