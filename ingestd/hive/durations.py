"""Durations as Hive writes them in its configuration, such as `120s` or `1h`.

Invariant: a text without a valid unit is refused, never taken for another unit. Source: HiveConf.unitFor.
"""

from __future__ import annotations

import re

_SECONDS = {
    **dict.fromkeys(("d", "day", "days"), 86400.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("", "s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("ms", "msec"), 1e-3),
    **dict.fromkeys(("us", "usec"), 1e-6),
    **dict.fromkeys(("ns", "nsec"), 1e-9),
}


def hive_seconds(text: str) -> float:
    """Return the seconds of a duration. A number without a unit is seconds. Raises ValueError for other texts."""
    match = re.fullmatch(r"(\d+)\s*([a-z]*)", text.strip().lower())
    if not match or match[2] not in _SECONDS:
        raise ValueError("must be a duration such as 90s, 30m or 1h")
    return int(match[1]) * _SECONDS[match[2]]
