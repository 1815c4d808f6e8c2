"""Support for the tests of streaming: connections to the test's table, and client programs."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from ingestd.hive.partitions import read_partitions
from ingestd.hive.tables import TableName, load_acid_table
from ingestd.schema import Column, HiveType
from ingestd.streaming import ArrowWriter, HiveStreamingConnection
from tests.support.stack import Stack


def rows(first: int, count: int = 10, **more: list[str]) -> pa.Table:
    """Return `count` rows with consecutive ids from `first`, notes, and the columns in `more`."""
    ids = list(range(first, first + count))
    return pa.table({"id": pa.array(ids, pa.int32()), "note": [f"note {identity}" for identity in ids], **more})


def batches(data: object, **types: str) -> list[pa.RecordBatch]:
    """Convert data with an ArrowWriter to batches with these columns."""
    return list(ArrowWriter().batches(data, [Column(name, HiveType.parse(text)) for name, text in types.items()]))


def connect(stack: Stack, **options: Any) -> HiveStreamingConnection:
    """Open a connection to the test's table. `options` override the defaults."""
    defaults: dict[str, Any] = {
        "database": "default",
        "table": stack.name,
        "metastore_uri": stack.addresses.metastore,
        "record_writer": ArrowWriter(),
    }
    return HiveStreamingConnection(**(defaults | options))


def counted(stack: Stack, name: str = "") -> int:
    """Return `numRows` of the table, or its sum over all partitions. `count(*)` uses it if statistics are accurate."""
    table = load_acid_table(stack.metastore, TableName("default", name or stack.name))
    if not table.partition_columns:
        return int(table.parameters["numRows"])
    names = stack.metastore.call("get_partition_names", table.name.database, table.name.table, -1)
    return sum(int(partition.parameters["numRows"]) for partition in read_partitions(stack.metastore, table, names))


def client(stack: Stack, script: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a Python program. Its arguments are the metastore's URI, the table's name and `arguments`."""
    path = stack.directory / f"client-{uuid.uuid4().hex[:6]}.py"
    path.write_text(script, encoding="utf-8")
    root = str(Path(__file__).resolve().parents[2])
    return subprocess.Popen(
        [sys.executable, str(path), stack.addresses.metastore, stack.name, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PYTHONPATH": root},
    )


def sees(stack: Stack, ids: Sequence[int], where: str = "", *, name: str = "", by_job: bool = False) -> None:
    """Assert that HiveServer2 reads exactly these ids: row by row, from its statistics, and if wanted in a Tez job.

    A job reads the files with Hive's vectorized reader. Tests of how rows are laid out in files use it.
    """
    expected, name = sorted(ids), name or stack.name
    assert stack.ids(f"{name} {where}") == expected
    assert stack.count(where, name) == len(expected)
    assert where or counted(stack, name) == len(expected)
    if by_job:
        total = stack.sql(f"SELECT sum(id + 0), min(id + 0), max(id + 0) FROM {name} {where}")[0]
        assert total == ((sum(expected), expected[0], expected[-1]) if expected else (None, None, None))
