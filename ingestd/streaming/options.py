"""Defines all options of a connection in one place, `ConnectionOptions`.

`HiveStreamingConnection(…)` accepts the fields as keyword arguments, and the builder has a method for each.

Invariant: options that contradict each other are rejected before any network call.
"""

from __future__ import annotations

import inspect
import socket
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from ingestd.acid.layout import MAX_STATEMENT
from ingestd.hive.security import Security
from ingestd.hive.tables import TableName
from ingestd.publish.outcome import RESOLVE_SECONDS
from ingestd.storage.options import StorageOptions
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

_AGENT_CHARACTERS = 128  # width of the column in the metastore's database
_WHERE = "HiveStreamingConnection"
_P = ParamSpec("_P")
_S = TypeVar("_S")


@dataclass(frozen=True, kw_only=True)
class ConnectionOptions:
    """Options of a `HiveStreamingConnection`. Only `record_writer` and `table` are required.

    Raises InvalidConnection, which names the option, for a wrong type, a value out of range or a contradiction.
    """

    record_writer: RecordWriter | ArrowWriter
    """Converts the data given to `write` into rows."""

    table: str = ""
    """Name of the table (case-insensitive). Optional with `table_object`."""

    database: str = ""
    """Name of the database (case-insensitive). Empty: `default`."""

    static_partition_values: PartitionValues | None = ()
    """Values of the partition that receives all rows: a mapping by column name, or a sequence in the order of the
    partition columns. Empty or None: dynamic partitioning, where the last columns of each row select its partition."""

    agent_info: str = ""
    """Client name in SHOW LOCKS and SHOW TRANSACTIONS, truncated to 128 characters. Empty: user, host, thread, UUID."""

    metastore_uri: str | None = None
    """Metastore addresses, comma-separated, such as `thrift://localhost:9083`. None: those of `configuration`."""

    metastore_timeout_seconds: float | None = None
    """Time limit for each answer of the metastore. None: the value in `configuration`, by default 60 s."""

    configuration: Mapping[str, str] | str | Path | None = None
    """Hive settings: a mapping, or the path of a `hive-site.xml`. None: no settings; no such file is searched for."""

    security: Security | None = None
    """Login and encryption. None: as set in `configuration`, which contains no credentials. For a keytab, a password or
    a CA file pass `Security.from_hive_conf(Configuration.of(path), user=…, keytab=…, password=…, ca_file=…)`."""

    storage: StorageOptions | None = None
    """Access to tables in HDFS and S3. What it does not set comes from `configuration` (`fs.s3a.*`, `dfs.*` …), then
    from the Hadoop configuration (`hadoop_conf_dir`, or the variable HADOOP_CONF_DIR), then from the environment."""

    transaction_batch_size: int = 1
    """Number of transactions that are opened together and share their files."""

    streaming_optimizations: bool = True
    """Write deltas for speed: no indexes, no dictionaries, light compression. Compaction adds what is missing."""

    write_id: int | None = None
    """Write id of a transaction that another client opened and will commit; requires `table_object`."""

    table_object: Any = None
    """The metastore's Thrift table, as read by the owner of the joined transaction; requires `write_id`."""

    statement_id: int = -1
    """Statement id of the files of a joined transaction, 0 to 4095. The default, -1, means 0."""

    lock_seconds: float = 120.0
    """Time limit for acquiring a lock."""

    batch_seconds: float = 300.0
    """Age at which a batch with unused transactions is closed, because an open batch blocks compaction."""

    heartbeat_seconds: float | None = None
    """Interval of heartbeats. None: half of the metastore's `hive.txn.timeout`."""

    commit_outcome_seconds: float = RESOLVE_SECONDS
    """How long to query the outcome of a commit whose answer was lost, before CommitOutcomeUnknown is raised."""

    auto_flush_check_interval_size: int | None = None
    """Bytes of input between two checks of memory use. When memory is short, buffered rows are written to their files.
    None: the value in `configuration`, by default 100 MiB."""

    def __post_init__(self) -> None:
        """Check the types of all options, and that no options contradict each other. Raises InvalidConnection."""
        self._check_types()
        contradictions = [
            (
                (self.write_id is None) != (self.table_object is None),
                "write_id and table_object must be given together",
            ),
            (
                self.write_id is not None and self.transaction_batch_size != 1,
                "a joined transaction requires transaction_batch_size=1",
            ),
            (self.statement_id != -1 and self.write_id is None, "statement_id requires write_id"),
            (not self.table and self.table_object is None, "table is missing"),
            (self._names_another_table(), "database and table do not match table_object"),
        ]
        for applies, what in contradictions:
            if applies:
                raise InvalidConnection(what, where=_WHERE)

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> ConnectionOptions:
        """Return the options of a mapping by name. Raises InvalidConnection for unknown names and invalid values."""
        names = [field.name for field in fields(cls)]
        for name in options:
            if name not in names:
                near = get_close_matches(name, names, 1)
                raise InvalidConnection(
                    f"there is no option {name!r}",
                    where=_WHERE,
                    hint=f"did you mean {near[0]}?" if near else f"options: {', '.join(names)}",
                )
        return cls(**({"record_writer": None} | dict(options)))

    @property
    def name(self) -> TableName:
        """The qualified name of the table, in lower case as the metastore stores it."""
        return TableName((self.database or "default").lower(), self.table.lower())

    def agent(self, user: str) -> str:
        """Return the client's name in SHOW LOCKS and SHOW TRANSACTIONS. `user` is the user name at the metastore."""
        thread = threading.current_thread().name
        name = self.agent_info or f"{user}:{socket.gethostname()}:{thread}:{uuid.uuid4()}"
        return name[:_AGENT_CHARACTERS]

    def _names_another_table(self) -> bool:
        raw = self.table_object
        if raw is None:
            return False
        pairs = ((self.database, raw.dbName), (self.table, raw.tableName))
        return any(given and given.lower() != has.lower() for given, has in pairs)

    def _check_types(self) -> None:
        _check_writer(self.record_writer)
        for name in ("table", "database", "agent_info"):
            check_text(name, getattr(self, name))
        if self.metastore_uri is not None:
            _check_uri(self.metastore_uri)
        if self.static_partition_values is not None:
            check_values("static_partition_values", self.static_partition_values)
        self._check_classes()
        check_whole("transaction_batch_size", self.transaction_batch_size, 1)
        check_whole("statement_id", self.statement_id, -1, MAX_STATEMENT)
        for name in ("write_id", "auto_flush_check_interval_size"):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), 1)
        check_flag("streaming_optimizations", self.streaming_optimizations)
        for name in ("lock_seconds", "batch_seconds", "commit_outcome_seconds"):
            check_seconds(name, getattr(self, name))
        for name in ("metastore_timeout_seconds", "heartbeat_seconds"):
            if getattr(self, name) is not None:
                check_seconds(name, getattr(self, name))
        _check_table_object(self.table_object)

    def _check_classes(self) -> None:
        checks: list[tuple[str, type, str]] = [
            ("security", Security, "ingestd.hive.security.Security.from_hive_conf(…)"),
            ("storage", StorageOptions, "ingestd.storage.options.StorageOptions(…)"),
        ]
        for name, kind, way in checks:
            value = getattr(self, name)
            if value is not None and not isinstance(value, kind):
                raise InvalidConnection(
                    f"{name} must be of the type {kind.__name__}, not {type(value).__name__}",
                    where=name,
                    hint=f"create it with {way}",
                )


def takes_options(
    options: Callable[_P, ConnectionOptions],
) -> Callable[[Callable[[_S, ConnectionOptions], None]], Callable[Concatenate[_S, _P], None]]:
    """Let a constructor accept the fields of `ConnectionOptions`, visible to type checkers, editors and `help()`."""

    def decorate(init: Callable[[_S, ConnectionOptions], None]) -> Callable[Concatenate[_S, _P], None]:
        @wraps(init)
        def construct(self: _S, /, *positional: _P.args, **given: _P.kwargs) -> None:
            if positional:
                raise TypeError(f"{_WHERE} accepts its options by name only")
            init(self, ConnectionOptions.of(given))

        own = inspect.signature(init).parameters["self"]
        named = inspect.signature(options).parameters.values()
        construct.__signature__ = inspect.Signature([own, *named])  # type: ignore[attr-defined]
        return construct

    return decorate


def _check_uri(uri: object) -> None:
    check_text("metastore_uri", uri)
    if not str(uri).strip():
        raise InvalidConnection(
            "metastore_uri is empty",
            where="metastore_uri",
            hint="omit it to use the address in the configuration, or pass thrift://localhost:9083",
        )


def _check_writer(writer: object) -> None:
    if writer is None:
        raise InvalidConnection("the record writer is missing", where=_WHERE, hint="pass record_writer=…")
    if isinstance(writer, type):
        raise InvalidConnection(
            f"record_writer is the class {writer.__name__}",
            where="record_writer",
            hint=f"pass an instance: {writer.__name__}(…)",
        )
    if not isinstance(writer, (RecordWriter, ArrowWriter)):
        raise InvalidConnection(
            f"record_writer must be a RecordWriter or an ArrowWriter, not {type(writer).__name__}",
            where="record_writer",
            hint="for example StrictJsonWriter()",
        )


def _check_table_object(raw: object) -> None:
    if raw is not None and not all(isinstance(getattr(raw, name, None), str) for name in ("dbName", "tableName")):
        raise InvalidConnection(
            f"table_object must be the metastore's Thrift table, not {type(raw).__name__}", where="table_object"
        )
