"""Writes the rows of many partitions and buckets with bounded memory and a bounded number of open files.

Invariant: every row is written once, and the rows of a (partition, bucket, writer) are written in the order in which
they were added. No (partition, bucket, statement) is used by two files, so no two rows have the same row key.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, groupby
from pathlib import Path
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from ingestd.acid.encoding import STANDARD, Encoding
from ingestd.acid.layout import ALL_STATEMENTS, bucket_property
from ingestd.acid.pyarrow_writer import PyArrowWriter
from ingestd.acid.pyorc_writer import PyOrcWriter
from ingestd.acid.writer import WRITERS, AcidWriter, WriterName, split_by_writer
from ingestd.errors import InvalidTable
from ingestd.schema import Column
from ingestd.storage.contract import Outbox
from ingestd.storage.system_errors import guarded

Partition = tuple[str, ...]
"""The values of a partition, in the order of the partition columns."""

F = TypeVar("F")

# What an array of Arrow needs in addition to its values, measured with pyarrow 26: objects, and buffers of 64 bytes.
_ARRAY_BYTES = 640
# Batches that are larger on average are not merged: it would save little memory, and need more in the meantime.
_SMALL_BATCH = 64 << 10


class FileKey(NamedTuple):
    """Identifies the open file that rows are written to."""

    partition: Partition
    bucket: int
    writer: WriterName


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """The limits on the resources of a pool.

    At most `open_files` files are open (None: no limit), and buffered rows need at most `pending_bytes` of memory. The
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

    def finish(self) -> None:
        """Wait until the closed files are stored."""
        ...

    def abort(self, files: Iterable[F]) -> None:
        """Abandon the open files `files` and, where the policy still owns them, the closed files; never raises."""
        ...


@dataclass(slots=True)
class _PendingRows:
    """The rows of one partition and bucket that are buffered in memory, by writer; `bytes` are those of the values."""

    bytes: int = 0
    batches: dict[WriterName, list[pa.RecordBatch]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """The number of batches."""
        return sum(map(len, self.batches.values()))

    def merge(self) -> None:
        """Merge small batches of equal types, in their order."""
        if self.bytes < _SMALL_BATCH * self.count:
            self.batches = {writer: list(_merged(batches)) for writer, batches in self.batches.items()}


class WriterPool(Generic[F]):
    """Buffers rows as Arrow batches and writes them to the files of a policy.

    When the pending rows exceed their limit, their batches are merged, because small batches need much more memory than
    their rows. If that is not enough, those of the partition and bucket with the most pending bytes are written. When a
    new file would exceed the limit of open files, the least recently used file is closed. Methods raise
    StorageUnavailable and the errors of the policy. After an error only `abort` may be called.
    """

    def __init__(self, files: FilePolicy[F], limits: PoolLimits | None = None) -> None:
        self._files = files
        self._limits = limits or PoolLimits()
        self._pending: dict[tuple[Partition, int], _PendingRows] = {}
        self._pending_bytes = self._pending_batches = 0
        self._batch_bytes = 0  # what each batch needs in addition to its values
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
        self._batch_bytes = self._batch_bytes or _ARRAY_BYTES * _array_count(batch.schema)
        for writer, part in self._files.split(batch):
            rows = _own_memory(part)
            pending.batches.setdefault(writer, []).append(rows)
            pending.bytes += rows.nbytes
            self._pending_bytes += rows.nbytes
            self._pending_batches += 1
        threshold = self._limits.write_bytes
        if threshold is not None and pending.bytes >= threshold and self._has_room(place):
            self._write(place)
        if self._exceeds_limit() and self._can_merge():
            self._merge()
        while self._pending and self._exceeds_limit():
            self._write(max(self._pending, key=lambda key: self._pending[key].bytes))

    def flush(self) -> None:
        """Write all pending rows to their files, starting with open files, before these are closed to open others."""
        is_open = {(key.partition, key.bucket) for key in self._open}
        for place in sorted(self._pending, key=lambda place: place not in is_open):
            self._write(place)

    def close(self) -> None:
        """Write all pending rows, close every file, and wait until the files are stored.

        A file is closed once its rows are written, and before others are opened, because an open file needs memory.
        """
        places = [(key.partition, key.bucket) for key in self._open]
        for place in dict.fromkeys((*places, *self._pending)):
            if place in self._pending:
                self._write(place)
            for key in [FileKey(*place, writer) for writer in WRITERS]:
                if key in self._open:
                    self._close_file(key)
        self._files.finish()

    def drop_pending(self) -> None:
        """Drop the pending rows."""
        self._pending.clear()
        self._pending_bytes = self._pending_batches = 0

    def abort(self) -> None:
        """Drop the pending rows and discard all files; never raises."""
        self.drop_pending()
        self._files.abort(self._open.values())
        self._open.clear()

    def _exceeds_limit(self) -> bool:
        needed = self._pending_bytes + self._pending_batches * self._batch_bytes
        return needed > self._limits.pending_bytes

    def _can_merge(self) -> bool:
        """Whether merging could free a quarter of the limit. Then it costs little for each row that is added."""
        return (self._pending_batches - len(self._pending)) * self._batch_bytes > self._limits.pending_bytes // 4

    def _merge(self) -> None:
        for pending in self._pending.values():
            before = pending.count
            pending.merge()
            self._pending_batches += pending.count - before

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
        self._pending_batches -= pending.count
        self._pending_bytes -= pending.bytes
        pending.merge()  # a file is written faster with few batches
        for writer, batches in pending.batches.items():
            key = FileKey(*place, writer)
            file = self._file(key)
            for batch in batches:
                self._files.write(key, file, batch)

    def _file(self, key: FileKey) -> F:
        """Return the open file of a key, or open a new file with the next statement id."""
        if key in self._open:
            if self._files.accepts_rows(key, self._open[key]):
                self._open.move_to_end(key)
                return self._open[key]
            del self._open[key]
        while self._limits.open_files is not None and len(self._open) >= self._limits.open_files:
            self._close_file(next(iter(self._open)))  # the least recently used
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

    def _close_file(self, key: FileKey) -> None:
        self._files.close(key, self._open[key])
        del self._open[key]


def _own_memory(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Copy a small slice of a large batch, so that the large batch does not stay in memory while the slice waits."""
    if batch.get_total_buffer_size() <= 2 * batch.nbytes:
        return batch
    return batch.take(pa.array(np.arange(batch.num_rows)))


def _merged(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Merge consecutive batches with equal schemas. The unit of timestamps, for example, may change between batches."""
    for _, group in groupby(batches, key=lambda batch: batch.schema):
        yield from pa.Table.from_batches(group).combine_chunks().to_batches()


def _array_count(fields: Iterable[pa.Field]) -> int:
    """Return the number of the arrays of some columns, with those inside others."""
    return sum(1 + _array_count(_inner_fields(inner.type)) for inner in fields)


def _inner_fields(kind: pa.DataType) -> Iterator[pa.Field]:
    return (kind.field(number) for number in range(kind.num_fields))


# --- staging files


@dataclass(frozen=True, slots=True)
class StagingFile:
    """A closed file at `uri`, to be published as `delta_name(write_id, statement)/bucket_name(bucket, layout)`."""

    partition: Partition
    statement: int
    bucket: int
    uri: str
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class OpenStagingFile:
    """A staging file that is being written."""

    writer: AcidWriter
    statement: int
    path: Path


class StagingFiles:
    """Writes the files `f00001.orc`, … of one write id and hands them over to an outbox.

    `closed` lists the closed files, which are stored once `finish` has returned. `statements` contains the statement
    ids that the files of each partition and bucket may have.
    """

    def __init__(
        self,
        outbox: Outbox,
        columns: Sequence[Column],
        write_id: int,
        *,
        encoding: Encoding = STANDARD,
        statements: range = ALL_STATEMENTS,
    ) -> None:
        self.closed: list[StagingFile] = []
        self._outbox = outbox
        self._columns = tuple(columns)
        self._write_id = write_id
        self._encoding = encoding
        self.statements = statements
        self._numbers = count(1)

    def split(self, batch: pa.RecordBatch) -> Iterable[tuple[WriterName, pa.RecordBatch]]:
        """See `FilePolicy`."""
        return split_by_writer(batch)

    def prepare(self, partitions: Collection[Partition]) -> None:
        """See `FilePolicy`; does nothing, because partitions are registered after their rows are staged."""

    def open(self, key: FileKey, statement: int) -> OpenStagingFile:
        """See `FilePolicy`."""
        path = self._outbox.directory / f"f{next(self._numbers):05d}.orc"
        kind = PyArrowWriter if key.writer == "pyarrow" else PyOrcWriter
        bucket = bucket_property(key.bucket, statement)
        with guarded(path):
            writer = kind(path, self._columns, self._write_id, bucket, encoding=self._encoding)
        return OpenStagingFile(writer, statement, path)

    def accepts_rows(self, key: FileKey, file: OpenStagingFile) -> bool:
        """See `FilePolicy`; closes a file that is full."""
        if file.writer.is_full:
            self.close(key, file)
            return False
        return True

    def write(self, _key: FileKey, file: OpenStagingFile, batch: pa.RecordBatch) -> None:
        """See `FilePolicy`."""
        with guarded(file.path):
            file.writer.write(batch)

    def close(self, key: FileKey, file: OpenStagingFile) -> None:
        """See `FilePolicy`; seals the file and adds it to `closed`."""
        with guarded(file.path):
            size = file.writer.close()
        uri = self._outbox.send(file.path)
        self.closed.append(StagingFile(key.partition, file.statement, key.bucket, uri, size.rows, size.bytes))

    def finish(self) -> None:
        """See `FilePolicy`."""
        self._outbox.finish()

    def abort(self, files: Iterable[OpenStagingFile]) -> None:
        """See `FilePolicy`; removes all open and closed files."""
        for file in files:
            file.writer.abort()
        self._outbox.abandon()
        self.closed.clear()


class SingleStatementFiles(StagingFiles):
    """Writes staging files with a single statement id, which the owner of a joined transaction has chosen.

    A partition and bucket can then have only one file. pyorc writes it, because it can write every row. The pool must
    not limit the number of open files, because rows that follow a closed file would need another statement id.
    """

    def __init__(
        self,
        outbox: Outbox,
        columns: Sequence[Column],
        write_id: int,
        statement: int,
        *,
        encoding: Encoding = STANDARD,
    ) -> None:
        super().__init__(outbox, columns, write_id, encoding=encoding, statements=range(statement, statement + 1))

    def split(self, batch: pa.RecordBatch) -> Iterable[tuple[WriterName, pa.RecordBatch]]:
        """See `FilePolicy`."""
        return [("pyorc", batch)]

    def accepts_rows(self, _key: FileKey, _file: OpenStagingFile) -> bool:
        """See `FilePolicy`; a file accepts rows until the transaction ends."""
        return True
