"""The class archives of the services, which a process in the background writes for services that start repeatedly.

The first start with certain jars records which classes its JVM loads. After the second one, a process with low priority
writes the archive, so neither start takes longer. Writing one costs as much CPU time as six starts with it save.

Invariant: only one process at a time writes archives. A service never waits for one, and starts without it as well.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path

from ingestd import class_archive
from ingestd.class_archive import ArchiveFailed, ClassArchive
from ingestd.java import cache_folder
from ingestd.sandbox import process
from ingestd.sandbox.state import locked_now

# Like those of the services. The heap contains only what the JVM needs to write the archive.
_DUMP_OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx128m")
_NICENESS = 10
_WRITER = "import sys; from ingestd.sandbox.archives import write; write(sys.argv[1])"


@dataclass(frozen=True, slots=True)
class Classes:
    """The classes of a program: the path of its Java home, and its class path, which contains only jars."""

    program: str
    java: str
    class_path: str

    @property
    def archive(self) -> ClassArchive:
        """The archive of these classes. It has another name if any jar has been replaced."""
        versions = [(jar, os.stat(jar).st_size, os.stat(jar).st_mtime_ns) for jar in self.class_path.split(":")]
        return class_archive.find(_folder(), self.program, Path(self.java), repr(versions).encode())


def learn(recorded: Mapping[Classes, Path]) -> None:
    """Keep the names of the classes that running services have loaded, or write archives for those kept earlier.

    `recorded` contains the file that each JVM without an archive is writing for `-XX:DumpLoadedClassList`.
    """
    if not recorded:
        return
    folder = _folder()
    folder.mkdir(parents=True, exist_ok=True)
    with locked_now(folder / "lock") as lock:
        if lock is None:
            return  # the writer runs, or another start is here
        due = []
        for classes, file in recorded.items():
            kept = _kept(classes.archive)
            if kept.exists():
                due.append(astuple(classes))
            elif file.exists():
                lines = file.read_bytes()
                fresh = kept.with_suffix(".new")
                fresh.write_bytes(lines[: lines.rfind(b"\n") + 1])  # the JVM may be writing the last line
                fresh.replace(kept)
        if due:
            _start_writer(lock, due)


def write(due: str) -> None:
    """Write the archives of `due`, the fields of each `Classes` in JSON. If one fails, it is recorded again."""
    os.nice(_NICENESS)
    for fields in json.loads(due):
        classes = Classes(*fields)
        archive = classes.archive
        kept = _kept(archive)
        try:
            if kept.exists() and not archive.options:
                archive.write(kept, classes.class_path, _DUMP_OPTIONS)
        except ArchiveFailed as error:
            sys.stderr.write(f"{error}\n")  # into the log
        finally:
            kept.unlink(missing_ok=True)


def _start_writer(lock: int, due: list[tuple[str, ...]]) -> None:
    """Start a process that outlives this one and holds `lock` until it ends."""
    with (_folder() / "log").open("wb") as log:
        started = process.GuardedProcess(
            [sys.executable, "-c", _WRITER, json.dumps(due)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            pass_fds=(lock,),
            start_new_session=True,
        )
    process.adopt(started)


def _folder() -> Path:
    return cache_folder() / "sandbox" / "classes"


def _kept(archive: ClassArchive) -> Path:
    """Return the file with the names of the classes for the archive."""
    return archive.path.with_suffix(".lst")
