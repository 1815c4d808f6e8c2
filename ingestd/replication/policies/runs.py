"""What a policy did in one execution, as `sys.replication_metrics` shows it.

Invariant: the JSON texts have the fields of Hive's (ReplicationMetric, Metadata, Progress), so that queries written for
Hive's replication work. In a stage, the fields `namespace`, `updateTime`, `reason`, `error`, `errorClass`,
`lostTables` and `missingDirectories`, and the metrics FILES, BYTES, POSTPONED and MISSING, are ingestd's. The metastore
keeps the rows by the name of the policy, whatever its namespace.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import accumulate
from typing import Any

from ingestd.hive.schedules import MetricRow

# The metastore stores at most 10,000 characters (RM_PROGRESS), and no row that is longer.
_TEXT_LENGTH = 1000
_MOST_NAMES = 16
_NAMES_LENGTH, _NAME_LENGTH = 3000, 500


class Status(str, Enum):
    """The status of an execution. The values are Hive's: FAILED_ADMIN waits for an administrator."""

    IN_PROGRESS = "IN_PROGRESS"
    SUCCESS = "SUCCESS"
    SKIPPED = "SKIPPED"
    FAILED = "FAILED"
    FAILED_ADMIN = "FAILED_ADMIN"

    @property
    def has_failed(self) -> bool:
        """Whether an error ended the execution."""
        return self in (Status.FAILED, Status.FAILED_ADMIN)


class Stage(str, Enum):
    """The kind of a step. The values are Hive's."""

    DUMP = "REPL_DUMP"
    LOAD = "REPL_LOAD"


@dataclass(frozen=True, slots=True)
class Run:
    """One execution of a policy, whose scheduled query is in `namespace`.

    `database` is the one that the step reads or writes, and `phase` is Hive's name, '' before it is known. `directory`
    is that of the dump, and `last_event` the last event that it contains. `began`, `ended` and `updated`, the time when
    this was stored, are Unix times. `counts` has the done and the known number of TABLES, EVENTS, FILES and BYTES;
    of POSTPONED, files of external tables that changed while they were copied, so that the next cycle copies them; and
    of MISSING, directories of external tables that the source lacks, and whose copies keep their files.
    `reason` says why an execution was skipped, and `error` why it has failed; `marker` is the file that stops the
    policy, if there is one. `lost` names tables that the next dump contains as a whole, and `missing` has the
    directories of MISSING; of each, the first ones are stored, at most 16.
    """

    execution: int
    policy: str
    stage: Stage
    status: Status
    database: str
    began: float
    updated: float
    namespace: str
    ended: float | None = None
    phase: str = ""
    directory: str = ""
    last_event: int = 0
    counts: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    reason: str = ""
    error: str = ""
    error_class: str = ""
    marker: str = ""
    dump_execution: int = 0
    lost: Sequence[str] = ()
    missing: Sequence[str] = ()

    def row(self) -> MetricRow:
        """Return the row that the metastore stores."""
        metadata = {
            "dbName": self.database,
            "replicationType": self.phase,
            "stagingDir": self.directory,
            "lastReplId": self.last_event,
        }
        stage = {
            "name": self.stage.value,
            "status": self.status.value,
            "namespace": self.namespace,
            "startTime": _milliseconds(self.began),
            "endTime": _milliseconds(self.ended),
            "updateTime": _milliseconds(self.updated),
            "metrics": [
                {"name": name, "currentCount": done, "totalCount": known} for name, (done, known) in self.counts.items()
            ],
            "errorLogPath": self.marker or None,
            "reason": self.reason[:_TEXT_LENGTH] or None,
            "error": self.error[:_TEXT_LENGTH] or None,
            "errorClass": self.error_class or None,
            "lostTables": _stored(self.lost),
            "missingDirectories": _stored(self.missing),
        }
        progress = {"status": self.status.value, "stages": [stage]}
        return MetricRow(self.execution, self.policy, json.dumps(metadata), json.dumps(progress), self.dump_execution)

    @classmethod
    def of(cls, row: MetricRow) -> Run | None:
        """Return the execution that a row describes; None if another program has written the row."""
        try:
            metadata, progress = json.loads(row.metadata), json.loads(row.progress)
            stage = progress["stages"][0]
            return cls(
                row.execution,
                row.policy,
                Stage(stage["name"]),
                Status(progress["status"]),
                metadata["dbName"],
                _seconds(stage["startTime"]) or 0.0,
                _seconds(stage["updateTime"]) or 0.0,
                stage["namespace"],
                _seconds(stage.get("endTime")),
                metadata.get("replicationType") or "",
                metadata.get("stagingDir") or "",
                int(metadata.get("lastReplId") or 0),
                {
                    metric["name"]: (int(metric["currentCount"]), int(metric["totalCount"]))
                    for metric in stage.get("metrics") or ()
                },
                stage.get("reason") or "",
                stage.get("error") or "",
                stage.get("errorClass") or "",
                stage.get("errorLogPath") or "",
                row.dump_execution,
                tuple(stage.get("lostTables") or ()),
                tuple(stage.get("missingDirectories") or ()),
            )
        except (KeyError, IndexError, TypeError, ValueError):
            return None


def _stored(names: Sequence[str]) -> list[str]:
    """Return the first names, of which a row has room for a limited number, as JSON with escapes."""
    lengths = accumulate(len(json.dumps(name)) for name in names)
    fitting = [name for name, length in zip(names[:_MOST_NAMES], lengths, strict=False) if length <= _NAMES_LENGTH]
    return fitting or [name[:_NAME_LENGTH] for name in names[:1]]


def _milliseconds(moment: float | None) -> int:
    return round(moment * 1000) if moment else 0


def _seconds(milliseconds: Any) -> float | None:
    return int(milliseconds) / 1000 if milliseconds else None
