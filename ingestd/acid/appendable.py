"""One ORC file that the transactions of a batch write, one after the other, while readers read it.

Invariant: what readers may read ends with a whole footer, and its length is in the side file before the transaction
commits; the bucket file appears under its name only with rows in it. So at every moment, also after kill -9, a reader
finds a valid file or none.
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
from ingestd.schema import Column


class AppendableFile:
    """The file of one bucket in a delta of several write ids. All methods raise OSError."""

    def __init__(
        self, directory: Path, columns: Sequence[Column], bucket: int, statement: int, encoding: Encoding
    ) -> None:
        """`directory` is the delta, which exists. Nothing appears in it under a name that readers look at."""
        self._path = directory / bucket_name(bucket)
        self._side = self._path.with_name(self._path.name + SIDE_FILE_SUFFIX)
        self._hidden = self._path.with_name("_" + self._path.name)
        self._bucket = bucket_property(bucket, statement)
        self._runs: list[tuple[int, int]] = []
        self._unflushed = 0
        self._length = 0  # what the side file says, or may say already
        self._kept = (0, 0)  # the write id of the last flush, and what the side file said before its first flush
        self._sink = OrcSink(self._hidden)
        # pyorc keeps rows of an unfinished batch back from an intermediate footer: with 1 there are none.
        self._orc = orc_writer(self._sink, columns, encoding, batch_size=1)

    @property
    def is_in_place(self) -> bool:
        """False once somebody removed or replaced the file, for example with its partition."""
        return self._sink.is_at(self._path if self._length else self._hidden)

    def write(self, batch: pa.RecordBatch, write_id: int) -> None:
        """Append rows of a write id; ids ascend from call to call."""
        before = self._runs.pop()[1] if self._runs and self._runs[-1][0] == write_id else 0
        write_rows(self._orc, batch, write_id, self._bucket, before)
        self._runs.append((write_id, before + batch.num_rows))
        self._unflushed += batch.num_rows
        self._sink.check()

    def flush(self, write_id: int) -> FileSize:
        """Bring all rows so far to the disk and let readers have them as their transactions commit.

        Returns the rows of `write_id` (those of aborted ones may be among what is flushed) and the bytes since the last
        flush.
        """
        if not self._unflushed:
            return FileSize(0, 0)
        if self._kept[0] != write_id:
            self._kept = (write_id, self._length)
        length = self._orc.write_intermediate_footer()
        self._sink.sync()
        if not self.is_in_place:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self._path))
        before, self._length = self._length, length
        self._append_length(length)
        if not before:
            os.rename(self._hidden, self._path)
            _sync(self._path.parent)
        last, rows = self._runs[-1]
        self._unflushed = 0
        return FileSize(rows if last == write_id else 0, length - before)

    def close(self) -> None:
        """Finish the file: the last footer gets the calendar and all keys, then the side file is not needed any more.

        Until it is gone readers stop at the last flushed length, and only what lies behind that is changed here.
        """
        self._orc.close()
        self._sink.close()
        self._sink.check()
        if not self._length:
            self._hidden.unlink()
            return
        seal(self._path, self._runs, self._bucket)
        self._side.unlink()
        _sync(self._path.parent)

    def withdraw(self, write_id: int) -> None:
        """Take back the flushed rows of a write id that can commit no more; after it only `abandon` may be called.

        Readers get the length of before first, so none finds less than it was promised.
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
            self._renew_side_file()
        os.truncate(self._path, self._length)
        _sync(self._path.parent)

    def abandon(self) -> None:
        """Let go after a failure; never raises.

        Flushed rows stay readable through the side file; what follows them goes, so a full disk has room again.
        """
        for step in (self._orc.close, self._sink.close):
            with suppress(Exception):  # pyorc has errors of its own, and nothing of this matters any more
                step()
        with suppress(OSError):
            if self._path.exists():
                os.truncate(self._path, self._length)
            else:
                self._side.unlink(missing_ok=True)
                self._hidden.unlink(missing_ok=True)

    def _append_length(self, length: int) -> None:
        """One write of 8 bytes, big endian: a torn entry would break every reader."""
        handle = os.open(self._side, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(handle, struct.pack(">q", length))
            os.fsync(handle)
        finally:
            os.close(handle)

    def _renew_side_file(self) -> None:
        """The file was finished already: give it back the side file it had, whole from the first moment on."""
        hidden = self._side.with_name("_" + self._side.name)
        with hidden.open("wb") as file:
            file.write(struct.pack(">q", self._length))
            file.flush()
            os.fsync(file.fileno())
        os.rename(hidden, self._side)


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
