"""Avro records of one topic in tables of each kind: bucketed, insert-only, created by the mapping, dead letters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.avro import schema_of
from tests.support.registry import registry_server, serialize
from tests.support.stack import Stack

# Enough for two tasks, whose rows are distributed. One record in `_REJECTED` does not name a schema.
RECORDS, _REJECTED = 60_000, 6_000
_DAYS, _BUCKETS = 4, 3
_SCHEMA = schema_of({"id": "long", "note": "string", "day": "string"})
_LOGIN = "reader:registry-secret"


class EveryTable:
    """The mappings, and the sections of their configuration."""

    def __init__(self, stack: Stack, registry: str) -> None:
        self._stack = stack
        self._letters = f"default.{stack.name}_dead"
        user, _, password = _LOGIN.partition(":")
        self.sections = {"registry": {"url": registry, "username": user, "password": password}}
        acid = "STORED AS ORC TBLPROPERTIES ('transactional'='true'"
        self._sql(
            f"bucketed (id bigint, note string) PARTITIONED BY (day string) CLUSTERED BY (id) INTO 3 BUCKETS {acid})"
        )
        only = "'transactional_properties'='insert_only'"
        self._sql(f"only (id bigint, note string, day string) {acid}, {only})")
        new = {"create_table": {"partitioned_by": {"day": "string"}}}
        self.mappings = [
            self._mapping("bucketed", distribution="hash"),
            self._mapping("only"),
            self._mapping("new", distribution="hash", **new),
        ]

    def _sql(self, definition: str) -> None:
        self._stack.sql(f"CREATE TABLE default.{self._stack.name}_{definition}")

    def _mapping(self, case: str, **keys: Any) -> dict[str, Any]:
        name = f"{self._stack.name}_{case}"
        letters = {"on_error": "dead_letter", "dead_letter": {"table": self._letters}}
        return {"name": name[-40:], "table": f"default.{name}", "format": {"type": "avro"}} | letters | keys

    def assert_stored_once(self) -> None:
        """Check that each table contains each row once, and that of the dead letters each reject of each mapping."""
        ids = [n for n in range(RECORDS) if n % _REJECTED]
        expected = (len(ids), len(ids), sum(ids))
        for case in ("bucketed", "only", "new"):
            [found] = self._stack.sql(f"SELECT count(id), count(DISTINCT id), sum(id) FROM {self._stack.name}_{case}")
            assert found == expected, case
            assert self._stack.count(name=f"{self._stack.name}_{case}") == len(ids), case
        letters = self._stack.sql(
            f"SELECT mapping, count(DISTINCT id), count(id) FROM {self._letters} GROUP BY mapping"
        )
        each = RECORDS // _REJECTED
        assert sorted(letters) == sorted((mapping["name"], each, each) for mapping in self.mappings)

    def assert_distributed(self, committed: list[dict[str, Any]]) -> None:
        """Check by the events `committed` that each partition and bucket has one file."""
        files = {event["mapping"]: event["files"] for event in committed if event["rows"]}
        assert files[self.mappings[0]["name"]] == _DAYS * _BUCKETS
        assert files[self.mappings[2]["name"]] == _DAYS


@contextmanager
def every_table(stack: Stack) -> Iterator[EveryTable]:
    """Produce records, and yield the mappings that read them, and the sections of their configuration."""
    topic = stack.topic(2)
    with registry_server(_LOGIN) as server:
        serializer = server.serializer(_SCHEMA)
        for partition in (0, 1):
            ids = range(partition, RECORDS, 2)
            records = {n: {"id": n, "note": f"note {n}", "day": f"d{n % _DAYS}"} for n in ids}
            values = (serialize(serializer, topic, record) if n % _REJECTED else b"{" for n, record in records.items())
            stack.produce(values, partition=partition)
        yield EveryTable(stack, server.url)
