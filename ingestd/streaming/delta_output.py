"""Stores the rows of a transaction until it commits, in files of its own or in files that its batch shares.

Invariant: no row is readable before its transaction has committed, and no row of an aborted transaction ever is.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import pyarrow as pa

from ingestd.acid.appendable import AppendableFile
from ingestd.acid.layout import MAX_STATEMENT, ORC_ACID_VERSION, ORC_ACID_VERSION_FILE, batch_delta_name, bucket_name
from ingestd.acid.routing import Part, Shape
from ingestd.acid.writer import WriterName
from ingestd.acid.writer_pool import (
    FileKey,
    OpenStagingFile,
    PoolLimits,
    SingleStatementFiles,
    StagingFile,
    StagingFiles,
    WriterPool,
)
from ingestd.background import Background
from ingestd.errors import IngestdError, StorageUnavailable
from ingestd.hive.partitions import PartitionInfo
from ingestd.hive.tables import Table
from ingestd.publish.deltas import DeltaFiles, Placement, StagedFiles
from ingestd.publish.protocol import Files
from ingestd.publish.row_count_parameters import Increment
from ingestd.publish.staging import Staging
from ingestd.storage.contract import Listing
from ingestd.storage.local import LocalLocation, local_path
from ingestd.storage.system_errors import guarded

_log = logging.getLogger(__name__)
Partition = tuple[str, ...]
# Creates partitions, registers them with the open transaction, and returns all partitions of the transaction by name.
Locate = Callable[[Iterable[Partition]], Mapping[str, PartitionInfo]]
_OPEN_FILES = 16
# Rows wait until memory is needed: writing them earlier would register their partitions one at a time.
_BATCH_LIMITS = PoolLimits(open_files=64, write_bytes=None)


class Output(Protocol):
    """Stores the rows of consecutive transactions. Methods raise StorageUnavailable and InvalidTable."""

    def begin(self, write_id: int) -> None:
        """Begin a transaction. The rows added next belong to this write id."""
        ...

    def add(self, part: Part) -> None:
        """Add rows to the open transaction."""
        ...

    def flush(self) -> None:
        """Write all pending rows to files, which frees their memory."""
        ...

    def finish(self) -> Files:
        """Return the transaction's rows, ready to be published."""
        ...

    def discard(self) -> None:
        """Drop the rows of the open transaction. Never raises."""
        ...

    def close(self) -> None:
        """Close the files that outlive a transaction."""
        ...

    def abandon(self) -> None:
        """Drop the rows and abandon all files after a failure. Never raises."""
        ...


class TransactionOutput:
    """Writes each transaction to its own deltas, which are staged in a hidden directory and published by a rename."""

    def __init__(self, shape: Shape, staging: Staging, *, statement: int | None = None) -> None:
        """`statement` is the statement id of all files, or None to number the files of each partition and bucket."""
        self._shape = shape
        self._staging = staging
        self._statement = statement
        self._files: StagingFiles | None = None
        self._pool: WriterPool[OpenStagingFile] | None = None
        self._encoding = Background()

    def begin(self, write_id: int) -> None:
        """Create the staging directory and the writers of a transaction."""
        task = f"client-{uuid.uuid4().hex[:8]}"
        outbox, shape = self._staging.storage.outbox(self._staging.make(), task), self._shape
        if self._statement is None:
            buckets = shape.bucketing.count if shape.bucketing else 1
            self._files = StagingFiles(outbox, shape.columns, write_id, encoding=shape.encoding)
            self._pool = WriterPool(self._files, PoolLimits(open_files=max(_OPEN_FILES, buckets)))
        else:
            self._files = SingleStatementFiles(
                outbox, shape.columns, write_id, self._statement, encoding=shape.encoding
            )
            self._pool = WriterPool(self._files, PoolLimits(open_files=None))

    def add(self, part: Part) -> None:
        """Add rows, which a background thread writes while the caller decodes the next ones."""
        assert self._pool
        with self._translate_errors():
            self._encoding.run(partial(self._pool.add, part.partition, part.bucket, part.rows))

    def flush(self) -> None:
        """Write all pending rows and wait until they are in their files."""
        assert self._pool
        with self._translate_errors():
            self._encoding.run(self._pool.flush)
            self._encoding.wait()

    def finish(self) -> StagedFiles:
        """Close the files and return them, ready to be published."""
        files = self._close_files()
        self._pool = None
        return StagedFiles(files, self._staging)

    def _close_files(self) -> list[StagingFile]:
        assert self._pool
        assert self._files
        with self._translate_errors():
            self._encoding.run(self._pool.close)
            self._encoding.wait()
        self._encoding.close()
        return self._files.closed

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Raise TransactionAborted instead of StorageUnavailable if another process removed the staging directory."""
        try:
            yield
        except StorageUnavailable as error:
            raise self._staging.explain(error) from error

    def discard(self) -> None:
        """Drop the rows of the open transaction and remove its staging directory. Never raises."""
        self._encoding.close()
        if self._pool:
            self._pool.abort()
            self._pool = None
        self._staging.discard()

    def close(self) -> None:
        """Do nothing, because no file outlives its transaction."""

    def abandon(self) -> None:
        """Do the same as `discard`, because each transaction has its own files."""
        self.discard()


class BatchOutput:
    """Appends all transactions of a batch to one delta, `delta_first_last_0000`, with a file per partition and bucket.

    If a file is closed because too many are open, later rows go to a file in the delta of the next statement id.
    """

    def __init__(self, table: Table, shape: Shape, locate: Locate, write_ids: tuple[int, int]) -> None:
        """`write_ids` contains the first and the last write id of the batch."""
        self._files = _BatchFiles(table, shape, locate, write_ids)
        self._pool = WriterPool(self._files, _BATCH_LIMITS)

    def begin(self, write_id: int) -> None:
        """Begin a transaction, whose rows are appended to the files that are still open."""
        self._pool.begin_transaction()
        self._files.begin_transaction(write_id)

    def add(self, part: Part) -> None:
        """Add rows to the pending rows of their partition and bucket."""
        self._pool.add(part.partition, part.bucket, part.rows)

    def flush(self) -> None:
        """Write all pending rows. Partitions are registered before their first rows are written."""
        self._pool.flush()

    def finish(self) -> Files:
        """Write all pending rows now, because that would take too long under the lock of the commit."""
        try:
            self._pool.flush()
        except IngestdError:
            self.withdraw()  # files that were closed to open others contain flushed rows
            raise
        return self

    @property
    def partitions(self) -> Collection[Partition]:
        """The partitions that received rows in the open transaction."""
        return self._pool.partitions

    def place(
        self,
        _table: Table,
        _write_id: int,
        _partitions: Mapping[str, PartitionInfo],
        _listings: Mapping[str, Listing],
    ) -> Placement:
        """Flush the files that `finish` wrote, so that readers find the rows after the commit."""
        return self._files.flush()

    def discard(self) -> None:
        """Drop pending rows. Rows already in a file stay invisible, because their write id is aborted."""
        self._pool.drop_pending()
        self._files.discard()

    def withdraw(self, _deltas: Iterable[DeltaFiles] = ()) -> None:
        """Remove the rows of the open transaction. Rows of earlier transactions of the batch stay."""
        self._files.withdraw()

    def close(self) -> None:
        """Write all pending rows and close the files of the batch."""
        self._pool.close()

    def abandon(self) -> None:
        """Drop the rows of the open transaction and abandon the files of the batch. Never raises."""
        self.discard()
        self._pool.abort()


@dataclass(eq=False, frozen=True, slots=True)
class _BatchFile:
    """An open file of a batch. `location` is the URI of its partition."""

    appendable: AppendableFile
    statement: int
    location: str


class _BatchFiles:
    """The `FilePolicy` of a batch: files are written directly to their partitions and stay open across transactions."""

    statements = range(MAX_STATEMENT + 1)

    def __init__(self, table: Table, shape: Shape, locate: Locate, write_ids: tuple[int, int]) -> None:
        self._table = table
        self._shape = shape
        self._locate = locate
        self._write_ids = write_ids
        # State of the open transaction:
        self._write_id = 0
        self._partitions: Mapping[str, PartitionInfo] = {}
        self._written: dict[_BatchFile, FileKey] = {}
        self._unflushed: set[_BatchFile] = set()
        self._increments: dict[str, Increment] = {}

    def begin_transaction(self, write_id: int) -> None:
        """Begin a transaction. The rows written next belong to this write id."""
        self._write_id = write_id
        self._partitions = {}
        self._written = {}
        self._unflushed = set()
        self._increments = {}

    def flush(self) -> Placement:
        """Flush all files that contain rows of the open transaction, and return their deltas and row counts."""
        for file, key in sorted(self._written.items(), key=lambda item: item[1]):
            if file in self._unflushed:
                with guarded(local_path(file.location)):
                    self._flush(key, file)
        deltas = {self._delta_files(key, file) for file, key in self._written.items()}
        return Placement(sorted(deltas, key=str), self._increments)

    def discard(self) -> None:
        """Exclude the rows that were not flushed from all later flushes."""
        self._unflushed.clear()

    def withdraw(self) -> None:
        """Remove the flushed rows of the open transaction, as far as storage permits. Never raises."""
        for file in self._written:
            try:
                file.appendable.withdraw(self._write_id)
            except OSError as error:  # noqa: PERF203 - the others must be tried even if one fails
                _log.warning("could not remove the rows of an aborted transaction from a file of its batch: %s", error)

    def split(self, batch: pa.RecordBatch) -> Iterable[tuple[WriterName, pa.RecordBatch]]:
        """Assign all rows to pyorc, because only pyorc can write an intermediate footer."""
        return [("pyorc", batch)]

    def prepare(self, partitions: Collection[Partition]) -> None:
        """Create the partitions and register them with the open transaction."""
        self._partitions = self._locate(partitions)

    def open(self, key: FileKey, statement: int) -> _BatchFile:
        """Open a file in the delta of this statement id, which is created if it does not exist."""
        location = self._info(key).location
        name = batch_delta_name(*self._write_ids, statement)
        delta = local_path(LocalLocation.of(location).make_directory(name))
        with guarded(delta):
            (delta / ORC_ACID_VERSION_FILE).write_bytes(ORC_ACID_VERSION)
            file = AppendableFile(delta, self._shape.columns, key.bucket, statement, self._shape.encoding)
        self._count(key, Increment(files=1))
        return _BatchFile(file, statement, location)

    def accepts_rows(self, key: FileKey, file: _BatchFile) -> bool:
        """Return False if the file is full, or if the partition was moved, or was dropped and recreated."""
        with guarded(local_path(file.location)):
            if file not in self._unflushed and not file.appendable.is_in_place:
                file.appendable.abandon()
                return False
        if file.appendable.is_full or self._info(key).location != file.location:
            self.close(key, file)
            return False
        return True

    def write(self, key: FileKey, file: _BatchFile, batch: pa.RecordBatch) -> None:
        """Append rows with the write id of the open transaction."""
        with guarded(local_path(file.location)):
            file.appendable.write(batch, self._write_id)
        self._written[file] = key
        self._unflushed.add(file)

    def close(self, key: FileKey, file: _BatchFile) -> None:
        """Flush the rows of the open transaction and close the file. Removes a delta without any rows."""
        with guarded(local_path(file.location)):
            if file in self._unflushed:
                self._flush(key, file)
            file.appendable.close()
        self._remove_unused_delta(file)

    def finish(self) -> None:
        """Do nothing, because `close` has closed the files durably."""

    def abort(self, files: Iterable[_BatchFile]) -> None:
        """Abandon the files. Flushed rows stay in them."""
        for file in files:
            file.appendable.abandon()
            self._remove_unused_delta(file)

    def _remove_unused_delta(self, file: _BatchFile) -> None:
        """Remove the delta of a closed file if it contains no bucket file; never raises."""
        delta = local_path(file.location) / batch_delta_name(*self._write_ids, file.statement)
        with suppress(OSError):
            if os.listdir(delta) == [ORC_ACID_VERSION_FILE]:
                (delta / ORC_ACID_VERSION_FILE).unlink()
                delta.rmdir()

    def _flush(self, key: FileKey, file: _BatchFile) -> None:
        size = file.appendable.flush(self._write_id)
        self._unflushed.discard(file)
        self._count(key, Increment(size.rows, 0, size.bytes))

    def _count(self, key: FileKey, increment: Increment) -> None:
        name = self._table.partition_name(key.partition)
        self._increments[name] = self._increments.get(name, Increment()) + increment

    def _delta_files(self, key: FileKey, file: _BatchFile) -> DeltaFiles:
        """Return the delta and its files, except the side file, which is removed when the batch ends."""
        delta = batch_delta_name(*self._write_ids, file.statement)
        return DeltaFiles(key.partition, file.location, delta, (ORC_ACID_VERSION_FILE, bucket_name(key.bucket)))

    def _info(self, key: FileKey) -> PartitionInfo:
        return self._partitions[self._table.partition_name(key.partition)]
