"""Avro schemas and records, and the rows that they become."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import fastavro
from fastavro.schema import fingerprint, to_parsing_canonical_form

from ingestd.formats.avro.decoder import AvroDecoder
from ingestd.formats.avro.options import AvroOptions
from ingestd.formats.decoder import DecodeResult
from ingestd.schema import Column
from tests.support.decoding import columns_of

# The schemas of two types of Debezium, as Confluent's Avro converter registers them.
SCALED_DECIMAL: dict[str, Any] = {
    "type": "record",
    "name": "VariableScaleDecimal",
    "namespace": "io.debezium.data",
    "fields": [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}],
    "connect.version": 1,
    "connect.name": "io.debezium.data.VariableScaleDecimal",
}
ZONED_TIMESTAMP: dict[str, Any] = {
    "type": "string",
    "connect.version": 1,
    "connect.name": "io.debezium.time.ZonedTimestamp",
}
ISO_DATE, ISO_TIME, ISO_TIMESTAMP = (
    {**ZONED_TIMESTAMP, "connect.name": f"io.debezium.time.{name}"} for name in ("IsoDate", "IsoTime", "IsoTimestamp")
)


def logical(kind: str, name: str, **more: object) -> dict[str, object]:
    return {"type": kind, "logicalType": name, **more}


def named(avro: Any, path: str) -> Any:
    """Return a type whose named types have unique names."""
    if isinstance(avro, dict) and avro["type"] in ("enum", "fixed", "record"):
        return {**avro, "name": f"n{path}"}
    return avro


def rename(avro: Any, path: str = "") -> Any:
    """Give all named types of a schema unique names."""
    if isinstance(avro, list):
        return [rename(branch, f"{path}_{index}") for index, branch in enumerate(avro)]
    if not isinstance(avro, dict):
        return avro
    avro = named(avro, path)
    if "fields" in avro:
        fields = [{**field, "type": rename(field["type"], f"{path}_{field['name']}")} for field in avro["fields"]]
        return {**avro, "fields": fields}
    return {key: rename(child, f"{path}_i") if key in ("items", "values") else child for key, child in avro.items()}


def schema_of(fields: Mapping[str, Any]) -> str:
    return json.dumps(rename({"type": "record", "fields": [{"name": k, "type": v} for k, v in fields.items()]}, "row"))


def encode(schema: str, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, _parsed(schema), value)
    return out.getvalue()


def single_object(schema: str, data: bytes) -> bytes:
    return b"\xc3\x01" + _fingerprint(schema) + data


@cache
def _parsed(schema: str) -> Any:
    return fastavro.parse_schema(json.loads(schema))


@cache
def _fingerprint(schema: str) -> bytes:
    return bytes.fromhex(fingerprint(to_parsing_canonical_form(json.loads(schema)), "CRC-64-AVRO"))


def decoder_of(schema: str, columns: Sequence[Column]) -> AvroDecoder:
    # Many tests decode into columns that the schema does not have, to see which data is skipped.
    return AvroOptions(framing="none", schemas=(schema,), unmatched="null").decoder(columns)


def decoded_rows(types: dict[str, str], fields: dict[str, Any], *values: dict[str, Any]) -> DecodeResult:
    schema = schema_of(fields)
    return decoder_of(schema, columns_of(**types)).decode([encode(schema, value) for value in values])
