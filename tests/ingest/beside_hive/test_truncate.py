"""After a concurrent TRUNCATE, rows that are committed later are visible, or the log names the hidden rows."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest

from ingestd.clock import Deadline
from ingestd.errors import SandboxError
from ingestd.hive.control import ensure_control_table, read_state
from ingestd.hive.tables import TableName, load_acid_table
from ingestd.ingest.state import MappingState
from ingestd.storage.local import local_path
from tests.support.daemon import Daemon, Hold
from tests.support.patience import LIMIT
from tests.support.stack import Stack, eventually
from tests.support.truncate import Truncation, waits_for_lock

each_kind = pytest.mark.parametrize("partitioned", [False, True], ids=["table", "partition"])


def _rows(first: int, last: int) -> list[dict[str, Any]]:
    return [{"id": number, "dt": "a"} for number in range(first, last)]


def _prepare(stack: Stack, *, partitioned: bool) -> TableName:
    """Create a table with ten rows of an earlier run, and a topic with twenty new records."""
    stack.topic(1)
    stack.table("id int", partitioned="dt string" if partitioned else "")
    stack.produce(_rows(0, 10))
    stack.drain()
    stack.produce(_rows(10, 30))
    return TableName("default", stack.name)


def _held(stack: Stack, step: str) -> tuple[Daemon, Hold]:
    hold = Hold(step)
    daemon = stack.start(stack.config(), "--until-caught-up", hold=hold)
    hold.wait()
    return daemon, hold


@each_kind
def test_truncate_when_a_commit_is_in_progress_then_waits_for_it(stack: Stack, partitioned: bool) -> None:
    stack.topic(1)
    stack.table("id int", partitioned="dt string" if partitioned else "")
    part = " PARTITION (dt='a')" if partitioned else ""
    if partitioned:
        stack.sql(f"ALTER TABLE {stack.name} ADD{part}")
    stack.produce(_rows(0, 30))
    # The first transaction stores the start position.
    hold = Hold("placed", times=2)
    daemon = stack.start(stack.config(), hold=hold)
    hold.wait()

    truncating = threading.Thread(target=lambda: stack.sql(f"TRUNCATE TABLE {stack.name}{part}"))
    truncating.start()
    table = TableName("default", stack.name)
    eventually("TRUNCATE to wait", lambda: waits_for_lock(stack.metastore, table))
    hold.release()
    truncating.join(LIMIT)
    assert not truncating.is_alive()
    eventually("the commit to be logged", lambda: sum(event["rows"] for event in daemon.events("committed")) == 30)
    assert stack.ids() == []

    stack.produce(_rows(30, 35))
    eventually("the rows of the next commit", lambda: stack.ids() == list(range(30, 35)))
    assert stack.count() == 5
    assert "TransactionAborted" not in [event["reason"] for event in daemon.events("waiting")]
    daemon.terminate()
    assert daemon.wait() == 0


def test_truncate_when_begun_before_the_lock_of_a_commit_then_the_transaction_is_repeated(stack: Stack) -> None:
    table = _prepare(stack, partitioned=False)
    truncation = Truncation(stack.metastore, table)
    daemon, hold = _held(stack, "counted")
    truncation.finish()
    hold.release()

    assert daemon.wait() == 0, daemon.text()[-2000:]
    assert stack.ids() == list(range(10, 30))
    assert stack.count() == 20
    aborts = [event["error"] for event in daemon.events("waiting") if event["reason"] == "TransactionAborted"]
    assert [error for error in aborts if "truncated" in error]


def test_truncate_when_only_visible_after_the_commit_then_an_error_names_the_hidden_rows(stack: Stack) -> None:
    table = _prepare(stack, partitioned=True)
    truncation = Truncation(stack.metastore, table, ["dt=a"])
    daemon, hold = _held(stack, "committed")
    truncation.finish()
    hold.release()

    assert daemon.wait() == 0, daemon.text()[-2000:]
    (hidden,) = daemon.events("commit_hidden")
    assert hidden["level"] == "error"
    assert list(hidden["hidden_by"]) == ["dt=a"]
    assert hidden["ranges"] == [f"{stack.name}[0] 10..30"]
    assert hidden["write_id"] == daemon.events("committed")[-1]["write_id"]


@pytest.mark.soak
@each_kind
def test_truncate_when_run_in_a_loop_then_no_later_commit_is_hidden(stack: Stack, partitioned: bool) -> None:
    """A commit whose write id is below that of a TRUNCATE's base must precede the end of that TRUNCATE."""
    _prepare(stack, partitioned=partitioned)
    config = stack.config({"commit": {"interval": "500ms"}})
    daemon = stack.start(config)
    eventually("the mapping to be owned", lambda: daemon.events("owner"))
    control = ensure_control_table(stack.metastore, TableName("ingestd", f"mapping_{stack.name[-40:]}"))
    end, done = Deadline.after(60), threading.Event()
    producing = threading.Thread(target=_produce_until, args=(stack, done))
    producing.start()
    seen: list[tuple[int, int]] = []
    try:
        while not end.passed:
            if _truncated(stack):
                state = MappingState.parse(read_state(stack.metastore, control))
                assert state
                seen.append((_newest_base(stack, partitioned=partitioned), state.write_id))
            before = len(daemon.events("committed"))
            eventually("another commit", partial(_has_committed, daemon, before))
    finally:
        done.set()
        producing.join()
    daemon.terminate()
    assert daemon.wait() == 0, daemon.text()[-2000:]
    stack.drain(config)

    commits = {event["write_id"]: event["rows"] for event in daemon.events("committed")}
    assert len(seen) > 5
    assert len(commits) > 10
    hidden = [(w, base) for w in commits for base, stored in seen if stored < w < base]
    told = {event["write_id"] for event in daemon.events("commit_hidden")}
    assert [pair for pair in hidden if pair[0] not in told] == []
    ids = stack.ids()
    assert len(ids) == len(set(ids)) == stack.count()


def _truncated(stack: Stack) -> bool:
    """Truncate the table. Return False when Hive refuses, as it sometimes does on Derby under load."""
    try:
        stack.sql(f"TRUNCATE TABLE {stack.name}")
    except SandboxError:
        return False
    return True


def _has_committed(daemon: Daemon, before: int) -> bool:
    return len(daemon.events("committed")) > before


def _produce_until(stack: Stack, done: threading.Event) -> None:
    number = 1_000
    while not done.wait(0.05):
        stack.produce(_rows(number, number + 50))
        number += 50


def _newest_base(stack: Stack, *, partitioned: bool) -> int:
    root = local_path(load_acid_table(stack.metastore, TableName("default", stack.name)).location)
    bases = (root / "dt=a" if partitioned else root).glob("base_*")
    return max(int(base.name.partition("_")[2]) for base in bases if "_v" not in base.name)
