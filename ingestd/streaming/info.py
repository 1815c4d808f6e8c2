"""What a connection is, by the names of Java's getters.

Invariant: asking changes nothing and calls nobody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ingestd.hive.client import Metastore
from ingestd.hive.partitions import PartitionInfo
from ingestd.hive.tables import Table
from ingestd.publish.deltas import Placed
from ingestd.publish.statistics import WHOLE_TABLE
from ingestd.streaming.arrow import ArrowWriter
from ingestd.streaming.batch import TransactionBatch, TxnState
from ingestd.streaming.configuration import Configuration
from ingestd.streaming.errors import streaming_errors
from ingestd.streaming.joined import JoinedTransaction
from ingestd.streaming.options import ConnectionOptions
from ingestd.streaming.session import open_session
from ingestd.streaming.stats import ConnectionStats, Counters
from ingestd.streaming.writers import RecordWriter


class ConnectionInfo:
    """The part of a connection that answers questions; the constructor opens its session."""

    configuration: Configuration
    metastore_uri: str

    def __init__(self, options: ConnectionOptions) -> None:
        self.options = options
        self.configuration = Configuration.of(
            options.configuration, streaming_optimizations=options.streaming_optimizations
        )
        self.metastore_uri = options.metastore_uri or self.configuration.metastore_uri()
        with streaming_errors():
            self._session = open_session(options, self.configuration, self.metastore_uri)
        self._batch: TransactionBatch | JoinedTransaction | None = None

    @property
    def record_writer(self) -> RecordWriter | ArrowWriter:
        """What turns records into rows."""
        return self.options.writer

    @property
    def agent_info(self) -> str:
        """What SHOW LOCKS and SHOW TRANSACTIONS call this client."""
        return self._session.agent

    @property
    def username(self) -> str:
        """Who we are to the metastore: of its login, or the name that it was told."""
        return self._metastore.user

    @property
    def transaction_batch_size(self) -> int:
        """Transactions that share their files."""
        return self.options.transaction_batch_size

    @property
    def write_id(self) -> int | None:
        """Write id of the transaction that was joined."""
        return self.options.write_id

    @property
    def statement_id(self) -> int:
        """Statement id of the files of a joined transaction."""
        return self.options.statement_id

    @property
    def static_partition_values(self) -> Sequence[str]:
        """Values of the partition that all rows go to; () when rows say theirs."""
        return self._session.static

    @property
    def database(self) -> str:
        """Name of the database, lower case."""
        return self._session.table.name.database

    @property
    def table(self) -> Table:
        """The table as it was when the last transaction began, or the connection was made."""
        return self._session.table

    @property
    def is_partitioned_table(self) -> bool:
        """Whether the table has partition columns."""
        return bool(self._session.table.partition_columns)

    @property
    def is_dynamic_partitioning(self) -> bool:
        """Whether the partition of a row comes from the row."""
        return self._session.is_dynamic

    @property
    def current_transaction_state(self) -> TxnState:
        """State of the transaction that is or was last open."""
        return self._batch.state if self._batch else TxnState.INACTIVE

    @property
    def current_write_id(self) -> int | None:
        """Write id of the open transaction."""
        if isinstance(self._batch, TransactionBatch):
            return self._batch.current_write_id
        return self.write_id

    @property
    def current_txn_id(self) -> int | None:
        """Id of the open transaction; None when it is somebody else's."""
        batch = self._batch
        return batch.current.id if isinstance(batch, TransactionBatch) and batch.current else None

    @property
    def txn_to_write_ids(self) -> Mapping[int, int]:
        """Write id of each transaction of the current batch."""
        return dict(self._batch.txn_to_write_ids) if self._batch else {}

    @property
    def partitions(self) -> Mapping[str, PartitionInfo]:
        """Partitions of the transaction that is or was last open, by name."""
        known = self._batch.partitions if self._batch else {}
        return {name: info for name, info in known.items() if name != WHOLE_TABLE}

    @property
    def write_directories(self) -> Sequence[Placed]:
        """What the last commit put where: for each delta its partition, the partition's place, and the files."""
        return self._batch.placed if self._batch else ()

    @property
    def stats(self) -> ConnectionStats:
        """What the connection has done so far; it does not change when the connection does more."""
        return self._stats.snapshot(self._metastore.calls)

    @property
    def _metastore(self) -> Metastore:
        return self._session.metastore

    @property
    def _table(self) -> Table:
        return self._session.table

    @property
    def _stats(self) -> Counters:
        return self._session.stats
