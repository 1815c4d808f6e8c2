"""Creates and reads ACID tables without HiveServer2, over Thrift and from their files."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from hive_metastore import ttypes
from pyarrow import orc

from ingestd.acid.visibility import visible_directories
from ingestd.hive import transactions
from ingestd.hive.client import CAPABILITIES, Metastore
from ingestd.hive.partitions import read_partitions
from ingestd.hive.tables import TableName, load_acid_table
from ingestd.hive.write_ids import read_snapshot
from ingestd.storage.local import local_path

_ORC = "org.apache.hadoop.hive.ql.io.orc"


def make_table(metastore: Metastore, name: TableName, *, partitioned: bool = False, **properties: str) -> Any:
    """Create a table `(id int, note string)`, partitioned by `day string` if `partitioned`, and return it."""
    storage = ttypes.StorageDescriptor(
        cols=[_column("id", "int"), _column("note", "string")],
        inputFormat=f"{_ORC}.OrcInputFormat",
        outputFormat=f"{_ORC}.OrcOutputFormat",
        serdeInfo=ttypes.SerDeInfo(serializationLib=f"{_ORC}.OrcSerde", parameters={}),
        numBuckets=-1,
        bucketCols=[],
        sortCols=[],
        parameters={},
    )
    table = ttypes.Table(
        tableName=name.table,
        dbName=name.database,
        owner=metastore.user,
        sd=storage,
        partitionKeys=[_column("day", "string")] if partitioned else [],
        parameters={"transactional": "true", "no_auto_compaction": "true"} | properties,
        tableType="MANAGED_TABLE",
    )
    request = ttypes.CreateTableRequest(table=table, processorCapabilities=CAPABILITIES, processorIdentifier="tests")
    metastore.call("create_table_req", request)
    return metastore.call(
        "get_table_req",
        ttypes.GetTableRequest(
            dbName=name.database, tblName=name.table, processorCapabilities=CAPABILITIES, processorIdentifier="tests"
        ),
    ).table


def visible_ids(metastore: Metastore, name: TableName) -> list[int]:
    """Return the ids that a query would read, sorted and including duplicates. Only committed rows are visible."""
    table = load_acid_table(metastore, name)
    places = [table.location]
    if table.partition_columns:
        names = metastore.call("get_partition_names", name.database, name.table, -1)
        places = [partition.sd.location for partition in read_partitions(metastore, table, names)]
    snapshot = read_snapshot(metastore, name)
    found: list[int] = []
    for place in map(local_path, places):
        seen = visible_directories([entry.name for entry in place.iterdir() if entry.is_dir()], snapshot, bool)
        for delta in seen.deltas:
            for file in sorted((place / delta.name).glob("bucket_*")):
                found += _ids(file, [snapshot.is_valid(number) for number in range(delta.max_write_id + 1)])
    return sorted(found)


def _ids(file: Path, valid: list[bool]) -> list[int]:
    events = orc.read_table(file)
    pairs = zip(events["currentTransaction"].to_pylist(), events["row"].to_pylist(), strict=True)
    return [row["id"] for write_id, row in pairs if valid[write_id]]


def _column(name: str, kind: str) -> ttypes.FieldSchema:
    return ttypes.FieldSchema(name=name, type=kind, comment="")


def next_write_id(metastore: Metastore, name: TableName) -> int:
    """Allocate the next write id of a table in a transaction that aborts at once, and return it."""
    txn, write_id = transactions.begin_writing(metastore, name, "tests")
    transactions.abort(metastore, txn.id)
    return write_id


def add_partition(metastore: Metastore, name: TableName, day: str, location: str) -> None:
    """Create a partition of a table of `make_table` whose directory is at the URI `location`, in any storage."""
    storage = copy.copy(load_acid_table(metastore, name).raw.sd)
    storage.location = location
    raw = ttypes.Partition(values=[day], dbName=name.database, tableName=name.table, sd=storage, parameters={})
    metastore.call("add_partition", raw)
