"""Patterns, in the language of RE2, of the dates and times in ISO 8601's notation that exist.

Invariant: a date that matches is in the calendar, and hours, minutes and seconds that match are in a day. Arrow casts a
column of texts as a whole or not at all, so that a pattern which is only nearly right costs the whole column.
"""

from __future__ import annotations

_YEAR = "(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_LEAP = "(?:0[48]|[2468][048]|[13579][26])"  # a multiple of 4, except 0
_MONTH_AND_DAY = (
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
DATE = f"(?:{_YEAR}-{_MONTH_AND_DAY}|(?:[0-9]{{2}}{_LEAP}|{_LEAP}00)-02-29)"  # in the years 0001 to 9999
# In the years 1700 to 2199, which are in the range of timestamps in nanoseconds.
NEAR_DATE = f"(?:(?:1[789]|2[01])(?:[0-9]{{2}}-{_MONTH_AND_DAY}|{_LEAP}-02-29)|2000-02-29)"
HOUR = "(?:[01][0-9]|2[0-3])"
MINUTE = SECOND = "[0-5][0-9]"
ZONE = f"(?:Z|[+-]{HOUR}(?::?{MINUTE})?)"
