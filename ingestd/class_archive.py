"""Archives of the classes that a JVM loads, each of which halves the CPU time that such a JVM needs to start.

They use Java's class data sharing. Without it, the JVM parses and verifies 7,000 to 9,000 classes at each start.

Invariant: an archive gets its name only when it is complete and on disk. The name depends on the Java installation and
on the jars, and the JVM ignores an archive that does not match its class path. Because an archive contains code, it is
used only if no other user could have written it. A folder contains a bounded number of archives.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ingestd.clock import now
from ingestd.errors import IngestdError

_DUMP_SECONDS = 600.0
_DUMP_OPTIONS = ("-Xshare:dump", "-Xlog:disable", "-Xlog:all=error:stderr")
_MOST_IN_FOLDER = 8


class ArchiveFailed(IngestdError):
    """The JVM could not write the archive."""


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """The archive for one Java home and one class path. The file may not exist yet."""

    java: Path
    path: Path

    @property
    def options(self) -> list[str]:
        """The JVM options for using the archive, or [] if it is missing or another user could have written it."""
        if not (_is_private(self.path) and _is_private(self.path.parent)):
            return []
        with suppress(OSError):  # another process has removed it, or it belongs to root
            os.utime(self.path)  # because those that were used last are kept
        # Without the second option, the JVM prints a warning if its class path does not begin like that of the archive.
        return [f"-XX:SharedArchiveFile={self.path}", "-Xlog:cds=off"]

    def write(self, class_list: Path, class_path: str, options: Sequence[str]) -> None:
        """Write the archive, and remove the archives of its folder that have not been used for the longest time.

        `class_list` is the file that a JVM with this class path wrote for `-XX:DumpLoadedClassList`. The class path
        contains only jars, because Java archives no classes of a class path with folders. A JVM that uses the archive
        may have more at the end of its class path. Raises ArchiveFailed.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.parent.chmod(0o755)
            with tempfile.TemporaryDirectory(dir=self.path.parent) as folder:
                fresh = Path(folder) / self.path.name
                files = (f"-XX:SharedClassListFile={class_list}", f"-XX:SharedArchiveFile={fresh}")
                command = [str(self.java / "bin" / "java"), *_DUMP_OPTIONS, *options, *files, "-cp", class_path]
                run = subprocess.run(command, capture_output=True, text=True, timeout=_DUMP_SECONDS, check=False)
                if run.returncode or not fresh.exists():
                    lines = (run.stderr or run.stdout).strip().splitlines() or [f"exit code {run.returncode}"]
                    raise ArchiveFailed(f"Java could not write the class archive: {lines[-1]}", where=str(self.path))
                with fresh.open("rb") as file:
                    os.fsync(file.fileno())  # the JVM trusts the content: it verifies no checksum
                fresh.rename(self.path)
            _remove_unused(self.path.parent)
        except subprocess.TimeoutExpired as error:
            raise ArchiveFailed(f"Java did not write the class archive within {_DUMP_SECONDS:.0f} s") from error
        except OSError as error:
            where = str(self.path)
            raise ArchiveFailed(f"cannot write the class archive: {error.strerror}", where=where) from error


def find(folder: Path, name: str, java: Path, *identity: bytes) -> ClassArchive:
    """Return the archive `name` in `folder` for a Java home and jars, which `identity` describes."""
    release = java / "release"
    version = release.read_bytes() if release.exists() else b""
    digest = hashlib.sha256(b"|".join((os.fsencode(java.resolve()), version, *identity)))
    return ClassArchive(java, folder / f"{name}-{digest.hexdigest()[:12]}.jsa")


def _remove_unused(folder: Path) -> None:
    """Remove the files that have not been used for the longest time, and what killed writers have left."""
    for pattern in ("*.jsa", "*.lst"):
        used = sorted(folder.glob(pattern), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in used[_MOST_IN_FOLDER:]:
            path.unlink(missing_ok=True)  # JVMs that use it keep it open
    for left in folder.glob("tmp*/"):
        if left.stat().st_mtime < now() - 2 * _DUMP_SECONDS:
            shutil.rmtree(left, ignore_errors=True)


def _is_private(path: Path) -> bool:
    """Return whether only this user, or root, can write the file or directory."""
    try:
        status = path.stat()
    except OSError:
        return False
    return status.st_uid in (0, os.geteuid()) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
