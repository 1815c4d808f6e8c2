"""The JSON documents of the server, whose fields `docs/monitor.md` lists.

Invariant: names end with their unit: `_unix` (seconds since 1970), `_seconds`, `_ms`, `_bytes`, `_offsets`,
`_per_second`; other numbers are counts. Fields are only added while `VERSION` stays the same.
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Iterable
from dataclasses import fields
from typing import Any, get_args

from ingestd import __version__
from ingestd.clock import now
from ingestd.compaction.pacing import Pacing
from ingestd.compaction.watch import CompactionStatus
from ingestd.config.document import Scope
from ingestd.daemon.http.fleet import Fleet
from ingestd.daemon.http.history import History
from ingestd.daemon.http.policies import policy_entry
from ingestd.ingest.monitoring.monitor import CommitRecord, Problem, Snapshot, State, Totals
from ingestd.kafka.ranges import TopicPartition

VERSION = 1
Json = dict[str, Any]
_STARTED = now()


def daemon_status(scope: Scope) -> Json:
    """Return what identifies this process and the mappings that it may run."""
    return {
        "release": __version__,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "started_unix": _moment(_STARTED),
        "now_unix": _moment(now()),
        "metastore": list(scope.metastore),
        "control_database": scope.control_database,
    }


def status(fleet: Fleet, history: History) -> Json:
    """Return the document of /status."""
    seen = [monitor.snapshot() for _, monitor in sorted(fleet.monitors.items())]
    rates = {snapshot.name: history.records_per_second(snapshot.name) for snapshot in seen}
    return {
        "version": VERSION,
        "daemon": daemon_status(fleet.scope),
        "states": dict.fromkeys(get_args(State), 0) | Counter(snapshot.state for snapshot in seen),
        "lag_offsets": sum(snapshot.lag or 0 for snapshot in seen),
        "records_per_second": round(sum(rates.values()), 1),
        "totals": _sum(snapshot.totals for snapshot in seen),
        "mappings": [mapping_status(snapshot, rates[snapshot.name]) for snapshot in seen],
        "policies": [policy_entry(policy) for policy in fleet.policies],
        "policies_error": None if fleet.policies_error is None else str(fleet.policies_error),
    }


def mapping_status(seen: Snapshot, records_per_second: float) -> Json:
    """Return one entry of `mappings`: everything of a snapshot except its commits."""
    return {
        **mapping_summary(seen, records_per_second),
        "lag_seconds": None if seen.lag_seconds is None else round(seen.lag_seconds, 1),
        "hidden_seconds": None if seen.hidden_seconds is None else round(seen.hidden_seconds, 1),
        "polled_unix": _moment(seen.polled_at),
        "metastore_unix": _moment(seen.metastore_at),
        "partitions": [
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "position": seen.position.get(partition),
                "end": seen.ends.get(partition),
                "lag_offsets": _lag(seen, partition),
                "hidden_offsets": _hidden(seen, partition),
            }
            for partition in sorted({*seen.position, *seen.ends})
        ],
    }


def mapping_summary(seen: Snapshot, records_per_second: float) -> Json:
    """Return the fields that change only when something happens: not those that change with the clock or a poll."""
    return {
        "name": seen.name,
        "table": seen.table,
        "topics": list(seen.topics),
        "state": seen.state,
        "state_since_unix": _moment(seen.since),
        "owner": seen.owner,
        "is_owner": seen.is_owner,
        "problem": None if seen.problem is None else _problem(seen.problem),
        "lag_offsets": seen.lag,
        "oldest_record_unix": _moment(seen.oldest),
        "hidden_offsets": seen.hidden_offsets,
        "hidden_since_unix": _moment(seen.hidden_since),
        "records_per_second": round(records_per_second, 1),
        "open_transactions": seen.open_transactions,
        "totals": _totals(seen.totals),
        "pacing": None if seen.pacing is None else _pacing(seen.pacing),
        "compaction": None if seen.compaction is None else _flat(seen.compaction),
        "last_commit": commit_status(seen.commits[-1]) if seen.commits else None,
    }


def mapping_details(seen: Snapshot, records_per_second: float) -> Json:
    """Return the document of /mappings/NAME."""
    return {
        "version": VERSION,
        **mapping_status(seen, records_per_second),
        "hive_partitions": _hive_partitions(seen.commits),
    }


def commits(seen: Snapshot) -> Json:
    """Return the document of /mappings/NAME/commits, the last commit first."""
    return {
        "version": VERSION,
        "name": seen.name,
        "commits": [commit_status(commit) for commit in reversed(seen.commits)],
    }


def commit_status(commit: CommitRecord) -> Json:
    """Return one committed transaction."""
    return {
        "txn": commit.txn,
        "write_id": commit.write_id,
        "committed_unix": _moment(commit.at),
        "rows": commit.rows,
        "records": commit.records,
        "skipped": commit.skipped,
        "rejects": commit.rejects,
        "dead_letters": commit.dead_letters,
        "size_bytes": commit.bytes,
        "files": commit.files,
        "ranges": list(commit.ranges),
        "range_count": commit.range_count,
        "range_offsets": commit.offsets,
        "hive_partitions": list(commit.partitions),
        "hive_partition_count": commit.partition_count,
        "steps_ms": dict(commit.steps),
        "duration_ms": sum(commit.steps.values()),
        "oldest_record_unix": _moment(commit.oldest),
    }


def _hive_partitions(written: Iterable[CommitRecord]) -> list[Json]:
    """Return the partitions that the remembered commits name, those written last first."""
    partitions: dict[str, Json] = {}
    for commit in written:
        for name in commit.partitions:
            count = partitions.pop(name, {"commits": 0})["commits"] + 1
            partitions[name] = {"name": name, "last_commit_unix": _moment(commit.at), "commits": count}
    return list(reversed(partitions.values()))


def _problem(problem: Problem) -> Json:
    return {
        "reason": problem.reason,
        "error": problem.what,
        "where": problem.where,
        "hint": problem.hint,
        "since_unix": _moment(problem.at),
        "retry_in_seconds": problem.again_in,
    }


def _pacing(pacing: Pacing) -> Json:
    return {
        "interval_seconds": pacing.interval,
        "factor": pacing.factor,
        "reason": pacing.reason,
        "deltas": pacing.deltas,
        "metastore_seconds": round(pacing.latency, 3),
    }


def _totals(totals: Totals) -> Json:
    values = _flat(totals)
    values["size_bytes"] = values.pop("bytes")
    return values


def _flat(value: Totals | CompactionStatus) -> Json:
    """Return the fields. `asdict` would copy them deeply, which takes ten times as long."""
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _sum(parts: Iterable[Totals]) -> Json:
    total, retries = Counter[str](), Counter[str]()
    for part in parts:
        retries.update(part.retries)
        total.update({name: value for name, value in _flat(part).items() if name != "retries"})
    return _totals(Totals(**total, retries=dict(retries)))


def _lag(seen: Snapshot, partition: TopicPartition) -> int | None:
    if partition not in seen.ends or partition not in seen.position:
        return None
    return max(0, seen.ends[partition] - seen.position[partition])


def _hidden(seen: Snapshot, partition: TopicPartition) -> int | None:
    if seen.hidden is None:
        return None
    return seen.hidden[partition].count if partition in seen.hidden else 0


def _moment(at: float | None) -> float | None:
    return None if at is None else round(at, 3)
