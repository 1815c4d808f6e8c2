"""The log events of policies. Each function logs the event of the same name.

Invariant: event names and fields are an interface that log processors depend on. `docs/events.md` documents all
of them, and a test compares it with this module.
"""

from __future__ import annotations

from typing import Any

import structlog

from ingestd.errors import IngestdError
from ingestd.replication.policies.runs import Run
from ingestd.replication.policies.store import Policy

_log: Any = structlog.get_logger("ingestd")


def policy_created(policy: Policy) -> None:
    """Log that a policy of the configuration was created."""
    _log.info("policy_created", policy=policy.name, schedule=str(policy.schedule), statement=str(policy.statement))


def policy_altered(policy: Policy) -> None:
    """Log that a policy was altered, because the configuration differs from the metastore."""
    _log.info("policy_altered", policy=policy.name, schedule=str(policy.schedule), statement=str(policy.statement))


def policy_rejected(policy: str, error: IngestdError) -> None:
    """Log that a policy of the configuration could not be created or altered."""
    _log.error("policy_rejected", policy=policy, reason=type(error).__name__, error=str(error))


def policies_unavailable(error: IngestdError, seconds: float) -> None:
    """Log that the metastore could not be asked for policies, and when it is asked again."""
    _log.warning("policies_unavailable", reason=type(error).__name__, error=str(error), again_in=round(seconds, 1))


def policy_due_again(policy: str) -> None:
    """Log that a policy was made due again, because the answer to the claim of its execution was lost."""
    _log.warning("policy_due_again", policy=policy)


def policies_failed(error: IngestdError) -> None:
    """Log that a defect has ended the replication of this process."""
    _log.error("policies_failed", reason=type(error).__name__, error=str(error))


def policy_started(run: Run) -> None:
    """Log that an execution began."""
    _log.info("policy_started", policy=run.policy, execution=run.execution, stage=run.stage.value)


def policy_finished(run: Run) -> None:
    """Log a successful execution."""
    _log.info(
        "policy_finished",
        policy=run.policy,
        execution=run.execution,
        phase=run.phase,
        last_event=run.last_event,
        counts={name.lower(): done for name, (done, _) in run.counts.items()},
        seconds=_seconds(run),
    )


def policy_lost_tables(run: Run) -> None:
    """Log the tables that an execution could not load; the next dump contains all of them."""
    _log.warning("policy_lost_tables", policy=run.policy, execution=run.execution, tables=list(run.lost))


def policy_missing_directories(run: Run) -> None:
    """Log the directories of external tables that the source lacks; their copies keep their files."""
    _log.warning(
        "policy_missing_directories", policy=run.policy, execution=run.execution, directories=list(run.missing)
    )


def policy_skipped(run: Run) -> None:
    """Log an execution that had nothing to do, because it waits for the other side."""
    _log.info("policy_skipped", policy=run.policy, execution=run.execution, cause=run.reason)


def policy_retried(run: Run, error: IngestdError, seconds: float) -> None:
    """Log an error after which an execution is continued."""
    _log.warning(
        "policy_retried",
        policy=run.policy,
        execution=run.execution,
        reason=type(error).__name__,
        error=str(error),
        again_in=round(seconds, 1),
    )


def policy_failed(run: Run, error: IngestdError) -> None:
    """Log an error that ended an execution; `status` FAILED_ADMIN waits for `ingestd policy resume`."""
    _log.error(
        "policy_failed",
        policy=run.policy,
        execution=run.execution,
        status=run.status.value,
        reason=type(error).__name__,
        error=str(error),
        seconds=_seconds(run),
    )


def policy_stopped(run: Run) -> None:
    """Log that an execution was stopped with the daemon; the next worker continues it."""
    _log.info("policy_stopped", policy=run.policy, execution=run.execution, seconds=_seconds(run))


def policy_lost(run: Run, error: IngestdError) -> None:
    """Log that the metastore has ended an execution, and that its work was stopped."""
    _log.warning(
        "policy_lost",
        policy=run.policy,
        execution=run.execution,
        reason=type(error).__name__,
        error=str(error),
    )


def _seconds(run: Run) -> float:
    return round((run.ended or run.updated) - run.began, 2)
