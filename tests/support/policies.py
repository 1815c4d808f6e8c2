"""The status of a policy as a metastore would have it, for tests of what shows it."""

from __future__ import annotations

from dataclasses import replace

from ingestd.clock import now
from ingestd.replication.policies.policy_status import Lag, PolicyStatus, State
from ingestd.replication.policies.runs import Run, Stage, Status
from ingestd.replication.policies.store import ANY_USER, Policy
from ingestd.replication.statements.grammar import ReplDump
from ingestd.replication.statements.schedule import Every, Unit
from ingestd.replication.statements.scope import Scope

DUMP = ReplDump(Scope("db1"), {"hive.repl.rootdir": "hdfs://ns/repl"})


def status(name: str = "repl1", state: State = State.FAILED) -> PolicyStatus:
    """Return a policy whose last execution has failed after a successful one, which ended 60 s ago."""
    began = now() - 100
    success = Run(
        7, name, Stage.DUMP, Status.SUCCESS, "db1", began, began, "ingestd", began + 40, "INCREMENTAL", "hdfs:/x"
    )
    success = replace(success, last_event=99, counts={"EVENTS": (5, 5), "TABLES": (1, 2)})
    failed = Run(8, name, Stage.DUMP, Status.FAILED, "db1", now() - 9, now() - 8, "ingestd", now() - 8)
    failed = replace(
        failed, error="metastore: no answer", error_class="MetastoreUnavailable", counts={"TABLES": (1, 2)}
    )
    policy = Policy(name, Every(30, Unit.MINUTE), DUMP, ANY_USER, True, int(now()) + 630)
    lag, problem = Lag(12, 34.5, 4.5), "metastore: no answer → wait"
    return PolicyStatus(policy, state, (failed, success), lag, problem, unreadable={"ext": "denied", "logs": ""})
