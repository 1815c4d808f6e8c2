"""The configuration sections `compaction` and `pacing` of mappings and of `defaults`.

Each field has the name of its configuration key. `ingestd.config` validates the values that users set.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from ingestd.keys import Check, Count, Doc, Number, Seconds

# Without `pacing.max_interval`, the interval between commits may become this many times as long.
_LONGEST_FACTOR = 4.0
# A minor compaction leaves up to two deltas, one with rows and one with delete events.
_FEWEST_DELTAS = 3


def _at_least_three(deltas: int) -> int:
    if deltas < _FEWEST_DELTAS:
        raise ValueError(f"must be at least {_FEWEST_DELTAS}, because a minor compaction leaves up to two deltas")
    return deltas


@dataclass(frozen=True, slots=True)
class CompactionOptions:
    """When to request compactions of the partitions that a mapping writes.

    With `request: auto`, a partition with `deltas` deltas is compacted. The compaction is major if the partition has no
    base, or if its deltas are larger than `ratio` times its base; otherwise it is minor. `survey` is the time between
    two listings of the table, which find the deltas of other writers. A compaction is reported if no worker has started
    it, or if the files that it replaced were not removed, after `patience`.
    """

    request: Annotated[Literal["auto", "never"], Doc("Whether compactions are requested, or only counted.")] = "auto"
    deltas: Annotated[
        Count,
        Check(_at_least_three, {"minimum": _FEWEST_DELTAS}),
        Doc("Number of deltas at which a compaction of a partition is requested, at least 3."),
    ] = 10
    # The default of hive.compactor.delta.pct.threshold.
    ratio: Annotated[Number, Doc("The compaction is major if the deltas exceed this fraction of the base.")] = 0.1
    survey: Annotated[Seconds, Doc("Time between two listings of the table.")] = 300.0
    patience: Annotated[Seconds, Doc("After this time, a compaction without progress is reported.")] = 600.0


@dataclass(frozen=True, slots=True)
class PacingOptions:
    """When commits become less frequent, and by how much.

    The time between commits grows beyond `commit.interval` in proportion to two numbers, once they exceed their limits:
    the deltas of the partitions that commits write (`deltas`), and the seconds that the metastore takes to open and to
    commit a transaction (`latency`). Both are medians of the last five commits. The time never becomes longer than
    `max_interval`, by default four times the interval. A `max_interval` that is not longer than the interval disables
    pacing.
    """

    deltas: Annotated[Count, Doc("Commits become less frequent if a partition that they write has more deltas.")] = 100
    latency: Annotated[
        Seconds, Doc("Commits become less frequent if opening and committing a transaction takes longer.")
    ] = 2.0
    max_interval: Annotated[
        Seconds | None, Doc("The longest time between commits; by default four times commit.interval.")
    ] = None

    def longest_interval(self, interval: float) -> float:
        """Return the longest time between two commits of a mapping whose `commit.interval` is `interval` seconds."""
        longest = _LONGEST_FACTOR * interval if self.max_interval is None else self.max_interval
        return max(interval, longest)
