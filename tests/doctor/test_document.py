"""The document of an examination, its documentation, and findings that need no running service."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from ingestd.doctor import compaction, login, machine, mapping, metastore, replication, spark, table
from ingestd.doctor.finding import Finding, as_document, exit_code, fault, ok, warning
from ingestd.errors import InvalidTable, MetastoreUnavailable
from ingestd.hive import health
from tests.doctor.conftest import Examine

ROOT = Path(__file__).parents[2]
MODULES = (machine, login, metastore, spark, compaction, mapping, table, replication)
STATUSES = {"ok", "warning", "fault", "skipped"}


def _checks() -> set[str]:
    names = set()
    for module in MODULES:
        for value in vars(module).values():
            for item in value if isinstance(value, tuple) else (value,):
                if type(item).__name__ == "Check":
                    names.add(item.name)
    return names


def test_checks_then_are_those_of_the_documentation() -> None:
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    section = text.partition("## `ingestd doctor`")[2].partition("\n## ")[0]
    documented = re.findall(r"^\| `([a-z_.]+)` \|", section, re.MULTILINE)
    assert len(documented) == len(set(documented))
    assert set(documented) == _checks() | {"configuration"}


def test_exit_code_then_is_that_of_the_first_fault() -> None:
    findings = [
        Finding("a", "s", ok("fine")),
        Finding("b", "s", warning("soon", "do it")),
        Finding("c", "s", fault("wrong", "do it", InvalidTable)),
        Finding("d", "s", fault("gone", "start it", MetastoreUnavailable)),
    ]
    assert exit_code(findings[:2]) == 0
    assert exit_code(findings) == 65
    document = as_document(findings)
    assert document["counts"] == {"ok": 1, "warning": 1, "fault": 2, "skipped": 0}
    assert document["findings"][2] == {
        "check": "c",
        "subject": "s",
        "status": "fault",
        "evidence": "wrong",
        "fix": "do it",
        "exit_code": 65,
    }


@pytest.mark.parametrize(
    ("text", "seconds"), [("300s", 300), ("5m", 300), ("12h", 43_200), ("1500ms", 1.5), ("300", 300), ("soon", None)]
)
def test_duration_of_hive_then_is_read_in_seconds(text: str, seconds: float | None) -> None:
    assert health.seconds(text) == seconds


@pytest.mark.parametrize(
    ("skew", "uncertainty", "status"),
    [(0.2, 0.01, "ok"), (-1.5, 1.0, "ok"), (-2.5, 0.1, "warning"), (59.0, 0.0, "warning"), (3_600.0, 0.1, "fault")],
)
def test_clock_then_is_judged_by_the_part_of_the_difference_that_is_certain(
    skew: float, uncertainty: float, status: str
) -> None:
    verdict = metastore.judge_clock(health.ClockReading(skew, uncertainty))
    assert verdict.status == status
    assert ("behind" if skew < 0 else "ahead of") in verdict.evidence


def test_configuration_when_invalid_then_each_fault_is_a_finding_and_the_machine_is_examined(
    examine: Examine, tmp_path: Path
) -> None:
    config = tmp_path / "a.yaml"
    config.write_text("metastore: {uri: 'localhost:1'}\nkafka: {}\nmappings: []\n", encoding="utf-8")
    report = examine(config)
    assert report.code == 78
    assert len(report.all("configuration")) == 2
    assert report.one("machine.python")["status"] == "ok"


def test_java_when_it_is_too_old_then_names_the_version_and_the_fix(
    examine: Examine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "jdk8" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho '    java.specification.version = 1.8\n    java.home = /opt/jdk8' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(java.parent.parent))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    config = tmp_path / "a.yaml"
    config.write_text("mappings: 3\n", encoding="utf-8")
    found = examine(config).one("machine.java")
    assert (found["status"], found["exit_code"]) == ("fault", 78)
    assert "JAVA_HOME: Java 8" in found["evidence"]
    assert "JAVA_HOME" in found["fix"]


def test_packages_when_one_of_the_daemon_is_missing_then_names_it_and_what_to_install(
    examine: Examine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "ingestd-9.dist-info" / "METADATA"
    installed.parent.mkdir()
    installed.write_text(
        "Metadata-Version: 2.1\nName: ingestd\nVersion: 9\nRequires-Dist: pyarrow>=18\n"
        "Requires-Dist: absent-engine<5,>=3.5; extra == 'daemon'\nRequires-Dist: absent-other; extra == 'test'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = tmp_path / "a.yaml"
    config.write_text("mappings: 3\n", encoding="utf-8")
    found = examine(config).one("machine.packages")
    assert (found["status"], found["exit_code"]) == ("fault", 78)
    assert found["evidence"] == "1 of 2 packages are missing: absent-engine"
    assert "ingestd[daemon]" in found["fix"]


def test_services_when_none_answers_then_names_both_and_skips_what_needs_them(examine: Examine, tmp_path: Path) -> None:
    config = tmp_path / "a.yaml"
    config.write_text(
        "metastore: {uri: 'thrift://127.0.0.1:1', timeout: 1s}\n"
        "kafka: {bootstrap.servers: '127.0.0.1:1', socket.timeout.ms: 100}\n"
        "mappings: [{name: a, topics: [a], table: x.a}]\n",
        encoding="utf-8",
    )
    report = examine(config)
    assert report.code == 69
    assert report.one("metastore.version")["status"] == "fault"
    assert report.one("kafka.cluster")["status"] == "fault"
    assert report.one("table.definition")["status"] == "skipped"
    assert {finding["status"] for finding in report.document["findings"]} <= STATUSES
