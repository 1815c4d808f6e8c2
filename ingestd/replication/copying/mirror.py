"""Makes directory trees equal to others: copies the files that differ, and then removes what is gone.

Invariant: nothing is removed before everything was copied, except what is in the way of a copy. Nothing else is removed
if a source does not exist. In an object store, a directory exists if there is an object below it, or the one that
Hadoop creates for an empty directory. A file of the target is kept only if it has the source's length, and a record
says that it was copied from this version of the source.

The record is a hidden file of the target, so it disappears with it. It names the source, and the owner of the copy: the
database whose tables read it. A directory that another owner has copied from another source is refused, also if it is
inside or around the target. Times of source and target are never compared, because their clocks differ. Files whose
names begin with `_` or `.` are neither copied nor removed: Hive ignores them. Only what copies that were killed have
left is removed from the target: their temporary files, and unfinished uploads.
"""

from __future__ import annotations

import gzip
import json
import logging
import threading
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import NamedTuple

from ingestd.acid.visibility import is_hidden
from ingestd.errors import ConfigError, IngestdError
from ingestd.replication.copying.copy import Copier, Progress
from ingestd.replication.copying.transfer import TEMPORARY, CopyFile, Lost
from ingestd.storage.contract import Entry, NotFound, PermissionDenied, Storage, child, split
from ingestd.storage.parallel import run_all
from ingestd.storage.storages import Storages, is_of_location
from ingestd.storage.stream import BytesStream

_log = logging.getLogger(__name__)

_RECORD = ".ingestd-mirror"
_COMPRESSION = 6
_THREADS = 32
# As many directories are listed by a Spark job, in tasks of so many.
_JOB_DIRECTORIES = 2000
_TASK_DIRECTORIES = 200


@dataclass(frozen=True, slots=True)
class Mirror:
    """The URI of a directory, and the URI of the directory that becomes equal to it."""

    source: str
    target: str


class Version(NamedTuple):
    """The version of a file: its length in bytes, and a text that changes when it is replaced (`Entry.version`)."""

    length: int
    version: str


@dataclass(frozen=True, slots=True)
class MirrorResult:
    """The outcome for several directories.

    `lost` files changed or disappeared after they were listed; the next time finds their new state. `missing` contains
    the sources that do not exist although their copies have files, which are kept. An object store has no directory
    without files. `unreadable` contains sources that cannot be read where they are (`is_of_location`), by their URIs:
    the copy is as it was, or lacks some files.
    """

    copied: int
    copied_bytes: int
    removed: int
    lost: tuple[Lost, ...]
    missing: tuple[Mirror, ...]
    unreadable: Mapping[str, IngestdError] = field(default_factory=dict)


@dataclass(slots=True)
class _Tree:
    """The visible files and directories below a root by their relative paths; the root itself is not included.

    `temporary` are files of copies, and `recorded` the directories with records; both kinds of files are hidden. If a
    directory of a source cannot be read where it is, the tree is not complete, and `refusal` is the error.
    """

    exists: bool = True
    refusal: IngestdError | None = None
    files: dict[str, Version] = field(default_factory=dict)
    directories: set[str] = field(default_factory=set)
    temporary: set[str] = field(default_factory=set)
    recorded: set[str] = field(default_factory=set)

    def add(self, path: str, entries: Iterable[Entry]) -> list[str]:
        """Add the entries of a directory; return the paths of the directories among them."""
        below = []
        for entry in entries:
            inner = f"{path}/{entry.name}" if path else entry.name
            if entry.is_directory:
                below.append(inner)
            elif _is_temporary(entry):
                self.temporary.add(inner)
            elif entry.name == _RECORD:
                self.recorded.add(path)
            else:
                self.files[inner] = Version(entry.size, entry.version)
        self.directories.update(below)
        return below


@dataclass(frozen=True, slots=True)
class _Record:
    """What a target has from its last update; `owner` is '' in the records of earlier releases."""

    source: str
    owner: str
    versions: Mapping[str, Version]


_Listing = list[Entry] | IngestdError | None


class Mirrors:
    """Makes directories equal to others. Thread-safe, except for overlapping directories.

    `owner` says whose copies the targets are; '' lets the owner of each be. If the copier has an engine, large trees
    are listed by Spark jobs.
    """

    def __init__(self, storages: Storages, copier: Copier, owner: str = "") -> None:
        self._storages = storages
        self._copier = copier
        self._owner = owner

    def update(
        self,
        pairs: Sequence[Mirror],
        *,
        stop: threading.Event | None = None,
        on_progress: Callable[[Progress], None] = lambda _: None,
    ) -> MirrorResult:
        """Make each target equal to its source.

        Raises ConfigError before it changes anything if a target, or a directory inside or around it, is a copy of
        another source for another owner; the errors of `Copier.copy`, and StorageUnavailable. Two first updates of the
        same target at the same time may both succeed; then the next ones are refused.

        A directory of `pairs` may be below another one only if a name between them is hidden. An update that fails or
        is killed is continued by the next one.
        """
        trees = self._trees([pair.source for pair in pairs], [pair.target for pair in pairs])
        unreadable = {pair.source: error for pair in pairs if (error := trees[pair.source].refusal) is not None}
        pairs = [pair for pair in pairs if pair.source not in unreadable]
        records = self._own_records(pairs, trees)
        updates = [
            _Update(self._storages, pair, trees, self._copier, self._owner, records.get(pair.target.rstrip("/")))
            for pair in pairs
        ]
        self._remove_files_above([pair for pair in pairs if not trees[pair.target].exists])
        existing = [update for update in updates if update.source.exists]
        run_all([update.abort_uploads for update in existing], _THREADS)
        run_all([update.prepare for update in existing], _THREADS)
        files = [file for update in existing for file in update.files]
        result = self._copier.copy(files, stop=stop, on_progress=on_progress)
        lost = {loss.file.source for loss in result.lost}
        removed = run_all([partial(update.finish, lost) for update in existing], _THREADS)
        absent = [update.pair for update in updates if not update.source.exists]
        missing = tuple(pair for pair in absent if trees[pair.target].files)
        for pair in absent:
            self._storages.at(pair.target).make_directories(pair.target)
        for pair in missing:
            _log.warning("%s does not exist; the files in its copy %s are kept", pair.source, pair.target)
        copied = sum(done.file.length for done in result.copied)
        sources = {file.source: update.pair.source for update in existing for file in update.files}
        for loss in result.lost:
            if loss.refusal is not None:
                unreadable.setdefault(sources[loss.file.source], loss.refusal)
        changed = tuple(loss for loss in result.lost if loss.refusal is None)
        return MirrorResult(len(result.copied), copied, sum(removed), changed, missing, unreadable)

    def _remove_files_above(self, pairs: Sequence[Mirror]) -> None:
        """Remove files in the places of targets that do not exist, or of directories above them.

        A directory of the source may have been a file of another table, which was copied and then dropped.
        """
        places = {split(place).levels: place for pair in pairs for place in _corresponding(pair)}
        for _, level in groupby(sorted(places, key=len), key=len):
            run_all([partial(self._remove_file, places[levels]) for levels in level], _THREADS)

    def _remove_file(self, place: str) -> None:
        storage = self._storages.at(place)
        if storage.exists(place):
            return
        try:
            storage.stream(place).close()
        except NotFound:
            return
        self._copier.check()
        storage.remove_file(place)

    def _own_records(self, pairs: Sequence[Mirror], trees: Mapping[str, _Tree]) -> dict[str, _Record]:
        """Return the records of the targets. Raises ConfigError if one of their directories has another owner.

        A record applies to the directories below its own one whose names are not hidden.
        """
        related: dict[str, list[Mirror]] = defaultdict(list)
        for pair in pairs:
            for directory in _visibly_around(pair.target):
                related[directory].append(pair)
            for path in trees[pair.target].recorded - {""}:
                related[child(pair.target, path)].append(pair)
        directories = sorted(related)
        records = run_all([partial(self._record_at, directory) for directory in directories], _THREADS)
        known = {place: record for place, record in zip(directories, records, strict=True) if record is not None}
        for directory, record in known.items():
            for pair in related[directory]:
                self._require_own(pair, directory, record)
        return known

    def _record_at(self, directory: str) -> _Record | None:
        try:
            return _read_record(self._storages.at(directory), directory)
        except PermissionDenied:  # above the base directory
            return None

    def _require_own(self, pair: Mirror, directory: str, record: _Record) -> None:
        """Raise ConfigError if a record in `directory` is that of another owner's copy of another source."""
        if not self._owner or not record.owner or record.owner == self._owner:
            return
        copies = [
            [split(uri).levels for uri in uris] for uris in ((pair.target, pair.source), (directory, record.source))
        ]
        (outer, outer_source), (inner, inner_source) = sorted(copies, key=lambda copy: len(copy[0]))
        if inner_source != outer_source + inner[len(outer) :]:
            raise ConfigError(
                f"{pair.source} would be copied to {pair.target}, but {directory} is the copy of {record.source} for "
                f"{record.owner}",
                where=f"external tables of {self._owner}",
                hint=f"give the policies different base directories; if nothing uses {directory} any more, remove it",
            )

    def _trees(self, sources: Iterable[str], targets: Iterable[str]) -> dict[str, _Tree]:
        """List trees level by level, all roots together. Raises the error if a target cannot be read."""
        of_source = frozenset(sources)
        trees = {root: _Tree() for root in (*of_source, *targets)}
        level = [(root, "") for root in trees]
        incomplete: list[str] = []
        while level:
            listed = self._listed([child(root, path) if path else root for root, path in level])
            below: list[tuple[str, str]] = []
            for (root, path), entries in zip(level, listed, strict=True):
                if isinstance(entries, IngestdError):
                    if root not in of_source:
                        raise entries
                    trees[root].refusal = entries
                    continue
                if entries is None:
                    trees[root].exists &= bool(path)
                    incomplete.append(root)
                else:
                    below += [(root, inner) for inner in trees[root].add(path, entries)]
            level = [(root, path) for root, path in below if trees[root].refusal is None]
        # A directory that was removed meanwhile has no files. A root that was removed with it says nothing about them.
        for root, entries in zip(incomplete, self._listed(incomplete), strict=True):
            trees[root].exists &= entries is not None
        return trees

    def _listed(self, directories: Sequence[str]) -> list[_Listing]:
        if self._copier.jobs is None or len(directories) < _JOB_DIRECTORIES:
            return _list(self._storages, directories)
        chunks = [directories[at : at + _TASK_DIRECTORIES] for at in range(0, len(directories), _TASK_DIRECTORIES)]
        by_task = self._copier.jobs.run("list", _list, chunks)
        return [entries for chunk in by_task for entries in chunk]


def _list(storages: Storages, directories: Sequence[str]) -> list[_Listing]:
    """Return the visible entries of each directory, temporary files and records.

    None for one that does not exist, and the error for one that cannot be read where it is.
    """

    def entries(directory: str) -> _Listing:
        try:
            storage = storages.at(directory)
            listed = storage.entries(directory)
            if not listed and not storage.exists(directory):  # a listing of an object store is empty in both cases
                return None
        except NotFound:
            return None
        except IngestdError as error:
            if not is_of_location(error):
                raise
            return error
        return [entry for entry in listed if not is_hidden(entry.name) or _is_temporary(entry) or _is_record(entry)]

    return run_all([partial(entries, directory) for directory in directories], _THREADS)


def _is_temporary(entry: Entry) -> bool:
    return entry.name.startswith(TEMPORARY) and not entry.is_directory


def _is_record(entry: Entry) -> bool:
    return entry.name == _RECORD and not entry.is_directory


class _Update:
    """The update of one target, whose source exists. `files` are to be copied once `prepare` has returned.

    `recorded` is the record that the target has, if any.
    """

    def __init__(
        self,
        storages: Storages,
        pair: Mirror,
        trees: Mapping[str, _Tree],
        copier: Copier,
        owner: str,
        recorded: _Record | None,
    ) -> None:
        self.pair = pair
        self.source = trees[pair.source]
        self.files: list[CopyFile] = []
        self._target = trees[pair.target]
        self._storage = storages.at(pair.target)
        self._copier = copier
        self._owner = owner
        self._recorded = recorded

    def abort_uploads(self) -> None:
        """Abort the uploads that a killed copy has left, also of files that the source does not have any more.

        One directory may be below another, so no update of the same call may have begun an upload. Those below hidden
        directories belong to others.
        """
        self._storage.abort_uploads(self.pair.target, self._is_copied)

    def _is_copied(self, file: str) -> bool:
        self._copier.check()
        *directories, _ = file.removeprefix(self.pair.target).strip("/").split("/")
        return not any(map(is_hidden, directories))

    def prepare(self) -> None:
        """Compare the trees, and create directories.

        A new file is recorded before it is copied: if it exists after a crash, it is complete. So an update that was
        killed is continued. A file that replaces one of the same length is recorded afterwards.
        """
        self._remove_files(self._target.temporary)
        self._remove_obstacles()
        recorded = _versions_of(self._recorded, self.pair.source)
        expected = dict(self.source.files)
        for path, version in self.source.files.items():
            there = self._target.files.get(path)
            is_stale = there is not None and there.length == version.length
            if is_stale and recorded.get(path) == version:
                continue
            if is_stale:
                del expected[path]
            directory, _, name = child(self.pair.target, path).rpartition("/")
            source = child(self.pair.source, path)
            self.files.append(CopyFile(source, version.length, directory, name, is_stale=is_stale))
        for path in self.source.directories - self._target.directories:
            self._storage.make_directories(child(self.pair.target, path))
        self._write_record(expected)

    def finish(self, lost: set[str]) -> int:
        """Remove what is gone, and record what was copied; return the number of removed files."""
        gone = self._target.files.keys() - self.source.files.keys()
        directories = self._target.directories - self.source.directories
        self._remove_directories(directories)
        self._remove_files(path for path in gone if _parent(path) not in directories)
        present = self.source.files.items()
        self._write_record({path: version for path, version in present if child(self.pair.source, path) not in lost})
        return len(gone)

    def _remove_obstacles(self) -> None:
        """Remove files of the target that must become directories, and the reverse."""
        files = self._target.files.keys() & self.source.directories
        self._remove_files(files)
        tops = self._target.directories & self.source.files.keys()
        self._remove_directories(tops)
        below = tuple(f"{top}/" for top in tops)
        left = {path: file for path, file in self._target.files.items() if path not in files}
        self._target.files = {path: version for path, version in left.items() if not path.startswith(below)}
        self._target.directories = {path for path in self._target.directories - tops if not path.startswith(below)}

    def _remove_files(self, paths: Iterable[str]) -> None:
        run_all([partial(self._remove, self._storage.remove_file, path) for path in paths], _THREADS)

    def _remove_directories(self, paths: Set[str]) -> None:
        """Remove directories with all that they contain."""
        tops = [path for path in paths if _parent(path) not in paths]
        run_all([partial(self._remove, self._storage.remove, path) for path in tops], _THREADS)

    def _remove(self, remove: Callable[[str], object], path: str) -> None:
        self._copier.check()
        remove(child(self.pair.target, path))

    def _write_record(self, versions: Mapping[str, Version]) -> None:
        record = _Record(self.pair.source, self._owner, versions)
        if record == self._recorded:
            return
        self._copier.check()
        content = gzip.compress(_text_of(record).encode(), _COMPRESSION)
        self._storage.replace(child(self.pair.target, _RECORD), BytesStream(content), f"{TEMPORARY}{uuid.uuid4().hex}")
        self._recorded = record


def copied_versions(storages: Storages, pair: Mirror) -> dict[str, Version]:
    """Return the versions of the files below a source that the last update copied, by their relative paths.

    The directories of `pair` may be below those of the update. Raises StorageUnavailable.
    """
    source, target, path = pair.source.rstrip("/"), pair.target.rstrip("/"), ""
    while True:
        try:
            versions = _versions_of(_read_record(storages.at(target), target), source)
        except PermissionDenied:  # above the base directory
            return {}
        if versions:
            return {name.removeprefix(path): version for name, version in versions.items() if name.startswith(path)}
        (source, _, name), (target, _, other) = source.rpartition("/"), target.rpartition("/")
        if name != other or not split(target).path.strip("/"):
            return {}
        path = f"{name}/{path}"


def _visibly_around(uri: str) -> Iterator[str]:
    """Yield a directory, and those that contain it without a hidden name in between."""
    place = uri.rstrip("/")
    yield place
    while split(place).path.strip("/"):
        place, _, name = place.rpartition("/")
        if is_hidden(name):
            return
        yield place


def _corresponding(pair: Mirror) -> Iterator[str]:
    """Yield the target, and those directories above it that are the copies of directories above the source."""
    source, target = pair.source.rstrip("/"), pair.target.rstrip("/")
    while split(source).path.strip("/"):
        yield target
        (source, _, name), (target, _, other) = source.rpartition("/"), target.rpartition("/")
        if name != other:
            return


def _read_record(storage: Storage, target: str) -> _Record | None:
    """Return the record of a directory, None if it has none."""
    try:
        first, *lines = gzip.decompress(storage.read(child(target, _RECORD))).decode().splitlines()
    except NotFound:
        return None
    head = json.loads(first)
    source, owner = (head, "") if isinstance(head, str) else head
    return _Record(source, owner, {path: Version(length, version) for path, length, version in map(json.loads, lines)})


def _text_of(record: _Record) -> str:
    """Return the lines of a record: source and owner, then path, length and version of each file."""
    lines = [[record.source, record.owner], *([path, *version] for path, version in sorted(record.versions.items()))]
    return "\n".join(map(json.dumps, lines))


def _versions_of(record: _Record | None, source: str) -> Mapping[str, Version]:
    """Return the versions of the files that were copied from a source by path; none if the record is of another one."""
    return record.versions if record is not None and record.source == source else {}


def _parent(path: str) -> str:
    """Return the directory of a relative path; '' for the root, which a set of directories does not contain."""
    return path.rpartition("/")[0]
