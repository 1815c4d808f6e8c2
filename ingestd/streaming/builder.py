"""The builder spelling of a connection, for those who come from Java.

Invariant: a builder only collects; every rule about options is the connection's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from ingestd.hive.security import Security
from ingestd.streaming.arguments import PartitionValues

C = TypeVar("C")


class Builder(Generic[C]):
    """HiveStreamingConnection.Builder: each method returns the builder; `connect` raises what the connection raises."""

    def __init__(self, make: Callable[..., C]) -> None:
        self._make = make
        self._options: dict[str, Any] = {}

    def _with(self, **option: Any) -> Builder[C]:
        self._options |= option
        return self

    def with_database(self, database: str) -> Builder[C]:
        """Name of the database."""
        return self._with(database=database)

    def with_table(self, table: str) -> Builder[C]:
        """Name of the table."""
        return self._with(table=table)

    def with_static_partition_values(self, values: PartitionValues | None) -> Builder[C]:
        """One value for each partition column, by name or in their order: all rows go to that partition."""
        return self._with(static_partition_values=values)

    def with_agent_info(self, agent_info: str) -> Builder[C]:
        """What SHOW LOCKS and SHOW TRANSACTIONS call this client."""
        return self._with(agent_info=agent_info)

    def with_hive_conf(self, configuration: Mapping[str, str] | str | Path) -> Builder[C]:
        """Hive's settings, or the path of a `hive-site.xml`; none is looked for by itself."""
        return self._with(configuration=configuration)

    def with_metastore_uri(self, uri: str) -> Builder[C]:
        """Addresses of the metastore; by default those of the configuration."""
        return self._with(metastore_uri=uri)

    def with_metastore_timeout_seconds(self, seconds: float) -> Builder[C]:
        """How long each answer of the metastore is waited for; by default what the configuration says, or 60."""
        return self._with(metastore_timeout_seconds=seconds)

    def with_security(self, security: Security) -> Builder[C]:
        """Login and wire; by default what the configuration says without credentials (see `ConnectionOptions`)."""
        return self._with(security=security)

    def with_transaction_batch_size(self, size: int) -> Builder[C]:
        """Transactions that share their files."""
        return self._with(transaction_batch_size=size)

    def with_streaming_optimizations(self, enabled: bool) -> Builder[C]:  # noqa: FBT001 - Java's name and shape
        """Whether deltas are written for speed: no indexes, no dictionaries, light compression. True unless said."""
        return self._with(streaming_optimizations=enabled)

    def with_write_id(self, write_id: int) -> Builder[C]:
        """Join the transaction that has this write id."""
        return self._with(write_id=write_id)

    def with_statement_id(self, statement_id: int) -> Builder[C]:
        """Statement id of the files of a joined transaction."""
        return self._with(statement_id=statement_id)

    def with_table_object(self, table: Any) -> Builder[C]:
        """The metastore's Thrift table, for a joined transaction."""
        return self._with(table_object=table)

    def with_record_writer(self, writer: Any) -> Builder[C]:
        """What turns records into rows; required."""
        return self._with(record_writer=writer)

    def with_lock_seconds(self, seconds: float) -> Builder[C]:
        """How long a lock is waited for."""
        return self._with(lock_seconds=seconds)

    def with_batch_seconds(self, seconds: float) -> Builder[C]:
        """How old a batch with unused transactions may become."""
        return self._with(batch_seconds=seconds)

    def with_auto_flush_check_interval_size(self, size: int) -> Builder[C]:
        """Bytes of input after which the memory in use is looked at."""
        return self._with(auto_flush_check_interval_size=size)

    def connect(self) -> C:
        """Make the connection."""
        return self._make(**self._options)
