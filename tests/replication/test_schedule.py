"""Intervals are kept across the boundaries of hours and days, and the metastore evaluates what it can."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.clock import now
from ingestd.errors import ConfigError
from ingestd.hive.schedules import ScheduledQuery, Schedules
from ingestd.replication.statements.schedule import Cron, Every, Unit, checked_cron, from_cron, time_of_day
from tests.support.replica import Replica

MORNING = 11 * 3600 + 35 * 60 + 30

CRONS = [
    (Every(30, Unit.SECOND), "0/30 * * * * ? *"),
    (Every(30, Unit.MINUTE), "0 0/30 * * * ? *"),
    (Every(1, Unit.MINUTE, 15), "15 0/1 * * * ? *"),
    (Every(120, Unit.MINUTE), "0 0 0/2 * * ? *"),
    (Every(4, Unit.HOUR, 9000), "0 30 2/4 * * ? *"),
    (Every(2, Unit.HOUR, MORNING), "30 35 1/2 * * ? *"),
    (Every(24, Unit.HOUR, MORNING), "30 35 11 * * ? *"),
    (Every(1, Unit.DAY, MORNING), "30 35 11 * * ? *"),
]
NEAREST = [
    (Every(45, Unit.MINUTE), "0 0/45 * * * ? *"),
    (Every(90, Unit.MINUTE), "0 0 * * * ? *"),
    (Every(90, Unit.SECOND), "0 * * * * ? *"),
    (Every(5, Unit.HOUR, 600), "0 10 0/5 * * ? *"),
    (Every(36, Unit.HOUR), "0 0 0 * * ? *"),
    (Every(3, Unit.DAY, MORNING), "30 35 11 * * ? *"),
]


@pytest.mark.parametrize(("every", "cron"), CRONS + NEAREST, ids=str)
def test_interval_then_has_the_nearest_cron_expression(every: Every, cron: str) -> None:
    assert every.cron == cron
    assert every.is_exact == ((every, cron) in CRONS)


@pytest.mark.parametrize("every", [every for every, _ in CRONS + NEAREST], ids=str)
def test_cron_expression_of_an_interval_then_metastore_accepts_it(replica: Replica, every: Every) -> None:
    schedules = Schedules(replica.source.metastore, f"test-{uuid.uuid4().hex[:8]}", "tests")
    began = now()
    schedules.create(ScheduledQuery("p", every.cron, "x", "me"))
    found = schedules.find("p")
    created = now()
    assert found
    assert found.next_execution
    if not every.is_exact:
        return
    # The tests and the metastore have one time zone.
    midnight = datetime.fromtimestamp(began).replace(hour=0, minute=0, second=0, microsecond=0)
    period = every.number * every.unit.value
    since_midnight = found.next_execution - midnight.timestamp() - every.offset
    assert since_midnight % period == 0
    assert began < found.next_execution <= created + period


@pytest.mark.parametrize(
    "every", [Every(45, Unit.MINUTE), Every(90, Unit.SECOND, 7), Every(5, Unit.HOUR, 600), Every(36, Unit.HOUR)]
)
def test_interval_when_it_does_not_divide_the_next_unit_then_is_kept(every: Every) -> None:
    period = every.number * every.unit.value
    at, times = 1_795_438_800 - 5, []
    for late in range(100):
        at = every.next_time(at, at + 1)
        times.append(at)
        at += late % 7  # an execution begins some seconds after its time
    assert {after - before for before, after in pairwise(times)} == {period}
    assert times[0] % period == every.offset % period
    assert every.next_time(times[3] + 10 * period, 0) == times[14], "missed times are not queued"


def _next_in_zone(zone: ZoneInfo, after: float, offset: int) -> int:
    """Return the next time of a daily cron expression, as the metastore computes it in its time zone."""
    day = datetime.fromtimestamp(after, zone).replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
    for number in range(3):
        moment = (day + timedelta(days=number, seconds=offset)).replace(tzinfo=zone)
        if moment.timestamp() > after:
            return int(moment.timestamp())
    raise AssertionError("no time")


@pytest.mark.parametrize(
    "zone", ["UTC", "Europe/Berlin", "America/New_York", "Pacific/Auckland", "America/Adak", "Pacific/Kiritimati"]
)
@pytest.mark.parametrize(("days", "offset"), [(2, 0), (3, MORNING), (7, 86399)])
def test_days_when_the_metastore_is_in_any_zone_then_are_counted(zone: str, days: int, offset: int) -> None:
    every, local = Every(days, Unit.DAY, offset), ZoneInfo(zone)
    at = datetime(2026, 1, 5, 3, tzinfo=timezone.utc).timestamp()
    found = []
    for _ in range(3 * 366 // days):
        at = every.next_time(int(at), _next_in_zone(local, at, offset))
        found.append(datetime.fromtimestamp(at, local))
        at += 1
    gaps = [(after.date() - before.date()).days for before, after in pairwise(found)]
    # When the clocks change within an interval, its end is an hour off, and the day may be repeated at its time.
    assert len([gap for gap in gaps if gap != days]) <= 3 * 2 * 2
    for moment in found:
        away = abs(moment.hour * 3600 + moment.minute * 60 + moment.second - offset)
        assert min(away, 86400 - away) in (0, 3600)


def test_schedule_when_out_of_range_then_is_refused() -> None:
    for number, unit in ((0, Unit.MINUTE), (367, Unit.DAY)):
        with pytest.raises(ConfigError, match="is not between 1 s and 366 d"):
            Every(number, unit)
    for text in ("24:00", "11:60", "noon", "2026-11-23 11:35:30", "11"):
        with pytest.raises(ConfigError, match="is not a time of day"):
            time_of_day(text)
    assert time_of_day("1:05") == 3900


@pytest.mark.parametrize("text", ["* * * * *", "0 0 0 1 1 ? 2027", "@daily", "0 0 0 1 1 ? * *"])
def test_cron_when_it_has_other_fields_then_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a cron expression of Quartz without years"):
        checked_cron(text)


@given(st.integers(1, 366), st.sampled_from(Unit), st.integers(0, 86399))
def test_cron_expression_when_it_is_that_of_an_interval_then_is_shown_as_one(
    number: int, unit: Unit, offset: int
) -> None:
    every = Every(number, unit, offset)
    if every.is_exact:
        found = from_cron(every.cron)
        assert isinstance(found, Every)
        assert found.cron == every.cron
        assert (found.number * found.unit.value, found.is_exact) == (number * unit.value, True)


@pytest.mark.parametrize(
    "cron", ["0 0 12 ? * MON *", "0 0/7 * * * ? *", "0 0 0/5 * * ? *", "0 0 0 1 1 ? 2030", "5 0/2 0/2 * * ? *"]
)
def test_cron_expression_when_it_is_of_no_interval_then_is_shown_as_it_is(cron: str) -> None:
    assert from_cron(cron) == Cron(cron)
