"""Broken and incomplete files of the jar cache are replaced, from Ivy's own cache if its copies are complete."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ingestd.errors import SandboxError
from ingestd.java import find_java
from ingestd.sandbox import jars
from ingestd.sandbox.guard import Guard
from ingestd.sandbox.lockfile import broken, lock
from ingestd.sandbox.options import no_progress
from ingestd.sandbox.state import locked

from .conftest import NO_NETWORK, Cli

GROUPS = jars.groups_for(("kafka", "metastore"))
KAFKA_JAR = "kafka/pcollections-4.0.2.jar"
METASTORE_JAR = "metastore/commons-cli-1.5.0.jar"


@pytest.fixture
def guard(processes: None, tmp_path: Path) -> Iterator[Guard]:
    with locked(tmp_path / "lock", "the test") as handle, Guard(handle) as made:
        yield made


def _halve(file: Path) -> None:
    """Replace the file with its first half. The original is not written to, because the real cache links to it."""
    half = file.read_bytes()[: file.stat().st_size // 2]
    file.unlink()
    file.write_bytes(half)


def test_jars_when_one_is_incomplete_and_one_missing_then_replaced_without_network(
    private_cache: Path, guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", NO_NETWORK["JAVA_TOOL_OPTIONS"])
    _halve(jars.folder() / KAFKA_JAR)
    (jars.folder() / METASTORE_JAR).unlink()
    untouched = {path: path.stat().st_ino for path in jars.folder().glob("*/*.jar")}
    del untouched[jars.folder() / KAFKA_JAR]
    assert jars.ensure(GROUPS, find_java(), guard, no_progress) == jars.folder()
    assert broken(GROUPS, private_cache / "sandbox" / jars.folder().name) == []
    assert all(path.stat().st_ino == inode for path, inode in untouched.items())


def test_jar_when_incomplete_in_ivys_cache_as_well_then_fetched_again(private_cache: Path, guard: Guard) -> None:
    _halve(jars.folder() / KAFKA_JAR)
    (kept,) = (private_cache / "sandbox" / "ivy").glob(f"*/*/jars/{Path(KAFKA_JAR).name}")
    _halve(kept)
    seen: list[tuple[str, int, int]] = []
    jars.ensure(GROUPS, find_java(), guard, lambda *step: seen.append(step))
    assert broken(GROUPS, jars.folder()) == []
    assert seen[-1][1] == seen[-1][2] > 0


def test_schema_script_when_broken_then_fetched_again(private_cache: Path, guard: Guard) -> None:
    script = jars.folder() / jars.SCHEMA / "hive-schema-4.0.0.derby.sql"
    _halve(script)
    before = set(private_cache.rglob("*.tar.gz"))
    jars.ensure((jars.SCHEMA,), find_java(), guard, no_progress)
    assert broken((jars.SCHEMA,), jars.folder()) == []
    assert set(private_cache.rglob("*.tar.gz")) == before  # the archive that contains the script is removed


def test_up_when_the_cache_is_empty_and_there_is_no_network_then_says_so(cli: Cli, tmp_path: Path) -> None:
    answer = cli.run("up", **NO_NETWORK, INGESTD_CACHE=str(tmp_path / "empty"))
    assert answer.returncode == SandboxError.exit_code
    assert "no network" in answer.stderr.splitlines()[-1]
    assert "Traceback" not in answer.stderr


def test_lock_when_read_then_each_file_name_has_one_content() -> None:
    contents = {(item.name, item.sha256) for item in lock()}
    assert len(contents) == len({item.name for item in lock()})
