"""When a policy is due: every n units, or by a cron expression.

Invariant: `Every` means what it says, across the boundaries of minutes, hours and days. The metastore evaluates a cron
expression of Quartz in its time zone. Hive translates `EVERY n UNITS` into such an expression, which is wrong if n does
not divide the next larger unit: `EVERY 45 MINUTES` runs at :00 and :45 of each hour. For these, the expression is only
the nearest one (`is_exact` is false), and `next_time` computes the time at which the metastore shall offer the policy.

Intervals that the expression cannot represent are counted from 1970-01-01 00:00 UTC, and days from that day in the
time zone of the metastore. Source of the syntax: ScheduledQueryAnalyzer, and its tests.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from ingestd.errors import ConfigError

_DAY = 86400
# The day of a local time is found without knowing the time zone: no zone with daylight saving time is between UTC+13:30
# and UTC-10:30, so each zone always gets the same day number, or the one before.
_LATEST_ZONE = 48600
_FIELDS = 6
_FIELD = r"(?:(\d{1,2})(?:/([1-9]\d?))?|\*)"
_OF_INTERVAL = re.compile(rf"{_FIELD} {_FIELD} {_FIELD} \* \* \? \*")
_TIME = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")
TIME_HINT = "write the time of day as in '11:35:30' or '11:35'"


class Unit(Enum):
    """The unit of an interval; the value is its length in seconds."""

    SECOND = 1
    MINUTE = 60
    HOUR = 3600
    DAY = _DAY


# How many of each unit the next larger one has.
_IN_NEXT = {Unit.SECOND: 60, Unit.MINUTE: 60, Unit.HOUR: 24, Unit.DAY: 1}
_SMALLEST_FIRST = (Unit.SECOND, Unit.MINUTE, Unit.HOUR)
_NEXT = {Unit.SECOND: Unit.MINUTE, Unit.MINUTE: Unit.HOUR, Unit.HOUR: Unit.DAY}


@dataclass(frozen=True, slots=True)
class Every:
    """Every `number` units, `offset` seconds after their beginning: `EVERY DAY AT '00:10'` has the offset 600.

    Raises ConfigError if `number` or `offset` is out of range.
    """

    number: int
    unit: Unit
    offset: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.number * self.unit.value <= 366 * _DAY:
            raise ConfigError(f"the interval of {self.number} {self.unit.name.lower()}s is not between 1 s and 366 d")
        if not 0 <= self.offset < _DAY:
            raise ConfigError(f"the offset of {self.offset} s is not a time of day", hint=TIME_HINT)

    @property
    def is_exact(self) -> bool:
        """Whether the metastore computes all times correctly from `cron`."""
        every = self._largest()
        return _IN_NEXT[every.unit] % every.number == 0

    @property
    def cron(self) -> str:
        """The expression of Quartz that the metastore evaluates: these times, or the nearest ones."""
        every = self._largest()
        seconds, minutes, hours = every.offset % 60, every.offset // 60 % 60, every.offset // 3600
        fields = [str(seconds), str(minutes), str(hours), "*", "*", "?", "*"]
        position = list(_IN_NEXT).index(every.unit)
        if every.unit is not Unit.DAY:
            repeats = every.number < _IN_NEXT[every.unit]
            fields[position] = (
                f"{(seconds, minutes, hours)[position] % every.number}/{every.number}" if repeats else "0"
            )
            fields[position + 1 : 3] = ["*"] * (2 - position)
        return " ".join(fields)

    def next_time(self, after: int, next_of_cron: int) -> int:
        """Return the first Unix time later than `after`, given the first one of `cron`."""
        if self.is_exact:
            return next_of_cron
        every = self._largest()
        if every.unit is Unit.DAY:
            day = (next_of_cron - every.offset + _LATEST_ZONE) // _DAY
            return next_of_cron + -day % every.number * _DAY
        period: int = every.number * every.unit.value
        offset = every.offset % period
        return ((after - offset) // period + 1) * period + offset

    def __str__(self) -> str:
        """Return the schedule as a statement contains it."""
        number = "" if self.number == 1 else f" {self.number}"
        text = f"EVERY{number} {self.unit.name}{'' if self.number == 1 else 'S'}"
        if not self.offset:
            return text
        hours, rest = divmod(self.offset, 3600)
        word = "AT" if self.unit is Unit.DAY else "OFFSET BY"
        return f"{text} {word} '{hours:02}:{rest // 60:02}:{rest % 60:02}'"

    def _largest(self) -> Every:
        """Return the same interval in the largest unit: 120 minutes are 2 hours."""
        every = self
        while every.unit in _NEXT and every.number % _IN_NEXT[every.unit] == 0:
            every = Every(every.number // _IN_NEXT[every.unit], _NEXT[every.unit], every.offset)
        return every


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron expression of Quartz: seconds, minutes, hours, day of month, month, day of week."""

    cron: str

    @property
    def is_exact(self) -> bool:
        """Whether the metastore computes all times correctly from `cron`: always."""
        return True

    def next_time(self, _after: int, next_of_cron: int) -> int:
        """Return the next Unix time, which the metastore computes."""
        return next_of_cron

    def __str__(self) -> str:
        """Return the schedule as a statement contains it."""
        return f"CRON '{self.cron}'"


Schedule = Every | Cron


def checked_cron(text: str) -> Cron:
    """Return a cron expression, whose fields the metastore checks. Raises ConfigError.

    The metastore cannot store a policy without a next time, so years are not allowed.
    """
    fields = text.split()
    if len(fields) not in (_FIELDS, _FIELDS + 1) or fields[_FIELDS:] not in ([], ["*"]):
        raise ConfigError(
            f"{text!r} is not a cron expression of Quartz without years",
            hint="write seconds, minutes, hours, day of month, month, day of week, as in '0 0/10 * * * ?'",
        )
    return Cron(text)


def from_cron(cron: str) -> Schedule:
    """Return the interval whose expression this is, or else the expression."""
    match = _OF_INTERVAL.fullmatch(cron)
    if not match:
        return Cron(cron)
    starts, steps = match.group(1, 3, 5), match.group(2, 4, 6)
    offset = sum(int(start or 0) * unit.value for start, unit in zip(starts, _SMALLEST_FIRST, strict=True))
    intervals = [Every(int(step), unit, offset) for step, unit in zip(steps, _SMALLEST_FIRST, strict=True) if step]
    every = intervals[0] if intervals else Every(1, Unit.DAY, offset)
    return every if every.is_exact and every.cron == cron else Cron(cron)


def time_of_day(text: str) -> int:
    """Return the seconds since midnight of a time such as `11:35:30`, `1:35:30` or `11:35`. Raises ConfigError."""
    match = _TIME.fullmatch(text.strip())
    hours, minutes, seconds = (int(part or 0) for part in match.groups()) if match else (24, 0, 0)
    if hours > 23 or minutes > 59 or seconds > 59:
        raise ConfigError(f"{text!r} is not a time of day", hint=TIME_HINT)
    return hours * 3600 + minutes * 60 + seconds
