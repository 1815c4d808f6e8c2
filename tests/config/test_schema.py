"""The JSON Schema accepts what the configuration accepts, explains every key, and finds the common mistakes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from ingestd.config.document import Document
from ingestd.config.schema import json_schema
from ingestd.ingest.options import MappingOptions

EXAMPLE = Path(__file__).parents[2] / "config" / "ingestd.example.yaml"
SCHEMA = json_schema(Document)


class _Loader(yaml.SafeLoader):
    """Reads timestamps as text, as editors do."""


_Loader.add_constructor("tag:yaml.org,2002:timestamp", lambda _loader, node: node.value)


def _example() -> Any:
    return yaml.load(EXAMPLE.read_text(encoding="utf-8"), _Loader)


def _faults(document: Any, schema: dict[str, Any] = SCHEMA) -> list[str]:
    return [fault.json_path for fault in Draft202012Validator(schema).iter_errors(document)]


def _with(section: str, **keys: Any) -> Any:
    document = _example()
    at = document["mappings"][0] if section == "mapping" else document[section]
    at.update(keys)
    return document


def _keys(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for part in (schema, *schema["$defs"].values()):
        yield from part.get("properties", {}).items()


def test_schema_then_is_valid_and_describes_every_key() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert len(list(_keys(SCHEMA))) > 30
    undescribed = [key for key, part in _keys(SCHEMA) if not part.get("description", "").endswith(".")]
    assert not undescribed, "add Doc(...) with a sentence to the type of the key"


def test_schema_when_the_file_is_the_example_then_accepts_it() -> None:
    assert not _faults(_example())
    assert not any(_faults(mapping, json_schema(MappingOptions)) for mapping in _example()["mappings"])


@pytest.mark.parametrize(
    ("section", "keys"),
    [
        ("mapping", {"commit": {"rows": "${ENV:ROWS:-1000}", "interval": "500ms", "bytes": 65536}}),
        ("mapping", {"start": {"timestamp": "2026-11-01T00:00:00Z"}, "on_offset_loss": "${ENV:ON_LOSS}"}),
        ("mapping", {"partition": {"dt": "2026-11-21", "hour": 7}}),
        ("mapping", {"format": {}}),
        ("mapping", {"format": {"fields": {"a": "$.b[0]"}, "envelope": "connect", "timestamp_formats": ["epoch_ms"]}}),
        ("mapping", {"format": {"type": "text", "column": "line"}}),
        ("mapping", {"format": {"type": "regex", "pattern": "(a)", "fields": ["a"], "bad_values": None}}),
        ("mapping", {"format": {"type": "avro", "schemas": ["${FILE:/etc/ingestd/orders.avsc}"]}}),
        (
            "mapping",
            {"format": {"type": "protobuf", "framing": "none", "message": "a.B", "descriptor_set": "${FILE:/etc/b}"}},
        ),
        ("mapping", {"format": {"type": "${ENV:FORMAT}", "tombstones": "skip"}}),
        ("mapping", {"create_table": True}),
        ("mapping", {"create_table": {"partitioned_by": {"dt": "string"}}}),
        ("metastore", {"tls": {"verify_hostname": "${ENV:VERIFY}"}, "timeout": 2.5}),
        ("kafka", {"enable.ssl.certificate.verification": True, "socket.timeout.ms": 5000}),
    ],
)
def test_schema_when_the_value_is_valid_then_accepts_it(section: str, keys: dict[str, Any]) -> None:
    assert not _faults(_with(section, **keys))


@pytest.mark.parametrize(
    ("section", "keys", "path"),
    [
        ("mapping", {"commmit": {}}, "$.mappings[0]"),
        ("mapping", {"commit": {"interval": "soon"}}, "$.mappings[0].commit.interval"),
        ("mapping", {"commit": {"rows": 0}}, "$.mappings[0].commit.rows"),
        ("mapping", {"topics": []}, "$.mappings[0].topics"),
        ("mapping", {"start": "today"}, "$.mappings[0].start"),
        ("mapping", {"format": {"type": "json", "column": "line"}}, "$.mappings[0].format"),
        ("mapping", {"format": {"column": "line"}}, "$.mappings[0].format"),
        ("mapping", {"format": {"type": "xml"}}, "$.mappings[0].format"),
        ("mapping", {"create_table": {"column": {}}}, "$.mappings[0].create_table"),
        ("mapping", {"name": "Orders"}, "$.mappings[0].name"),
        ("spark", {"master": "here"}, "$.spark.master"),
        ("metastore", {"kerberos": {"protection": ["none"]}}, "$.metastore.kerberos"),
    ],
)
def test_schema_when_the_value_is_invalid_then_names_its_path(section: str, keys: dict[str, Any], path: str) -> None:
    assert _faults(_with(section, **keys)) == [path]
