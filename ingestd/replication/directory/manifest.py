"""Manifests: the records of a dump, as JSON lines in files of bounded size.

Invariant: a manifest is read completely or not at all. Its summary, which is written last, contains the number of
records of each kind, and a reader that finds another number raises ManifestIncomplete. Every attempt of a dump writes
to a directory of its own, so a manifest is never changed.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Protocol, TypeVar

from ingestd.errors import ReplicationError
from ingestd.storage.contract import NotFound, Storage, child

_CHUNK_BYTES = 4 << 20
_SUMMARY = "summary.json"
_HINT = "restore the file, or let `ingestd policy resume --bootstrap` copy the database again"


class Record(Protocol):
    """A frozen dataclass whose fields are strings, integers and tuples of strings.

    `kind` is the beginning of the names of its files.
    """

    kind: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Any]]


R = TypeVar("R", bound=Record)


@dataclass(frozen=True, slots=True)
class DatabaseRecord:
    """The database; `text` is its Thrift value (`hive/objects.py`), as in the records below."""

    kind: ClassVar[str] = "database"
    text: str


@dataclass(frozen=True, slots=True)
class TableRecord:
    """A table with its statistics; `write_ids` is its valid write ids, '' if it is not transactional."""

    kind: ClassVar[str] = "tables"
    table: str
    text: str
    write_ids: str


@dataclass(frozen=True, slots=True)
class PartitionRecord:
    """A partition with its statistics; `partition` is its escaped name."""

    kind: ClassVar[str] = "partitions"
    table: str
    partition: str
    text: str


@dataclass(frozen=True, slots=True)
class ConstraintRecord:
    """A constraint; `constraint` is a value of ConstraintKind, and `texts` has an element for each of its columns."""

    kind: ClassVar[str] = "constraints"
    table: str
    constraint: str
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FunctionRecord:
    """A permanent function."""

    kind: ClassVar[str] = "functions"
    text: str


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A file of a table that a reader of the snapshot needs.

    `partition` is the escaped name, '' (WHOLE_TABLE) if the table is not partitioned. `directory` is the path of the
    file's directory in the copy, relative to the location of the table or partition; '' for the location itself.
    `source` is the URI of the file, `length` its size in bytes, and `written` the time of `Entry.written`; 0 in dumps
    of earlier releases.
    """

    kind: ClassVar[str] = "files"
    table: str
    partition: str
    directory: str
    name: str
    source: str
    length: int
    written: int = 0


@dataclass(frozen=True, slots=True)
class AbortedRecord:
    """Aborted write ids, ascending, whose rows are in files of a table or partition, because of transaction batches."""

    kind: ClassVar[str] = "aborted"
    table: str
    partition: str
    write_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WithoutDirectoryRecord:
    """A partition, or a table if `partition` is '', that is listed as empty because its directory was missing."""

    kind: ClassVar[str] = "without_directory"
    table: str
    partition: str


@dataclass(frozen=True, slots=True)
class UnreadableRecord:
    """A table that the dump leaves out, because its files cannot be read where they are; `reason` is the error."""

    kind: ClassVar[str] = "unreadable"
    table: str
    reason: str


@dataclass(frozen=True, slots=True)
class WitnessRecord:
    """The directory of a table in scope, which tells whether a storage denies everything (`unreadable_tables.py`)."""

    kind: ClassVar[str] = "witnesses"
    table: str
    location: str


@dataclass(frozen=True, slots=True)
class ExternalRecord:
    """The number of lines of `_external_tables_info` (`external.py`), which is no file of records."""

    kind: ClassVar[str] = "external"
    directories: int


class ManifestIncomplete(ReplicationError):
    """A manifest lacks records that its summary counts, or has no summary, or a file that cannot be read."""


@dataclass(frozen=True, slots=True)
class WriterPosition:
    """What a writer has written, by kind: the number of complete chunks, of lines after them, and of records."""

    chunks: Mapping[str, int]
    lines: Mapping[str, int]
    counts: Mapping[str, int]


class ManifestWriter:
    """Writes a manifest into an existing, empty directory, with at most one chunk per kind in memory.

    All methods raise StorageUnavailable. Not thread-safe.
    """

    def __init__(self, storage: Storage, directory: str) -> None:
        self._storage = storage
        self._directory = directory
        self._lines: dict[str, list[str]] = defaultdict(list)
        self._bytes: Counter[str] = Counter()
        self._chunks: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        """The number of records by kind."""

    def add(self, record: Record) -> None:
        """Append a record to the manifest."""
        line = json.dumps(asdict(record), ensure_ascii=False, separators=(",", ":"))
        self._lines[record.kind].append(line)
        self._bytes[record.kind] += len(line)
        self.counts[record.kind] += 1
        if self._bytes[record.kind] >= _CHUNK_BYTES:
            self._flush(record.kind)

    def position(self) -> WriterPosition:
        """Return the position after the last record."""
        lines = {kind: len(some) for kind, some in self._lines.items()}
        return WriterPosition(dict(self._chunks), lines, dict(self.counts))

    def rewind(self, position: WriterPosition) -> None:
        """Forget the records after an earlier position."""
        for kind in self.counts:
            first, last = position.chunks.get(kind, 0), self._chunks[kind]
            if last > first:
                self._lines[kind] = self._read(kind, first)
                for chunk in range(first, last):
                    self._storage.remove_file(self._file(kind, chunk))
                self._chunks[kind] = first
            del self._lines[kind][position.lines.get(kind, 0) :]
            self._bytes[kind] = sum(map(len, self._lines[kind]))
        self.counts = Counter(position.counts)

    def write_file(self, name: str, content: bytes) -> None:
        """Write a file that contains no records."""
        self._storage.write(child(self._directory, name), content)

    def finish(self) -> None:
        """Write what is in memory, and then the summary."""
        for kind in list(self._lines):
            self._flush(kind)
        self.write_file(_SUMMARY, json.dumps(dict(self.counts)).encode())

    def _flush(self, kind: str) -> None:
        lines = self._lines.pop(kind)
        self._bytes[kind] = 0
        if lines:
            self._storage.write(self._file(kind, self._chunks[kind]), ("\n".join(lines) + "\n").encode())
            self._chunks[kind] += 1

    def _read(self, kind: str, chunk: int) -> list[str]:
        return self._storage.read(self._file(kind, chunk)).decode().split("\n")[:-1]

    def _file(self, kind: str, chunk: int) -> str:
        return child(self._directory, f"{kind}-{chunk:06d}.jsonl")


@dataclass(frozen=True, slots=True)
class Manifest:
    """A finished manifest. Methods raise ManifestIncomplete and StorageUnavailable."""

    storage: Storage
    directory: str

    def count(self, kind: type[Record]) -> int:
        """Return the number of records of a kind."""
        content = self.read_file(_SUMMARY)
        try:
            return int(json.loads(content).get(kind.kind, 0))
        except (AttributeError, TypeError, ValueError) as error:
            raise self.damaged(_SUMMARY, "is not valid") from error

    def read(self, kind: type[R]) -> Iterator[R]:
        """Yield the records of a kind in the order in which they were added. One chunk at a time is in memory."""
        expected, seen = self.count(kind), 0
        chunk = 0
        while seen < expected:
            name = f"{kind.kind}-{chunk:06d}.jsonl"
            for number, line in enumerate(self.read_file(name).splitlines(), 1):
                seen += 1
                try:
                    record = _parse(line, kind)
                except (AttributeError, TypeError, ValueError) as error:
                    raise self.damaged(name, f"is not valid in line {number}") from error
                yield record
            chunk += 1
        if seen != expected:
            raise ManifestIncomplete(
                f"the manifest has {seen} {kind.kind} instead of {expected}", where=self.directory, hint=_HINT
            )

    def read_file(self, name: str) -> bytes:
        """Return the content of a file."""
        try:
            return self.storage.read(child(self.directory, name))
        except NotFound as error:
            raise self.damaged(name, "is missing") from error

    def damaged(self, name: str, what: str) -> ManifestIncomplete:
        """Return the error for a file that is not as it was written."""
        return ManifestIncomplete(f"the file {name} {what}", where=self.directory, hint=_HINT)


def _parse(line: bytes, kind: type[R]) -> R:
    fields = {name: tuple(value) if isinstance(value, list) else value for name, value in json.loads(line).items()}
    return kind(**fields)
