"""Which directories of external tables are copied, and where they are on the target.

Invariant: no two directories of one or several sources are copied to the same place. A target location is the base
directory of its policy followed by the path of the source location, without scheme and authority. `mirrors` compares
the directories of one source database, and the records of copies (`copying/mirror.py`) those of several.

Source: `hive.repl.replica.external.table.base.dir` and `_external_tables_info` of Hive's replication.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ingestd.acid.visibility import is_hidden
from ingestd.errors import ConfigError, IngestdError, ReplicationError
from ingestd.replication.copying.mirror import Mirror
from ingestd.replication.directory.dump_files import EXTERNAL_FILE
from ingestd.replication.directory.manifest import ExternalRecord, Manifest, ManifestWriter
from ingestd.replication.statements.settings import BASE_KEY
from ingestd.storage.contract import child, split

_Levels = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ExternalDirectory:
    """The directory at the fully qualified URI `uri` of an external table.

    `partition` is the escaped name of a partition that a copy of the table's directory would lack; '' for the table and
    all of its other partitions.
    """

    table: str
    partition: str
    uri: str


def directories(table: str, location: str, partitions: Mapping[str, str]) -> list[ExternalDirectory]:
    """Return the directory of a table, and those of the partitions that a copy of it would lack.

    These are partitions outside of it, and in directories with hidden names: Hive reads them, because it knows their
    locations, but a copy leaves out what is hidden. `partitions` maps the escaped name of each partition to its
    location.
    """
    apart = [ExternalDirectory(table, name, uri) for name, uri in partitions.items() if not _is_copied(location, uri)]
    return [ExternalDirectory(table, "", location), *apart]


def encoded(listed: Iterable[ExternalDirectory]) -> bytes:
    """Return the content of `_external_tables_info`: a line for each directory.

    A line consists of the table's name, the partition's name unless it is empty, and the base64 of the URI, separated
    by commas.
    """
    lines = []
    for directory in listed:
        path = base64.b64encode(directory.uri.encode()).decode()
        lines.append(",".join((directory.table, *filter(None, [directory.partition]), path)) + "\n")
    return "".join(lines).encode()


def decoded(content: bytes, where: str) -> list[ExternalDirectory]:
    """Parse the content of `_external_tables_info`, whose URI is `where`. Raises ReplicationError.

    A partition's name may contain commas.
    """
    listed = []
    for number, line in enumerate(content.decode(errors="replace").rstrip("\n").split("\n") if content else (), 1):
        table, _, rest = line.partition(",")
        partition, _, path = rest.rpartition(",")
        try:
            uri = base64.b64decode(path, validate=True).decode()
        except ValueError:
            uri = ""
        if not table or not uri:
            raise ReplicationError(
                "the line is not a table, an optional partition and the base64 of a path",
                where=f"{where}, line {number}",
                hint="remove the dump; the next one writes the file again",
            )
        listed.append(ExternalDirectory(table, partition, uri))
    return listed


def store_directories(writer: ManifestWriter, listed: Sequence[ExternalDirectory]) -> None:
    """Write `_external_tables_info` into a manifest that is not finished."""
    writer.write_file(EXTERNAL_FILE, encoded(listed))
    writer.add(ExternalRecord(len(listed)))


def read_directories(manifest: Manifest) -> list[ExternalDirectory]:
    """Return the directories in a manifest. Raises ReplicationError, ManifestIncomplete and StorageUnavailable."""
    listed = decoded(manifest.read_file(EXTERNAL_FILE), child(manifest.directory, EXTERNAL_FILE))
    for record in manifest.read(ExternalRecord):  # a dump of an earlier release has none
        if record.directories != len(listed):
            raise manifest.damaged(EXTERNAL_FILE, f"has {len(listed)} lines instead of {record.directories}")
    return listed


def tables_in(listed: Iterable[ExternalDirectory], errors: Mapping[str, IngestdError]) -> dict[str, IngestdError]:
    """Return one of the errors for each table that has directories in those of `errors`, which are URIs."""
    by_levels = {split(uri).levels: error for uri, error in errors.items()}
    tables: dict[str, IngestdError] = {}
    for directory in listed if errors else ():
        error = next(filter(None, map(by_levels.get, _upwards(directory.uri))), None)
        if error is not None:
            tables.setdefault(directory.table, error)
    return tables


def overlap(base: str, other: str) -> bool:
    """Return whether one of two directories contains the other, or is the other."""
    return _contains(base, other) or _contains(other, base)


def target_location(location: str, base: str | None) -> str:
    """Return where the source location of an external table or partition is on the target.

    Raises ConfigError if there is no base directory.
    """
    if base is None:
        raise ConfigError(
            "the source has external tables, and no base directory for them is set",
            where=location,
            hint=f"set {BASE_KEY}",
        )
    path = split(location).path.strip("/")
    return child(base, path) if path else base


def mirrors(listed: Iterable[ExternalDirectory], base: str | None) -> list[Mirror]:
    """Return the directories to copy, without those that are copied with others.

    Raises ConfigError if there are directories and no base directory, if two would be copied to the same place, as
    those of two clusters or buckets may be, and if one would be copied into itself. There may be a directory for each
    partition, so directories are looked up by their levels.
    """
    by_source: dict[_Levels, Mirror] = {}
    by_target: dict[_Levels, Mirror] = {}
    above_targets: dict[_Levels, Mirror] = {}
    for uri in sorted({directory.uri.rstrip("/") for directory in listed}, key=len):
        around = [mirror for levels in _upwards(uri) if (mirror := by_source.get(levels)) is not None]
        if any(_is_copied(mirror.source, uri) for mirror in around):
            continue
        target = target_location(uri, base)
        if overlap(uri, target):
            raise ConfigError(
                f"{uri} would be copied to {target}, which is the same directory, or inside or around it",
                where=f"{BASE_KEY} {base}",
                hint="set it to a directory of the target that contains no files of the source",
            )
        there = _upwards(target)
        others = [*(by_target.get(levels) for levels in there), above_targets.get(there[0])]
        for other in others:
            if other is not None and other not in around:
                raise ConfigError(
                    f"{other.source} and {uri} would both be copied to {target}",
                    where=f"{BASE_KEY} {base}",
                    hint="replicate their tables by policies with different base directories",
                )
        made = by_source[split(uri).levels] = by_target[there[0]] = Mirror(uri, target)
        for levels in there:
            above_targets.setdefault(levels, made)
    return list(by_source.values())


def _upwards(uri: str) -> list[_Levels]:
    """Return the levels of a directory, and of those that contain it."""
    levels = split(uri).levels
    return [levels[:count] for count in range(len(levels), 0, -1)]


def _contains(directory: str, uri: str) -> bool:
    """Return whether `uri` is a directory or is below it."""
    above = split(directory).levels
    return split(uri).levels[: len(above)] == above


def _is_copied(directory: str, uri: str) -> bool:
    """Return whether a copy of a directory contains `uri`, which must be below it, but not below a hidden directory."""
    depth = len(split(directory).levels)
    return _contains(directory, uri) and not any(map(is_hidden, split(uri).levels[depth:]))
