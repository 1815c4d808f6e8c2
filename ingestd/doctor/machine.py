"""Checks of this machine: Python, Java, open files and temporary disk space.

Invariant: these checks need no service.
"""

from __future__ import annotations

import platform
import resource
import shutil
import sys
import tempfile
from collections.abc import Iterator

from ingestd import java
from ingestd.doctor.finding import Check, Verdict, fault, ok, warning
from ingestd.errors import StorageUnavailable

_PYTHONS = ((3, 10), (3, 13))
# A daemon with one mapping has about 400 files open, most of them those of Spark's JVM and of librdkafka's sockets.
_FILES, _FILES_PER_MAPPING = 1_024, 16
_GIB = 1 << 30
_DISK_WARNING, _DISK_FAULT = _GIB, _GIB // 10


def _python(_mappings: int) -> Iterator[Verdict]:
    found = f"Python {platform.python_version()} at {sys.executable}"
    oldest, newest = (".".join(map(str, one)) for one in _PYTHONS)
    if _PYTHONS[0] <= sys.version_info[:2] <= _PYTHONS[1]:
        yield ok(found)
    else:
        yield warning(found, f"use Python {oldest} to {newest}; ingestd is not tested with others")


def _java(_mappings: int) -> Iterator[Verdict]:
    home = java.find_java()
    yield ok(f"Java {java.version(home)} at {home}")


def _open_files(mappings: int) -> Iterator[Verdict]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _FILES + _FILES_PER_MAPPING * mappings
    found = f"this process may open {_limit(soft)} files (at most {_limit(hard)}); about {needed:,} are needed"
    if soft != resource.RLIM_INFINITY and soft < needed:
        yield warning(found, f"set LimitNOFILE={max(needed, 65_536)} in the systemd unit, or run ulimit -n")
    else:
        yield ok(found)


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
    found = f"{free / _GIB:,.1f} GiB free in {folder}"
    if free < _DISK_FAULT:
        yield fault(found, "free space, or set TMPDIR to a directory on a larger file system", StorageUnavailable)
    elif free < _DISK_WARNING:
        yield warning(found, "free space, or set TMPDIR to a directory on a larger file system")
    else:
        yield ok(found)


# Each check receives the number of mappings in the configuration.
CHECKS: tuple[Check[int], ...] = (
    Check("machine.python", _python),
    Check("machine.java", _java),
    Check("machine.open_files", _open_files),
    Check("machine.temporary_disk", _temporary_disk),
)
