"""The scope of a policy: a database, and which of its tables, as in `REPL DUMP db.'include'.'exclude'`.

Invariant: the database is in lower case, as the metastore stores names, and both patterns are valid.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from ingestd.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Scope:
    """The tables of `database` whose whole name matches `include` and not `exclude`, in any case.

    `include` None means all tables, and `exclude` None excludes none. Patterns are regular expressions. Raises
    ConfigError for an invalid pattern, and for `exclude` without `include`, which no statement can express.
    """

    database: str
    include: str | None = None
    exclude: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "database", self.database.lower())
        if self.include is None and self.exclude is not None:
            raise ConfigError(
                "a pattern of excluded tables needs one of included tables",
                where=f"scope of the database {self.database}",
                hint="include '.*' to include all other tables",
            )
        for pattern in (self.include, self.exclude):
            if pattern is not None:
                _compiled(pattern)

    def contains(self, table: str) -> bool:
        """Return whether a table of the database is in the scope."""
        if self.include is not None and not _compiled(self.include).fullmatch(table):
            return False
        return self.exclude is None or not _compiled(self.exclude).fullmatch(table)

    def __str__(self) -> str:
        """Return the scope as a statement contains it."""
        patterns = (pattern for pattern in (self.include, self.exclude) if pattern is not None)
        return ".".join((self.database, *(f"'{pattern}'" for pattern in patterns)))


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern, re.IGNORECASE)
    except re.error as error:
        raise ConfigError(
            f"the pattern {pattern!r} is not a regular expression: {error}", hint="correct the pattern"
        ) from error
