"""An archive of the classes that Spark's driver loads, which halves the CPU time that its JVM needs to start.

The archive uses Java's class data sharing. Without it, the JVM parses and verifies 8,000 classes at each start.

Invariant: an archive gets its name only when it is complete and on disk. The name depends on the Java installation and
on Spark, and the JVM ignores an archive that does not match its class path. Because an archive contains code, it is
used only if no other user could have written it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ingestd.errors import IngestdError
from ingestd.java import cache_folder

_DUMP_SECONDS = 600.0
_DUMP_OPTIONS = ("-Xshare:dump", "-Xlog:disable", "-Xlog:all=error:stderr")


class ArchiveFailed(IngestdError):
    """The JVM could not write the archive."""


def archive_path(java: Path) -> Path:
    """Return the path of the archive for the Java home `java` and the installed Spark. It may not exist yet."""
    release = java / "release"
    version = release.read_bytes() if release.exists() else b""
    package = importlib.util.find_spec("pyspark")  # without importing it, which takes time
    place = os.fsencode(package.origin or "") if package is not None else b""
    fields = (os.fsencode(java.resolve()), version, importlib.metadata.version("pyspark").encode(), place)
    return cache_folder() / "spark" / f"classes-{hashlib.sha256(b'|'.join(fields)).hexdigest()[:12]}.jsa"


def archive_options(java: Path) -> list[str]:
    """Return the JVM options for using the archive, or [] if it is missing or another user could have written it."""
    path = archive_path(java)
    if not (_is_private(path) and _is_private(path.parent)):
        return []
    # Without the second option, the JVM prints a warning if its class path does not begin like that of the archive.
    return [f"-XX:SharedArchiveFile={path}", "-Xlog:cds=off"]


def write_archive(java: Path, class_list: Path, class_path: str, options: Sequence[str]) -> Path:
    """Write the archive and return its path.

    `class_list` is the file that a JVM with this class path and these options wrote for `-XX:DumpLoadedClassList`.
    Raises ArchiveFailed.
    """
    path = archive_path(java)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.parent.chmod(0o755)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            fresh = Path(folder) / path.name
            files = (f"-XX:SharedClassListFile={class_list}", f"-XX:SharedArchiveFile={fresh}")
            command = [str(java / "bin" / "java"), *_DUMP_OPTIONS, *options, *files, "-cp", class_path]
            run = subprocess.run(command, capture_output=True, text=True, timeout=_DUMP_SECONDS, check=False)
            if run.returncode or not fresh.exists():
                lines = (run.stderr or run.stdout).strip().splitlines() or [f"exit code {run.returncode}"]
                raise ArchiveFailed(f"Java could not write the class archive: {lines[-1]}", where=str(path))
            with fresh.open("rb") as file:
                os.fsync(file.fileno())  # the JVM trusts the content: it verifies no checksum
            fresh.rename(path)
    except subprocess.TimeoutExpired as error:
        raise ArchiveFailed(f"Java did not write the class archive within {_DUMP_SECONDS:.0f} s") from error
    except OSError as error:
        raise ArchiveFailed(f"cannot write the class archive: {error.strerror}", where=str(path)) from error
    return path


def _is_private(path: Path) -> bool:
    """Return whether only this user, or root, can write the file or directory."""
    try:
        found = path.stat()
    except OSError:
        return False
    return found.st_uid in (0, os.geteuid()) and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
