"""The configuration section `replication`, whose presence lets the daemon run the policies of its metastore.

Each field has the name of its configuration key. `ingestd.config` validates the values that users set.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, TypeVar

from ingestd.errors import ConfigError
from ingestd.keys import Count, Doc, Reads, Seconds, UnshownValueError, matching
from ingestd.replication.policies.store import NAME_PATTERN, NAME_SENTENCE, NAMESPACE
from ingestd.replication.statements.grammar import CreatePolicy, ReplDump, ReplLoad, parse, parse_schedule
from ingestd.replication.statements.schedule import Schedule

T = TypeVar("T")
_TEXT = {"type": "string"}


def _parsed(value: object, rule: Callable[[str], T]) -> T:
    if not isinstance(value, str):
        raise ValueError("must be text")
    try:
        return rule(value)
    except ConfigError as error:
        raise UnshownValueError(f"must be valid; {error}") from error


def _schedule(value: object) -> Schedule:
    return _parsed(value, parse_schedule)


def _statement(value: object) -> ReplDump | ReplLoad:
    statement = _parsed(value, parse)
    if not isinstance(statement, (ReplDump, ReplLoad)):
        raise ValueError("must be a statement REPL DUMP or REPL LOAD")
    return statement


@dataclass(frozen=True, slots=True)
class PolicyOptions:
    """One policy, which the daemon creates, or alters if it is different.

    `user` is the only user whose workers run it; '' means any. `enabled` None leaves it as it is, which is enabled at
    first.
    """

    name: Annotated[str, matching(NAME_PATTERN, NAME_SENTENCE), Doc("The name of the scheduled query.")]
    schedule: Annotated[
        Schedule, Reads(_schedule, _TEXT), Doc("EVERY 30 MINUTES, EVERY DAY AT '11:35:30' or CRON '0 0 12 * * ?'.")
    ]
    statement: Annotated[
        ReplDump | ReplLoad, Reads(_statement, _TEXT), Doc("REPL DUMP or REPL LOAD, with its settings.")
    ]
    user: Annotated[str, Doc("Only workers of this user run the policy; by default, all workers.")] = ""
    enabled: Annotated[bool | None, Doc("Whether the policy runs; by default, as in the metastore.")] = None

    @property
    def policy(self) -> CreatePolicy:
        """The policy as a statement creates it."""
        return CreatePolicy(self.name, self.schedule, self.statement, self.user or None, self.enabled is not False)


@dataclass(frozen=True, slots=True)
class ReplicationOptions:
    """How the daemon runs policies.

    It runs `workers` policies at the same time, and asks the metastore every `poll` seconds for one that is due. After
    a retriable error, a policy is retried for `retry` seconds, and then at its next time.
    """

    namespace: Annotated[
        str, matching("[A-Za-z0-9_.-]{1,100}", "must be 1 to 100 letters, digits, '.', '_' or '-'"),
        Doc("The namespace of the scheduled queries; HiveServer2 executes those of its own, `hive`."),
    ] = NAMESPACE  # fmt: skip
    workers: Annotated[Count, Doc("How many policies run at the same time.")] = 2
    poll: Annotated[Seconds, Doc("Time between two questions for policies that are due.")] = 10.0
    retry: Annotated[
        Seconds, Doc("How long a policy is retried after an error, before it waits for its next time.")
    ] = 600.0
    policies: Annotated[
        tuple[PolicyOptions, ...], Doc("Policies that are created, or altered if they are different.")
    ] = ()
