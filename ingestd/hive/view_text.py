"""The text of a view, in which the names of tables and functions contain their database.

Invariant: only names of tables and functions are changed. Texts in quotation marks, comments, columns and aliases stay
as they are, even if they are named like the database.

HiveServer2 stores the query of a view with the database of every table, also where the user wrote none.
A copy of a view in a database of another name would therefore read the tables of the original database.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

_NAME = r"(?:`(?:[^`]|``)+`|\w+)"
_TOKEN = re.compile(
    r"""(?P<skipped>'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|--[^\n]*|/\*.*?\*/)"""
    rf"|(?P<database>{_NAME})(?P<table>\s*\.\s*{_NAME})(?!\s*\.)(?P<call>\s*\()?"
    rf"|(?P<other>{_NAME}(?:\s*\.\s*{_NAME})*)|(?P<symbol>[(),])",
    re.DOTALL,
)
_QUOTES = "'\""
_BEFORE_TABLES = frozenset(("FROM", "JOIN"))
# The comma after them separates tables, as it does after FROM. One in a parenthesis after them does not.
_IN_JOIN = frozenset(("ON", "USING"))
_AFTER_TABLES = frozenset((
    "SELECT", "WHERE", "GROUP", "HAVING", "ORDER", "SORT", "CLUSTER", "DISTRIBUTE", "WINDOW", "QUALIFY", "LIMIT",
    "LATERAL", "UNION", "INTERSECT", "EXCEPT", "MINUS", "WITH", "PARTITION",
))  # fmt: skip


@dataclass(slots=True)
class _Mover:
    """Moves the names of one text.

    `clauses` has the last keyword of each open parenthesis, the innermost one last, and `queries` says whether it
    contains a query: others contain a FROM that is not the clause, such as `extract(year FROM ts)`. `last` is the last
    word, '' at the beginning of a parenthesis.
    """

    source: str
    target: str
    clauses: list[str] = field(default_factory=lambda: [""])
    queries: list[bool] = field(default_factory=lambda: [True])
    last: str = ""

    def replace(self, match: re.Match[str]) -> str:
        """Return the replacement of a token."""
        if match["symbol"]:
            self._add_symbol(match["symbol"])
        elif match["other"]:
            self._add_word(match["other"].upper())
        elif match["database"]:
            is_table = self.clauses[-1] in _BEFORE_TABLES and not match["call"]
            if match["call"]:
                self._add_symbol("(")
            else:
                self.last = match["table"]
            if (is_table or match["call"]) and match["database"].strip("`").lower() == self.source:
                return f"`{self.target}`{match['table']}{match['call'] or ''}"
        elif match[0][0] in _QUOTES:
            self.last = match[0]
        return match[0]

    def _add_symbol(self, symbol: str) -> None:
        if symbol == "(":
            self.clauses.append("" if self.clauses[-1] in _IN_JOIN else self.clauses[-1])
            self.queries.append(False)
            self.last = ""
            return
        self.last = symbol
        if symbol == ")" and len(self.clauses) > 1:
            self.clauses.pop()
            self.queries.pop()
        elif symbol == "," and self.clauses[-1] in _IN_JOIN:
            self.clauses[-1] = "FROM"

    def _add_word(self, word: str) -> None:
        self.queries[-1] |= word == "SELECT" or (word == "FROM" and not self.last)
        is_clause = word != "FROM" or (self.queries[-1] and self.last != "DISTINCT")
        if word == "ON" and not self.last and self.clauses[-1] in _BEFORE_TABLES:
            word = "FROM"  # the table that is given to a function of tables, such as `noop(ON t PARTITION BY a)`
        if is_clause and (word in _BEFORE_TABLES or word in _IN_JOIN or word in _AFTER_TABLES):
            self.clauses[-1] = word
        self.last = word


def moved_text(text: str, source: str, target: str) -> str:
    """Return the query of a view of the database `source`, for a copy in the database `target`."""
    return text if source == target else _TOKEN.sub(_Mover(source.lower(), target).replace, text)


def move_view(view: Any, target: str) -> None:
    """Let the Thrift value of a table, if it is a view, read the tables of `target` in place of those of its database.

    A table of a third database keeps that name.
    """
    view.viewOriginalText, view.viewExpandedText = (
        text and moved_text(text, view.dbName, target) for text in (view.viewOriginalText, view.viewExpandedText)
    )
