"""Runs the copy of Ivy in PySpark's jar folder.

Invariant: Ivy writes only to the two folders that it is given, and its failure is reported in one sentence.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ingestd.clock import pause
from ingestd.errors import SandboxError
from ingestd.sandbox.guard import Guard
from ingestd.sandbox.lockfile import Listing, Locked, data_file
from ingestd.sandbox.options import Progress

_STEP = "fetching Kafka and Hive"
_LOOK_SECONDS = 0.25
_NO_ANSWER = re.compile(r"Server access error.*?\((.*)\)|Host \S+ not found", re.IGNORECASE)


def ivy_jar() -> Path:
    """Return the path of Ivy's jar. Raises SandboxError when it is missing.

    PySpark is not imported, because that would take a second.
    """
    package = importlib.util.find_spec("pyspark")
    jars = Path(package.origin).parent / "jars" if package and package.origin else Path()
    candidates = sorted(jars.glob("ivy-*.jar"))
    if not candidates:
        raise SandboxError(
            "PySpark's jar folder does not contain Ivy", where=str(jars), hint="run: pip install 'ingestd[sandbox]'"
        )
    return candidates[-1]


@dataclass(frozen=True, slots=True)
class Ivy:
    """One run of Ivy. Only a `final` run raises when Ivy fails. After any other run, the caller checks the files."""

    java: Path
    guard: Guard
    final: bool
    listing: Listing

    def retrieve(
        self, confs: Sequence[str], cache: Path, into: Path, wanted: Sequence[Locked], progress: Progress
    ) -> None:
        """Fetch `confs` through `cache` into `into`/CONF/ and report the bytes to `progress`.

        Raises SandboxError when Ivy fails and this run is `final`.
        """
        into.mkdir(parents=True)
        log = into.parent / "ivy.log"
        run = self.guard.start(self._command(confs, cache, into), log=log, cwd=into)
        sizes = {item.name: item.size for item in wanted}
        while run.poll() is None:
            progress(_STEP, _arrived(sizes, cache), sum(sizes.values()))
            pause(_LOOK_SECONDS)
        if run.returncode and self.final:
            raise _failure(log)
        progress(_STEP, _arrived(sizes, cache), sum(sizes.values()))

    def _command(self, confs: Sequence[str], cache: Path, into: Path) -> list[str]:
        return [
            str(self.java / "bin" / "java"),
            f"-Divy.cache.base={cache}",
            *("-jar", str(ivy_jar()), "-warn"),
            *("-settings", str(data_file("ivysettings.xml")), "-ivy", str(self.listing.ivy)),
            *("-confs", *confs),
            *("-retrieve", f"{into}/[conf]/[artifact]-[revision](-[classifier]).[ext]"),
        ]


def _arrived(sizes: dict[str, int], cache: Path) -> int:
    """Return the number of bytes of the wanted files in Ivy's cache, including incomplete files."""
    return sum(_size(file) for file in cache.glob("*/*/*/*") if file.name.removesuffix(".part") in sizes)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:  # Ivy has renamed it since the listing
        return 0


def _failure(log: Path) -> SandboxError:
    text = log.read_text(errors="replace")
    no_answer = _NO_ANSWER.search(text)
    if no_answer:
        cause = no_answer[1] or "host not found"
        return SandboxError(
            f"Kafka and Hive could not be fetched: no network ({cause})",
            hint="connect to the internet for the first start; later starts need no network",
        )
    last: Iterable[str] = (line.strip(" \t:") for line in reversed(text.splitlines()))
    words = next((line for line in last if line), "it printed nothing")
    return SandboxError(f"Kafka and Hive could not be fetched because Ivy failed: {words}", where=str(log))
