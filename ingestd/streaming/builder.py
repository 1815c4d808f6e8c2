"""Builds a connection option by option, as in Java.

Invariant: a builder only collects options; `ConnectionOptions` validates them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from ingestd.hive.security import Security
from ingestd.storage.options import StorageOptions
from ingestd.streaming.arguments import PartitionValues
from ingestd.streaming.arrow import ArrowWriter
from ingestd.streaming.writers import RecordWriter

C = TypeVar("C")


class Builder(Generic[C]):
    """HiveStreamingConnection.Builder: each method sets one option of `ConnectionOptions` and returns the builder."""

    def __init__(self, connect: Callable[..., C]) -> None:
        self._connect = connect
        self._options: dict[str, Any] = {}

    def _with(self, **option: Any) -> Builder[C]:
        self._options |= option
        return self

    def with_database(self, database: str) -> Builder[C]:
        """Set the name of the database."""
        return self._with(database=database)

    def with_table(self, table: str) -> Builder[C]:
        """Set the name of the table."""
        return self._with(table=table)

    def with_static_partition_values(self, values: PartitionValues | None) -> Builder[C]:
        """Set the values of the partition that receives all rows, by column name or in the order of the columns."""
        return self._with(static_partition_values=values)

    def with_agent_info(self, agent_info: str) -> Builder[C]:
        """Set the client's name in SHOW LOCKS and SHOW TRANSACTIONS."""
        return self._with(agent_info=agent_info)

    def with_hive_conf(self, configuration: Mapping[str, str] | str | Path) -> Builder[C]:
        """Set the Hive settings, as a mapping or the path of a `hive-site.xml`."""
        return self._with(configuration=configuration)

    def with_metastore_uri(self, uri: str) -> Builder[C]:
        """Set the metastore addresses, comma-separated."""
        return self._with(metastore_uri=uri)

    def with_metastore_timeout_seconds(self, seconds: float) -> Builder[C]:
        """Set the time limit for each answer of the metastore."""
        return self._with(metastore_timeout_seconds=seconds)

    def with_security(self, security: Security) -> Builder[C]:
        """Set how to log in and whether to encrypt connections."""
        return self._with(security=security)

    def with_storage(self, storage: StorageOptions) -> Builder[C]:
        """Set how to access tables in HDFS and S3."""
        return self._with(storage=storage)

    def with_transaction_batch_size(self, size: int) -> Builder[C]:
        """Set the number of transactions that share their files."""
        return self._with(transaction_batch_size=size)

    def with_streaming_optimizations(self, enabled: bool) -> Builder[C]:  # noqa: FBT001 - Java's signature
        """Set whether deltas are written for speed: no indexes, no dictionaries, light compression."""
        return self._with(streaming_optimizations=enabled)

    def with_write_id(self, write_id: int) -> Builder[C]:
        """Set the write id of the transaction to join."""
        return self._with(write_id=write_id)

    def with_statement_id(self, statement_id: int) -> Builder[C]:
        """Set the statement id of the files of a joined transaction."""
        return self._with(statement_id=statement_id)

    def with_table_object(self, table: Any) -> Builder[C]:
        """Set the metastore's Thrift table, for a joined transaction."""
        return self._with(table_object=table)

    def with_record_writer(self, writer: RecordWriter | ArrowWriter) -> Builder[C]:
        """Set the writer that converts data into rows. It is required."""
        return self._with(record_writer=writer)

    def with_lock_seconds(self, seconds: float) -> Builder[C]:
        """Set the time limit for acquiring a lock."""
        return self._with(lock_seconds=seconds)

    def with_batch_seconds(self, seconds: float) -> Builder[C]:
        """Set the age at which a batch with unused transactions is closed."""
        return self._with(batch_seconds=seconds)

    def with_heartbeat_seconds(self, seconds: float) -> Builder[C]:
        """Set the interval of heartbeats."""
        return self._with(heartbeat_seconds=seconds)

    def with_commit_outcome_seconds(self, seconds: float) -> Builder[C]:
        """Set how long to query the outcome of a commit whose answer was lost."""
        return self._with(commit_outcome_seconds=seconds)

    def with_auto_flush_check_interval_size(self, size: int) -> Builder[C]:
        """Set the number of input bytes between two checks of memory use."""
        return self._with(auto_flush_check_interval_size=size)

    def connect(self) -> C:
        """Open the connection. Raises the same errors as `HiveStreamingConnection`."""
        return self._connect(**self._options)
