"""The configuration of mappings and of their state: the sections `mappings[]`, `defaults.commit` and `control`.

Each field has the name of its configuration key. `ingestd.config` validates the values that users set.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from math import ceil
from typing import Annotated, ClassVar, Literal

from ingestd.acid.partition_expressions import PartitionExpression
from ingestd.compaction.options import CompactionOptions, PacingOptions
from ingestd.errors import ConfigError, InvalidTable
from ingestd.formats.json.options import JsonOptions
from ingestd.formats.options import FormatOptions, can_evolve, has_schema
from ingestd.formats.registry import RegistryOptions
from ingestd.hive.creation import FIXED_PROPERTIES
from ingestd.hive.tables import TableName
from ingestd.keys import NOT_A_KEY, NOT_EMPTY, Bytes, Check, Count, Doc, Reads, Seconds, Setting, Shorthand, matching
from ingestd.schema import Column, HiveType, require_queryable

OnLoss = Literal["stop", "earliest", "latest"]
OnError = Literal["stop", "skip", "dead_letter"]
OnUnreadable = Literal["stop", "reject"]
Evolution = Literal["none", "add_columns", "widen"]
Distribution = Literal["auto", "none", "hash"]
KafkaField = Literal["key", "headers", "partition", "offset", "timestamp", "topic"]

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
_COLUMN = re.compile(r"\w{1,128}")
_REJECT_LIMIT = r"(\d{1,12})|(\d{1,3}(?:\.\d{1,6})?)\s*%"
# Larger numbers are milliseconds since 1970, not seconds. In seconds, they would be after the year 2600.
_LARGEST_SECONDS = 2e10


def _table(value: object) -> TableName:
    if not isinstance(value, str):
        raise ValueError("must be text")
    if not re.fullmatch(r"\w+(\.\w+)?", value):
        raise ValueError("must be database.table")
    return TableName.parse(value)


def _partition_value(value: object) -> str:
    """Return an expression, or Hive's text of a value, which YAML may have parsed as a number, a boolean or a date."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, (str, int, float, date)):
        raise ValueError("must be text, a number, a date, true or false")
    PartitionExpression.parse(str(value))  # raises ValueError
    return str(value)


def _type(text: str) -> str:
    try:
        return str(HiveType.parse(text))
    except InvalidTable as error:
        raise ValueError(f"must be a type that can be stored: {error.what}; {error.hint}") from None


def _key_type(text: str) -> str:
    text = _type(text)
    if HiveType.parse(text).is_complex:
        raise ValueError("must not be an array, a map or a struct, because it is the type of a partition column")
    return text


def _column_names(types: Mapping[str, str]) -> Mapping[str, str]:
    lower = {name.lower(): text for name, text in types.items()}
    if len(lower) < len(types) or not all(_COLUMN.fullmatch(name) for name in lower):
        raise ValueError("must name each column once, with letters, digits and _")
    return lower


def _table_properties(values: Mapping[str, str]) -> Mapping[str, str]:
    fixed = next((key for key in values if key.strip().lower() in FIXED_PROPERTIES), None)
    if fixed is not None:
        raise ValueError(f"must not contain {fixed}, because the table is a full ACID table without rows")
    return values


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


def _reject_limit(value: object) -> RejectLimit:
    match = re.fullmatch(_REJECT_LIMIT, str(value).strip(), re.ASCII)
    limit = None if match is None else RejectLimit(int(match[1] or 0), Decimal(match[2] or 0))
    if limit is None or not (0 < limit.percent <= 100 or limit.count):
        raise ValueError("must be a number of records such as 100, or a percentage such as 1%")
    return limit


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
class RefusalOptions:
    """How often a mapping retries after a service has answered no, before it stops."""

    retries: Annotated[Count, Doc("How often the mapping retries before it stops.")] = 5
    period: Annotated[Seconds, Doc("The least time that these retries take in all.")] = 30.0


@dataclass(frozen=True, slots=True)
class StartOptions:
    """Where the first run of a mapping starts: `earliest`, `latest`, or a time in milliseconds since 1970 (UTC)."""

    at: Literal["earliest", "latest", "timestamp"] = "earliest"
    timestamp_ms: int = 0


@dataclass(frozen=True, slots=True)
class RejectLimit:
    """The maximum number of rejects of one transaction: `count`, or if that is 0, `percent` of its records."""

    count: int = 0
    percent: Decimal = Decimal(0)

    def of(self, records: int) -> int:
        """Return the limit for a transaction of `records` records. A percentage is rounded up to whole records."""
        return self.count or ceil(records * self.percent / 100)

    def __str__(self) -> str:
        return f"{self.count:,}" if self.count else f"{self.percent}%"


@dataclass(frozen=True, slots=True)
class DeadLetterOptions:
    """Where dead letters are written: a topic of the same Kafka cluster ('' for none), a table, or both."""

    topic: Annotated[str, _TOPIC, Doc("The topic to which records that cannot become a row are written.")] = ""
    table: Annotated[
        TableName | None,
        Reads(_table, _TABLE),
        Doc("The table to which records that cannot become a row are written, as database.table."),
    ] = None


@dataclass(frozen=True, slots=True)
class CreateTableOptions:
    """The table that a mapping creates if it does not exist: a full ACID ORC table.

    `columns` and `partitioned_by` contain the Hive types by the names of the columns. Without `columns`, the schema of
    the records defines them.
    """

    columns: Annotated[
        Mapping[str, Annotated[str, Check(_type, {})]],
        Check(_column_names, {}),
        Doc("The columns and their Hive types; by default those of the schema of the records."),
    ] = field(default_factory=dict)
    partitioned_by: Annotated[
        Mapping[str, Annotated[str, Check(_key_type, {})]],
        Check(_column_names, {}),
        Doc("The partition columns and their Hive types; by default the table is not partitioned."),
    ] = field(default_factory=dict)
    properties: Annotated[
        Mapping[str, str], Check(_table_properties, {}), Doc("Table properties, such as orc.compress.")
    ] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise ConfigError if a column is also a partition column, or its type is too deep or too large."""
        try:
            require_queryable(Column(name, HiveType.parse(text)) for name, text in self.columns.items())
        except InvalidTable as error:
            name = error.where.removeprefix("column ").partition(".")[0]
            hint = "create the table yourself if you need such a column"
            raise ConfigError(error.what, where=f".columns.{name}", hint=hint) from None
        both = sorted(set(self.columns) & set(self.partitioned_by))
        if both:
            raise ConfigError(
                f"{both[0]} is also in columns", where=".partitioned_by", hint="name each column in one of them"
            )


_SQL = matching(r".*\S.*", "must not be empty")


@dataclass(frozen=True, slots=True)
class TransformOptions:
    """`select` is a SELECT of Spark SQL over the view `records`; its result are columns of the table.

    `columns` are the columns of the view, into which the records are decoded; by default, they are those of the table.
    """

    select: Annotated[str, _SQL, Doc("A SELECT of Spark SQL over the view records, which gives rows of the table.")]
    columns: Annotated[
        Mapping[str, Annotated[str, Check(_type, {"type": "string"})]],
        Check(_column_names, {}),
        Doc("The columns of the view records and their types; by default, those of the table."),
    ] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ControlOptions:
    """`database` is the Hive database that stores the state of all mappings."""

    database: Annotated[str, _STATE_NAME, Doc("The Hive database that stores the state of each mapping.")] = (
        _CONTROL_DATABASE
    )


_NO_UPSERT = (
    "mappings add rows and never replace them: store all changes, and read the latest row of each key from a view"
    ' (docs/limits.md, "Updates of rows")'
)


@dataclass(frozen=True, slots=True)
class MappingOptions:
    """One mapping, which ingests the records of `topics` into `table`.

    `columns` contains what Kafka knows about a record, by the name of the column that it fills. `partition` maps
    partition columns to static values and to expressions (see `PartitionExpression`); the values of the others are
    those of the record. `group` is the consumer group that offsets are mirrored to, by default `ingestd-NAME`. `kafka`
    contains librdkafka properties.
    `control_database` is the value of `ControlOptions.database`, and `registry` the section of the same name if
    the records refer to its schemas.
    """

    instead_of: ClassVar[Mapping[str, str]] = dict.fromkeys(("mode", "keys", "upsert"), _NO_UPSERT)

    name: Annotated[str, _STATE_NAME, Doc("The state is stored under this name; never rename a mapping.")]
    topics: Annotated[
        tuple[Annotated[str, _TOPIC], ...], NOT_EMPTY, Check(_distinct, {}), Doc("The topics whose records are moved.")
    ]
    table: Annotated[TableName, Reads(_table, _TABLE), Doc("The table, as database.table.")]
    format: Annotated[FormatOptions, Doc("How record values are decoded.")] = field(default_factory=JsonOptions)
    columns: Annotated[
        Mapping[str, KafkaField],
        Doc("Columns that are filled from the key, headers, partition, offset, timestamp or topic of the record."),
    ] = field(default_factory=dict)
    partition: Annotated[
        Mapping[str, Annotated[str, Reads(_partition_value, _PARTITION_VALUE)]],
        Doc("Values or expressions, such as to_date(ts), of partition columns; others are those of the record."),
    ] = field(default_factory=dict)
    where: Annotated[
        str, _SQL, Doc("A predicate of Spark SQL; rows of the records for which it is not true are not stored.")
    ] = ""
    transform: Annotated[
        TransformOptions | None, Doc("A SELECT of Spark SQL that computes the rows of the table from the records.")
    ] = None
    create_table: Annotated[
        CreateTableOptions | None,
        Shorthand(value=True),
        Doc("The table to create if it does not exist when the mapping runs for the first time; true uses defaults."),
    ] = None
    schema_evolution: Annotated[
        Evolution,
        Doc("Whether columns are added to the table for new fields of the records, or also widened; not by default."),
    ] = "none"
    commit: Annotated[CommitOptions, Doc("A transaction ends at the first of these limits.")] = field(
        default_factory=CommitOptions
    )
    distribution: Annotated[
        Distribution, Doc("Whether each task writes its own records, or those of some partitions and buckets.")
    ] = "auto"
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
    on_error: Annotated[
        OnError, Doc("Whether a record that cannot become a row stops the mapping, is skipped, or is a dead letter.")
    ] = "stop"
    dead_letter: Annotated[DeadLetterOptions | None, Doc("Where dead letters are written.")] = None
    max_rejects: Annotated[
        RejectLimit | None,
        Reads(_reject_limit, {"type": ["string", "integer"], "pattern": f"^\\s*(?:{_REJECT_LIMIT})\\s*$"}),
        Doc("A transaction with more rejects stops the mapping: a number, or a percentage of its records."),
    ] = None
    on_unreadable: Annotated[
        OnUnreadable,
        Doc("Whether records of Kafka that its client cannot read stop the mapping, or are rejects of on_error."),
    ] = "stop"
    on_offset_loss: Annotated[OnLoss, Doc("What happens if Kafka no longer has the committed position.")] = "stop"
    refusals: Annotated[
        RefusalOptions, Doc("How often the mapping retries after a service has answered no, before it stops.")
    ] = field(default_factory=RefusalOptions)
    group: Annotated[
        str,
        matching(".+", "must not be empty"),
        Doc("The consumer group that committed offsets are mirrored to; by default ingestd-NAME."),
    ] = ""
    kafka: Annotated[Mapping[str, Setting], Doc("librdkafka properties of this mapping.")] = field(
        default_factory=dict, repr=False
    )
    control_database: str = field(default=_CONTROL_DATABASE, metadata=NOT_A_KEY)
    registry: RegistryOptions | None = field(default=None, metadata=NOT_A_KEY)

    def __post_init__(self) -> None:
        """Raise ConfigError if no schema defines the columns of the table to create, or its evolution.

        Also raises it for keys that cannot be combined.
        """
        if self.transform is not None:
            self._check_transform()
        if self.create_table is not None and not self.create_table.columns and not has_schema(self.format):
            raise ConfigError(
                f"is missing, because the format {self.format.type} does not derive columns from schemas",
                where=".create_table.columns",
                hint="list the columns and their types, such as {id: bigint, note: string}",
            )
        if self.schema_evolution != "none" and not can_evolve(self.format):
            options = " with fields or lenient" if self.format.type == "json" else ""
            raise ConfigError(
                f"must be none, because the format {self.format.type}{options} does not derive columns from records",
                where=".schema_evolution",
                hint="add columns with ALTER TABLE; the next transaction stores their values",
            )

    def _check_transform(self) -> None:
        if self.create_table is not None and not self.create_table.columns:
            raise ConfigError(
                "is missing, because the result of transform, and not the schema of the records, defines the columns",
                where=".create_table.columns",
                hint="list the columns and their types, such as {id: bigint, note: string}",
            )
        if self.schema_evolution != "none":
            raise ConfigError(
                "must be none, because the result of transform, and not the schema of the records, defines the columns",
                where=".schema_evolution",
                hint="add columns with ALTER TABLE, and then to the SELECT of transform",
            )

    @property
    def consumer_group(self) -> str:
        """The consumer group that offsets are mirrored to."""
        return self.group or f"ingestd-{self.name}"

    @property
    def reader(self) -> Mapping[str, Setting]:
        """The librdkafka properties of clients that read records: those of `kafka`, with the mapping's group.

        They never join the group, but librdkafka looks it up, and the permissions of the mapping may allow no other.
        """
        return {**self.kafka, "group.id": self.consumer_group}

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

    def of_replays(self) -> MappingOptions:
        """Return the options under the name of the mapping's replays, whose leases and transactions are their own.

        No mapping can have this name.
        """
        return replace(self, name=f"{self.name}.replay")
