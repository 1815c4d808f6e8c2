"""Rows of many partitions become few, large ORC files in bounded memory.

Invariant: rows added = rows in the files returned; no (partition, bucket, statement) occurs twice, so no row key does.
"""

from __future__ import annotations

import errno
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ingestd.acid.encoding import STANDARD, Encoding
from ingestd.acid.layout import MAX_STATEMENT, bucket_property
from ingestd.acid.pyarrow_writer import PyArrowWriter
from ingestd.acid.pyorc_writer import PyOrcWriter
from ingestd.acid.writer import AcidWriter, rows_for_pyorc
from ingestd.errors import InvalidTable, StorageUnavailable
from ingestd.schema import Column

_LANES: tuple[type[PyArrowWriter] | type[PyOrcWriter], ...] = (PyArrowWriter, PyOrcWriter)
_FAST, _EXACT = 0, 1
_WORTH_WRITING = 1 << 20  # bytes


@dataclass(frozen=True, slots=True)
class StagingFile:
    """A closed file in the staging directory; it belongs into `delta_name(write_id, statement)/bucket_name(bucket)`."""

    partition: tuple[str, ...]
    statement: int
    bucket: int
    path: str
    rows: int
    bytes: int


@dataclass(slots=True)
class _Partition:
    """Rows of one partition that wait in memory, per lane, and the next free statement id."""

    statement: int = 0
    bytes: int = 0
    pending: tuple[list[pa.RecordBatch], list[pa.RecordBatch]] = field(default_factory=lambda: ([], []))


@dataclass(frozen=True, slots=True)
class _Open:
    """A file being written."""

    writer: AcidWriter
    statement: int
    path: Path


class WriterPool:
    """Collects the rows of one write id and one bucket, and writes them to files `f00001.orc` … in `staging`.

    A partition's rows wait as Arrow batches until they are worth a write and a file is to be had, or until all waiting
    bytes exceed `max_pending_bytes`; then the largest partition is written. At most `max_open_writers` files are open,
    the one used longest ago is closed first; each further file of a partition takes the next statement id. With
    `statement` every file takes that one: a partition then has one file, written row by row, and no file is closed
    before the end. Every method raises StorageUnavailable when the disk fails; then call `abort`.
    """

    def __init__(  # noqa: PLR0913
        self,
        staging: Path,
        columns: Sequence[Column],
        write_id: int,
        bucket: int,
        *,
        encoding: Encoding = STANDARD,
        max_open_writers: int = 16,
        max_pending_bytes: int = 64 << 20,
        statement: int | None = None,
    ) -> None:
        self._staging = staging
        self._statement = statement
        self._columns = tuple(columns)
        self._write_id = write_id
        self._bucket = bucket
        self._encoding = encoding
        self._max_open = max_open_writers
        self._max_pending = max_pending_bytes
        self._pending_bytes = 0
        self._partitions: dict[tuple[str, ...], _Partition] = {}
        self._open: OrderedDict[tuple[tuple[str, ...], int], _Open] = OrderedDict()
        self._files: list[StagingFile] = []
        self._numbers = count(1)

    def add(self, partition: tuple[str, ...], batch: pa.RecordBatch) -> None:
        """Take rows (table columns without partition columns) of the partition with these values.

        Raises StorageUnavailable; InvalidTable when one partition would need more than 4096 files.
        """
        if batch.num_rows == 0:
            return
        state = self._partitions.setdefault(partition, _Partition(self._statement or 0))
        for lane, part in _lanes(batch) if self._statement is None else [(_EXACT, batch)]:
            rows = _own_memory(part)
            state.pending[lane].append(rows)
            state.bytes += rows.nbytes
            self._pending_bytes += rows.nbytes
        if state.bytes >= _WORTH_WRITING and self._has_room(partition):
            self._write(partition)
        while self._pending_bytes > self._max_pending:
            self._write(max(self._partitions, key=lambda one: self._partitions[one].bytes))

    @property
    def partitions(self) -> int:
        """Partitions that got rows."""
        return len(self._partitions)

    @property
    def pending_bytes(self) -> int:
        """Bytes of the rows that wait in memory."""
        return self._pending_bytes

    def flush(self) -> None:
        """Give all rows that wait to their ORC writers."""
        for partition, state in self._partitions.items():
            if state.bytes:
                self._write(partition)

    def close(self) -> list[StagingFile]:
        """Write what waits, close every file (fsync each; the directory is the caller's) and tell what there is."""
        self.flush()
        while self._open:
            self._close_oldest()
        return list(self._files)

    def abort(self) -> None:
        """Close and remove all files of this pool; never raises."""
        for open_file in self._open.values():
            open_file.writer.abort()
        for file in self._files:
            _remove(Path(file.path))
        self._open.clear()
        self._files.clear()
        self._partitions.clear()
        self._pending_bytes = 0

    def _has_room(self, partition: tuple[str, ...]) -> bool:
        """Whether the partition can be written without closing the file of another one."""
        lanes = [lane for lane, batches in enumerate(self._partitions[partition].pending) if batches]
        new = sum((partition, lane) not in self._open for lane in lanes)
        return self._statement is not None or len(self._open) + new <= self._max_open

    def _write(self, partition: tuple[str, ...]) -> None:
        state = self._partitions[partition]
        for lane, batches in enumerate(state.pending):
            if batches:
                target = self._writer(partition, lane)
                with storage_errors(target.path):
                    for batch in batches:
                        target.writer.write(batch)
                batches.clear()
        self._pending_bytes -= state.bytes
        state.bytes = 0

    def _writer(self, partition: tuple[str, ...], lane: int) -> _Open:
        """The open file of a partition's lane, or a new one with the next statement id."""
        key = (partition, lane)
        if key in self._open:
            self._open.move_to_end(key)
            return self._open[key]
        while self._statement is None and len(self._open) >= self._max_open:
            self._close_oldest()
        state = self._partitions[partition]
        if state.statement > MAX_STATEMENT:
            raise InvalidTable(
                f"one transaction needs more than {MAX_STATEMENT + 1} files in one partition",
                where=f"partition {'/'.join(partition)}",
                hint="commit more often, or raise the writers' memory and number",
            )
        path = self._staging / f"f{next(self._numbers):05d}.orc"
        with storage_errors(path):
            writer = _LANES[lane](
                path,
                self._columns,
                self._write_id,
                bucket_property(self._bucket, state.statement),
                encoding=self._encoding,
            )
        self._open[key] = _Open(writer, state.statement, path)
        state.statement += 1
        return self._open[key]

    def _close_oldest(self) -> None:
        key, oldest = next(iter(self._open.items()))
        with storage_errors(oldest.path):
            done = oldest.writer.close()
        del self._open[key]
        partition, _ = key
        self._files.append(
            StagingFile(partition, oldest.statement, self._bucket, str(oldest.path), done.rows, done.bytes)
        )


def _lanes(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Split off the rows that pyarrow's ORC writer would spoil."""
    exact = rows_for_pyorc(batch)
    if exact is None:
        yield _FAST, batch
        return
    fast = batch.filter(pc.invert(exact))
    if fast.num_rows:
        yield _FAST, fast
    yield _EXACT, batch.filter(exact)


def _own_memory(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Copy a small slice, so that it does not keep a large batch in memory while it waits."""
    if batch.get_total_buffer_size() <= 2 * batch.nbytes:
        return batch
    return batch.take(pa.array(np.arange(batch.num_rows)))


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Every OSError at this door (ENOSPC, EDQUOT, EIO, a vanished mount) means that files cannot be written."""
    try:
        yield
    except OSError as error:
        raise StorageUnavailable(
            f"cannot write: {error.strerror or error}",
            where=str(error.filename or path),
            hint=_HINTS.get(error.errno or 0, "look at the file system and at the kernel's log"),
        ) from error


_HINTS = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free space on the file system"),
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), "give this process the right to write here"),
    **dict.fromkeys(
        (errno.ENOENT, errno.ENOTDIR, errno.ESTALE),
        "the directory was removed, or its file system unmounted, while it was written",
    ),
}


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return
