"""Groups rejects by topic, column and kind of reason, so that many of them can be shown in a few lines.

Invariant: reasons that differ only in what they quote of a record are of one kind. Of the rejects of a group, only the
reason and the id of the first are kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from ingestd.ingest.letters.table import Letter

# What a reason quotes of a record: texts and JSON, which may be shortened, and numbers. All else is the kind of reason.
_QUOTED = re.compile(r"""['"{\[].*(?:['"}\]]|\.\.\.)|\d[\d.:eE+-]*""", re.DOTALL)
_NO_TIME = datetime.min.replace(tzinfo=timezone.utc)


@dataclass(frozen=True, slots=True)
class LetterGroup:
    """The letters with one topic, column and kind of reason: their number, the times of the first and the last of them.

    `reason` and `id` are those of the first.
    """

    topic: str
    column: str
    reason: str
    count: int
    first: datetime | None
    last: datetime | None
    id: str

    @classmethod
    def of(cls, letter: Letter) -> LetterGroup:
        """Return the group of one letter."""
        return cls(letter.partition.topic, letter.column, letter.reason, 1, letter.time, letter.time, letter.id)

    def __add__(self, more: LetterGroup) -> LetterGroup:
        """Return the group of the letters of both. A letter without a time precedes the others."""
        earlier, other = (self, more) if _moment(self.first) <= _moment(more.first) else (more, self)
        return replace(earlier, count=earlier.count + other.count, last=max(earlier.last, other.last, key=_moment))


def grouped(letters: Iterable[LetterGroup]) -> tuple[LetterGroup, ...]:
    """Return the groups of letters, each of which is given as its own group: the largest group first."""
    groups: dict[tuple[str, str, str], LetterGroup] = {}
    for letter in letters:
        key = (letter.topic, letter.column, _QUOTED.sub("…", letter.reason))
        groups[key] = groups[key] + letter if key in groups else letter
    return tuple(sorted(groups.values(), key=lambda group: (-group.count, group.topic, group.column, group.reason)))


def _moment(time: datetime | None) -> datetime:
    return time or _NO_TIME
