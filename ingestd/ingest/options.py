"""What a user decides about a mapping; every value here has been validated by `config`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ingestd.hive.tables import TableName

OnLoss = Literal["stop", "earliest", "latest"]
Tombstones = Literal["stop", "skip"]


@dataclass(frozen=True, slots=True)
class CommitOptions:
    """A transaction is closed by whichever comes first: records, bytes of their values, or seconds.

    One that would write more than `partitions` partitions, new or old, stops its mapping.
    """

    rows: int = 1_000_000
    bytes: int = 256 * 1024 * 1024
    interval_seconds: float = 30.0
    partitions: int = 3_000


@dataclass(frozen=True, slots=True)
class StartOptions:
    """Where the very first run begins: `earliest`, `latest`, or at a time (milliseconds since 1970)."""

    at: Literal["earliest", "latest", "timestamp"] = "earliest"
    timestamp_ms: int = 0


@dataclass(frozen=True, slots=True)
class MappingOptions:
    """One mapping: topics into one table. `partition` holds static partition values by column, all or none."""

    name: str
    topics: tuple[str, ...]
    table: TableName
    control_database: str = "ingestd"
    group: str = ""
    tombstones: Tombstones = "stop"
    partition: Mapping[str, str] = field(default_factory=dict)
    commit: CommitOptions = field(default_factory=CommitOptions)
    start: StartOptions = field(default_factory=StartOptions)
    on_offset_loss: OnLoss = "stop"
    kafka: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def control(self) -> TableName:
        """The control table."""
        return TableName(self.control_database, f"mapping_{self.name}")

    @property
    def commit_lease(self) -> TableName:
        """The name whose lock, inside the transaction, says who may commit."""
        return TableName(self.control_database, f"lease_{self.name}")

    @property
    def owner_lease(self) -> TableName:
        """The name whose lock, outside any transaction, says who should work."""
        return TableName(self.control_database, f"owner_{self.name}")
