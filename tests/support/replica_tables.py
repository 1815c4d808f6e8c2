"""Databases and tables for tests of replication, created with the requests that HiveServer2 would send."""

from __future__ import annotations

from collections.abc import Mapping

from hive_metastore import ttypes

from ingestd.hive.client import CAPABILITIES, Metastore
from ingestd.hive.objects import alter_table, find_table
from ingestd.hive.tables import TableName

ORC = "org.apache.hadoop.hive.ql.io.orc."
# Compaction would remove files between a dump and its load, if a test has started HiveServer2.
ACID = {"transactional": "true", "no_auto_compaction": "true"}
INSERT_ONLY = {**ACID, "transactional_properties": "insert_only"}
EXTERNAL = {"EXTERNAL": "TRUE"}


def make_database(metastore: Metastore, name: str, parameters: Mapping[str, str] = {}) -> None:
    """Create a database."""
    metastore.call("create_database", ttypes.Database(name=name, parameters=dict(parameters)))


def make_table(
    metastore: Metastore,
    name: TableName,
    *,
    partitioned: bool = False,
    parameters: Mapping[str, str] = ACID,
    location: str | None = None,
    catalog: str | None = None,
) -> None:
    """Create a table with the columns `id bigint` and `day string`; the second may be the partition column."""
    fields = [ttypes.FieldSchema(name=column, type=kind) for column, kind in (("id", "bigint"), ("day", "string"))]
    storage = ttypes.StorageDescriptor(
        cols=fields[:1] if partitioned else fields,
        location=location,
        inputFormat=f"{ORC}OrcInputFormat",
        outputFormat=f"{ORC}OrcOutputFormat",
        serdeInfo=ttypes.SerDeInfo(serializationLib=f"{ORC}OrcSerde"),
    )
    table = ttypes.Table(
        dbName=name.database,
        tableName=name.table,
        owner=metastore.user,
        sd=storage,
        partitionKeys=fields[1:] if partitioned else [],
        parameters=dict(parameters),
        tableType="EXTERNAL_TABLE" if "EXTERNAL" in parameters else "MANAGED_TABLE",
        catName=catalog,
    )
    request = ttypes.CreateTableRequest(table=table, processorCapabilities=CAPABILITIES, processorIdentifier="ingestd")
    metastore.call("create_table_req", request)


def move_table(metastore: Metastore, name: TableName, location: str) -> None:
    """Let the metastore have another location of a table, whose files stay where they are."""
    found = find_table(metastore, name)
    assert found is not None
    alter_table(metastore, name, found.copied(name, location, found.parameters))
