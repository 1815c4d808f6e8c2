"""Tables that Hive does not write as ingestd would: each is refused, with Hive's sentence and a hint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hive_metastore import ttypes

from ingestd.errors import InvalidTable
from ingestd.hive.creation import NewTable
from ingestd.hive.tables import TableName, as_acid_table
from ingestd.schema import Column, HiveType

Change = Callable[[Any], None]
NAME = TableName("web", "clicks")
REBUILD = "ALTER MATERIALIZED VIEW … REBUILD"
EXTERNAL = "cannot be declared transactional because it's an external table"
VIEW = "a view cannot be used as target table for LOAD or INSERT"
ICEBERG = "org.apache.iceberg.mr.hive.HiveIcebergStorageHandler"


def _table(**parameters: str) -> Any:
    """Return a Thrift table that can be written."""
    raw = NewTable(NAME, (Column("id", HiveType.parse("int")),)).raw("etl")
    raw.sd.location = "file:/warehouse/web.db/clicks"
    raw.parameters |= parameters
    return raw


def _type(name: str) -> Change:
    return lambda raw: setattr(raw, "tableType", name)


def _storage(name: str, value: object) -> Change:
    return lambda raw: setattr(raw.sd, name, value)


def _parameter(name: str, value: str) -> Change:
    return lambda raw: raw.parameters.update({name: value})


def _access(kind: int, *capabilities: str) -> Change:
    def change(raw: Any) -> None:
        raw.accessType, raw.requiredWriteCapabilities = kind, list(capabilities)

    return change


@pytest.mark.parametrize(
    ("change", "sentence", "hint"),
    [
        (_type("VIRTUAL_VIEW"), f"the table is a view: {VIEW}", "use a table"),
        (_type("MATERIALIZED_VIEW"), f"the table is a materialized view: {VIEW}", REBUILD),
        (_parameter("storage_handler", ICEBERG), f"is a non-native table ({ICEBERG})", "without STORED BY"),
        (_parameter("table_type", "iceberg"), "is a non-native table (Iceberg)", "STORED AS ORC"),
        (_parameter("transactional", "false"), "is not a transactional table", "'transactional'='true'"),
        (_type("EXTERNAL_TABLE"), EXTERNAL, "create it as a managed table"),
        (_parameter("EXTERNAL", "TRUE"), EXTERNAL, "create it as a managed table"),
        (_storage("inputFormat", "a.TextInputFormat"), "the input format a.TextInputFormat", "create it STORED AS ORC"),
        (_storage("outputFormat", "a.TextOutputFormat"), "the output format a.TextOutputFormat", "STORED AS ORC"),
        (
            _storage("serdeInfo", ttypes.SerDeInfo(serializationLib="a.LazySimpleSerDe")),
            "the SerDe a.Lazy",
            "STORED AS ORC",
        ),
        (_storage("sortCols", [ttypes.Order("id", 1)]), "is SORTED BY columns", "recreate it without"),
        (_storage("storedAsSubDirectories", True), "is STORED AS DIRECTORIES", "NOT SKEWED"),
        (
            _parameter("immutable", "TRUE"),
            "is immutable: inserting into a non-empty immutable table is not allowed",
            "'immutable'='false'",
        ),
        (_access(2, "HIVEONLYMQTWRITE", "X"), "other capabilities (HIVEONLYMQTWRITE, X)", "OBJCAPABILITIES"),
        (_access(1), "other capabilities (unknown)", "OBJCAPABILITIES"),
    ],
)
def test_table_when_hive_does_not_write_it_as_we_do_then_refused_with_a_hint(
    change: Change, sentence: str, hint: str
) -> None:
    raw = _table()
    change(raw)
    with pytest.raises(InvalidTable) as caught:
        as_acid_table(raw, frozenset())
    assert caught.value.where == "table web.clicks"
    assert sentence in caught.value.what
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: None,
        _access(4),
        _access(8),
        _parameter("EXTERNAL", "FALSE"),
        _parameter("immutable", "false"),
        _parameter("transactional", "TRUE"),
        _parameter("transactional_properties", "insert_only"),
        _parameter("repl.target.for", "p1"),  # Hive knows this property of databases only
    ],
)
def test_table_when_hive_writes_it_as_we_do_then_accepted(change: Change) -> None:
    raw = _table()
    change(raw)
    assert as_acid_table(raw, frozenset()).name == NAME


@pytest.mark.parametrize(("stated", "version"), [(None, 1), ("1", 1), ("2", 2)])
def test_bucketing_version_when_missing_then_is_that_of_hive(stated: str | None, version: int) -> None:
    raw = _table()
    raw.sd.bucketCols, raw.sd.numBuckets = ["id"], 4
    del raw.parameters["bucketing_version"]
    if stated is not None:
        raw.parameters["bucketing_version"] = stated
    bucketing = as_acid_table(raw, frozenset()).bucketing
    assert bucketing is not None
    assert (bucketing.count, bucketing.version) == (4, version)
