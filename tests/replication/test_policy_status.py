"""What the status of a policy computes from what it has read."""

from __future__ import annotations

import pytest

from ingestd.replication.policies.policy_status import Lag

_DAY = 86_400.0


@pytest.mark.parametrize(
    ("since", "due", "overdue"),
    [
        (70.0, None, 30.0),  # unknown, or nothing is planned because the next dump begins at once
        (70.0, 160.0, 0.0),
        (70.0, 90.0, 10.0),  # as soon as the dump is missed, however old the event is
        (70.0, 40.0, 30.0),  # the event is later than the missed dump
        (100.5, 40.0, 0.0),  # the clock of the source is ahead
    ],
)
def test_lag_when_the_next_dump_is_planned_then_only_the_time_after_it_is_overdue(
    since: float, due: float | None, overdue: float
) -> None:
    assert Lag.at(100.0, 3, since, due) == Lag(3, max(0.0, 100.0 - since), overdue)


def test_lag_when_a_daily_dump_is_missed_then_an_event_of_the_minute_before_it_is_overdue_at_once() -> None:
    assert Lag.at(_DAY + 600.0, 1, _DAY - 60.0, _DAY) == Lag(1, 660.0, 600.0)
