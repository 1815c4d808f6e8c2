"""The formats of the benchmarks: how records are written, and how ingestd is told to read them.

Avro and Protobuf records have the framing of Confluent's registry, and the registry is the one of the tests.
"""

from __future__ import annotations

import base64
import io
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

import fastavro

from bench.protobuf import MESSAGE, Messages
from bench.records import Shape
from ingestd.schema import Column, HiveType
from tests.support.registry import RegistryServer

DELIMITERS = "\x01\x02\x03\x04"
_AVRO = {"bigint": "long", "int": "int", "double": "double", "boolean": "boolean", "string": "string"}


@dataclass(frozen=True, slots=True)
class Encoding:
    """How a JSON record is written in a format.

    `mapping` are the keys of the mapping that reads it. `schema` is what Spark needs: the Avro schema, or the Protobuf
    descriptors as Base64 text.
    """

    encode: Callable[[bytes], bytes] = bytes
    mapping: dict[str, Any] = field(default_factory=dict)
    schema: str = ""


@dataclass(frozen=True, slots=True)
class SparkJob:
    """What `bench.spark` drains: the topic of a shape, into ORC files in a folder. `schema` is that of `Encoding`."""

    servers: str
    shape: str
    folder: str
    schema: str


def encoding_of(shape: Shape, registry: RegistryServer) -> Encoding:
    """Return the encoding of the records of a shape, whose topic has its name. It registers their schema."""
    columns, subject = shape.all_columns(), f"{shape.name}-value"
    if shape.format == "avro":
        return _avro(columns, registry, subject)
    if shape.format == "protobuf":
        return _protobuf(columns, registry, subject)
    if shape.format == "delimited":
        record = _row(columns)
        mapping = {"format": {"type": "delimited", "fields": [column.name for column in columns]}}
        return Encoding(lambda value: _delimited(json.loads(value), record, 0).encode(), mapping)
    return Encoding()


def _row(columns: list[Column]) -> HiveType:
    return HiveType("struct", children=tuple(c.type for c in columns), names=tuple(c.name for c in columns))


def _avro(columns: list[Column], registry: RegistryServer, subject: str) -> Encoding:
    schema = _avro_type(_row(columns), "Row")
    text = json.dumps(schema)
    parsed = fastavro.parse_schema(schema)
    header = struct.pack(">BI", 0, registry.register(subject, {"schema": text}))

    def encode(value: bytes) -> bytes:
        values = json.loads(value)
        if "ts" in values:
            values["ts"] = datetime.fromisoformat(values["ts"]).replace(tzinfo=timezone.utc)
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, parsed, values)
        return header + buffer.getvalue()

    return Encoding(encode, {"format": {"type": "avro"}}, text)


def _avro_type(kind: HiveType, name: str) -> Any:
    """Return the Avro type of a Hive type; all fields are optional, as the registries' guides recommend."""
    if kind.kind == "struct":
        fields = zip(kind.names, kind.children, strict=True)
        return {
            "type": "record",
            "name": name,
            "fields": [
                {"name": field, "type": ["null", _avro_type(child, name + field.title())]} for field, child in fields
            ],
        }
    if kind.kind == "array":
        return {"type": "array", "items": _avro_type(kind.children[0], name + "Item")}
    if kind.kind == "map":
        return {"type": "map", "values": _avro_type(kind.children[1], name + "Value")}
    return {"type": "long", "logicalType": "timestamp-micros"} if kind.kind == "timestamp" else _AVRO[kind.kind]


def _protobuf(columns: list[Column], registry: RegistryServer, subject: str) -> Encoding:
    made = Messages.of(columns)
    text = base64.b64encode(made.file.SerializeToString()).decode()
    identifier = registry.register(subject, {"schema": text, "schemaType": "PROTOBUF"})
    header = struct.pack(">BIB", 0, identifier, 0)  # 0 is the index path of the first message
    files = base64.b64encode(made.files.SerializeToString()).decode()
    return Encoding(lambda value: header + made.encoded(value), {"format": {"type": "protobuf"}}, files)


def _delimited(value: Any, kind: HiveType, level: int) -> str:
    """Return a value as LazySimpleSerDe writes it."""
    if kind.kind == "struct":
        fields = zip(kind.names, kind.children, strict=True)
        return DELIMITERS[level].join(_delimited(value[name], child, level + 1) for name, child in fields)
    if kind.kind == "array":
        return DELIMITERS[level].join(_delimited(item, kind.children[0], level + 1) for item in value)
    if kind.kind == "map":
        return DELIMITERS[level].join(f"{key}{DELIMITERS[level + 1]}{item}" for key, item in value.items())
    return str(value).lower() if kind.kind == "boolean" else str(value)


__all__ = ["DELIMITERS", "MESSAGE", "Encoding", "encoding_of"]
