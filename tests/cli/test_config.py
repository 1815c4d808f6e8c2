"""`ingestd config show` names the source of every value and hides secrets; `config schema` prints the JSON Schema."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ingestd.config.document import Document
from ingestd.config.schema import json_schema
from ingestd.config.validation import keys
from tests.support.command import Run

CANARY = "hunter2canary"
EXAMPLE = Path(__file__).parents[2] / "config" / "ingestd.example.yaml"
FIRST = """\
metastore: {uri: "thrift://hms:9083"}
kafka:
  bootstrap.servers: broker:9092
  sasl.password: ${FILE:@}
  sasl.username: hunter2canary
  sasl.kerberos.kinit.cmd: echo hunter2canary | kinit
spark:
  stage_timeout: ${ENV:STAGE:-5m}
defaults:
  {commit: {rows: 7}, pacing: {deltas: 8}}
mappings:
  - name: orders
    topics: [b, a]
    table: shop.orders
    commit: {interval: 2s}
"""
SECOND = """\
spark:
  answer_timeout: ${ENV:ANSWER}
  conf:
    {spark.driver.memory: 1g, spark.x.token: hunter2canary, spark.y: hunter2canary, spark.executorEnv.DB_PASS: 2026}
control: {database: "${ENV:CONTROL}"}
storage:
  s3: {endpoint: "https://minio:9000", access_key: hunter2canary, secret_key: hunter2canary, encryption: aws:kms}
  hdfs: {properties: {dfs.data.transfer.protection: privacy, ssl.client.keystore.password: hunter2canary}}
"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    secret, first, second = tmp_path / "secret", tmp_path / "first.yaml", tmp_path / "second.yaml"
    secret.write_text(CANARY, encoding="utf-8")
    first.write_text(FIRST.replace("@", str(secret)), encoding="utf-8")
    second.write_text(SECOND, encoding="utf-8")
    monkeypatch.setenv("ANSWER", "9s")
    monkeypatch.setenv("CONTROL", CANARY)
    monkeypatch.delenv("STAGE", raising=False)
    return [first, second]


def _arguments(files: list[Path]) -> list[Any]:
    return [part for file in files for part in ("--config", file)]


def test_show_then_every_value_has_its_source_and_no_secret_is_printed(run: Run, files: list[Path]) -> None:
    first, second = files
    result = run("config", "show", "--output", "json", *_arguments(files))
    assert result.code == 0
    shown = {entry["key"]: (entry["value"], entry["source"]) for entry in result.json}
    assert shown["metastore.uri"] == ("thrift://hms:9083", f"{first}:1")
    assert shown["metastore.timeout"] == (60.0, "default")
    assert shown["kafka.bootstrap.servers"] == ("broker:9092", f"{first}:3")
    assert shown["kafka.sasl.password"] == ("***", f"{first}:4, FILE:{first.parent}/secret")
    assert shown["mappings[0].kafka.sasl.password"] == shown["kafka.sasl.password"]
    assert shown["mappings[0].topics"] == (["b", "a"], f"{first}:13")
    assert shown["mappings[0].commit.rows"] == (7, f"{first}:10")
    assert shown["mappings[0].pacing.deltas"] == (8, f"{first}:10")
    assert shown["mappings[0].commit.interval"] == (2.0, f"{first}:15")
    assert shown["mappings[0].group"] == ("ingestd-orders", "default")
    assert shown["spark.stage_timeout"] == (300.0, f"{first}:8, the default of ENV:STAGE")
    assert shown["spark.answer_timeout"] == (9.0, f"{second}:2, ENV:ANSWER")
    assert shown["spark.conf.spark.driver.memory"] == ("1g", f"{second}:4")
    assert shown["spark.conf.spark.y"] == ("***", f"{second}:4")
    assert shown["control.database"] == ("***", f"{second}:5, ENV:CONTROL")
    assert shown["spark.conf.spark.executorEnv.DB_PASS"][0] == "***"
    assert shown["storage.s3.endpoint"][0] == "https://minio:9000"
    assert shown["storage.s3.secret_key"] == ("***", f"{second}:7")
    assert shown["storage.hdfs.properties.dfs.data.transfer.protection"] == ("privacy", f"{second}:8")
    assert shown["storage.hdfs.properties.ssl.client.keystore.password"][0] == "***"
    assert CANARY not in result.text
    table = run("config", "show", *_arguments(files))
    assert CANARY not in table.text
    assert "[b, a]" in table.out
    assert f"{first}:15" in table.out


def test_show_when_the_configuration_is_the_example_then_shows_every_key(run: Run) -> None:
    result = run("config", "show", "--output", "json", "--config", EXAMPLE)
    shown = {part for entry in result.json for part in _prefixes(entry["key"])}
    assert {"mappings.format.type", "mappings.format.tombstones", "mappings.format.column"} <= shown
    # The keys of formats that the example does not use are not shown.
    optional = ("metastore.kerberos", "metastore.plain", "metastore.tls", "http.tls", "mappings.format")
    assert not [path for path, _ in keys(Document) if path not in shown and not path.startswith(optional)]


def _prefixes(path: str) -> list[str]:
    parts = re.sub(r"\[\d+\]", "", path).split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


def test_show_when_the_configuration_is_invalid_then_exit_code_is_78(run: Run, files: list[Path]) -> None:
    files[1].write_text("sparkk: {}", encoding="utf-8")
    result = run("config", "show", *_arguments(files))
    assert (result.code, result.out) == (78, "")
    assert "did you mean spark?" in result.err


def test_schema_then_prints_the_schema_of_a_document_or_of_a_mapping(run: Run) -> None:
    assert run("config", "schema").json == json.loads(json.dumps(json_schema(Document)))
    assert run("config", "schema", "--mapping").json["required"] == ["name", "topics", "table"]


@pytest.mark.parametrize(("command", "code"), [("show --output json > /dev/full", 1), ("show | head -1", 0)])
def test_show_when_its_output_cannot_be_written_then_says_so_without_a_stack_trace(command: str, code: int) -> None:
    words = f"{sys.executable} -m ingestd config {command.replace('show', f'show --config {EXAMPLE}')}"
    result = subprocess.run(["bash", "-o", "pipefail", "-c", words], capture_output=True, text=True, check=False)
    assert result.returncode == code
    assert "Traceback" not in result.stderr
    assert ("standard output cannot be written" in result.stderr) == bool(code)
