"""The options of a connection.

Invariant: options that contradict each other never become a connection.
"""

from __future__ import annotations

import getpass
import socket
import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingestd.hive.security import Security
from ingestd.streaming.errors import StreamingException
from ingestd.streaming.writers import ArrowWriter, RecordWriter

_AGENT_CHARACTERS = 128  # what the metastore's tables hold


@dataclass(frozen=True, kw_only=True)
class ConnectionOptions:
    """What `HiveStreamingConnection(…)` takes by name.

    `configuration` is a mapping or the path of a `hive-site.xml`; `metastore_uri`, `security` and
    `streaming_optimizations` (else true) come from it unless given. With `static_partition_values` all rows go to that
    partition, without them a row's last columns say where. `write_id` and `table_object` (the metastore's Thrift table)
    together join a transaction that somebody else opened, with `statement_id` for its files. A lock is waited for
    `lock_seconds`; a batch with unused transactions is closed `batch_seconds` after its start. Each
    `auto_flush_check_interval_size` bytes of input (100 MiB, or what the configuration says) the memory in use is
    looked at, and rows that wait go to their files when it is short.
    """

    record_writer: RecordWriter | ArrowWriter
    table: str = ""
    database: str = "default"
    static_partition_values: Sequence[str] = ()
    agent_info: str = ""
    metastore_uri: str = ""
    configuration: Mapping[str, str] | str | Path | None = None
    security: Security | None = None
    transaction_batch_size: int = 1
    streaming_optimizations: bool | None = None
    write_id: int | None = None
    table_object: Any = None
    statement_id: int = -1
    lock_seconds: float = 120.0
    batch_seconds: float = 300.0
    auto_flush_check_interval_size: int | None = None

    def __post_init__(self) -> None:
        faults = [
            (self.transaction_batch_size < 1, "transaction_batch_size must be 1 or more"),
            ((self.write_id is None) != (self.table_object is None), "write_id and table_object belong together"),
            (
                self.write_id is not None and self.transaction_batch_size != 1,
                "a joined transaction has a transaction_batch_size of 1",
            ),
            (self.statement_id != -1 and self.write_id is None, "a statement_id needs a write_id"),
            (not self.table and self.table_object is None, "table is missing"),
        ]
        for wrong, what in faults:
            if wrong:
                raise StreamingException(what, where="HiveStreamingConnection")

    def agent(self) -> str:
        """The agent's name; by default who and where we are, and a number."""
        thread = threading.current_thread().name
        name = self.agent_info or f"{getpass.getuser()}:{socket.gethostname()}:{thread}:{uuid.uuid4()}"
        return name[:_AGENT_CHARACTERS]
