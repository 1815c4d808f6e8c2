"""Fetches the jars of Kafka and Hive into the user's cache and verifies them.

Invariant: `ensure` returns only when every file of the wanted groups matches the lock file. A file that matches is not
replaced, because a running JVM may have it open. All state folders share the jars. Only one call of `ensure` runs at a
time.
"""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from ingestd.errors import SandboxError
from ingestd.java import cache_folder
from ingestd.sandbox import ivy
from ingestd.sandbox.guard import Guard
from ingestd.sandbox.lockfile import SANDBOX, Listing, Locked, broken, lock, lock_name
from ingestd.sandbox.options import (
    DATANODE,
    HDFS,
    HIVESERVER2,
    KAFKA,
    METASTORE,
    METASTORE_EVENTS,
    NAMENODE,
    S3,
    Progress,
    program,
)
from ingestd.sandbox.state import locked

SCHEMA = "schema"
_TARBALL = "tarball"  # the metastore's release archive, 78 MB; only its schema scripts are kept
_CLASS_PATHS = (HDFS, S3, KAFKA, METASTORE, METASTORE_EVENTS, HIVESERVER2)
_ATTEMPTS = 2
_FETCH_SECONDS = 1800.0  # how long another command may take to fetch over a slow connection


def group_of(service: str) -> str:
    """Return the group of files that is the class path of `service`: HDFS for the NameNode and the DataNodes."""
    return HDFS if program(service) in (NAMENODE, DATANODE) else program(service)


def groups_for(services: Iterable[str], metastore: str = METASTORE) -> tuple[str, ...]:
    """Return the groups of files that `services` need: none for Spark, whose jars PySpark contains.

    `metastore` is the metastore's group, in which the schema tool is as well.
    """
    groups = {group_of(name) for name in services}
    wanted = {metastore if name == METASTORE else name for name in groups}
    return (*(name for name in _CLASS_PATHS if name in wanted), SCHEMA)


def folder(listing: Listing = SANDBOX) -> Path:
    """Return the folder that contains one subfolder per group."""
    return cache_folder() / "sandbox" / f"jars-{lock_name(listing)}"


def ensure(groups: Sequence[str], java: Path, guard: Guard, progress: Progress, listing: Listing = SANDBOX) -> Path:
    """Fetch missing and broken files, and return the folder of the jars when all files are verified.

    Raises SandboxError when there is no network or a fetched file differs from the lock file.
    """
    home = folder(listing)
    with locked(home / "lock", "the cache of jars", _FETCH_SECONDS):
        progress("verifying jars", 0, 0)
        for attempt in range(1, _ATTEMPTS + 1):
            bad = broken(groups, home, listing)
            if not bad:
                return home
            last = attempt == _ATTEMPTS
            _replace(bad, home, ivy.Ivy(java, guard, last, listing), progress)
        bad = broken(groups, home, listing)
    if bad:
        raise SandboxError(
            f"{len(bad)} fetched files do not match the checksums in jars.lock, for example {bad[0].path}",
            where=str(home),
            hint="check whether a proxy or mirror modifies downloads",
        )
    return home


def _replace(bad: Sequence[Locked], home: Path, fetcher: ivy.Ivy, progress: Progress) -> None:
    """Fetch the groups of `bad` into a temporary folder, and move the files that match the lock file into place."""
    asked = {_TARBALL if item.group == SCHEMA else item.group for item in bad}
    confs = [name for name in (*_CLASS_PATHS, _TARBALL) if name in asked]
    wanted = [item for item in lock(fetcher.listing) if item.group in confs]
    cache = cache_folder() / "sandbox" / "ivy"
    _drop_broken(bad, cache)
    incoming = home / "incoming"
    shutil.rmtree(incoming, ignore_errors=True)
    fetcher.retrieve(confs, cache, incoming, wanted, progress)
    if _TARBALL in confs:
        _unpack_schema(wanted, incoming)
    for item in bad:
        if item.is_at(incoming / item.path):
            target = home / item.path
            target.parent.mkdir(parents=True, exist_ok=True)
            (incoming / item.path).replace(target)
    shutil.rmtree(incoming, ignore_errors=True)
    shutil.rmtree(cache / "org.apache.hive" / "hive-standalone-metastore-server", ignore_errors=True)


def _drop_broken(bad: Iterable[Locked], cache: Path) -> None:
    """Remove broken jars from Ivy's own cache, because Ivy would copy them without verification."""
    for item in bad:
        for kept in cache.glob(f"*/*/*/{item.name}"):
            if not item.is_at(kept):
                kept.unlink()


def _unpack_schema(wanted: Iterable[Locked], incoming: Path) -> None:
    names = {item.name for item in lock() if item.group == SCHEMA}
    (incoming / SCHEMA).mkdir(exist_ok=True)
    for item in wanted:
        archive = incoming / item.path
        if item.group != _TARBALL or not item.is_at(archive):
            continue
        with tarfile.open(archive) as tar:
            for member in tar:
                name = Path(member.name).name
                content = tar.extractfile(member) if name in names else None
                if content:
                    (incoming / SCHEMA / name).write_bytes(content.read())
