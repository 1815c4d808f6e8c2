"""The section create_table of a mapping."""

from __future__ import annotations

from typing import Any

import pytest

from ingestd.config.document import validate
from ingestd.config.files import Settings
from ingestd.errors import ConfigError
from ingestd.ingest.options import CreateTableOptions


def _options(section: object, **mapping: Any) -> CreateTableOptions | None:
    document = {
        "metastore": {"uri": "thrift://m:9083"},
        "kafka": {"bootstrap.servers": "b:9092"},
        "registry": {"url": "http://r:8081"},
        "mappings": [{"name": "a", "topics": ["a"], "table": "web.a", "create_table": section} | mapping],
    }
    return validate(Settings(document)).mappings[0].create_table


def test_section_when_columns_are_listed_then_names_and_types_are_in_normal_form() -> None:
    found = _options({"columns": {"Id": "BIGINT", "n": "decimal"}, "partitioned_by": {"DT": "string"}})
    assert found == CreateTableOptions({"id": "bigint", "n": "decimal(10,0)"}, {"dt": "string"})


def test_section_when_empty_then_accepted_only_for_formats_with_schemas() -> None:
    assert _options({}, format={"type": "avro"}) == _options(True, format={"type": "avro"}) == CreateTableOptions()
    with pytest.raises(ConfigError, match="create_table: must be a section"):
        _options(False, format={"type": "avro"})
    with pytest.raises(ConfigError, match=r"create_table\.columns: is missing, because the format json does not"):
        _options({})


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"columns": {"id": "text"}}, "columns.id: must be a type that can be stored: type text is not supported"),
        ({"columns": {"id": "int", "ID": "int"}}, "columns: must name each column once"),
        ({"columns": {"a b": "int"}}, "columns: must name each column once, with letters, digits and _"),
        (
            {"columns": {"id": "int", "x": f"array<{'struct<a:' * 9}int{'>' * 10}"}},
            r"columns.x: more than 8 structs would be inside each other; .* → create the table yourself",
        ),
        (
            {"columns": {"x": f"struct<{','.join(f'a_long_name_{n}:int' for n in range(2_000))}>"}},
            "columns.x: the type would have 40,897 characters, and the metastore declares 32,672 → create the table",
        ),
        ({"columns": {"id": "int"}, "partitioned_by": {"id": "int"}}, "partitioned_by: id is also in columns"),
        ({"columns": {"id": "int"}, "partitioned_by": {"d": "array<int>"}}, "partitioned_by.d: must not be an array"),
        (
            {"columns": {"id": "int"}, "properties": {"transactional_properties": "insert_only"}},
            "properties: must not contain transactional_properties, because the table is a full ACID table",
        ),
        ({"columns": {"id": "int"}, "properties": {"EXTERNAL": "TRUE"}}, "properties: must not contain EXTERNAL"),
        ({"columns": {"id": "int"}, "properties": {"bucketing_version": "1"}}, "must not contain bucketing_version"),
        ({"columns": {"id": "int"}, "properties": {"numRows": "7"}}, "properties: must not contain numRows"),
    ],
)
def test_section_when_it_does_not_describe_a_table_then_refused(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("[", r"\[")):
        _options(section)
