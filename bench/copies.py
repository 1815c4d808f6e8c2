"""Measures how fast sets of files are copied, beside other programs.

Invariant: all copies read files that are in the page cache, and write to the same file system. ingestd makes each file
durable before it gives it its name, so the time of other programs includes a `sync` afterwards. Programs take turns.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from ingestd.clock import monotonic
from ingestd.java import find_java
from ingestd.replication.copying.copy import Copier, CopyOptions
from ingestd.replication.copying.transfer import CopyFile
from ingestd.spark.engine import Engine
from ingestd.storage.storages import Storages

_PER_DIRECTORY = 100
_NO_JOB = CopyOptions(job_bytes=1 << 60, job_files=1 << 60)
_JOB = CopyOptions(job_files=1)
_DISTCP_CLASS = "org.apache.hadoop.tools.DistCp"


@dataclass(frozen=True, slots=True)
class FileSet:
    """Files below `source`, and their copies below `target`."""

    source: Path
    target: Path
    files: list[CopyFile]

    @property
    def bytes(self) -> int:
        """The length of all files together."""
        return sum(file.length for file in self.files)


def create(folder: Path, count: int, length: int) -> FileSet:
    """Create `count` files of `length` bytes in directories of 100 files below the new directory `folder`/source."""
    source, target = folder / "source", folder / "copy"
    block = os.urandom(1 << 20)
    found = []
    for number in range(count):
        directory = f"delta_{number // _PER_DIRECTORY:07d}"
        file = source / directory / f"bucket_{number:05d}"
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("wb") as content:
            for at in range(0, length, len(block)):
                content.write(block[: length - at])
        found.append(CopyFile(f"file:{file}", length, f"file:{target}/{directory}", file.name))
    return FileSet(source, target, found)


def programs(engine: Engine, distcp: str | None) -> dict[str, Callable[[FileSet], None]]:
    """Return the programs that copy a set of files, by name. `distcp` is the path of hadoop-distcp's jar."""
    found: dict[str, Callable[[FileSet], None]] = {
        "cp -r": _cp,
        "ingestd, threads": partial(_ours, None, _NO_JOB),
        "ingestd, Spark": partial(_ours, engine, _JOB),
    }
    if distcp is not None:
        found["distcp"] = partial(_distcp, distcp)
    return found


def measure(files: FileSet, found: Mapping[str, Callable[[FileSet], None]], runs: int) -> dict[str, float]:
    """Return the median of the seconds of each program, and of a repetition by ingestd that finds all files equal."""
    seconds = defaultdict(list)
    for _ in range(runs):
        for name, program in found.items():
            seconds[name].append(_timed(program, files))
            copied = sum(1 for path in files.target.rglob("bucket_*") if path.is_file())
            if copied != len(files.files):
                raise SystemExit(f"{name} has copied {copied} of {len(files.files)} files")
            if name == "ingestd, threads":
                seconds["ingestd, repeated"].append(_timed(program, files))
            shutil.rmtree(files.target)
            subprocess.run(["sync", "-f", files.source], check=True)
    return {name: statistics.median(some) for name, some in seconds.items()}


def _timed(program: Callable[[FileSet], None], files: FileSet) -> float:
    began = monotonic()
    program(files)
    return monotonic() - began


def _cp(files: FileSet) -> None:
    subprocess.run(["cp", "-r", files.source, files.target], check=True)
    subprocess.run(["sync", "-f", files.target], check=True)


def _distcp(jar: str, files: FileSet) -> None:
    """Run distcp in the local job runner, with the Hadoop of PySpark; the time includes the start of its JVM."""
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    classes = f"{jar}:{Path(spec.origin).parent}/jars/*"
    command = [str(find_java() / "bin/java"), "-cp", classes, _DISTCP_CLASS, "-m", "2"]
    with (files.source.parent / "distcp.log").open("w") as log:
        arguments = [f"file:{files.source}", f"file:{files.target}"]
        subprocess.run([*command, *arguments], check=True, stdout=log, stderr=log)
    subprocess.run(["sync", "-f", files.target], check=True)


def _ours(engine: Engine | None, options: CopyOptions, files: FileSet) -> None:
    with closing(Copier(Storages(), engine, options)) as copier:
        copier.copy(files.files)
