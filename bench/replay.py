"""Measures how fast a copy follows a source with many small transactions.

Invariant: a time contains the whole step, from the claim of the dump directory to its mark. After each load, the copy
has the write ids of its source, or `measure` raises SystemExit.
"""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from hive_metastore import ttypes

from ingestd.clock import monotonic
from ingestd.hive.client import Metastore
from ingestd.hive.objects import TableObject, create_table
from ingestd.hive.tables import TableName
from ingestd.hive.write_ids import read_snapshot
from ingestd.replication.cluster import Cluster
from ingestd.replication.cycle import Step, dump, load
from ingestd.replication.statements.grammar import ReplDump, ReplLoad, parse
from ingestd.storage.storages import Storages
from ingestd.streaming import ArrowWriter, HiveStreamingConnection

_ORC = "org.apache.hadoop.hive.ql.io.orc.Orc"
_DAYS = 4


@dataclass(frozen=True, slots=True)
class Replayed:
    """One cycle: seconds of the dump and of the load, and the load's events and calls of the metastore, by name."""

    commits: int
    events: int
    dump_seconds: float
    load_seconds: float
    calls: Counter[str]


class Copied:
    """A new database of the metastore `source`, and its copy on the metastore `target`; both are URIs.

    It has the table `t`, which is partitioned by day if `is_partitioned`. `folder` is an empty directory for dumps.
    """

    def __init__(self, source: str, target: str, folder: Path, *, is_partitioned: bool) -> None:
        name = f"bench_{uuid.uuid4().hex[:8]}"
        folder.mkdir()
        self._calls: Counter[str] = Counter()
        self._source = Cluster(Metastore(source), Storages())
        self._target = Cluster(Metastore(target, on_call=self._count), Storages())
        self._table, self._copy = TableName(name, "t"), TableName(f"{name}_copy", "t")
        self._is_partitioned = is_partitioned
        self._uri = source
        settings = f"WITH ('hive.repl.rootdir'='{folder.as_uri().replace('file://', 'file:')}')"
        self._dump = parse(f"REPL DUMP {name} {settings}")
        self._load = parse(f"REPL LOAD {name} INTO {name}_copy {settings}")
        self._source.metastore.call("create_database", ttypes.Database(name=name, parameters={}))
        create_table(
            self._source.metastore, _definition(self._table, self._source.metastore.user, is_partitioned=is_partitioned)
        )
        self._cycle(0)  # the bootstrap
        self._cycle(0)

    def measure(self, commits: int) -> Replayed:
        """Commit transactions of one row each on the source, then run one cycle."""
        connection = HiveStreamingConnection(
            database=self._table.database,
            table=self._table.table,
            metastore_uri=self._uri,
            record_writer=ArrowWriter(),
            transaction_batch_size=1,
        )
        with connection:
            for number in range(commits):
                connection.begin_transaction()
                connection.write(pa.table({"id": [number], "day": [f"2026-01-{number % _DAYS + 1:02d}"]}))
                connection.commit_transaction()
        return self._cycle(commits)

    def close(self) -> None:
        """Close the connections."""
        self._source.metastore.close()
        self._target.metastore.close()

    def _cycle(self, commits: int) -> Replayed:
        assert isinstance(self._dump, ReplDump)
        assert isinstance(self._load, ReplLoad)
        stop, began = threading.Event(), monotonic()
        dump(self._source, self._dump, Step(), stop)
        dumped = monotonic()
        self._calls.clear()
        result = load(self._target, self._load, {}, None, Step(), stop)
        loaded = monotonic()
        calls = self._calls.copy()
        ends = [
            read_snapshot(cluster.metastore, table).high_watermark
            for cluster, table in ((self._source, self._table), (self._target, self._copy))
        ]
        if ends[0] != ends[1]:
            raise SystemExit(f"the source has {ends[0]} write ids, and its copy {ends[1]}")
        events = result.progress.counts.get("EVENTS", (0, 0))[0]
        return Replayed(commits, events, dumped - began, loaded - dumped, calls)

    def _count(self, method: str, _seconds: float, _outcome: str) -> None:
        self._calls[method] += 1


def _definition(name: TableName, owner: str, *, is_partitioned: bool) -> TableObject:
    fields = [ttypes.FieldSchema(name=column, type=kind) for column, kind in (("id", "bigint"), ("day", "string"))]
    storage = ttypes.StorageDescriptor(
        cols=fields[:1] if is_partitioned else fields,
        inputFormat=f"{_ORC}InputFormat",
        outputFormat=f"{_ORC}OutputFormat",
        serdeInfo=ttypes.SerDeInfo(serializationLib=f"{_ORC}Serde"),
    )
    table = ttypes.Table(
        dbName=name.database,
        tableName=name.table,
        owner=owner,
        sd=storage,
        partitionKeys=fields[1:] if is_partitioned else [],
        parameters={"transactional": "true", "no_auto_compaction": "true"},
        tableType="MANAGED_TABLE",
    )
    return TableObject(table)
