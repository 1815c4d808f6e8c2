"""The metrics of the daemon in Prometheus' text format. Only this module imports prometheus_client.

Invariant: values come from memory and from /proc, so a request never waits for a service, for Spark's JVM or for a
mapping, and the data path only counts. A gauge that this process no longer updates, for example because another daemon
owns the mapping, is absent. No metric has a label whose number of values grows with the data, such as the names of
partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, get_args

import psutil
from prometheus_client import (
    CollectorRegistry,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4 as CONTENT_TYPE

from ingestd import __version__
from ingestd.clock import now
from ingestd.compaction.watch import CompactionStatus
from ingestd.daemon.policy_metrics import PolicyMetrics, escaped, head, policy_lines
from ingestd.hive.kerberos import ticket_seconds
from ingestd.hive.security import Kerberos
from ingestd.ingest.monitoring.histograms import LIMITS, Durations
from ingestd.ingest.monitoring.monitor import Monitor, Snapshot, State
from ingestd.spark.engine import Engine

__all__ = ["CONTENT_TYPE", "Metrics"]

# The creation times of histograms are of no use: their counters start with the process.
disable_created_metrics()  # type: ignore[no-untyped-call]
_CALL_LIMITS = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0)
_STEP_LIMITS = (*(f"{limit:g}" for limit in LIMITS), "+Inf")
_STATES: Sequence[State] = get_args(State)


@dataclass(frozen=True, slots=True)
class _Family:
    """A metric with the label `mapping`. `value` returns None for a mapping that has no value."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    value: Callable[[Snapshot], float | None]


def _since_commit(mapping: Snapshot) -> float | None:
    return max(0.0, now() - mapping.commits[-1].at) if mapping.commits else None


def _compaction(value: Callable[[CompactionStatus], float]) -> Callable[[Snapshot], float | None]:
    """Return a function that reads a value of the table's compaction, which an owner has after its first survey."""
    return lambda mapping: None if mapping.compaction is None else value(mapping.compaction)


_FAMILIES = (
    _Family("ingestd_records_total", "counter", "Records of committed transactions", lambda m: m.totals.records),
    _Family("ingestd_rows_total", "counter", "Rows of committed transactions", lambda m: m.totals.rows),
    _Family("ingestd_bytes_total", "counter", "Bytes of the values of committed records", lambda m: m.totals.bytes),
    _Family("ingestd_commits_total", "counter", "Committed transactions", lambda m: m.totals.commits),
    _Family("ingestd_aborts_total", "counter", "Aborted transactions", lambda m: m.totals.aborts),
    _Family("ingestd_takeovers_total", "counter", "Takeovers from another daemon", lambda m: m.totals.takeovers),
    _Family(
        "ingestd_row_count_repairs_total",
        "counter",
        "Partitions whose row count was repaired",
        lambda m: m.totals.row_count_repairs,
    ),
    _Family(
        "ingestd_table_changes_total",
        "counter",
        "Statements by which the mapping altered its table",
        lambda m: m.totals.table_changes,
    ),
    _Family(
        "ingestd_throttled_seconds_total",
        "counter",
        "Time that committed transactions waited because of a Kafka quota",
        lambda m: m.totals.throttled_seconds,
    ),
    _Family("ingestd_owner", "gauge", "1 if this daemon owns the mapping", lambda m: int(m.is_owner)),
    _Family("ingestd_lag_offsets", "gauge", "Offsets that are not committed", lambda m: m.lag),
    _Family("ingestd_lag_seconds", "gauge", "Age of the oldest record that is not committed", lambda m: m.lag_seconds),
    _Family("ingestd_hidden_offsets", "gauge", "Offsets behind open Kafka transactions", lambda m: m.hidden_offsets),
    _Family(
        "ingestd_hidden_seconds",
        "gauge",
        "Time for which the same Kafka transaction has hidden records",
        lambda m: m.hidden_seconds,
    ),
    _Family("ingestd_since_last_commit_seconds", "gauge", "Time since the last commit", _since_commit),
    _Family("ingestd_open_transactions", "gauge", "Transactions that are open", lambda m: m.open_transactions),
    _Family(
        "ingestd_commit_interval_seconds",
        "gauge",
        "Time between commits, which pacing may lengthen",
        lambda m: None if m.pacing is None else m.pacing.interval,
    ),
    _Family(
        "ingestd_compaction_deltas", "gauge", "Largest number of deltas in a partition", _compaction(lambda c: c.deltas)
    ),
    _Family(
        "ingestd_compaction_crowded_partitions",
        "gauge",
        "Partitions with at least compaction.deltas deltas",
        _compaction(lambda c: c.crowded),
    ),
    _Family(
        "ingestd_compaction_small_files", "gauge", "Files of less than 16 MB", _compaction(lambda c: c.small_files)
    ),
    _Family("ingestd_compaction_working", "gauge", "1 if compaction works", _compaction(lambda c: int(not c.problem))),
    _Family(
        "ingestd_compactions_pending", "gauge", "Compactions that have not ended", _compaction(lambda c: c.pending)
    ),
    _Family(
        "ingestd_compactions_requested_total",
        "counter",
        "Requested by ingestd",
        lambda m: m.totals.compactions_requested,
    ),
    _Family(
        "ingestd_compactions_finished_total", "counter", "Finished compactions", lambda m: m.totals.compactions_finished
    ),
    _Family("ingestd_compactions_failed_total", "counter", "Failed compactions", lambda m: m.totals.compactions_failed),
)


class Metrics:
    """The metrics of one daemon, which logs in to the metastore with `login`. Safe for use from any thread."""

    def __init__(self, login: Kerberos | None = None) -> None:
        self._login = login
        self._registry = CollectorRegistry()
        self._process = psutil.Process()
        ProcessCollector(namespace="ingestd", registry=self._registry)
        self._gauge("ingestd_process_threads", "Threads of the daemon").set_function(self._process.num_threads)
        self._gauge("ingestd_build_info", "The version of ingestd", "version").labels(__version__).set(1)
        self._children = self._gauge(
            "ingestd_spark_memory_bytes",
            "Resident memory of Spark's JVM and its workers; shared pages count repeatedly",
        )
        self._tasks = self._gauge("ingestd_spark_tasks", "Tasks of the Spark jobs that are running")
        self._slots = self._gauge("ingestd_spark_slots", "Tasks that the live executors run at the same time")
        self._ticket = self._gauge(
            "ingestd_kerberos_ticket_expiry_seconds", "Time until the Kerberos ticket expires", "source"
        )
        self._calls = Histogram(
            "ingestd_metastore_call_duration_seconds",
            "Duration of metastore calls",
            ["method", "outcome"],
            buckets=_CALL_LIMITS,
            registry=self._registry,
        )

    def on_call(self, method: str, seconds: float, outcome: str) -> None:
        """Count a metastore call (`hive.client.OnCall`)."""
        self._calls.labels(method, outcome).observe(seconds)

    def text(self, monitors: Iterable[Monitor], engine: Engine | None, policies: PolicyMetrics | None = None) -> bytes:
        """Return all metrics as a document of the type CONTENT_TYPE. `engine` is None until Spark has started.

        `policies` is None if this daemon does not run replication policies.
        """
        self._children.set(_children_bytes(self._process))
        self._tasks.set(engine.tasks if engine else 0)
        self._slots.set(engine.slots if engine else 0)
        if self._login is not None and (left := ticket_seconds(self._login)) is not None:
            self._ticket.labels("keytab" if self._login.keytab else "ticket_cache").set(left)
        lines = [*_mapping_lines(list(monitors)), *(policy_lines(policies) if policies else ())]
        return generate_latest(self._registry) + "".join(lines).encode()

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, registry=self._registry)


def _children_bytes(process: psutil.Process) -> int:
    total = 0
    for child in process.children(recursive=True):
        try:
            total += child.memory_info().rss
        except psutil.NoSuchProcess:  # noqa: PERF203 - it ended meanwhile
            continue
    return total


# With hundreds of mappings there are tens of thousands of samples. prometheus_client formats 100,000 of them in a
# second; the functions below, which know all labels, take a tenth of its time.


def _mapping_lines(monitors: Sequence[Monitor]) -> Iterator[str]:
    """Yield the lines of all metrics with the label `mapping`. Names of mappings need no escaping (`options.py`)."""
    snapshots = [monitor.snapshot() for monitor in monitors]
    for family in _FAMILIES:
        yield head(family.name, family.kind, family.help)
        for m in snapshots:
            if (value := family.value(m)) is not None:
                yield f'{family.name}{{mapping="{m.name}"}} {value}\n'
    yield from _labelled_lines(snapshots)
    yield head("ingestd_step_duration_seconds", "histogram", "Duration of the steps of committed transactions")
    for m, monitor in zip(snapshots, monitors, strict=True):
        for step, durations in monitor.durations().items():
            yield from _histogram("ingestd_step_duration_seconds", f'mapping="{m.name}",step="{step}"', durations)


def _labelled_lines(snapshots: Sequence[Snapshot]) -> Iterator[str]:
    """Yield the lines of the metrics with another label besides `mapping`."""
    yield head("ingestd_mapping_info", "gauge", "The table of the mapping")
    for m in snapshots:
        yield f'ingestd_mapping_info{{mapping="{m.name}",table="{escaped(m.table)}"}} 1\n'
    yield head("ingestd_mapping_state", "gauge", "1 for the state that the mapping is in, otherwise 0")
    for m in snapshots:
        for state in _STATES:
            yield f'ingestd_mapping_state{{mapping="{m.name}",state="{state}"}} {int(m.state == state)}\n'
    yield head("ingestd_pacing_factor", "gauge", "Time between commits as a multiple of commit.interval")
    for m in snapshots:
        if m.pacing is not None:
            labels = f'mapping="{m.name}",reason="{m.pacing.reason or "none"}"'
            yield f"ingestd_pacing_factor{{{labels}}} {m.pacing.factor}\n"
    yield head("ingestd_rejects_total", "counter", "Records that could not become a row, by what happened then")
    for m in snapshots:
        counts = {"stop": m.totals.rejects, "skip": m.totals.rejects_skipped, "dead_letter": m.totals.dead_letters}
        for action, count in counts.items():
            yield f'ingestd_rejects_total{{mapping="{m.name}",action="{action}"}} {count}\n'
    yield head("ingestd_retries_total", "counter", "Retries, by the class of the error")
    for m in snapshots:
        for error, count in m.totals.retries.items():
            yield f'ingestd_retries_total{{mapping="{m.name}",error="{error}"}} {count}\n'


def _histogram(name: str, labels: str, durations: Durations) -> Iterator[str]:
    count = 0
    for limit, count in zip(_STEP_LIMITS, accumulate(durations.counts), strict=True):
        yield f'{name}_bucket{{{labels},le="{limit}"}} {count}\n'
    yield f"{name}_count{{{labels}}} {count}\n{name}_sum{{{labels}}} {durations.seconds}\n"
