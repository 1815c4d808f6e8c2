"""The metrics of replication policies in Prometheus' text format.

Invariant: the gauges are those of all policies of the metastore, so all daemons that serve one namespace report the
same; the counters are those of this process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ingestd.clock import now
from ingestd.replication.policies.policy_status import PolicyStatus, State
from ingestd.replication.policies.runs import Status
from ingestd.replication.policies.worker import Totals


@dataclass(frozen=True, slots=True)
class PolicyMetrics:
    """The states of all policies, and what this process has done."""

    statuses: Sequence[PolicyStatus]
    totals: Totals


def policy_lines(policies: PolicyMetrics) -> Iterator[str]:
    """Yield the lines of all metrics with the label `policy`, whose values need no escaping unless noted."""
    for name, text, value in _GAUGES:
        yield head(name, "gauge", text)
        for policy_status in policies.statuses:
            if (number := value(policy_status)) is not None:
                yield f'{name}{{policy="{escaped(policy_status.policy.name)}"}} {number}\n'
    yield head("ingestd_policy_state", "gauge", "1 for the state that the policy is in, otherwise 0")
    for policy_status in policies.statuses:
        for state in State:
            labels = f'policy="{escaped(policy_status.policy.name)}",state="{state.value}"'
            yield f"ingestd_policy_state{{{labels}}} {int(policy_status.state is state)}\n"
    yield head("ingestd_policy_executions_total", "counter", "Executions of this process, by their result")
    for (name, status), count in sorted(policies.totals.executions.items()):
        yield f'ingestd_policy_executions_total{{policy="{escaped(name)}",status="{status}"}} {count}\n'
    for kind, text in _COUNTERS.items():
        counter = f"ingestd_policy_{kind.lower()}_total"
        yield head(counter, "counter", text)
        for (name, counted), count in sorted(policies.totals.counts.items()):
            if counted == kind:
                yield f'{counter}{{policy="{escaped(name)}"}} {count}\n'


def head(name: str, kind: str, text: str) -> str:
    """Return the lines that introduce a metric."""
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def escaped(text: str) -> str:
    """Return the value of a label."""
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _since_success(status: PolicyStatus) -> float | None:
    ended = [run.ended for run in status.runs if run.status in (Status.SUCCESS, Status.SKIPPED) and run.ended]
    return max(0.0, round(now() - max(ended), 1)) if ended else None


_GAUGES: Sequence[tuple[str, str, Callable[[PolicyStatus], float | None]]] = (
    (
        "ingestd_policy_lag_events",
        "Events of the source that the target does not have; for a load, those that are dumped and not loaded",
        lambda status: status.lag.events if status.lag else None,
    ),
    (
        "ingestd_policy_lag_seconds",
        "Age of the oldest of these events; for a load, time since the source had the state of the target",
        lambda status: round(status.lag.seconds, 1) if status.lag else None,
    ),
    (
        "ingestd_policy_overdue_seconds",
        "The part of this time that is longer than the schedule of the dump explains",
        lambda status: round(status.lag.overdue, 1) if status.lag else None,
    ),
    (
        "ingestd_policy_since_success_seconds",
        "Time since the last execution that was successful or had nothing to do",
        _since_success,
    ),
    (
        "ingestd_policy_missing_directories",
        "Directories of external tables that the source lacked in the last successful load",
        lambda status: status.complete.counts.get("MISSING", (0, 0))[0] if status.complete else None,
    ),
    (
        "ingestd_policy_unreadable_tables",
        "Tables that are not copied, because their files cannot be read",
        lambda status: None if status.unreadable is None else len(status.unreadable),
    ),
)
_COUNTERS = {
    "EVENTS": "Events that executions of this process have dumped or loaded",
    "FILES": "Files that loads of this process have copied, or found to be there",
    "BYTES": "Bytes that loads of this process have copied",
    "POSTPONED": "Files of external tables that changed while loads of this process copied them",
}
