"""The options of a connection.

Invariant: options that contradict each other never become a connection, and nobody is called to find out.
"""

from __future__ import annotations

import socket
import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingestd.hive.security import Security
from ingestd.hive.tables import TableName
from ingestd.streaming.arrow import ArrowWriter
from ingestd.streaming.errors import StreamingException
from ingestd.streaming.writers import RecordWriter

_AGENT_CHARACTERS = 128  # what the metastore's tables hold


@dataclass(frozen=True, kw_only=True)
class ConnectionOptions:
    """What `HiveStreamingConnection(…)` takes by name.

    `record_writer` must be given; `database` is `default` unless said. `configuration` is a mapping or the path of a
    `hive-site.xml`; without it none is looked for. `metastore_uri` and `security` come from it unless given; it holds
    no credentials, so a keytab, a password or a CA file come in by `security`, which can be made of both:
    `Security.from_hive_conf(Configuration.of(path), user=…, keytab=…, password=…, ca_file=…)`. With
    `static_partition_values` all rows go to that partition, without them a row's last columns say where. `write_id` and
    `table_object` (the metastore's Thrift table) together join a transaction that somebody else opened, with
    `statement_id` for its files. A lock is waited for `lock_seconds`; a batch with unused transactions is closed
    `batch_seconds` after its start. Each `auto_flush_check_interval_size` bytes of input (100 MiB, or what the
    configuration says) the memory in use is looked at, and rows that wait go to their files when it is short.
    """

    record_writer: RecordWriter | ArrowWriter | None = None
    table: str = ""
    database: str = ""
    static_partition_values: Sequence[str] | None = ()
    agent_info: str = ""
    metastore_uri: str = ""
    configuration: Mapping[str, str] | str | Path | None = None
    security: Security | None = None
    transaction_batch_size: int = 1
    streaming_optimizations: bool = True
    write_id: int | None = None
    table_object: Any = None
    statement_id: int = -1
    lock_seconds: float = 120.0
    batch_seconds: float = 300.0
    auto_flush_check_interval_size: int | None = None

    def __post_init__(self) -> None:
        faults = [
            (self.record_writer is None, "the record writer is missing"),
            (self.transaction_batch_size < 1, "transaction_batch_size must be 1 or more"),
            ((self.write_id is None) != (self.table_object is None), "write_id and table_object belong together"),
            (
                self.write_id is not None and self.transaction_batch_size != 1,
                "a joined transaction has a transaction_batch_size of 1",
            ),
            (self.statement_id != -1 and self.write_id is None, "a statement_id needs a write_id"),
            (not self.table and self.table_object is None, "table is missing"),
            (isinstance(self.static_partition_values, str), "static_partition_values must be a list of values"),
            (self._names_another(), "table_object is another table than database and table name"),
        ]
        for wrong, what in faults:
            if wrong:
                raise StreamingException(what, where="HiveStreamingConnection")

    @property
    def name(self) -> TableName:
        """The table by its name, lower case as the metastore has it."""
        return TableName((self.database or "default").lower(), self.table.lower())

    @property
    def writer(self) -> RecordWriter | ArrowWriter:
        """The record writer, which is there."""
        assert self.record_writer is not None
        return self.record_writer

    def agent(self, user: str) -> str:
        """The agent's name; by default who (`user`) and where we are, and a number."""
        thread = threading.current_thread().name
        name = self.agent_info or f"{user}:{socket.gethostname()}:{thread}:{uuid.uuid4()}"
        return name[:_AGENT_CHARACTERS]

    def _names_another(self) -> bool:
        raw = self.table_object
        if raw is None:
            return False
        pairs = ((self.database, raw.dbName), (self.table, raw.tableName))
        return any(given and given.lower() != has.lower() for given, has in pairs)
