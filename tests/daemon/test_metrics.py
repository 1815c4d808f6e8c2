"""The metrics are what the mappings report, and `docs/monitor.md` documents all of them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from ingestd.clock import now
from ingestd.compaction.pacing import Pacing
from ingestd.compaction.watch import CompactionStatus
from ingestd.daemon.metrics import Metrics
from ingestd.daemon.policy_metrics import PolicyMetrics
from ingestd.errors import BrokerUnavailable, InvalidTable, Unavailable
from ingestd.hive.client import Metastore
from ingestd.hive.tables import TableName
from ingestd.ingest.monitoring.monitor import CommitRecord, Counted, Monitor, State
from ingestd.ingest.options import MappingOptions
from ingestd.ingest.steps import STEPS
from ingestd.kafka.hidden import Hidden
from ingestd.kafka.ranges import TopicPartition
from ingestd.kafka.timestamps import FirstRecord
from ingestd.replication.policies.policy_status import State as PolicyState
from ingestd.replication.policies.worker import Totals
from ingestd.sandbox import Addresses
from tests.support.policies import status

ROOT = Path(__file__).parents[2]
PARTITION = TopicPartition("clicks", 0)
Labels = frozenset[str]


def _monitor(name: str = "clicks") -> Monitor:
    return Monitor(MappingOptions(name, ("clicks",), TableName("web", "clicks")))


def _commit(**steps: int) -> CommitRecord:
    return CommitRecord(
        7, 3, now() - 5, 90, 100, 10, 4_000, 2, ("clicks[0] 0..100",), 1, 100, (), 1, steps, rejects=6, dead_letters=4
    )


def _busy() -> Monitor:
    """Return the monitor of a mapping that has a value for every metric."""
    monitor = _monitor()
    monitor.entered("running", owner="daemon 1")
    monitor.failed(BrokerUnavailable("no answer"), again_in=0.2)
    monitor.entered("running")
    monitor.opened(2)
    monitor.paced(Pacing(interval=60.0, factor=2.0, reason="deltas"))
    monitor.compacted(CompactionStatus(deltas=12, crowded=3, small_files=40, pending=1))
    for number, counter in enumerate(get_args(Counted), 1):
        monitor.counted(counter, number)
    monitor.committed(_commit(**dict.fromkeys(STEPS[1:], 20)), {PARTITION: 100})
    monitor.polled({PARTITION: 100}, {PARTITION: 130})
    monitor.learned([FirstRecord(PARTITION, 100, now() - 60)])
    monitor.measured({PARTITION: Hidden(130, 140)}, 1_790_000_000.0)
    monitor.measured({PARTITION: Hidden(130, 177)}, 1_790_000_090.0)
    return monitor


def _families(
    metrics: Metrics, monitors: Iterable[Monitor], policies: PolicyMetrics | None = None
) -> dict[str, Metric]:
    """Return the metrics by their names in the text format, in which the names of counters end with `_total`."""
    text = metrics.text(monitors, None, policies).decode()
    assert len(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)) == len(set(re.findall(r"^# TYPE (\S+)", text, re.M)))
    found = text_string_to_metric_families(text)
    return {f"{family.name}_total" if family.type == "counter" else family.name: family for family in found}


def _policies() -> PolicyMetrics:
    """Return a policy that has a value for every metric."""
    counts = {("repl1", "EVENTS"): 5, ("repl1", "FILES"): 6, ("repl1", "BYTES"): 7, ("repl1", "TABLES"): 8}
    counts["repl1", "POSTPONED"] = 9
    return PolicyMetrics([status()], Totals({("repl1", "SUCCESS"): 3, ("repl1", "FAILED"): 1}, counts))


def test_metrics_when_a_policy_has_run_then_are_its_values() -> None:
    began = now()
    found = _families(Metrics(), [], _policies())
    states = {sample.labels["state"]: sample.value for sample in found["ingestd_policy_state"].samples}
    assert {state for state, value in states.items() if value} == {"failed"}
    assert len(states) == len(PolicyState)
    executions = {s.labels["status"]: s.value for s in found["ingestd_policy_executions_total"].samples}
    assert executions == {"SUCCESS": 3, "FAILED": 1}
    expected = {"events_total": 5, "files_total": 6, "bytes_total": 7, "lag_events": 12, "lag_seconds": 34.5}
    expected |= {"postponed_total": 9, "missing_directories": 0, "unreadable_tables": 2, "overdue_seconds": 4.5}
    assert {name: _values(found[f"ingestd_policy_{name}"]) for name in expected} == {
        name: [value] for name, value in expected.items()
    }
    _assert_grew(found["ingestd_policy_since_success_seconds"], 60, began)


@pytest.mark.parametrize(("unreadable", "values"), [({}, [0]), (None, [])])
def test_metrics_when_no_table_is_known_as_unreadable_then_the_gauge_is_0_or_absent_if_that_is_unknown(
    unreadable: dict[str, str] | None, values: list[float]
) -> None:
    policies = PolicyMetrics([replace(status(), unreadable=unreadable)], Totals())
    assert _values(_families(Metrics(), [], policies)["ingestd_policy_unreadable_tables"]) == values


# In the documentation, but only with Kerberos in the metrics (tests/hive/test_kerberos.py).
WITH_KERBEROS = {"ingestd_kerberos_ticket_expiry_seconds": ("gauge", frozenset({"source"}))}


def _values(family: Metric) -> list[float]:
    return [sample.value for sample in family.samples]


def _assert_grew(family: Metric, first: float, began: float) -> None:
    """Assert that the only value was `first` at the Unix time `began` or later, and has grown with the time since."""
    [value] = _values(family)
    assert first <= value <= first + now() - began + 0.01


def test_metrics_then_match_the_documentation() -> None:
    metrics = Metrics()
    metrics.on_call("get_table_req", 0.02, "ok")
    written = {
        name: (family.type, frozenset(label for s in family.samples for label in s.labels) - {"le"})
        for name, family in _families(metrics, [_busy()], _policies()).items()
    }
    section = (
        (ROOT / "docs" / "monitor.md").read_text(encoding="utf-8").partition("## Metrics")[2].partition("\n## ")[0]
    )
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|([^|]*)\| .+ \|$", section, re.MULTILINE)
    documented = {name: (kind, frozenset(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    assert len(rows) == len(documented) > 20
    assert documented == written | WITH_KERBEROS


def test_metrics_when_a_mapping_has_reported_then_are_its_values() -> None:
    began = now()
    found = _families(Metrics(), [_busy()])
    expected = {
        "ingestd_records_total": 100,
        "ingestd_rows_total": 90,
        "ingestd_bytes_total": 4_000,
        "ingestd_commits_total": 1,
        "ingestd_aborts_total": 1,
        "ingestd_takeovers_total": 3,
        "ingestd_row_count_repairs_total": 4,
        "ingestd_throttled_seconds_total": 8,
        "ingestd_table_changes_total": 9,
        "ingestd_retries_total": 1,
        "ingestd_open_transactions": 2,
        "ingestd_owner": 1,
        "ingestd_commit_interval_seconds": 60,
        "ingestd_pacing_factor": 2,
        "ingestd_compaction_deltas": 12,
        "ingestd_compaction_crowded_partitions": 3,
        "ingestd_compaction_small_files": 40,
        "ingestd_compaction_working": 1,
        "ingestd_compactions_pending": 1,
        "ingestd_compactions_requested_total": 5,
        "ingestd_compactions_finished_total": 6,
        "ingestd_compactions_failed_total": 7,
        "ingestd_lag_offsets": 30,
        "ingestd_hidden_offsets": 47,
        "ingestd_hidden_seconds": 90,
    }
    assert {name: _values(found[name]) for name in expected} == {name: [value] for name, value in expected.items()}
    rejects = {s.labels["action"]: s.value for s in found["ingestd_rejects_total"].samples}
    assert rejects == {"stop": 2, "skip": 6, "dead_letter": 4}
    _assert_grew(found["ingestd_lag_seconds"], 60, began)
    _assert_grew(found["ingestd_since_last_commit_seconds"], 5, began)
    states = {sample.labels["state"]: sample.value for sample in found["ingestd_mapping_state"].samples}
    assert [state for state, value in states.items() if value] == ["running"]
    assert found["ingestd_retries_total"].samples[0].labels == {"mapping": "clicks", "error": "BrokerUnavailable"}


def test_metrics_when_steps_took_a_time_then_each_is_in_the_bucket_of_its_limit_and_all_above() -> None:
    monitor = _monitor()
    for ms in (0, 10, 11, 3_000, 60_001):
        monitor.committed(_commit(staged=ms), {})
    samples = _families(Metrics(), [monitor])["ingestd_step_duration_seconds"].samples
    buckets = {s.labels["le"]: s.value for s in samples if s.name.endswith("_bucket")}
    assert buckets == {"0.01": 2, "0.03": 3, "0.1": 3, "0.3": 3, "1": 3, "3": 4, "10": 4, "60": 4, "+Inf": 5}
    assert {s.name.rpartition("_")[2]: s.value for s in samples if "le" not in s.labels} == {"count": 5, "sum": 63.022}


def test_metrics_when_a_mapping_is_standby_or_has_not_polled_then_what_only_the_owner_knows_is_absent() -> None:
    standby, starting = _monitor("a"), _monitor("b")
    standby.polled({PARTITION: 1}, {PARTITION: 5})
    standby.learned([FirstRecord(PARTITION, 1, now() - 3600)])
    standby.measured({PARTITION: Hidden(5, 9)})
    standby.opened(2)
    standby.paced(Pacing(60.0))
    standby.entered("standby", owner="daemon 2")
    standby.compacted(CompactionStatus())
    found = _families(Metrics(), [standby, starting])
    for name in (
        "lag_offsets",
        "lag_seconds",
        "hidden_offsets",
        "hidden_seconds",
        "since_last_commit_seconds",
        "pacing_factor",
        "compaction_working",
    ):
        assert not _values(found[f"ingestd_{name}"])
    assert _values(found["ingestd_open_transactions"]) == [0, 0]
    assert {s.labels["mapping"] for s in found["ingestd_commits_total"].samples} == {"a", "b"}
    # After the takeover, the age of a record that was read before says nothing.
    standby.entered("running")
    standby.polled({PARTITION: 3}, {PARTITION: 5})
    found = _families(Metrics(), [standby])
    assert _values(found["ingestd_lag_offsets"]) == [2]
    assert not _values(found["ingestd_lag_seconds"])


OF_THE_OWNER = {
    *("ingestd_commit_interval_seconds", "ingestd_pacing_factor", "ingestd_compaction_deltas"),
    *("ingestd_compaction_crowded_partitions", "ingestd_compaction_small_files", "ingestd_compaction_working"),
    "ingestd_compactions_pending",
}


@pytest.mark.parametrize("state", ["standby", "failed", "stopped", "starting"])
def test_metrics_when_a_daemon_no_longer_owns_a_mapping_then_its_pace_and_compaction_are_absent(state: State) -> None:
    monitor = _busy()
    before = _families(Metrics(), [monitor])
    assert all(_values(before[name]) for name in OF_THE_OWNER)
    monitor.entered(state)
    found = _families(Metrics(), [monitor])
    assert not [name for name in OF_THE_OWNER if _values(found[name])]
    assert _values(found["ingestd_compactions_finished_total"]) == [6]


def test_metrics_when_a_mapping_restarts_with_another_table_then_the_compaction_of_the_old_one_is_absent() -> None:
    monitor = _busy()
    monitor.restarted(MappingOptions("clicks", ("clicks",), TableName("web", "other")))
    monitor.entered("running")
    found = _families(Metrics(), [monitor])
    assert not _values(found["ingestd_compaction_deltas"])
    assert _values(found["ingestd_compactions_finished_total"]) == [6]


def test_metrics_when_the_metastore_answers_rejects_or_is_unavailable_then_calls_are_counted_by_outcome(
    addresses: Addresses,
) -> None:
    metrics = Metrics()
    with closing(Metastore(addresses.metastore, on_call=metrics.on_call)) as client:
        client.call("get_all_databases")
        client.call("get_all_databases")
        with pytest.raises(InvalidTable):
            client.call("get_database", "no_such_database")
    with closing(Metastore("thrift://127.0.0.1:1", on_call=metrics.on_call)) as client, pytest.raises(Unavailable):
        client.call("get_all_databases")
    samples = _families(metrics, [])["ingestd_metastore_call_duration_seconds"].samples
    assert {(s.labels["method"], s.labels["outcome"]): s.value for s in samples if s.name.endswith("_count")} == {
        ("get_all_databases", "ok"): 2,
        ("get_database", "InvalidTable"): 1,
        ("get_all_databases", "MetastoreUnavailable"): 1,
    }
