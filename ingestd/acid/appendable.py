"""An ORC file to which the transactions of a batch append in turn, while readers read it.

Invariant: the bytes that readers may read end with a complete footer, and their length is in the side file before the
transaction commits. The bucket file is renamed to its final name only once it contains rows. A reader therefore always
finds a valid file or no file, even after the writer was killed.
Source: OrcRecordUpdater (a delta of several write ids), AcidUtils.getLogicalLength.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from ingestd.acid.encoding import Encoding
from ingestd.acid.footer import FileSize, seal
from ingestd.acid.layout import SIDE_FILE_SUFFIX, bucket_name, bucket_property
from ingestd.acid.pyorc_writer import orc_writer, write_rows
from ingestd.acid.sink import OrcSink
from ingestd.acid.text_statistics import Bounded, TextWatch, bound_statistics
from ingestd.schema import Column
from ingestd.storage.local_files import sync


class AppendableFile:
    """The file of one bucket in a delta of several write ids.

    All methods except `abandon` raise OSError.
    """

    def __init__(
        self, directory: Path, columns: Sequence[Column], bucket: int, statement: int, encoding: Encoding
    ) -> None:
        """Create the file under a hidden name in the delta directory `directory`, which must exist.

        `bucket` and `statement` are the numbers in the bucket property of the rows.
        """
        self._path = directory / bucket_name(bucket)
        self._side = self._path.with_name(self._path.name + SIDE_FILE_SUFFIX)
        self._hidden = self._path.with_name("_" + self._path.name)
        self._bucket = bucket_property(bucket, statement)
        self._runs: list[tuple[int, int]] = []
        self._unflushed = 0
        self._length = 0  # last length that was or may have been written to the side file
        self._kept = (0, 0)  # the write id of the last flush, and the length before its first flush
        self._sink = OrcSink(self._hidden)
        self._texts = TextWatch(self._sink)
        self._bounded = Bounded()
        # An intermediate footer does not cover rows in pyorc's batch buffer. With a batch size of 1 no rows stay there.
        self._orc = orc_writer(self._sink, columns, encoding, batch_size=1)

    @property
    def is_in_place(self) -> bool:
        """Return whether the file still exists under its name; another process may have removed or replaced it."""
        return self._sink.is_at(self._path if self._length else self._hidden)

    @property
    def is_full(self) -> bool:
        """Whether the file should be closed, and rows that follow be written to another."""
        return self._texts.is_full

    def write(self, batch: pa.RecordBatch, write_id: int) -> None:
        """Append the rows of `write_id`, which must not be lower than in the previous call."""
        self._texts.add(batch)
        before = self._runs.pop()[1] if self._runs and self._runs[-1][0] == write_id else 0
        write_rows(self._orc, batch, write_id, self._bucket, before)
        self._runs.append((write_id, before + batch.num_rows))
        self._unflushed += batch.num_rows
        self._sink.check()

    def flush(self, write_id: int) -> FileSize:
        """Write all rows to disk, so that readers find the rows of a transaction once it has committed.

        Returns the number of rows of `write_id`, which excludes unflushed rows of aborted transactions, and the number
        of bytes written since the last flush.
        """
        if not self._unflushed:
            return FileSize(0, 0)
        if self._kept[0] != write_id:
            self._kept = (write_id, self._length)
        self._orc.write_intermediate_footer()
        self._sink.check()
        if not self.is_in_place:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self._path))
        self._bound_statistics()
        length = self._sink.end()
        self._sink.sync()
        before, self._length = self._length, length
        self._append_length(length)
        if not before:
            os.rename(self._hidden, self._path)
            sync(self._path.parent)
        last, rows = self._runs[-1]
        self._unflushed = 0
        return FileSize(rows if last == write_id else 0, length - before)

    def close(self) -> None:
        """Seal the last footer and remove the side file.

        Until the side file is removed, readers stop at the last flushed length. Only bytes after it change.
        """
        self._orc.close()
        self._sink.close()
        self._sink.check()
        if not self._length:
            self._hidden.unlink()
            return
        self._bound_statistics()
        seal(self._path, self._runs, self._bucket)
        sync(self._path)
        self._side.unlink()
        sync(self._path.parent)

    def withdraw(self, write_id: int) -> None:
        """Remove the flushed rows of a write id that can no longer commit; afterwards only `abandon` may be called.

        The previous length is written to the side file before the file is truncated, so that no reader finds fewer
        bytes than the side file states.
        """
        if self._kept[0] != write_id:
            return
        self._length = self._kept[1]
        if not self._length:
            self._path.unlink(missing_ok=True)
            self._side.unlink(missing_ok=True)
            return
        if self._side.exists():
            self._append_length(self._length)
        else:
            self._recreate_side_file()
        os.truncate(self._path, self._length)
        sync(self._path.parent)

    def abandon(self) -> None:
        """Close the file after a failure; never raises.

        Flushed rows stay readable through the side file. The bytes after them are removed, to free space on the disk.
        """
        for step in (self._orc.close, self._sink.close):
            with suppress(Exception):  # pyorc raises errors of its own; the unflushed rows are lost either way
                step()
        with suppress(OSError):
            if self._path.exists():
                os.truncate(self._path, self._length)
            else:
                self._side.unlink(missing_ok=True)
                self._hidden.unlink(missing_ok=True)

    def _bound_statistics(self) -> None:
        """Bound the statistics of what was written since the last flush, if necessary."""
        if self._texts.needs_bounds:
            path = self._path if self._length else self._hidden
            self._bounded = bound_statistics(path, self._length, self._bounded)

    def _append_length(self, length: int) -> None:
        """Append a length to the side file as 8 big-endian bytes.

        It is a single write, because a partial entry would make every reader fail.
        """
        handle = os.open(self._side, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(handle, struct.pack(">q", length))
            os.fsync(handle)
        finally:
            os.close(handle)

    def _recreate_side_file(self) -> None:
        """Recreate the side file that `close` removed, and rename it to its final name only once it is complete."""
        hidden = self._side.with_name("_" + self._side.name)
        with hidden.open("wb") as file:
            file.write(struct.pack(">q", self._length))
            file.flush()
            os.fsync(file.fileno())
        os.rename(hidden, self._side)
