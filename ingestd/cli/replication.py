"""What the commands `policy` and `repl` share: access to the policies of a configuration, and how they are printed.

Invariant: a command uses the metastore and the storages of its configuration only, and needs no daemon.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from ingestd.cli.presentation import Column, number
from ingestd.cli.source import Source
from ingestd.errors import ConfigError
from ingestd.hive.schedules import Schedules
from ingestd.replication.cluster import Cluster
from ingestd.replication.policies.options import ReplicationOptions
from ingestd.replication.policies.policy_status import PolicyStatus, read_status
from ingestd.replication.policies.runs import Run, Status
from ingestd.replication.policies.store import Policies
from ingestd.replication.policies.worker import executor
from ingestd.replication.statements.grammar import ReplDump, ReplLoad
from ingestd.spark.options import SparkOptions
from ingestd.storage.storages import Storages


@dataclass(frozen=True, slots=True)
class Access:
    """The cluster of a configuration, and its policies."""

    cluster: Cluster
    schedules: Schedules
    policies: Policies
    spark: SparkOptions

    def statement(self, name: str) -> ReplDump | ReplLoad:
        """Return what a policy runs. Raises ConfigError."""
        policy = self.policies.get(name)
        if policy.statement is None:
            raise policy.problem or ConfigError("the policy cannot run", where=f"policy {name}")
        return policy.statement

    def status(self, name: str) -> PolicyStatus:
        """Return the status of a policy. Raises ConfigError if it does not exist."""
        return read_status(self.cluster, self.policies.get(name), self.schedules, self.schedules.timeout_seconds())


@contextmanager
def opened(files: Sequence[Path], directory: Path | None) -> Iterator[Access]:
    """Yield the access to the cluster of a configuration, and close it. Raises ConfigFaults."""
    document = Source(files, directory).document
    metastore = document.metastore.connect()
    try:
        options = document.replication or ReplicationOptions()
        schedules = Schedules(metastore, options.namespace, executor(metastore))
        policies = Policies(metastore, schedules, document.control.database)
        yield Access(Cluster(metastore, Storages(document.storage)), schedules, policies, document.spark)
    finally:
        metastore.close()


POLICY_COLUMNS = (
    *(Column("policy"), Column("runs"), Column("schedule"), Column("state"), Column("next"), Column("last")),
    *(number("lag events"), number("lag s"), Column("problem")),
)


def policy_row(entry: dict[str, Any]) -> list[object]:
    """Return the row of a table with POLICY_COLUMNS, from the JSON entry of a policy."""
    last, statement = entry["last_execution"], entry["statement"]
    return [
        entry["name"],
        statement and statement.partition(" WITH ")[0].removeprefix("REPL "),
        entry["schedule"],
        entry["state"].replace("_", " "),
        moment(entry["next_execution_unix"]) if entry["enabled"] else None,
        last and f"{_result(last)}, {moment(last['ended_unix'] or last['began_unix'])}",
        entry["lag_events"],
        entry["lag_seconds"] and round(entry["lag_seconds"]),
        entry["problem"] and entry["problem"].splitlines()[0],
    ]


def _result(last: dict[str, Any]) -> str:
    status = str(last["status"]).lower().replace("_", " ")
    return f"{status}: {last['reason']}" if last["reason"] else status


def counted(run: Run) -> str:
    """Return what an execution has done, such as `3 tables, 12 of 40 files`."""
    parts = []
    for name, (done, known) in run.counts.items():
        text = f"{done:,}" if done == known else f"{done:,} of {known:,}"
        parts.append(f"{text} {name.lower()}")
    return ", ".join(parts)


def outcome(run: Run) -> str:
    """Return how an execution ended, or that it runs."""
    if run.status is Status.SKIPPED:
        return f"skipped: {run.reason}"
    return str(run.status.value).lower().replace("_", " ")


def moment(at: float | None) -> str | None:
    """Return a time in the local time zone."""
    return datetime.fromtimestamp(at).astimezone().isoformat(" ", "seconds") if at else None
