"""Class archives: which JVM uses one, which archives are never used, and when the sandbox writes them."""

from __future__ import annotations

import os
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from ingestd import class_archive
from ingestd.class_archive import ArchiveFailed, ClassArchive
from ingestd.java import cache_folder, find_java
from ingestd.sandbox import KAFKA, Sandbox, SandboxOptions
from ingestd.sandbox.archives import Classes
from ingestd.sandbox.state import load
from tests.support.patience import LIMIT
from tests.support.stack import eventually

_MAIN = "org.apache.ivy.Main"
# A Java that writes half of an archive, or a whole one.
_HALF = """#!/bin/sh
for a do case $a in -XX:SharedArchiveFile=*) echo half > ${a#*=};; esac; done
echo 'disk full'; exit 1
"""
_WHOLE = _HALF.replace("half", "whole").replace("exit 1", "exit 0")


@pytest.fixture
def cache(processes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create an empty cache."""
    monkeypatch.setenv("INGESTD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def _classes(folder: Path) -> Classes:
    """Return the classes of a program with one small jar, a copy in `folder`."""
    package = find_spec("pyspark")
    assert package
    assert package.origin
    [jar] = (Path(package.origin).parent / "jars").glob("ivy-*.jar")
    return Classes("ivy", str(find_java()), str(shutil.copy(jar, folder)))


def _run(classes: Classes, *options: str) -> str:
    """Run the program with a folder at the end of its class path, as the services do, and return its output."""
    folder = Path(classes.class_path).parent
    command = [f"{classes.java}/bin/java", *options, "-cp", f"{classes.class_path}:{folder}", _MAIN, "-version"]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=True).stdout


def _source(classes: Classes, options: list[str]) -> str:
    """Return where the JVM finds the program's main class."""
    log = _run(classes, *options, "-Xlog:class+load").splitlines()
    return next(line.partition("source: ")[2] for line in log if f"{_MAIN} source: " in line)


def _fake(folder: Path, script: str) -> Path:
    """Create a Java home whose `java` is a script."""
    java = folder / "java" / "bin" / "java"
    java.parent.mkdir(parents=True, exist_ok=True)
    java.write_text(script)
    java.chmod(0o755)
    return java.parent.parent


def test_archive_when_its_jar_is_replaced_or_it_is_removed_then_classes_come_from_the_jar(
    cache: Path, tmp_path: Path
) -> None:
    classes, recorded = _classes(tmp_path), tmp_path / "classes.lst"
    assert classes.archive.options == []
    _run(classes, f"-XX:DumpLoadedClassList={recorded}")
    classes.archive.write(recorded, classes.class_path, ())
    options = classes.archive.options
    assert _source(classes, [*options, "-Xshare:on"]).startswith("shared objects file")

    os.utime(classes.class_path, (1, 1))
    assert classes.archive.options == []  # another archive, which does not exist
    from_jar = f"file:{classes.class_path}"
    assert _source(classes, options) == from_jar
    Path(options[0].partition("=")[2]).unlink()
    assert _source(classes, options) == from_jar


def test_archive_when_java_fails_then_half_of_it_is_not_kept(cache: Path, tmp_path: Path) -> None:
    archive = class_archive.find(cache, "x", _fake(tmp_path, _HALF))
    with pytest.raises(ArchiveFailed, match="disk full"):
        archive.write(tmp_path / "classes.lst", "", ())
    assert list(cache.iterdir()) == []
    assert archive.options == []


def test_archive_when_another_user_can_write_it_then_is_not_used(cache: Path) -> None:
    cache.mkdir(0o755)
    archive = ClassArchive(find_java(), cache / "x.jsa")
    archive.path.touch(0o644)
    assert archive.options[0] == f"-XX:SharedArchiveFile={archive.path}"
    archive.path.chmod(0o666)
    assert archive.options == []
    archive.path.chmod(0o644)
    cache.chmod(0o777)
    assert archive.options == []


def test_archives_when_there_are_many_then_those_used_last_are_kept(cache: Path, tmp_path: Path) -> None:
    java = _fake(tmp_path, _WHOLE)
    archives = [class_archive.find(cache, str(number), java) for number in range(10)]
    for number, archive in enumerate(archives):
        archive.write(tmp_path / "classes.lst", "", ())
        os.utime(archive.path, (number, number))
        assert archives[0].options
    assert [number for number, archive in enumerate(archives) if archive.path.exists()] == [0, *range(3, 10)]


def test_service_when_started_repeatedly_then_uses_an_archive(private_cache: Path, tmp_path: Path) -> None:
    box = Sandbox(SandboxOptions(tmp_path / "state"))
    folder = cache_folder() / "sandbox" / "classes"

    def start() -> list[str]:
        """Start the broker, stop it, and return the archives that it has used."""
        box.start_service(KAFKA)
        try:
            pid = load(tmp_path / "state").children[KAFKA].pid
            return [found.path for found in psutil.Process(pid).memory_maps() if found.path.startswith(str(folder))]
        finally:
            box.down()

    assert start() == []
    [kept] = folder.glob("kafka-*.lst")
    names = kept.read_text().splitlines(keepends=True)
    assert "kafka/Kafka" in [name.split()[0] for name in names]
    kept.write_text("".join(names[:1000]))  # Java needs less time for fewer classes
    assert start() == []
    eventually("an archive to be written", lambda: list(folder.glob("kafka-*.jsa")))
    [archive] = folder.glob("kafka-*.jsa")
    assert start() == [str(archive)]
    eventually("the list to be removed", lambda: not kept.exists())
