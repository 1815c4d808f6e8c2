"""A value that may be secret is never printed, whatever its position, its form and the kind of error."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from ingestd.cli.main import main
from ingestd.config.document import load
from ingestd.errors import ConfigError
from tests.support.stack import Stack

CANARY = "hunter2canary"
# YAML in place of a value; @ stands for the secret.
_FORMS = (
    "@", "[@]", "[[{a: @}]]", "{@: 1}", "{a: {b: [@]}}", "!@ x", "*@", "&@ *@", "!!int @", "!!timestamp @",
    "!!binary @!", "!!bool @", "!!set {@}", "!!python/name:@ x", "'${ENV:CANARY}'", "['${ENV:CANARY}']",
    "'${ENV:NO_SUCH:-@}'", "'${ENV:NO_SUCH:-@'", "'${ENV}@'", '"@', "%@", "@: x", "{@", "[@", "|\n      @",
    '"\\q@"', "- @", "<<: @", "{<<: @}",
)  # fmt: skip
_BASE = {
    "metastore": "  uri: thrift://127.0.0.1:1\n  timeout: 2s",
    "kafka": "  bootstrap.servers: 127.0.0.1:1",
    "http": "  listen: off",
    "mappings": "  - name: orders\n    topics: [orders]\n    table: shop.orders",
}
# A section and the text that replaces its base text; # stands for a form.
_POSITIONS: tuple[tuple[str, str], ...] = (
    ("kafka", "  bootstrap.servers: 127.0.0.1:1\n  sasl.password: #"),
    ("kafka", "  bootstrap.servers: 127.0.0.1:1\n  security.protocol: #"),
    ("kafka", "  bootstrap.servers: 127.0.0.1:1\n  fetch.wait.max.ms: #"),
    ("kafka", "  bootstrap.servers: 127.0.0.1:1\n  sasl.password:#"),
    ("kafka", "  bootstrap.servers: 127.0.0.1:1\n  enable.auto.commit: #"),
    ("kafka", "  {bootstrap.servers: 127.0.0.1, sasl.password:#}"),
    ("kafka", "  - sasl.password: #"),
    ("mappings", f"{_BASE['mappings']}\n    kafka: {{ssl.key.password: #}}"),
    ("mappings", f"{_BASE['mappings']}\n    kafka: {{ssl.key.pem: #, security.protocol: ssl}}"),
    ("mappings", f"{_BASE['mappings']}\n    kafka: [#]"),
    ("mappings", "  kafka: {sasl.password: #}"),
    ("mappings", "  - kafka: {sasl.password: #}"),
    ("metastore", "  uri: thrift://127.0.0.1:1\n  plain: {username: ann, password: #}"),
    ("metastore", "  uri: thrift://127.0.0.1:1\n  plain: {username: ann, password:#}"),
    ("metastore", "  uri: thrift://127.0.0.1:1\n  plain: {username: ann, password: x}\n  kerberos: {principal: [#]}"),
    ("metastore", "  uri: thrift://127.0.0.1:1\n  plain: [#]"),
    ("metastore", "  - plain: {password: #}"),
    ("metastore", "  uri: http://ann:hunter2canary@127.0.0.1\n  plain: [#]"),
    ("registry", "  {url: https://registry, username: ann, password: #}"),
    ("registry", "  url: https://registry\n  username: ann\n  password:#"),
    ("registry", "  url: https://ann:hunter2canary@registry\n  ca_file: [#]"),
    ("registry", "  - password: #"),
    ("spark", "  conf: {spark.x.password: #}"),
    ("spark", "  conf: {spark.x.password:#}"),
    ("spark", "  conf: [#]"),
    ("spark", "  - conf: {spark.x.password: #}"),
    ("storage", "  s3: {access_key: k, secret_key: #}"),
    ("storage", "  s3: {session_token: #}"),
    ("storage", "  s3: {anonymous: #}"),
    ("storage", "  s3: {endpoint: https://ann:hunter2canary@minio, region: #}"),
    ("storage", "  s3: [#]"),
    ("storage", "  hdfs: {properties: {ssl.client.keystore.password: #}}"),
    ("storage", "  hdfs: {properties: {fs.s3a.secret.key: #}}"),
    ("storage", "  hdfs: {properties: #}"),
)


def _config(path: Path, section: str, text: str) -> Path:
    sections = _BASE | {section: text}
    path.write_text("".join(f"{name}:\n{body}\n" for name, body in sections.items()), encoding="utf-8")
    return path


def _said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: object) -> str:
    monkeypatch.setattr(sys, "argv", ["ingestd", *map(str, arguments)])
    with pytest.raises(SystemExit):
        main()
    printed = capsys.readouterr()
    return printed.out + printed.err


@pytest.mark.parametrize(("section", "text"), _POSITIONS)
def test_configuration_when_it_contains_a_secret_then_the_secret_is_not_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, section: str, text: str
) -> None:
    monkeypatch.setenv("CANARY", CANARY)
    for form in _FORMS:
        config = _config(tmp_path / "a.yaml", section, text.replace("#", form.replace("@", CANARY)))
        said = _said(capsys, monkeypatch, "check", "--config", config)
        assert CANARY not in said.lower(), (form, said)
        assert "Traceback" not in said, (form, said)
        assert said.strip(), form
        try:
            document = load([config])
            shown = f"{document!r} {document.mappings!r} {document.metastore.security!r} {document.storage!r}"
        except ConfigError as error:
            shown = f"{error!r} {error.__cause__!r} {error.__cause__}"
        assert CANARY not in shown.lower(), (form, shown)


@pytest.mark.parametrize("command", [("check", "--online"), ("doctor",), ("run", "--until-caught-up")])
def test_services_when_they_refuse_a_secret_then_the_secret_is_not_printed(
    stack: Stack, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    stack.topic(1)
    stack.table("id int")
    sasl: dict[str, Any] = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "ann"}
    config = stack.config(
        {"kafka": {"client.id": "mine", "ssl.key.password": CANARY}},
        metastore={"uri": stack.addresses.metastore, "timeout": "5s", "plain": {"username": "ann", "password": CANARY}},
        kafka={"bootstrap.servers": stack.addresses.kafka, "sasl.password": CANARY} | sasl,
        spark={"master": "local[1]", "conf": {"spark.x.password": CANARY}},
    )
    if command[0] == "run":
        daemon = stack.start_process(config, "--until-caught-up")
        daemon.wait()
        said = daemon.text()
    else:
        said = _said(capsys, monkeypatch, *command, "--config", config)
    assert "metastore.plain" in said
    assert CANARY not in said.lower()


def test_spark_when_a_secret_prevents_its_start_then_the_secret_is_not_printed(stack: Stack) -> None:
    stack.topic(1)
    stack.table("id int")
    stack.produce([{"id": 1}])
    config = stack.config(spark={"master": "local[1]", "conf": {"spark.driver.maxResultSize": CANARY}})
    daemon = stack.start_process(config, "--until-caught-up")
    assert daemon.wait() == 70
    assert "Spark did not start" in daemon.text()
    assert CANARY not in daemon.text().lower()
    assert "Traceback" not in daemon.text()
