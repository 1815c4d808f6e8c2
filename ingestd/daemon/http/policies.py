"""The JSON entries of replication policies, in /status and in the output of commands.

Invariant: names end with their unit, as those of `status.py`; fields are only added.
"""

from __future__ import annotations

from typing import Any

from ingestd.replication.policies.policy_status import PolicyStatus
from ingestd.replication.policies.runs import Run
from ingestd.replication.policies.store import ANY_USER

Json = dict[str, Any]

_MOST_NAMES = 16


def policy_entry(status: PolicyStatus) -> Json:
    """Return the entry of a policy."""
    policy, last, lag = status.policy, status.last, status.lag
    return {
        "name": policy.name,
        "state": status.state.value,
        "enabled": policy.is_enabled,
        "schedule": str(policy.schedule),
        "cron": policy.schedule.cron,
        "user": None if policy.user == ANY_USER else policy.user,
        "statement": None if policy.statement is None else str(policy.statement),
        "next_execution_unix": policy.next_execution,
        "lag_events": lag and lag.events,
        "lag_seconds": lag and round(lag.seconds, 1),
        "problem": status.problem or None,
        "unreadable_tables": None if status.unreadable is None else list(status.unreadable)[:_MOST_NAMES],
        "last_execution": last and run_entry(last),
    }


def run_entry(run: Run) -> Json:
    """Return the entry of an execution."""
    return {
        "id": run.execution,
        "status": run.status.value,
        "stage": run.stage.value,
        "database": run.database,
        "phase": run.phase or None,
        "began_unix": run.began,
        "ended_unix": run.ended,
        "last_event": run.last_event or None,
        "directory": run.directory or None,
        "counts": {name.lower(): {"done": done, "known": known} for name, (done, known) in run.counts.items()},
        "reason": run.reason or None,
        "error": run.error or None,
        "error_class": run.error_class or None,
        "lost_tables": list(run.lost),
        "missing_directories": list(run.missing),
    }
