"""Apicurio Registry, with the REST API of Confluent's registry, as a process of this machine.

The registries of Confluent and Karapace are in none of the package registries that the tests use. This one is in the
Maven repository. Its archive is fetched once with Ivy, into a folder of its own in the cache of ingestd.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from ingestd import java
from ingestd.sandbox.guard import Guard
from ingestd.sandbox.ivy import Ivy
from ingestd.sandbox.lockfile import Listing, lock
from ingestd.sandbox.options import no_progress
from ingestd.sandbox.state import locked
from tests.support.metastore import free_port
from tests.support.patience import LIMIT
from tests.support.stack import eventually

# Both return Protobuf schemas as they were registered. To requests for descriptors, 3 answers 500 for most files.
Release = Literal["2", "3"]
_OLDEST_JAVA: dict[Release, int] = {"2": 17, "3": 21}
_LISTING = Listing(Path(__file__).with_name("archives.lock"), Path(__file__).with_name("ivy.xml"))
_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_LOG = 3_000  # the most letters of a log in an error
_JARS = ("*-runner.jar", "quarkus-run.jar")


def _fetched(release: Release) -> Path:
    """Return the path of the archive, which is fetched if it is not in the cache.

    Only a complete archive has this path. Several processes may call this at the same time. Raises SandboxError if it
    cannot be fetched.
    """
    [archive] = (item for item in lock(_LISTING) if item.group == release)
    cache = java.cache_folder() / "tests" / "apicurio"
    path = cache / archive.path
    with locked(cache / "lock", "the cache of the registry", LIMIT) as handle, Guard(handle) as guard:
        if not archive.is_at(path):
            path.parent.mkdir(exist_ok=True)
            with tempfile.TemporaryDirectory(dir=cache) as folder:
                into = Path(folder) / "files"
                ivy = Ivy(java.find_java(), guard, final=True, listing=_LISTING)
                ivy.retrieve((release,), Path(folder) / "ivy", into, (archive,), no_progress)
                assert archive.is_at(into / archive.path), f"{archive.name} has not the known size and SHA-256"
                (into / archive.path).replace(path)
    return path


class Apicurio:
    """A registry, whose `folder` receives the program, its log and the schemas, which outlast a restart.

    `url` is that of the API, which remains the same.
    """

    def __init__(self, release: Release, folder: Path) -> None:
        self._folder = folder
        self._java = java.find_java(_OLDEST_JAVA[release])
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}/apis/ccompat/v7"
        self._process: subprocess.Popen[bytes] | None = None
        with tarfile.open(_fetched(release)) as tar:
            tar.extractall(folder, filter="data")

    def start(self) -> None:
        """Start the process without waiting until it answers."""
        [program] = (found for pattern in _JARS for found in self._folder.glob(pattern))
        address = "-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={self._port}"
        database = f"jdbc:h2:file:{self._folder / 'schemas'}"
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(self._java / "bin" / "java"), *_OPTIONS, *address, "-jar", str(program)],
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "REGISTRY_DATASOURCE_URL": database, "APICURIO_DATASOURCE_URL": database},
            )

    def wait(self) -> None:
        """Wait until the registry answers. Fails with the end of its log."""
        process = self._process
        assert process is not None

        def answers() -> bool:
            assert process.poll() is None, "the registry has ended"
            try:
                with urllib.request.urlopen(f"{self.url}/subjects", timeout=LIMIT):
                    return True
            except OSError:
                return False

        try:
            eventually("the registry to answer", answers)
        except AssertionError as error:
            log = (self._folder / "log").read_text(encoding="utf-8", errors="replace")
            raise AssertionError(f"{error}:\n{log[-_LOG:]}") from None

    def stop(self) -> None:
        """End the process if it runs."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(LIMIT)
            finally:
                self._process.kill()  # no effect if it has ended
                self._process = None


@contextmanager
def apicurio(release: Release, folder: Path) -> Iterator[Apicurio]:
    """Run a registry, and end it with the `with` block."""
    made = Apicurio(release, folder)
    try:
        made.start()
        made.wait()
        yield made
    finally:
        made.stop()
        shutil.rmtree(folder)
