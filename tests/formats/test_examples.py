"""A daemon writes the rows that docs/formats.md shows for its examples, and the page describes each format."""

from __future__ import annotations

import base64
import json
import re
import shutil
import struct
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any, get_args

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.json_format import Parse
from jsonschema import Draft202012Validator

import ingestd
from ingestd.acid.hive_text import hive_text
from ingestd.config.document import Document, load
from ingestd.config.schema import json_schema
from ingestd.config.validation import type_name
from ingestd.errors import InvalidTable
from ingestd.formats.options import FormatOptions, decoder_of
from ingestd.formats.registry import Registry
from ingestd.ingest.table.target import load_target
from ingestd.schema import Column, HiveType
from tests.support.avro import encode, single_object
from tests.support.format_examples import PAGE, Example, changed, examples, new_format, without_rows
from tests.support.protobuf import class_of
from tests.support.registry import RegistryServer, registry_server, serialize
from tests.support.stack import Stack


def test_page_then_has_a_section_for_each_format() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert not [name for name in map(type_name, get_args(FormatOptions)) if f"\n## {name}\n" not in page]


def test_page_then_each_yaml_block_has_rows_or_a_reason() -> None:
    assert without_rows() == []


@pytest.mark.parametrize("example", [example for example in examples() if example.is_json], ids=lambda e: e.section)
def test_example_when_its_records_are_encoded_then_the_decoder_returns_the_rows_of_the_page(
    tmp_path: Path, example: Example
) -> None:
    columns = [Column(name, HiveType.parse(kind)) for name, kind in (c.split(" ") for c in example.columns.split(", "))]
    with registry_server(login="ingestd:secret") as server:
        records = _encoded(example, server)
        options = _loaded(tmp_path, example, server)
        assert options.registry is not None
        result = decoder_of(options.mappings[0].format, columns, Registry(options.registry)).decode(records)
    assert not result.rejects
    values = [
        [hive_text(column.type, value) for value in batch[column.name]]
        for batch in result.batches
        for column in columns
    ]
    rows = [tuple("NULL" if value is None else value for value in row) for row in zip(*values, strict=True)]
    assert rows == list(example.rows)


def _encoded(example: Example, server: RegistryServer) -> list[bytes]:
    """Return the records of an example, after the registry has their schemas."""
    options = example.mapping["format"]
    subject = f"{example.mapping['topics'][0]}-value"
    if options["type"] == "protobuf":
        [described] = [
            other.mapping["format"]["descriptor_set"]
            for other in examples()
            if other.section == example.section and "descriptor_set" in other.mapping["format"]
        ]
        [file] = FileDescriptorSet.FromString(base64.b64decode(described)).file
        text = base64.b64encode(file.SerializeToString()).decode()
        identifier = server.register(subject, {"schema": text, "schemaType": "PROTOBUF"})
        message = class_of(file, file.message_type[0].name)
        header = struct.pack(">BIB", 0, identifier, 0)
        return [header + Parse(record, message()).SerializeToString() for record in example.records]
    values = [json.loads(record, parse_float=Decimal) for record in example.records]
    if options.get("framing") == "single_object":
        pairs = zip(example.schemas, values, strict=True)
        return [single_object(schema, encode(schema, value)) for schema, value in pairs]
    [schema] = example.schemas
    serializer = server.serializer(schema)
    return [serialize(serializer, example.mapping["topics"][0], value) for value in values]


def _loaded(folder: Path, example: Example, server: RegistryServer) -> Document:
    """Load the configuration of an example with the files to which it refers, and with this registry."""
    registry = {"username": "ingestd", "password": "secret", **example.settings.get("registry", {}), "url": server.url}
    registry.pop("ca_file", None)  # the registry of the test has no certificate
    settings = {
        "metastore": {"uri": "thrift://hms:9083"},
        "kafka": {"bootstrap.servers": "broker:9092"},
        "registry": registry,
        "mappings": [example.mapping],
    }
    text = json.dumps(settings)
    files = re.findall(r"\$\{FILE:([^}]+)\}", json.dumps(example.mapping))
    contents = {"/run/secrets/registry": "secret", **dict(zip(files, example.schemas, strict=bool(files)))}
    for index, (path, content) in enumerate(contents.items()):
        place = folder / f"file{index}"
        place.write_text(content, encoding="utf-8")
        text = text.replace(f"${{FILE:{path}}}", f"${{FILE:{place}}}")
    config = folder / "a.yaml"
    config.write_text(text, encoding="utf-8")
    return load([config])


def test_examples_when_a_daemon_runs_them_then_the_tables_have_the_rows_of_the_page(stack: Stack) -> None:
    found = [example for example in examples() if not example.is_json]
    topics: dict[str, str] = {}
    mappings = [_prepared(stack, example, topics) for example in found]

    stack.drain(stack.config(*mappings))

    for example, mapping in zip(found, mappings, strict=True):
        assert _rows(stack, example, mapping["table"]) == sorted(example.rows), example.section


def test_format_when_it_does_not_fit_the_table_then_load_target_names_the_mapping_and_the_key(stack: Stack) -> None:
    table = stack.table("id int", "day date")
    by_position = {"type": "csv", "fields": ["id", "day", "price"]}
    faults = []
    for partition, keys in (({}, by_position), ({"day": "2026-11-21"}, {"type": "text"})):
        options = load([stack.config({"partition": partition, "format": keys})]).mappings[0]
        with pytest.raises(InvalidTable) as caught:
            load_target(stack.metastore, options)
        faults.append(str(caught.value).removeprefix(f"mapping {options.name}, table {table}, "))
    assert faults[0].startswith("format.fields: there is no column price; the columns of the records are id, day →")
    assert faults[1].startswith("format.column: column id has the type int, which cannot store the whole value →")


# Decodes the records in the standard input as a task of the stage does, whose rules come to it pickled, by the mapping
# of a configuration. Prints the number of rejects, the rows, and the JSON Schema of the configuration.
DECODE = """
import json, pathlib, pickle, sys
import numpy as np
from ingestd.acid.encoding import Encoding
from ingestd.acid.routing import Shape
from ingestd.config.document import Document, load
from ingestd.config.schema import json_schema
from ingestd.ingest.rows.partitioning import Partitioning
from ingestd.ingest.rows.transform import Decoding
from ingestd.ingest.stage.task import RecordRules
from ingestd.kafka.reader import Batch
from ingestd.schema import Column, HiveType
columns = tuple(Column(name, HiveType.parse(kind)) for name, kind in json.loads(sys.argv[2]))
options = load([pathlib.Path(sys.argv[1])]).mappings[0]
shape = Shape(columns, (), None, Encoding())
decoding = Decoding.of(shape, Partitioning.of(shape, options.partition), options)
rules = pickle.loads(pickle.dumps(RecordRules.of(options, decoding)))
values = sys.stdin.buffer.read().splitlines()
offsets = np.arange(len(values), dtype=np.int64)
batch = Batch(options.topics[0], values, np.zeros(len(values), np.int32), offsets, sum(map(len, values)))
result = rules.decoding.decoder(rules.format, None).decode(batch)
rows = [list(row.values()) for rows in result.batches for row in rows.to_pylist()]
texts = [["NULL" if value is None else str(value) for value in row] for row in rows]
print(json.dumps([len(result.rejects), texts, json_schema(Document)]))
"""


def test_page_when_a_copy_of_ingestd_has_its_new_format_then_the_stage_and_the_json_schema_understand_it(
    tmp_path: Path,
) -> None:
    found = new_format()
    package = tmp_path / "ingestd"
    shutil.copytree(Path(ingestd.__file__).parent, package)
    options, config = package / "formats" / "options.py", tmp_path / "a.yaml"
    options.write_text(changed(options.read_text(encoding="utf-8"), found.change), encoding="utf-8")
    (package / "formats" / f"{found.example.mapping['format']['type']}.py").write_text(found.module, encoding="utf-8")
    services = {"metastore": {"uri": "thrift://hms:9083"}, "kafka": {"bootstrap.servers": "broker:9092"}}
    config.write_text(json.dumps({**services, "mappings": [found.example.mapping]}), encoding="utf-8")
    columns = json.dumps([column.split(" ") for column in found.example.columns.split(", ")])
    done = subprocess.run(
        [sys.executable, "-c", DECODE, config, columns],
        input=b"\n".join(found.example.records),
        cwd=tmp_path,  # the first place of modules
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    rejects, rows, schema = json.loads(done.stdout)
    assert [tuple(row) for row in rows] == list(found.example.rows)
    assert rejects == len(found.example.records) - len(rows)
    document = json.loads(config.read_text(encoding="utf-8"))
    assert Draft202012Validator(schema).is_valid(document)
    document["mappings"][0]["format"]["tombstone"] = "skip"
    assert not Draft202012Validator(schema).is_valid(document)
    assert not Draft202012Validator(json_schema(Document)).is_valid(json.loads(config.read_text(encoding="utf-8")))


def _prepared(stack: Stack, example: Example, topics: dict[str, str]) -> dict[str, Any]:
    """Create the table, and the topic of the section unless it exists; produce the records, and return the mapping."""
    name = f"{stack.name}_{example.mapping['name']}"
    table = stack.table(example.columns, example.partitioned, name=f"default.{name}")
    if example.section not in topics:
        topics[example.section] = stack.topic(2, name)
        assert stack.produce(example.records, name) == len(example.records) > 0
    return {**example.mapping, "name": name[-40:], "topics": [topics[example.section]], "table": table}


def _rows(stack: Stack, example: Example, table: str) -> list[tuple[str, ...]]:
    """Return the rows of the table as the page shows them.

    PyHive cannot read binary columns, and returns other types than text for timestamps.
    """
    cast = [column.split()[0] for column in example.columns.split(", ") if column.endswith((" binary", " timestamp"))]
    select = ", ".join(f"cast({name} as string)" if name in cast else name for name in example.names)
    rows = stack.sql(f"SELECT {select} FROM {table}")
    return sorted(tuple("NULL" if value is None else str(value) for value in row) for row in rows)
