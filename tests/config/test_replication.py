"""The section `replication`: policies as statements, and a configuration that only replicates."""

from __future__ import annotations

from typing import Any

import pytest

from ingestd.config.document import Document, validate
from ingestd.config.files import Settings
from ingestd.errors import ConfigError
from ingestd.replication.policies.options import PolicyOptions, ReplicationOptions
from ingestd.replication.statements.grammar import ReplDump
from ingestd.replication.statements.schedule import Every, Unit
from ingestd.replication.statements.scope import Scope

METASTORE = {"uri": "thrift://localhost:9083"}
ROOT = "hdfs://ns/repl"
DUMP = f"REPL DUMP db1 WITH ('hive.repl.rootdir'='{ROOT}')"
POLICY = {"name": "p", "schedule": "EVERY 30 MINUTES", "statement": DUMP}


def _document(**sections: Any) -> Document:
    return validate(Settings({"metastore": METASTORE} | sections))


def test_document_when_it_only_replicates_then_needs_no_kafka_and_no_mappings() -> None:
    document = _document(replication={"policies": [POLICY], "workers": 4, "poll": "5s", "retry": "1h"})
    assert (document.mappings, document.kafka) == ((), {})
    statement = ReplDump(Scope("db1"), {"hive.repl.rootdir": ROOT})
    policy = PolicyOptions("p", Every(30, Unit.MINUTE), statement)
    assert document.replication == ReplicationOptions("ingestd", 4, 5.0, 3600.0, (policy,))
    assert _document(replication={}).replication == ReplicationOptions()


def test_document_when_it_has_mappings_then_needs_kafka_also_with_replication() -> None:
    mapping = {"name": "orders", "topics": ["orders"], "table": "shop.orders"}
    with pytest.raises(ConfigError, match="kafka: is missing"):
        _document(replication={}, mappings=[mapping])
    document = _document(replication={}, mappings=[mapping], kafka={"bootstrap.servers": "b:9092"})
    assert [mapping.name for mapping in document.mappings] == ["orders"]


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ({"schedule": "EVERY 0 MINUTES"}, "policies[0].schedule: must be valid; line 1, column 1 of the statement"),
        ({"schedule": 30}, "policies[0].schedule: must be text"),
        ({"statement": "REPL STATUS db1"}, "policies[0].statement: must be a statement REPL DUMP or REPL LOAD"),
        ({"statement": "REPL DUMP db1"}, "hive.repl.rootdir: is missing"),
        ({"name": "P-1"}, "policies[0].name: must be 1 to 100 lower-case letters"),
        ({"shedule": "x"}, "policies[0].shedule: unknown key, did you mean schedule?"),
    ],
)
def test_policy_when_invalid_then_error_names_the_key(policy: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _document(replication={"policies": [POLICY | policy]})
    assert message in str(caught.value)


def test_statement_when_it_contains_a_password_then_the_error_does_not() -> None:
    statement = "REPL DUMP db1 WITH ('hive.repl.rootdir'='s3a://key:hidden@bucket/repl')"
    with pytest.raises(ConfigError) as caught:
        _document(replication={"policies": [POLICY | {"statement": statement}]})
    assert "policies[0].statement: must be valid" in str(caught.value)
    assert "hidden" not in str(caught.value)


def test_policies_when_two_have_one_name_then_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"replication.policies\[1\].name: another policy is named p"):
        _document(replication={"policies": [POLICY, POLICY]})
