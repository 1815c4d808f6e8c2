"""The reference in docs/streaming.md is complete, and its record writer works."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgpack
import pytest

import ingestd.streaming
from ingestd.formats import delimited, regex
from ingestd.formats.json import decoder
from ingestd.streaming import ConnectionOptions, HiveStreamingConnection, SerializationError, arrow, v1
from ingestd.streaming.builder import Builder
from ingestd.streaming.errors import StreamingException
from tests.streaming.support import connect
from tests.support.stack import Stack

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "streaming.md").read_text(encoding="utf-8")
DESCRIBED = [
    HiveStreamingConnection,
    Builder,
    ingestd.streaming.ConnectionStats,
    ingestd.streaming.RecordWriter,
    ingestd.streaming.PartitionInfo,
    v1.HiveEndPoint,
    v1.StreamingConnection,
    v1.TransactionBatch,
]
# The public methods of org.apache.hive.streaming and org.apache.hive.hcatalog.streaming that Java programs call, as
# written in the first column.
JAVA = """
HiveStreamingConnection.newBuilder() Builder.withDatabase Builder.withTable Builder.withStaticPartitionValues
Builder.withAgentInfo Builder.withHiveConf Builder.withTransactionBatchSize Builder.withStreamingOptimizations
Builder.withRecordWriter Builder.withWriteId Builder.withTableObject Builder.withStatementId Builder.connect
beginTransaction write(byte[]) write(InputStream) commitTransaction() commitTransaction(partitions)
commitTransaction(partitions,_key,_value) abortTransaction close createPartitionIfNotExists getDeltaFileLocation
addWriteDirectoryInfo addWriteNotificationEvents getConnectionStats getPartitions getHiveConf getConf getMetastoreUri
getTable getDatabase getStaticPartitionValues isPartitionedTable isDynamicPartitioning getAgentInfo getUsername
getRecordWriter getTransactionBatchSize getWriteId getStatementId getCurrentWriteId getTxnToWriteIds
TransactionBatch.TxnState ConnectionStats.getRecordsWritten ConnectionStats.getRecordsSize
ConnectionStats.getCommittedTransactions ConnectionStats.getAbortedTransactions ConnectionStats.getAutoFlushCount
ConnectionStats.getMetastoreCalls ConnectionStats.getCreatedPartitions ConnectionStats.getTotalPartitions
PartitionInfo.getName PartitionInfo.getPartitionLocation PartitionInfo.isExists RecordWriter.init
RecordWriter.write(writeId,_byte[]) RecordWriter.write(writeId,_InputStream) RecordWriter.flush RecordWriter.close
RecordWriter.getPartitions RecordWriter.getDeltaFileLocation AbstractRecordWriter
StrictDelimitedInputWriter.newBuilder() StrictJsonWriter.newBuilder() StrictRegexWriter.newBuilder()
withLineDelimiterPattern withFieldDelimiter withCollectionDelimiter withMapKeyDelimiter withRegex
HiveEndPoint.newConnection StreamingConnection.fetchTransactionBatch StreamingConnection.close
TransactionBatch.beginNextTransaction TransactionBatch.write TransactionBatch.commit TransactionBatch.abort
TransactionBatch.remainingTransactions TransactionBatch.getCurrentTransactionState TransactionBatch.getCurrentTxnId
TransactionBatch.isClosed TransactionBatch.close TransactionBatch.heartbeat DelimitedInputWriter
DelimitedInputWriter.getFieldReordering
""".replace("_", " ").split("\n")
# Additions of this API, and options that are table properties in Hive.
OURS = {
    "Builder.with_metastore_uri",
    "Builder.with_metastore_timeout_seconds",
    "Builder.with_security",
    "Builder.with_storage",
    "Builder.with_lock_seconds",
    "Builder.with_batch_seconds",
    "Builder.with_heartbeat_seconds",
    "Builder.with_commit_outcome_seconds",
    "Builder.with_auto_flush_check_interval_size",
    "HiveStreamingConnection.transaction",
    "HiveStreamingConnection.fetch_batch",
    "HiveStreamingConnection.hand_over",
    "HiveStreamingConnection.current_txn_id",
    "RecordWriter.reads_by_position",
    "ArrowWriter",
    "null_text",
    "escape",
    "ignore_case",
}
READERS = {"JSON": decoder, "Delimited text": delimited, "Regular expressions": regex, "Arrow": arrow}


def section(title: str) -> str:
    return PAGE.split(f"## {title}", 1)[1].split("\n## ", 1)[0]


def rows_of(title: str) -> list[list[str]]:
    lines = [line for line in section(title).splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def public(kind: type) -> set[str]:
    """Return the names of public methods, properties, fields and annotated attributes, including inherited ones."""
    names = {name for base in kind.__mro__[:-1] for name in (*vars(base), *vars(base).get("__annotations__", {}))}
    return {name for name in names if not name.startswith("_")}


def test_reference_then_has_one_row_per_java_name_and_lists_additions() -> None:
    rows = rows_of("Java name → Python name")
    listed = [name for row in rows for name in re.findall(r"`([^`]+)`", row[0]) if "property" not in row[0]]
    assert sorted(listed) == sorted(name for line in JAVA for name in java_names(line))
    ours = {re.findall(r"`([\w.]+)", row[1])[0] for row in rows if row[0] == "–" or "property" in row[0]}
    assert ours == OURS


def java_names(line: str) -> list[str]:
    """Split a line at its spaces, except those after a comma, which belong to a name."""
    return re.findall(r"(?:, |\S)+", line)


def test_page_then_repeats_the_tables_of_the_decoders() -> None:
    for title, module in READERS.items():
        assert module.__doc__
        said = inspect.cleandoc(module.__doc__).split("\n\n", 2)[2]
        assert section("How records are read").split(f"### {title}\n\n")[1].split("\n\n###")[0].strip() == said


def test_reference_then_lists_exactly_the_public_python_names() -> None:
    named = {name for row in rows_of("Java name → Python name") for name in re.findall(r"`([\w.]+)", row[1])}
    for kind in DESCRIBED:
        prefix = "v1." if kind.__module__ == v1.__name__ else ""
        described = {name.rpartition(".")[2] for name in named if name.startswith(f"{prefix}{kind.__name__}.")}
        internal = {"options", "line_pattern", "end_point", "partition_values"} | set(FIELDS.get(kind, ()))
        assert described - public(kind) == set(), kind
        assert public(kind) - described - internal == set(), kind
    assert [name for name in named if "." not in name and not is_known(name)] == []


FIELDS: dict[type, tuple[str, ...]] = {v1.HiveEndPoint: ("metastore_uri", "database", "table")}


def is_known(name: str) -> bool:
    return hasattr(ingestd.streaming, name) or name in OPTIONS


OPTIONS = {
    *ConnectionOptions.__dataclass_fields__,
    *ingestd.streaming.StrictDelimitedInputWriter().format.__dataclass_fields__,
    *inspect.signature(regex.RegexDecoder).parameters,
    "line_delimiter_pattern",
    "regex",
}


def test_reference_then_lists_every_option() -> None:
    assert [name for name in ConnectionOptions.__dataclass_fields__ if f"`{name}`" not in PAGE] == []


def test_error_table_then_has_a_row_per_class_that_says_whether_it_is_retriable() -> None:
    table = {name: row[2] for row in rows_of("Errors and what to do") for name in re.findall(r"`([\w.]+)`", row[0])}
    classes = [kind for kind in vars(ingestd.streaming).values() if is_error(kind)]
    assert {kind.__name__ for kind in classes} == {name for name in table if not name.startswith("v1.")}
    for kind in classes:
        assert table[kind.__name__].startswith("yes") == kind.is_retriable, kind


def is_error(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, StreamingException)


def test_msgpack_writer_of_the_page_when_used_then_rows_are_stored_and_bad_records_rejected(stack: Stack) -> None:
    stack.table("id int, note string")
    code = re.findall(r"```python\n(.*?)```", section("A custom record writer"), re.DOTALL)[0]
    page: dict[str, Any] = {}
    exec(code, page)  # trusted: part of this repository

    with connect(stack, record_writer=page["MsgpackWriter"]()) as connection, connection.transaction():
        connection.write(msgpack.packb({"id": 1, "note": "one"}))
        with pytest.raises(SerializationError):
            connection.write(b"\xc1")
        connection.write([msgpack.packb({"id": number}) for number in (2, 3)])

    assert sorted(stack.sql(f"SELECT id, note FROM {stack.name}")) == [(1, "one"), (2, None), (3, None)]


def test_import_of_streaming_then_neither_spark_nor_kafka_is_imported() -> None:
    program = (
        "import sys, ingestd.streaming, ingestd.streaming.v1\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('pyspark', 'py4j', 'confluent_kafka')])"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert printed == "[]\n"
