"""The options of a connection.

Invariant: options that contradict each other never become a connection, and nobody is called to find out.
"""

from __future__ import annotations

import socket
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ingestd.acid.layout import MAX_STATEMENT
from ingestd.hive.security import Security
from ingestd.hive.tables import TableName
from ingestd.streaming.arguments import (
    PartitionValues,
    check_flag,
    check_seconds,
    check_text,
    check_values,
    check_whole,
)
from ingestd.streaming.arrow import ArrowWriter
from ingestd.streaming.errors import InvalidConnection
from ingestd.streaming.writers import RecordWriter

_AGENT_CHARACTERS = 128  # what the metastore's tables hold
_WHERE = "HiveStreamingConnection"


@dataclass(frozen=True, kw_only=True)
class ConnectionOptions:
    """What `HiveStreamingConnection(…)` takes by name.

    `record_writer` must be given; `database` is `default` unless said. `configuration` is a mapping or the path of a
    `hive-site.xml`; without it none is looked for. `metastore_uri` and `security` come from it unless given; it holds
    no credentials, so a keytab, a password or a CA file come in by `security`, which can be made of both:
    `Security.from_hive_conf(Configuration.of(path), user=…, keytab=…, password=…, ca_file=…)`. With
    `static_partition_values` (a mapping by name, or a list in the order of the partition columns) all rows go to that
    partition, without them a row's last columns say where. `write_id` and `table_object` (the metastore's Thrift table)
    together join a transaction that somebody else opened, with `statement_id` for its files. A lock is waited for
    `lock_seconds`; a batch with unused transactions is closed `batch_seconds` after its start. Each answer of the
    metastore is waited for `metastore_timeout_seconds`, by default what the configuration says, or 60. Each
    `auto_flush_check_interval_size` bytes of input (100 MiB, or what the configuration says) the memory in use is
    looked at, and rows that wait go to their files when it is short.
    """

    record_writer: RecordWriter | ArrowWriter | None = None
    table: str = ""
    database: str = ""
    static_partition_values: PartitionValues | None = ()
    agent_info: str = ""
    metastore_uri: str | None = None
    metastore_timeout_seconds: float | None = None
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
        """Raises InvalidConnection, which names the option."""
        self._check_types()
        faults = [
            ((self.write_id is None) != (self.table_object is None), "write_id and table_object belong together"),
            (
                self.write_id is not None and self.transaction_batch_size != 1,
                "a joined transaction has a transaction_batch_size of 1",
            ),
            (self.statement_id != -1 and self.write_id is None, "a statement_id needs a write_id"),
            (not self.table and self.table_object is None, "table is missing"),
            (self._names_another(), "table_object is another table than database and table name"),
        ]
        for wrong, what in faults:
            if wrong:
                raise InvalidConnection(what, where=_WHERE)

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> ConnectionOptions:
        """Options by their names. Raises InvalidConnection, also for names that are none."""
        names = [field.name for field in fields(cls)]
        for name in options:
            if name not in names:
                near = get_close_matches(name, names, 1)
                raise InvalidConnection(
                    f"there is no option {name!r}",
                    where=_WHERE,
                    hint=f"did you mean {near[0]}?" if near else f"options: {', '.join(names)}",
                )
        return cls(**options)

    def _check_types(self) -> None:
        _check_writer(self.record_writer)
        for name in ("table", "database", "agent_info"):
            check_text(name, getattr(self, name))
        if self.metastore_uri is not None:
            check_uri(self.metastore_uri)
        if self.static_partition_values is not None:
            check_values("static_partition_values", self.static_partition_values)
        if self.security is not None and not isinstance(self.security, Security):
            raise InvalidConnection(
                f"security must be a Security, not {type(self.security).__name__}",
                where="security",
                hint="ingestd.hive.security.Security.from_hive_conf(…) makes one",
            )
        check_whole("transaction_batch_size", self.transaction_batch_size, 1)
        check_whole("statement_id", self.statement_id, -1, MAX_STATEMENT)
        for option, least in (("write_id", 1), ("auto_flush_check_interval_size", 1)):
            if getattr(self, option) is not None:
                check_whole(option, getattr(self, option), least)
        check_flag("streaming_optimizations", self.streaming_optimizations)
        check_seconds("lock_seconds", self.lock_seconds)
        check_seconds("batch_seconds", self.batch_seconds)
        if self.metastore_timeout_seconds is not None:
            check_seconds("metastore_timeout_seconds", self.metastore_timeout_seconds)
        self._check_table_object()

    def _check_table_object(self) -> None:
        raw = self.table_object
        if raw is not None and not all(isinstance(getattr(raw, name, None), str) for name in ("dbName", "tableName")):
            raise InvalidConnection(
                f"table_object must be the metastore's Thrift table, not {type(raw).__name__}", where="table_object"
            )

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


def check_uri(uri: object) -> None:
    """Refuse an address of the metastore that is no text, or empty."""
    check_text("metastore_uri", uri)
    if not str(uri).strip():
        raise InvalidConnection(
            "metastore_uri is empty",
            where="metastore_uri",
            hint="leave it out to take it from the configuration, or say thrift://localhost:9083",
        )


def _check_writer(writer: object) -> None:
    if writer is None:
        raise InvalidConnection("the record writer is missing", where=_WHERE)
    if isinstance(writer, type):
        raise InvalidConnection(
            f"record_writer is the class {writer.__name__}", where="record_writer", hint=f"write {writer.__name__}(…)"
        )
    if not isinstance(writer, (RecordWriter, ArrowWriter)):
        raise InvalidConnection(
            f"record_writer must be a RecordWriter or an ArrowWriter, not {type(writer).__name__}",
            where="record_writer",
            hint="for example StrictJsonWriter()",
        )
