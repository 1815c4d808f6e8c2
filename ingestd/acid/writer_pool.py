"""Writes the rows of many partitions and buckets with bounded memory and a bounded number of open files.

Invariant: every row is written once, and the rows of a (partition, bucket, writer) are written in the order in which
they were added. No (partition, bucket, statement) is used by two files, so no two rows have the same row key.
"""

from __future__ import annotations

import errno
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from ingestd.acid.encoding import STANDARD, Encoding
from ingestd.acid.layout import MAX_STATEMENT, bucket_property
from ingestd.acid.pyarrow_writer import PyArrowWriter
from ingestd.acid.pyorc_writer import PyOrcWriter
from ingestd.acid.writer import AcidWriter, WriterName, split_by_writer
from ingestd.errors import InvalidTable, StorageUnavailable
from ingestd.schema import Column

Partition = tuple[str, ...]
"""The values of a partition, in the order of the partition columns."""

F = TypeVar("F")


class FileKey(NamedTuple):
    """Identifies the open file that rows are written to."""

    partition: Partition
    bucket: int
    writer: WriterName


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """The limits on the resources of a pool.

    At most `open_files` files are open (None: no limit), and at most `pending_bytes` bytes of rows are buffered. The
    rows of a partition and bucket are written once they reach `write_bytes` bytes, unless that would require closing
    another file. If `write_bytes` is None, they are written only when `pending_bytes` is exceeded or at a flush.
    """

    open_files: int | None = 16
    pending_bytes: int = 64 << 20
    write_bytes: int | None = 1 << 20


class FilePolicy(Protocol[F]):
    """Opens, writes and closes the files of a pool; `F` is the type of an open file.

    All methods except `abort` raise StorageUnavailable.
    """

    statements: range
    """The statement ids of the files of one partition and bucket, in the order in which files are opened."""

    def split(self, batch: pa.RecordBatch) -> Iterable[tuple[WriterName, pa.RecordBatch]]:
        """Split a batch by the writer that its rows need."""
        ...

    def prepare(self, partitions: Collection[Partition]) -> None:
        """Prepare partitions before their first rows are written; called once per partition and transaction."""
        ...

    def open(self, key: FileKey, statement: int) -> F:
        """Open a new file."""
        ...

    def accepts_rows(self, key: FileKey, file: F) -> bool:
        """Return whether rows can be appended to an open file. If not, the policy has closed the file."""
        ...

    def write(self, key: FileKey, file: F, batch: pa.RecordBatch) -> None:
        """Append rows to an open file."""
        ...

    def close(self, key: FileKey, file: F) -> None:
        """Close a file; later rows of its key are written to a new file."""
        ...

    def abort(self, files: Iterable[F]) -> None:
        """Abandon the open files `files` and, where the policy still owns them, the closed files; never raises."""
        ...


@dataclass(slots=True)
class _PendingRows:
    """The rows of one partition and bucket that are buffered in memory, by writer."""

    bytes: int = 0
    batches: dict[WriterName, list[pa.RecordBatch]] = field(default_factory=dict)


class WriterPool(Generic[F]):
    """Buffers rows as Arrow batches and writes them to the files of a policy.

    When the pending rows exceed their limit, those of the partition and bucket with the most pending bytes are written.
    When a new file would exceed the limit of open files, the least recently used file is closed. Methods raise
    StorageUnavailable and the errors of the policy. After an error only `abort` may be called.
    """

    def __init__(self, files: FilePolicy[F], limits: PoolLimits | None = None) -> None:
        self._files = files
        self._limits = limits or PoolLimits()
        self._pending: dict[tuple[Partition, int], _PendingRows] = {}
        self._pending_bytes = 0
        self._open: OrderedDict[FileKey, F] = OrderedDict()
        self._statements: dict[tuple[Partition, int], Iterator[int]] = {}
        self._partitions: set[Partition] = set()
        self._unprepared: set[Partition] = set()

    @property
    def partitions(self) -> Collection[Partition]:
        """The partitions that received rows in the current transaction."""
        return self._partitions

    def begin_transaction(self) -> None:
        """Start the next transaction: open files stay open, and pending rows of the previous one are dropped."""
        self.drop_pending()
        self._partitions.clear()
        self._unprepared.clear()

    def add(self, partition: Partition, bucket: int, batch: pa.RecordBatch) -> None:
        """Add a batch, which contains the table's columns without partition columns, in table order.

        Raises InvalidTable when a partition and bucket need more files than the policy has statement ids.
        """
        if batch.num_rows == 0:
            return
        if partition not in self._partitions:
            self._partitions.add(partition)
            self._unprepared.add(partition)
        place = (partition, bucket)
        pending = self._pending.setdefault(place, _PendingRows())
        for writer, part in self._files.split(batch):
            rows = _own_memory(part)
            pending.batches.setdefault(writer, []).append(rows)
            pending.bytes += rows.nbytes
            self._pending_bytes += rows.nbytes
        threshold = self._limits.write_bytes
        if threshold is not None and pending.bytes >= threshold and self._has_room(place):
            self._write(place)
        while self._pending_bytes > self._limits.pending_bytes:
            self._write(max(self._pending, key=lambda one: self._pending[one].bytes))

    def flush(self) -> None:
        """Write all pending rows to their files, starting with open files, before these are closed to open others."""
        is_open = {(key.partition, key.bucket) for key in self._open}
        for place in sorted(self._pending, key=lambda place: place not in is_open):
            self._write(place)

    def close(self) -> None:
        """Write all pending rows and close every file."""
        self.flush()
        while self._open:
            self._close_least_recently_used()

    def drop_pending(self) -> None:
        """Drop the pending rows."""
        self._pending.clear()
        self._pending_bytes = 0

    def abort(self) -> None:
        """Drop the pending rows and discard all files; never raises."""
        self.drop_pending()
        self._files.abort(self._open.values())
        self._open.clear()

    def _has_room(self, place: tuple[Partition, int]) -> bool:
        """Return whether the pending rows can be written without closing another file."""
        if self._limits.open_files is None:
            return True
        new = sum(FileKey(*place, writer) not in self._open for writer in self._pending[place].batches)
        return len(self._open) + new <= self._limits.open_files

    def _write(self, place: tuple[Partition, int]) -> None:
        if self._unprepared:
            self._files.prepare(self._unprepared)
            self._unprepared.clear()
        pending = self._pending.pop(place)
        for writer, batches in pending.batches.items():
            key = FileKey(*place, writer)
            file = self._file(key)
            for batch in batches:
                self._files.write(key, file, batch)
        self._pending_bytes -= pending.bytes

    def _file(self, key: FileKey) -> F:
        """Return the open file of a key, or open a new file with the next statement id."""
        if key in self._open:
            if self._files.accepts_rows(key, self._open[key]):
                self._open.move_to_end(key)
                return self._open[key]
            del self._open[key]
        while self._limits.open_files is not None and len(self._open) >= self._limits.open_files:
            self._close_least_recently_used()
        statements = self._statements.setdefault((key.partition, key.bucket), iter(self._files.statements))
        statement = next(statements, None)
        if statement is None:
            raise InvalidTable(
                f"one partition and bucket need more than {len(self._files.statements):,} files",
                where=f"partition {'/'.join(key.partition)}, bucket {key.bucket}",
                hint="commit smaller transactions, or write to fewer partitions at a time",
            )
        self._open[key] = self._files.open(key, statement)
        return self._open[key]

    def _close_least_recently_used(self) -> None:
        key, file = next(iter(self._open.items()))
        self._files.close(key, file)
        del self._open[key]


def _own_memory(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Copy a small slice of a large batch, so that the large batch does not stay in memory while the slice waits."""
    if batch.get_total_buffer_size() <= 2 * batch.nbytes:
        return batch
    return batch.take(pa.array(np.arange(batch.num_rows)))


# --- staging files


@dataclass(frozen=True, slots=True)
class StagingFile:
    """A closed file in a staging directory, to be placed at `delta_name(write_id, statement)/bucket_name(bucket)`."""

    partition: Partition
    statement: int
    bucket: int
    path: str
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class OpenStagingFile:
    """A staging file that is being written."""

    writer: AcidWriter
    statement: int
    path: Path


class StagingFiles:
    """Writes the files `f00001.orc`, … of one write id to a staging directory, which must exist.

    `closed` lists the closed files, each of which is fsynced. The caller must fsync the directory.
    """

    statements = range(MAX_STATEMENT + 1)

    def __init__(
        self, directory: Path, columns: Sequence[Column], write_id: int, *, encoding: Encoding = STANDARD
    ) -> None:
        self.closed: list[StagingFile] = []
        self._directory = directory
        self._columns = tuple(columns)
        self._write_id = write_id
        self._encoding = encoding
        self._numbers = count(1)

    def split(self, batch: pa.RecordBatch) -> Iterable[tuple[WriterName, pa.RecordBatch]]:
        """See `FilePolicy`."""
        return split_by_writer(batch)

    def prepare(self, partitions: Collection[Partition]) -> None:
        """See `FilePolicy`; does nothing, because partitions are registered after their rows are staged."""

    def open(self, key: FileKey, statement: int) -> OpenStagingFile:
        """See `FilePolicy`."""
        path = self._directory / f"f{next(self._numbers):05d}.orc"
        kind = PyArrowWriter if key.writer == "pyarrow" else PyOrcWriter
        bucket = bucket_property(key.bucket, statement)
        with storage_errors(path):
            writer = kind(path, self._columns, self._write_id, bucket, encoding=self._encoding)
        return OpenStagingFile(writer, statement, path)

    def accepts_rows(self, _key: FileKey, _file: OpenStagingFile) -> bool:
        """See `FilePolicy`; a staging file accepts rows until it is closed."""
        return True

    def write(self, _key: FileKey, file: OpenStagingFile, batch: pa.RecordBatch) -> None:
        """See `FilePolicy`."""
        with storage_errors(file.path):
            file.writer.write(batch)

    def close(self, key: FileKey, file: OpenStagingFile) -> None:
        """See `FilePolicy`; seals the file and adds it to `closed`."""
        with storage_errors(file.path):
            size = file.writer.close()
        self.closed.append(
            StagingFile(key.partition, file.statement, key.bucket, str(file.path), size.rows, size.bytes)
        )

    def abort(self, files: Iterable[OpenStagingFile]) -> None:
        """See `FilePolicy`; removes all open and closed files."""
        for file in files:
            file.writer.abort()
        for closed in self.closed:
            with suppress(OSError):
                Path(closed.path).unlink(missing_ok=True)
        self.closed.clear()


class SingleStatementFiles(StagingFiles):
    """Writes staging files with a single statement id, which the owner of a joined transaction has chosen.

    A partition and bucket can then have only one file. pyorc writes it, because it can write every row. The pool must
    not limit the number of open files, because rows that follow a closed file would need another statement id.
    """

    def __init__(
        self,
        directory: Path,
        columns: Sequence[Column],
        write_id: int,
        statement: int,
        *,
        encoding: Encoding = STANDARD,
    ) -> None:
        super().__init__(directory, columns, write_id, encoding=encoding)
        self.statements = range(statement, statement + 1)

    def split(self, batch: pa.RecordBatch) -> Iterable[tuple[WriterName, pa.RecordBatch]]:
        """See `FilePolicy`."""
        return [("pyorc", batch)]


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Translate OSError (a full disk, an I/O error, an unmounted file system) into StorageUnavailable."""
    try:
        yield
    except OSError as error:
        raise StorageUnavailable(
            f"cannot write: {error.strerror or error}",
            where=str(error.filename or path),
            hint=_HINTS.get(error.errno or 0, "check the file system and the kernel log"),
        ) from error


_HINTS = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free space on the file system"),
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), "grant this process write permission"),
    **dict.fromkeys(
        (errno.ENOENT, errno.ENOTDIR, errno.ESTALE),
        "check whether the directory was removed or its file system was unmounted while the file was being written",
    ),
}
