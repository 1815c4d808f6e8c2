"""The rules of the policy, without services."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest

from ingestd.clock import now
from ingestd.compaction.options import CompactionOptions
from ingestd.compaction.policy import History, Progress, Queue, choose_kind
from ingestd.compaction.survey import PartitionFiles
from ingestd.hive.client import Metastore
from ingestd.hive.compactions import Compaction
from ingestd.hive.tables import TableName
from tests.compaction.support import watching
from tests.support.stack import eventually

TABLE, OTHER = TableName("web", "clicks"), TableName("web", "other")


def _entry(number: int, state: str, *, age: float = 0.0, partition: str = "day=x") -> Compaction:
    at = now() - age
    return Compaction(number, TABLE, partition, "minor", state, "", at, at, at, "tests")


@pytest.mark.parametrize(
    ("state", "started", "is_being_cleaned"),
    [("ready for cleaning", 5.0, True), ("ready for cleaning", 0.0, False), ("succeeded", 5.0, False)],
)
def test_compaction_when_the_cleaner_has_begun_then_is_being_cleaned_until_it_has_succeeded(
    state: str, started: float, *, is_being_cleaned: bool
) -> None:
    assert replace(_entry(1, state), cleaner_started=started).is_being_cleaned is is_being_cleaned


@pytest.mark.parametrize(
    ("state", "age", "allowed"),
    [
        *(("initiated", 90_000, False), ("working", 90_000, False)),
        *(("ready for cleaning", 0, True), ("succeeded", 0, True)),
        *(("failed", 600, False), ("failed", 4_000, True)),
        *(("refused", 300, False), ("did not initiate", 300, False), ("refused", 700, True)),
    ],
)
def test_queue_when_the_newest_entry_has_a_state_then_it_decides_about_a_request(
    state: str, age: float, allowed: bool
) -> None:
    queue = Queue([_entry(2, state, age=age), _entry(1, "initiated"), _entry(3, "working", partition="day=y")])
    assert queue.allows(TABLE, "day=x") == allowed
    assert queue.allows(TABLE, "day=z")


@pytest.mark.parametrize(
    ("has_base", "delta_bytes", "kind"), [(False, 1, "major"), (True, 100, "minor"), (True, 101, "major")]
)
def test_kind_when_the_deltas_are_large_or_there_is_no_base_then_is_major(
    has_base: bool, delta_bytes: int, kind: str
) -> None:
    files = PartitionFiles(10, 10, 10, delta_bytes, 1_000 if has_base else 0, has_base, frozenset())
    assert choose_kind(files, CompactionOptions()) == kind


def test_progress_when_no_worker_starts_anything_then_it_is_a_stall_until_one_does() -> None:
    progress, waiting = Progress(), [_entry(1, "initiated"), _entry(2, "initiated", partition="day=y")]
    progress.observe(Queue(waiting))
    assert not progress.stalls(waiting, 60.0)
    [stall] = progress.stalls(waiting, 0.0)
    assert (stall.service, stall.count) == ("worker", 2)
    assert "hive.compactor.worker.threads" in stall.hint
    # The initiator gives up a compaction that it cannot begin. That is not the work of a worker.
    others = [Compaction(3, OTHER, "", "major", "did not initiate", "", 0.0, 0.0, 0.0, "")]
    progress.observe(Queue([*waiting, *others]))
    assert progress.stalls(waiting, 0.0)
    # The worker is busy with another table.
    others += [Compaction(4, OTHER, "", "major", "working", "", 0.0, 0.0, 0.0, "")]
    eventually("time to pass", lambda: progress.stalls(waiting, 0.05))
    number = count(5)

    def ends_the_stall() -> bool:
        """Let the worker begin another compaction. On a busy machine, the patience may be over at once."""
        others[-1] = replace(others[-1], id=next(number))
        progress.observe(Queue([*waiting, *others]))
        return not progress.stalls(waiting, 0.05)

    eventually("the work of the worker to end the stall", ends_the_stall)
    # It stays busy for long.
    [stall] = eventually("time to pass", lambda: progress.stalls(waiting, 0.05))
    assert (stall.service, stall.running) == ("worker", 1)
    assert "1 compactions are running" in stall.hint


def test_progress_when_only_the_cleaner_works_then_the_worker_is_still_missing() -> None:
    progress, waiting, cleaned = Progress(), _entry(1, "initiated"), _entry(2, "ready for cleaning", partition="day=y")
    progress.observe(Queue([waiting, cleaned]))
    eventually("time to pass", lambda: [stall.service for stall in progress.stalls([waiting], 0.05)] == ["worker"])
    progress.observe(Queue([waiting, _entry(2, "succeeded", partition="day=y")]))
    assert [stall.service for stall in progress.stalls([waiting], 0.05)] == ["worker"]


def test_progress_when_replaced_files_are_not_removed_then_it_is_a_stall() -> None:
    progress, uncleaned = Progress(), [_entry(1, "ready for cleaning")]
    progress.observe(Queue(uncleaned))
    [stall] = progress.stalls(uncleaned, 0.0)
    assert stall.service == "cleaner"
    progress.observe(Queue([_entry(1, "succeeded")]))
    assert not progress.stalls([_entry(1, "succeeded")], 0.0)


def test_history_when_entries_ended_before_the_first_reading_then_they_are_not_reported() -> None:
    history = History()
    assert not history.ended([_entry(1, "failed"), _entry(2, "working")])
    assert [compaction.id for compaction in history.ended([_entry(1, "failed"), _entry(2, "succeeded")])] == [2]
    assert not history.ended([_entry(1, "failed"), _entry(2, "succeeded")])
    assert [compaction.id for compaction in history.ended([_entry(3, "ready for cleaning")])] == [3]


def test_watch_when_the_metastore_is_unavailable_then_says_so_once() -> None:
    calls: list[str] = []
    metastore = Metastore(
        "thrift://127.0.0.1:1", timeout_seconds=1.0, on_call=lambda method, _seconds, _outcome: calls.append(method)
    )
    with watching(metastore, TABLE, CompactionOptions()) as [(watch, notes)]:
        eventually("several cycles", lambda: len(calls) > 3)
        assert watch.status.deltas == 0
    assert [type(error).__name__ for error in notes.delays] == ["MetastoreUnavailable"]
