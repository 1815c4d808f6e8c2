"""Checks of this machine: Python, its packages, Java, open files and temporary disk space.

Invariant: these checks need no service.
"""

from __future__ import annotations

import importlib.metadata
import platform
import re
import resource
import shutil
import sys
import tempfile
from collections.abc import Iterator

from ingestd import java
from ingestd.doctor.finding import Check, Verdict, fault, ok, skipped, warning
from ingestd.errors import ConfigError, StorageUnavailable

_OURS, _INSTALL = "ingestd", "run: pip install 'ingestd[daemon]'"
# The beginning of a requirement, and the marker of those of the daemon.
_NAME, _EXTRA = re.compile(r"[\w.-]+"), re.compile(r"extra == ['\"]daemon['\"]")
_PYTHONS = ((3, 10), (3, 13))
# A daemon with one mapping has about 400 files open, most of them those of Spark's JVM and of librdkafka's sockets.
_FILES, _FILES_PER_MAPPING = 1_024, 16
_GIB = 1 << 30
_DISK_WARNING, _DISK_FAULT = _GIB, _GIB // 10


def _python(_mappings: int) -> Iterator[Verdict]:
    text = f"Python {platform.python_version()} at {sys.executable}"
    oldest, newest = (".".join(map(str, version)) for version in _PYTHONS)
    if _PYTHONS[0] <= sys.version_info[:2] <= _PYTHONS[1]:
        yield ok(text)
    else:
        yield warning(text, f"use Python {oldest} to {newest}; ingestd is not tested with others")


def _packages(_mappings: int) -> Iterator[Verdict]:
    try:
        required = importlib.metadata.requires(_OURS) or ()
    except importlib.metadata.PackageNotFoundError:
        yield skipped(f"{_OURS} runs from its source code, without a list of the packages that it needs")
        return
    names = [_NAME.match(text)[0] for text in required if "extra ==" not in text or _EXTRA.search(text)]  # type: ignore[index]
    missing = [name for name in names if not _is_installed(name)]
    if missing:
        yield fault(f"{len(missing)} of {len(names)} packages are missing: {', '.join(missing)}", _INSTALL, ConfigError)
    else:
        yield ok(f"{len(names)} packages of the daemon are installed")


def _is_installed(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _java(_mappings: int) -> Iterator[Verdict]:
    home = java.find_java()
    yield ok(f"Java {java.version(home)} at {home}")


def _open_files(mappings: int) -> Iterator[Verdict]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _FILES + _FILES_PER_MAPPING * mappings
    text = f"this process may open {_limit(soft)} files (at most {_limit(hard)}); about {needed:,} are needed"
    if soft != resource.RLIM_INFINITY and soft < needed:
        yield warning(text, f"set LimitNOFILE={max(needed, 65_536)} in the systemd unit, or run ulimit -n")
    else:
        yield ok(text)


def _limit(number: int) -> str:
    return "any number of" if number == resource.RLIM_INFINITY else f"{number:,}"


def _temporary_disk(_mappings: int) -> Iterator[Verdict]:
    folder = tempfile.gettempdir()
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"ingestd")
        free = shutil.disk_usage(folder).free
    except OSError as error:
        yield fault(f"{folder}: {error.strerror}", "set TMPDIR to a writable directory", StorageUnavailable)
        return
    yield judge_free(free, folder, "free space, or set TMPDIR to a directory on a larger file system")


def judge_free(free: int, place: str, fix: str) -> Verdict:
    """Return the verdict on `free` bytes of disk space in a place."""
    text = f"{free / _GIB:,.1f} GiB free in {place}"
    if free < _DISK_FAULT:
        return fault(text, fix, StorageUnavailable)
    return warning(text, fix) if free < _DISK_WARNING else ok(text)


# Each check receives the number of mappings in the configuration.
CHECKS: tuple[Check[int], ...] = (
    Check("machine.python", _python),
    Check("machine.packages", _packages),
    Check("machine.java", _java),
    Check("machine.open_files", _open_files),
    Check("machine.temporary_disk", _temporary_disk),
)
