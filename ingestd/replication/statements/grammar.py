"""The statements of replication: REPL DUMP, LOAD and STATUS, and CREATE, ALTER and DROP SCHEDULED QUERY.

Invariant: the text of a parsed statement parses to an equal statement, and no part of a text is ignored. An error names
the line and the column.

The syntax is Hive's (HiveParser.g), and in addition what the documents of its replication use: `EXECUTED AS` may follow
the statement, ENABLED and DISABLED are words like ENABLE and DISABLE, and quotation marks may be typographic. The
clauses of CREATE may be in any order.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from ingestd.errors import ConfigError
from ingestd.replication.statements.schedule import Every, Schedule, Unit, checked_cron, time_of_day
from ingestd.replication.statements.scope import Scope
from ingestd.replication.statements.settings import (
    ROOT_KEY,
    DumpSettings,
    LoadSettings,
    Settings,
    dump_settings,
    load_settings,
)
from ingestd.replication.statements.tokens import Kind, Token, error_at, named, quoted, tokens

T = TypeVar("T")
_UNITS = {name: unit for unit in Unit for name in (unit.name, unit.name + "S")}
_MOST_DIGITS = 9


@dataclass(frozen=True, slots=True)
class ReplDump:
    """`REPL DUMP db.'include'.'exclude' WITH (…)`: dumps what the target does not have. Raises ConfigError."""

    scope: Scope
    given: Settings

    def __post_init__(self) -> None:
        dump_settings(self.given)

    @property
    def settings(self) -> DumpSettings:
        """The settings of the WITH clause."""
        return dump_settings(self.given)

    @property
    def database(self) -> str:
        """The database that the statement reads."""
        return self.scope.database

    @property
    def source(self) -> str:
        """The database of the source."""
        return self.scope.database

    def __str__(self) -> str:
        """Return the text of the statement."""
        patterns = (pattern for pattern in (self.scope.include, self.scope.exclude) if pattern is not None)
        return ".".join((f"REPL DUMP {named(self.scope.database)}", *map(quoted, patterns))) + _with(self.given)


@dataclass(frozen=True, slots=True)
class ReplLoad:
    """`REPL LOAD source INTO target WITH (…)`: loads what has been dumped. Raises ConfigError."""

    source: str
    target: str
    given: Settings

    def __post_init__(self) -> None:
        load_settings(self.given)

    @property
    def settings(self) -> LoadSettings:
        """The settings of the WITH clause."""
        return load_settings(self.given)

    @property
    def database(self) -> str:
        """The database that the statement writes."""
        return self.target

    def __str__(self) -> str:
        """Return the text of the statement."""
        return f"REPL LOAD {named(self.source)} INTO {named(self.target)}{_with(self.given)}"


@dataclass(frozen=True, slots=True)
class ReplStatus:
    """`REPL STATUS db`: reports the last event that a target contains."""

    database: str

    def __str__(self) -> str:
        """Return the text of the statement."""
        return f"REPL STATUS {named(self.database)}"


@dataclass(frozen=True, slots=True)
class PolicyChange:
    """What ALTER SCHEDULED QUERY replaces; None stays as it is."""

    schedule: Schedule | None = None
    user: str | None = None
    is_enabled: bool | None = None
    statement: ReplDump | ReplLoad | None = None


@dataclass(frozen=True, slots=True)
class CreatePolicy:
    """`CREATE SCHEDULED QUERY name schedule [EXECUTED AS user] [ENABLE | DISABLE] AS statement`."""

    name: str
    schedule: Schedule
    statement: ReplDump | ReplLoad
    user: str | None = None
    is_enabled: bool = True


@dataclass(frozen=True, slots=True)
class AlterPolicy:
    """`ALTER SCHEDULED QUERY name` with one change."""

    name: str
    change: PolicyChange


@dataclass(frozen=True, slots=True)
class ExecutePolicy:
    """`ALTER SCHEDULED QUERY name EXECUTE`."""

    name: str


@dataclass(frozen=True, slots=True)
class DropPolicy:
    """`DROP SCHEDULED QUERY name`."""

    name: str


Statement = ReplDump | ReplLoad | ReplStatus | CreatePolicy | AlterPolicy | ExecutePolicy | DropPolicy


def parse(text: str) -> Statement:
    """Parse a statement. Raises ConfigError with the line and the column."""
    parser = _Parser(text)
    return parser.whole(parser.statement)


def parse_schedule(text: str) -> Schedule:
    """Parse a schedule, such as `EVERY 30 MINUTES` or `CRON '0 0 12 * * ?'`. Raises ConfigError."""
    parser = _Parser(text)
    return parser.whole(parser.schedule)


def _with(given: Settings) -> str:
    pairs = ", ".join(f"{quoted(key)}={quoted(value)}" for key, value in given.items())
    return f" WITH ({pairs})" if pairs else ""


@dataclass
class _Parser:
    text: str
    _at: int = 0
    _tokens: list[Token] = field(init=False)

    def __post_init__(self) -> None:
        self._tokens = tokens(self.text)

    def whole(self, rule: Callable[[], T]) -> T:
        """Return the result of a rule that must cover the whole text, except a semicolon."""
        result = rule()
        self._accept(";")
        if self._token.kind is not Kind.END:
            raise self._unexpected("the end of the statement")
        return result

    # --- statements

    def statement(self) -> Statement:
        """Parse any statement."""
        word = self._keyword("REPL", "CREATE", "ALTER", "DROP")
        if word == "REPL":
            return self._repl()
        self._keyword("SCHEDULED")
        self._keyword("QUERY")
        name = self._name("the name of the policy")
        if word == "DROP":
            return DropPolicy(name)
        return self._create(name) if word == "CREATE" else self._alter(name)

    def _create(self, name: str) -> CreatePolicy:
        begin, clauses, body = self._token, PolicyChange(), None
        while body is None:
            if self._peek("DEFINED", "AS"):
                body = self._definition()
            else:
                clauses = self._clause(clauses)
        if clauses.user is None and self._peek("EXECUTED"):
            clauses = self._clause(clauses)
        if clauses.schedule is None:
            raise error_at(begin, "the policy has no schedule", "write EVERY 30 MINUTES or CRON '…' after the name")
        enabled = clauses.is_enabled is None or clauses.is_enabled
        return CreatePolicy(name, clauses.schedule, body, clauses.user, enabled)

    def _alter(self, name: str) -> AlterPolicy | ExecutePolicy:
        if self._accept("EXECUTE"):
            return ExecutePolicy(name)
        if self._peek("DEFINED", "AS"):
            return AlterPolicy(name, PolicyChange(statement=self._definition()))
        return AlterPolicy(name, self._clause(PolicyChange()))

    def _clause(self, before: PolicyChange) -> PolicyChange:
        """Parse the schedule, EXECUTED AS, ENABLE or DISABLE, each of which may occur once."""
        begin = self._token
        schedule, user, enabled = before.schedule, before.user, before.is_enabled
        if self._peek("EVERY", "CRON"):
            is_repeated, schedule = schedule is not None, self.schedule()
        elif self._accept("EXECUTED"):
            self._keyword("AS")
            is_repeated, user = user is not None, self._user()
        else:
            words = ("ENABLE", "ENABLED", "DISABLE", "DISABLED")
            options = ("EVERY", "CRON", "EXECUTED", "ENABLE", "DISABLE", "AS")
            word = self._keyword(*words, expected=options)
            is_repeated, enabled = enabled is not None, word.startswith("ENABLE")
        if is_repeated:
            raise error_at(begin, "the clause is repeated", "remove it")
        return PolicyChange(schedule, user, enabled)

    def _definition(self) -> ReplDump | ReplLoad:
        self._accept("DEFINED")
        self._keyword("AS")
        begin = self._token
        self._keyword("REPL")
        statement = self._repl()
        if isinstance(statement, ReplStatus):
            raise error_at(begin, "a policy runs REPL DUMP or REPL LOAD, not REPL STATUS", "see `ingestd repl status`")
        return statement

    def _repl(self) -> ReplDump | ReplLoad | ReplStatus:
        word = self._keyword("DUMP", "LOAD", "STATUS")
        begin = self._token
        database = self._name("the name of a database").lower()
        if word == "STATUS":
            return ReplStatus(database)
        if word == "DUMP":
            patterns = self._patterns()
            given = self._settings()
            return self._checked(begin, lambda: ReplDump(Scope(database, *patterns), given))
        if self._token.text == ".":
            hint = "write the patterns in the statement REPL DUMP"
            raise error_at(self._token, "the tables of a load are those of its dump", hint)
        target = self._name("the name of a database").lower() if self._accept("INTO") else database
        given = self._settings()
        return self._checked(begin, lambda: ReplLoad(database, target, given))

    def _patterns(self) -> list[str]:
        patterns: list[str] = []
        while self._accept("."):
            if len(patterns) == 2:
                raise error_at(self._token, "there are more than two patterns", "join them with | in one pattern")
            patterns.append(self._string("a pattern of table names, such as 't[0-9]+'"))
        if self._peek("REPLACE"):
            hint = "write the new patterns only; the previous ones are known from the last dump"
            raise error_at(self._token, "REPLACE is not necessary", hint)
        if self._peek("FROM"):
            hint = "remove it; a dump begins after the last event that the target has loaded"
            raise error_at(self._token, "FROM is not necessary", hint)
        return patterns

    def _settings(self) -> Mapping[str, str]:
        given: dict[str, str] = {}
        if not self._accept("WITH"):
            if self._token.kind is not Kind.END and self._token.text != ";" and not self._peek("EXECUTED"):
                raise self._unexpected("WITH", ("WITH",))
            return given
        self._symbol("(")
        while True:
            token = self._token
            key = self._string("the name of a setting, in quotation marks")
            if key in given:
                raise error_at(token, f"{key} is set twice", "remove one of them")
            self._symbol("=")
            given[key] = self._string("a value in quotation marks")
            if not self._accept(","):
                break
        self._symbol(")", "," if given else ")")
        return given

    # --- schedules

    def schedule(self) -> Schedule:
        """Parse a schedule."""
        begin = self._token
        if self._keyword("EVERY", "CRON") == "CRON":
            expression = self._string("a cron expression of Quartz, such as '0 0 12 * * ?'")
            return self._checked(begin, lambda: checked_cron(expression))
        number = 1
        if self._token.kind is Kind.NUMBER:
            number = int(self._next().text[:_MOST_DIGITS])
        unit = _UNITS[self._keyword(*_UNITS, expected=tuple(known.name for known in Unit))]
        offset = 0
        if self._peek("AT", "OFFSET"):
            if self._keyword("AT", "OFFSET") == "OFFSET":
                self._keyword("BY")
            moment = self._token
            text = self._string("a time of day, such as '11:35:30'")
            offset = self._checked(moment, lambda: time_of_day(text))
        return self._checked(begin, lambda: Every(number, unit, offset))

    # --- tokens

    @property
    def _token(self) -> Token:
        return self._tokens[self._at]

    def _next(self) -> Token:
        token = self._token
        self._at += 1
        return token

    def _peek(self, *words: str) -> bool:
        return self._token.kind is Kind.WORD and self._token.text.upper() in words

    def _accept(self, text: str) -> bool:
        """Skip a word or symbol, if it is the next token; return whether it was."""
        is_next = self._token.kind in (Kind.WORD, Kind.SYMBOL) and self._token.text.upper() == text
        self._at += is_next
        return is_next

    def _keyword(self, *words: str, expected: tuple[str, ...] = ()) -> str:
        if not self._peek(*words):
            raise self._unexpected(" or ".join(expected or words), words)
        return self._next().text.upper()

    def _symbol(self, symbol: str, *others: str) -> None:
        if not self._accept(symbol):
            raise self._unexpected(" or ".join((symbol, *(other for other in others if other != symbol))))

    def _name(self, what: str) -> str:
        if self._token.kind not in (Kind.WORD, Kind.QUOTED_NAME):
            raise self._unexpected(what)
        return self._next().text

    def _string(self, what: str) -> str:
        if self._token.kind is not Kind.STRING:
            raise self._unexpected(what)
        return self._next().text

    def _user(self) -> str:
        if self._token.kind not in (Kind.STRING, Kind.WORD, Kind.QUOTED_NAME):
            raise self._unexpected("the name of a user")
        return self._next().text

    def _unexpected(self, expected: str, words: tuple[str, ...] = ()) -> ConfigError:
        close = difflib.get_close_matches(self._token.text.upper(), words, n=1, cutoff=0.6)
        hint = f"did you mean {close[0]}?" if close else ""
        return error_at(self._token, f"{self._token} where {expected} is expected", hint)

    def _checked(self, begin: Token, construct: Callable[[], T]) -> T:
        """Return a value; its error gets the position of its first token, or of the setting that it names."""
        try:
            return construct()
        except ConfigError as error:
            texts = {token.text: token for token in reversed(self._tokens) if token.kind is Kind.STRING and token.text}
            is_setting = error.where in texts or error.where == ROOT_KEY
            what = f"{error.where}: {error.what}" if is_setting else error.what
            raise error_at(texts.get(error.where, begin), what, error.hint) from error
