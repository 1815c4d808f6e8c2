"""The pace of commits as a function of deltas and latency."""

from __future__ import annotations

from itertools import groupby

import pytest

from ingestd.compaction.options import PacingOptions
from ingestd.compaction.pacing import COMMITS, Pace, Pacing


def _pace(interval: float = 10.0, **options: float) -> tuple[Pace, list[Pacing]]:
    changes: list[Pacing] = []
    return Pace(PacingOptions(**options), interval, changes.append), changes  # type: ignore[arg-type]


def _reasons(changes: list[Pacing]) -> list[str]:
    """Return the reasons without repetitions."""
    return [reason for reason, _ in groupby(change.reason for change in changes)]


def test_pace_when_measurements_are_within_their_bounds_then_is_the_configured_interval() -> None:
    pace, changes = _pace()
    pace.counted([100] * COMMITS)
    pace.committed(1.0)
    assert (pace.now.interval, _reasons(changes)) == (10.0, [""])


@pytest.mark.parametrize(("deltas", "interval"), [(101, 10.1), (200, 20.0), (400, 40.0), (5_000, 40.0)])
def test_pace_when_there_are_too_many_deltas_then_grows_in_proportion_up_to_its_limit(
    deltas: int, interval: float
) -> None:
    pace, changes = _pace()
    pace.counted([deltas] * COMMITS)
    assert pace.now.interval == pytest.approx(interval)
    assert _reasons(changes) == ["deltas"]


def test_pace_when_the_metastore_is_slow_then_grows_and_recovers() -> None:
    pace, changes = _pace(latency=0.5, max_interval=25.0)
    for _ in range(5):
        pace.committed(1.0)
    assert pace.now.interval == pytest.approx(20.0)
    for _ in range(3):
        pace.committed(3.0)
    assert pace.now.interval == pytest.approx(25.0)
    for _ in range(3):
        pace.committed(0.01)
    assert (pace.now.interval, pace.now.factor) == (10.0, 1.0)
    assert _reasons(changes) == ["metastore", ""]


@pytest.mark.parametrize("slow", [1, 2])
def test_pace_when_few_commits_are_slow_then_stays(slow: int) -> None:
    pace, changes = _pace()
    for latency in [600.0] * slow + [0.1] * 10 + [600.0] * slow + [0.1] * 10:
        pace.committed(latency)
        assert pace.now.interval == 10.0
    assert set(_reasons(changes)) == {""}


def test_pace_when_few_commits_write_to_crowded_partitions_then_stays() -> None:
    pace, changes = _pace()
    for deltas in ([500], [500, 500], [2, 500, 1, 500, 3], [500, 1, 500, 3, 2]):
        pace.counted(deltas)
        assert pace.now.interval == 10.0
    pace.counted([500, 1, 150, 3, 200])
    assert (pace.now.interval, _reasons(changes)) == (15.0, ["", "deltas"])


def test_pace_when_the_reason_changes_then_reports_it() -> None:
    pace, changes = _pace()
    pace.counted([150] * COMMITS)
    for _ in range(5):
        pace.committed(4.0)
    pace.counted([0] * COMMITS)
    assert _reasons(changes) == ["deltas", "metastore"]


@pytest.mark.parametrize("max_interval", [1.0, 10.0])
def test_pace_when_the_longest_interval_is_not_longer_than_the_interval_then_never_changes(max_interval: float) -> None:
    pace, changes = _pace(max_interval=max_interval)
    pace.counted([10_000] * COMMITS)
    pace.committed(100.0)
    assert (pace.now.interval, _reasons(changes)) == (10.0, [""])
