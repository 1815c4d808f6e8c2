"""Replication policies: scheduled queries of the metastore, in a namespace that HiveServer2 does not execute.

Invariant: the scheduled query is the whole policy. It contains the statement as a user would write it; only if the
metastore cannot compute the times of the schedule, a comment before the statement contains the schedule. So views of
`information_schema` show what a policy does, and a statement of another client cannot contradict what is stored here.

The metastore cannot list scheduled queries, so an empty control table `policy_NAME` records each name. Like those of
mappings, it is never dropped; a name without a scheduled query is not a policy any more.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from ingestd.clock import now
from ingestd.errors import ConfigError, InvalidTable
from ingestd.hive.client import Metastore
from ingestd.hive.control import ensure_control_table
from ingestd.hive.schedules import ScheduledQuery, Schedules
from ingestd.hive.tables import TableName
from ingestd.replication.statements.grammar import (
    CreatePolicy,
    PolicyChange,
    ReplDump,
    ReplLoad,
    parse,
    parse_schedule,
)
from ingestd.replication.statements.schedule import Schedule, from_cron

NAMESPACE = "ingestd"
ANY_USER = "ingestd"
"""The user of a policy without EXECUTED AS, which any worker runs."""
NAME_PATTERN = "[a-z0-9_]{1,100}"
NAME_SENTENCE = "must be 1 to 100 lower-case letters, digits or _, because it becomes part of the name of a Hive table"
_PREFIX = "policy_"
_WITH_SCHEDULE = re.compile(r"/\* (EVERY [^*]*) \*/ ?(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy as the metastore has it; `next_execution` is the Unix time at which it is due.

    `problem` is why it cannot run: another client has stored a text that is not a statement of replication. Then
    `statement` is None.
    """

    name: str
    schedule: Schedule
    statement: ReplDump | ReplLoad | None
    user: str
    is_enabled: bool
    next_execution: int | None
    problem: ConfigError | None = None

    @property
    def is_due(self) -> bool:
        """Whether it begins as soon as a worker is free, and its current execution has ended."""
        return self.is_enabled and self.next_execution is not None and self.next_execution <= now()


class Policies:
    """The policies of a namespace. All methods raise MetastoreUnavailable. Thread-safe.

    `control_database` is where names are recorded; it is created when the first policy is.
    """

    def __init__(self, metastore: Metastore, schedules: Schedules, control_database: str) -> None:
        self._metastore = metastore
        self._schedules = schedules
        self._database = control_database

    def create(self, wanted: CreatePolicy) -> Policy:
        """Create a policy. Raises ConfigError if it exists, or would do the work of another policy."""
        _check_name(wanted.name)
        self._check_conflicts(wanted.name, wanted.statement)
        self.record(wanted.name)
        query = ScheduledQuery(
            wanted.name,
            wanted.schedule.cron,
            _stored(wanted.schedule, wanted.statement),
            wanted.user or ANY_USER,
            wanted.is_enabled,
        )
        self._schedules.create(query)
        self._require_next_time(wanted.name, partial(self._schedules.drop, wanted.name))
        self.align(wanted.name)
        return self.get(wanted.name)

    def alter(self, name: str, change: PolicyChange) -> Policy:
        """Change a policy, which is then due at the next time of its schedule. Raises ConfigError.

        A policy that is due already stays so, for example if it was executed and its current execution has not ended.
        """
        previous = self._query(name)
        policy = _policy(previous)
        statement = change.statement or _require_statement(policy)
        if change.statement is not None:
            self._check_conflicts(name, change.statement)
        schedule = change.schedule or policy.schedule
        query = ScheduledQuery(
            name,
            schedule.cron,
            _stored(schedule, statement),
            change.user or policy.user,
            policy.is_enabled if change.is_enabled is None else change.is_enabled,
            policy.next_execution if policy.is_due else None,
        )
        self._schedules.alter(query)
        self._require_next_time(name, partial(self._schedules.alter, previous))
        if not policy.is_due:
            self.align(name)
        return self.get(name)

    def execute(self, name: str) -> None:
        """Make a policy due now. Raises ConfigError if it does not exist or is disabled."""
        query = self._query(name)
        if not query.is_enabled:
            hint = f"enable it first: `ingestd policy enable {name}`"
            raise ConfigError("the policy is disabled", where=f"policy {name}", hint=hint)
        self._schedules.alter(replace(query, next_execution=int(now())))

    def drop(self, name: str) -> None:
        """Drop a policy; an execution that is active ends. Raises ConfigError if it does not exist."""
        self._schedules.drop(name)

    def align(self, name: str) -> None:
        """Make the metastore offer a policy at the next time of its schedule, which it may not compute correctly.

        Must be called after each claim. The metastore has no compare-and-set, so a change that another client makes
        within these milliseconds is lost; that can only happen to schedules that it does not compute correctly.
        """
        query = self._schedules.find(name)
        policy = None if query is None else _policy(query)
        if query is None or policy is None or query.next_execution is None:
            return
        if not policy.schedule.is_exact:
            due = policy.schedule.next_time(int(now()), query.next_execution)
            self._schedules.alter(replace(query, next_execution=due))

    def record(self, name: str) -> None:
        """Record the name of a policy, which another client may have created."""
        ensure_control_table(self._metastore, TableName(self._database, _PREFIX + name))

    def get(self, name: str) -> Policy:
        """Return a policy. Raises ConfigError if it does not exist."""
        return _policy(self._query(name))

    def find(self, name: str) -> Policy | None:
        """Return a policy; None if it does not exist."""
        query = self._schedules.find(name)
        return None if query is None else _policy(query)

    def all(self) -> list[Policy]:
        """Return all policies by name."""
        policies = (self.find(name) for name in self._names())
        return [policy for policy in policies if policy is not None]

    def loads(self, name: str = "") -> dict[str, ReplLoad]:
        """Return what the policies that load run, by name, except the policy `name`."""
        statements = {policy.name: policy.statement for policy in self.all() if policy.name != name}
        return {other: statement for other, statement in statements.items() if isinstance(statement, ReplLoad)}

    def _names(self) -> list[str]:
        try:
            self._metastore.call("get_database", self._database)
        except InvalidTable:
            return []
        tables = sorted(self._metastore.call("get_all_tables", self._database))
        return [name.removeprefix(_PREFIX) for name in tables if name.startswith(_PREFIX)]

    def _query(self, name: str) -> ScheduledQuery:
        query = self._schedules.find(name)
        if query is None:
            raise ConfigError("the policy does not exist", where=f"policy {name}", hint="see `ingestd policy list`")
        return query

    def _require_next_time(self, name: str, undo: Callable[[], None]) -> None:
        """Undo a change and raise ConfigError, if the policy is now one that the metastore cannot return."""
        query = self._schedules.find(name)
        if query is not None and not query.statement:
            undo()
            raise ConfigError(
                "the schedule has no next time",
                where=f"policy {name}",
                hint="correct the cron expression; for example, there is no 30th of February",
            )

    def _check_conflicts(self, name: str, statement: ReplDump | ReplLoad) -> None:
        """Raise ConfigError if another policy dumps into the same directory or loads into the same database."""
        for other in self.all():
            if other.name == name or other.statement is None or type(other.statement) is not type(statement):
                continue
            if _place(other.statement) == _place(statement):
                raise ConfigError(
                    f"the policy {other.name} {_place(statement)} already",
                    where=f"policy {name}",
                    hint="alter or drop that policy, or give this one another hive.repl.rootdir or database",
                )


def _place(statement: ReplDump | ReplLoad) -> str:
    if isinstance(statement, ReplDump):
        return f"dumps {statement.scope.database} into {statement.settings.root.rstrip('/')}"
    return f"loads into the database {statement.target}"


def _check_name(name: str) -> None:
    if not re.fullmatch(NAME_PATTERN, name):
        raise ConfigError(f"the name {NAME_SENTENCE}, not {name!r}", where="policy")


def _stored(schedule: Schedule, statement: ReplDump | ReplLoad) -> str:
    """Return the text of a scheduled query."""
    return str(statement) if schedule.is_exact else f"/* {schedule} */ {statement}"


def _policy(query: ScheduledQuery) -> Policy:
    schedule, text = _schedule(query)
    statement, problem = None, None
    try:
        if not text:
            hint = f"drop it with `ingestd policy drop {query.name}`, and create it with another schedule"
            raise ConfigError("its schedule has no next time, so the metastore cannot return it", hint=hint)
        parsed = parse(text)
        if not isinstance(parsed, (ReplDump, ReplLoad)):
            raise ConfigError("a policy runs REPL DUMP or REPL LOAD")
        statement = parsed
    except ConfigError as error:
        problem = ConfigError(error.what, where=f"policy {query.name}, {error.where}".rstrip(", "), hint=error.hint)
    return Policy(query.name, schedule, statement, query.user, query.is_enabled, query.next_execution, problem)


def _schedule(query: ScheduledQuery) -> tuple[Schedule, str]:
    """Return the schedule and the statement of a query; a comment counts only if it fits to the cron expression."""
    match = _WITH_SCHEDULE.fullmatch(query.statement)
    if match:
        with suppress(ConfigError):
            schedule = parse_schedule(match[1])
            if schedule.cron == query.schedule:
                return schedule, match[2]
    return from_cron(query.schedule), query.statement


def _require_statement(policy: Policy) -> ReplDump | ReplLoad:
    if policy.statement is None:
        assert policy.problem is not None
        raise policy.problem
    return policy.statement
