"""What is found out about the schema registry of a mapping before it runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ingestd.errors import ConfigError, IngestdError, LoginFailed, RegistryUnavailable
from ingestd.formats.avro.options import AvroOptions
from ingestd.formats.json.options import JsonOptions
from ingestd.formats.options import FormatOptions
from ingestd.formats.protobuf.options import ProtobufOptions
from ingestd.formats.registry import RegistryOptions
from ingestd.hive.tables import TableName
from ingestd.ingest.inspection.checks import Finding, check_registry
from ingestd.ingest.options import MappingOptions
from tests.support.avro import schema_of
from tests.support.registry import RegistryServer, registry_server

AVRO = {"schema": schema_of({"id": "long"})}
SOURCE = {"schema": 'syntax = "proto3"; message Row { int64 id = 1; }', "schemaType": "PROTOBUF"}


@pytest.fixture(scope="module")
def server() -> Iterator[RegistryServer]:
    with registry_server("ann:secret") as made:
        made.register("orders-value", AVRO)
        made.register("source-value", SOURCE)
        yield made


def _check(server: RegistryServer, kind: FormatOptions, *topics: str, password: str = "secret") -> list[Finding]:
    registry = RegistryOptions(server.url, "ann", password)
    options = MappingOptions("m", topics, TableName("default", "m"), format=kind, registry=registry)
    return list(check_registry(options))


def test_registry_when_it_answers_then_says_which_topics_have_a_schema(server: RegistryServer) -> None:
    [found] = _check(server, AvroOptions(), "orders", "clicks", "source")
    assert (found.subject, found.error) == ("mapping m, schema registry", None)
    assert found.detail.startswith("answers; 1 of 3 topics have a schema under the subject TOPIC-value; ")
    assert "no subject clicks-value" in found.detail
    assert "has the type PROTOBUF, not AVRO" in found.detail


def test_registry_when_records_need_none_then_is_not_asked(server: RegistryServer) -> None:
    server.gets.clear()
    assert _check(server, JsonOptions(), "orders") == []
    assert _check(server, AvroOptions(framing="none", schemas=(AVRO["schema"],)), "x") == []
    assert server.gets == []


@pytest.mark.parametrize(
    ("kind", "topic", "password", "error"),
    [
        (AvroOptions(), "orders", "wrong", LoginFailed),
        (ProtobufOptions(), "source", "secret", ConfigError),
    ],
)
def test_registry_when_it_cannot_be_used_then_the_finding_has_the_error(
    server: RegistryServer, kind: FormatOptions, topic: str, password: str, error: type[IngestdError]
) -> None:
    [found] = _check(server, kind, topic, password=password)
    assert type(found.error) is error
    assert password not in str(found)


def test_registry_when_it_does_not_answer_then_the_finding_has_the_error() -> None:
    [found] = _check(RegistryServer("http://127.0.0.1:1"), AvroOptions(), "orders")
    assert type(found.error) is RegistryUnavailable
