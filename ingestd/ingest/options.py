"""The configuration of mappings and of their state: the sections `mappings[]`, `defaults.commit` and `control`.

Each field has the name of its configuration key. `ingestd.config` validates the values that users set.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone
from typing import Annotated, Literal

from ingestd.compaction.options import CompactionOptions, PacingOptions
from ingestd.hive.tables import TableName
from ingestd.keys import NOT_A_KEY, NOT_EMPTY, Bytes, Check, Count, Doc, Reads, Seconds, Setting, matching

OnLoss = Literal["stop", "earliest", "latest"]
Tombstones = Literal["stop", "skip"]

_CONTROL_DATABASE = "ingestd"
_STATE_NAME = matching(
    "[a-z0-9_]{1,40}",
    "must be 1 to 40 lower-case letters, digits or _, because it becomes part of the name of a Hive table",
)
_TOPIC = matching(
    r"(?!\.{1,2}$)[\w.-]{1,249}", "must be the name of one topic: 1 to 249 letters, digits, '.', '_' or '-'"
)
# JSON Schema of the YAML values that `_table`, `_partition_value` and `_start` accept.
_TABLE = {"type": "string", "pattern": r"^\w+(\.\w+)?$"}
_PARTITION_VALUE = {"type": ["string", "number", "boolean"]}
_START = {
    "anyOf": [
        {"enum": ["earliest", "latest"]},
        {
            "type": "object",
            "properties": {"timestamp": {"type": ["string", "number"]}},
            "required": ["timestamp"],
            "additionalProperties": False,
        },
    ]
}
# Larger numbers are milliseconds since 1970, not seconds. In seconds, they would be after the year 2600.
_LARGEST_SECONDS = 2e10


def _table(value: object) -> TableName:
    if not isinstance(value, str):
        raise ValueError("must be text")
    if not re.fullmatch(r"\w+(\.\w+)?", value):
        raise ValueError("must be database.table")
    return TableName.parse(value)


def _partition_value(value: object) -> str:
    """Return Hive's text of a value, which YAML may have parsed as a number, a boolean or a date."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, (str, int, float, date)):
        raise ValueError("must be text, a number, a date, true or false")
    return str(value)


def _distinct(values: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))


def _start(value: object) -> StartOptions:
    if value == "earliest":
        return StartOptions("earliest")
    if value == "latest":
        return StartOptions("latest")
    if isinstance(value, Mapping) and list(value) == ["timestamp"]:
        moment = parse_time(value["timestamp"])
        if moment is not None:
            return StartOptions("timestamp", milliseconds(moment))
    raise ValueError("must be earliest, latest or {timestamp: 2026-11-01T00:00:00Z}; the default zone is UTC")


def parse_time(value: object) -> datetime | None:
    """Return the time that a YAML value represents, or None if it represents none.

    Accepts a timestamp, a date, a number of seconds or milliseconds since 1970, and ISO 8601 text.
    """
    try:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return datetime.fromtimestamp(value if abs(value) <= _LARGEST_SECONDS else value / 1000, timezone.utc)
        moment = datetime.fromisoformat(re.sub("[Zz]$", "+00:00", str(value)))
    except (ValueError, OverflowError, OSError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)


def milliseconds(moment: datetime) -> int:
    """Return the first whole millisecond at or after a time, since 1970. Records have timestamps in milliseconds."""
    return -((datetime(1970, 1, 1, tzinfo=timezone.utc) - moment) // timedelta(milliseconds=1))


@dataclass(frozen=True, slots=True)
class CommitOptions:
    """A transaction ends at `rows` records, `bytes` of record values or `interval` seconds, whichever comes first.

    A transaction that would write more than `partitions` partitions, new or existing, stops its mapping.
    """

    rows: Annotated[Count, Doc("Maximum number of records of one transaction.")] = 1_000_000
    bytes: Annotated[Bytes, Doc("Maximum bytes of record values of one transaction.")] = 256 * 1024 * 1024
    interval: Annotated[Seconds, Doc("Time from the start of a transaction to that of the next one.")] = 30.0
    partitions: Annotated[Count, Doc("A transaction that would write more partitions stops its mapping.")] = 3_000


@dataclass(frozen=True, slots=True)
class StartOptions:
    """Where the first run of a mapping starts: `earliest`, `latest`, or a time in milliseconds since 1970 (UTC)."""

    at: Literal["earliest", "latest", "timestamp"] = "earliest"
    timestamp_ms: int = 0


@dataclass(frozen=True, slots=True)
class FormatOptions:
    """How records are decoded. `tombstones` says whether a record without a value stops the mapping or is skipped."""

    type: Annotated[Literal["json"], Doc("The encoding of record values.")] = "json"
    tombstones: Annotated[Tombstones, Doc("Whether a record without a value stops the mapping or is skipped.")] = "stop"


@dataclass(frozen=True, slots=True)
class ControlOptions:
    """`database` is the Hive database that stores the state of all mappings."""

    database: Annotated[str, _STATE_NAME, Doc("The Hive database that stores the state of each mapping.")] = (
        _CONTROL_DATABASE
    )


@dataclass(frozen=True, slots=True)
class MappingOptions:
    """One mapping, which ingests the records of `topics` into `table`.

    `partition` maps partition columns to static values, for all partition columns or none. `group` is the consumer
    group that offsets are mirrored to, by default `ingestd-NAME`. `kafka` contains librdkafka properties.
    `control_database` is the value of `ControlOptions.database`.
    """

    name: Annotated[str, _STATE_NAME, Doc("The state is stored under this name; never rename a mapping.")]
    topics: Annotated[
        tuple[Annotated[str, _TOPIC], ...], NOT_EMPTY, Check(_distinct, {}), Doc("The topics whose records are moved.")
    ]
    table: Annotated[TableName, Reads(_table, _TABLE), Doc("The table, as database.table.")]
    format: Annotated[FormatOptions, Doc("How record values are decoded.")] = field(default_factory=FormatOptions)
    partition: Annotated[
        Mapping[str, Annotated[str, Reads(_partition_value, _PARTITION_VALUE)]],
        Doc("Static values of all partition columns; without it, the values come from the records."),
    ] = field(default_factory=dict)
    commit: Annotated[CommitOptions, Doc("A transaction ends at the first of these limits.")] = field(
        default_factory=CommitOptions
    )
    compaction: Annotated[CompactionOptions, Doc("When compactions of the table are requested.")] = field(
        default_factory=CompactionOptions
    )
    pacing: Annotated[PacingOptions, Doc("When commits become less frequent than commit.interval.")] = field(
        default_factory=PacingOptions
    )
    start: Annotated[
        StartOptions,
        Reads(_start, _START),
        Doc("Where the first run starts: earliest, latest or {timestamp: 2026-11-01T00:00:00Z}."),
    ] = field(default_factory=StartOptions)
    on_offset_loss: Annotated[OnLoss, Doc("What happens if Kafka no longer has the committed position.")] = "stop"
    group: Annotated[
        str,
        matching(".+", "must not be empty"),
        Doc("The consumer group that committed offsets are mirrored to; by default ingestd-NAME."),
    ] = ""
    kafka: Annotated[Mapping[str, Setting], Doc("librdkafka properties of this mapping.")] = field(
        default_factory=dict, repr=False
    )
    control_database: str = field(default=_CONTROL_DATABASE, metadata=NOT_A_KEY)

    @property
    def consumer_group(self) -> str:
        """The consumer group that offsets are mirrored to."""
        return self.group or f"ingestd-{self.name}"

    @property
    def control(self) -> TableName:
        """The control table, which stores the state of the mapping."""
        return TableName(self.control_database, f"mapping_{self.name}")

    @property
    def commit_lease(self) -> TableName:
        """The name whose lock, inside the transaction, decides which daemon may commit."""
        return TableName(self.control_database, f"lease_{self.name}")

    @property
    def owner_lease(self) -> TableName:
        """The name whose lock, outside any transaction, decides which daemon runs the mapping."""
        return TableName(self.control_database, f"owner_{self.name}")
