"""Readers of a file that several transactions append to never miss a committed row and never find a torn file."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import orc

from ingestd.acid.appendable import AppendableFile
from ingestd.acid.encoding import STANDARD
from ingestd.acid.layout import SIDE_FILE_SUFFIX
from ingestd.schema import Column, HiveType

COLUMNS = [Column("n", HiveType.parse("bigint"))]


def batch(rows: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(range(rows), pa.int64())})


def test_flush_when_rows_of_an_aborted_transaction_are_unflushed_then_they_are_not_counted(
    tmp_path: Path,
) -> None:
    file = AppendableFile(tmp_path, COLUMNS, 0, 0, STANDARD)
    file.write(batch(5), 1)
    file.write(batch(2), 2)
    assert file.flush(2).rows == 2
    file.close()
    assert not (tmp_path / f"bucket_00000{SIDE_FILE_SUFFIX}").exists()
    assert orc.ORCFile(tmp_path / "bucket_00000").nrows == 7


@pytest.mark.parametrize("earlier", [0, 1])
def test_flush_when_the_side_file_cannot_be_synced_then_the_file_ends_at_its_last_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, earlier: int
) -> None:
    file = AppendableFile(tmp_path, COLUMNS, 0, 0, STANDARD)
    for write_id in range(1, earlier + 1):
        file.write(batch(100), write_id)
        file.flush(write_id)
    file.write(batch(100), earlier + 1)
    real = os.fsync
    side = tmp_path / f"bucket_00000{SIDE_FILE_SUFFIX}"

    def fail(handle: int) -> None:
        if os.readlink(f"/proc/self/fd/{handle}") == str(side):
            raise OSError(errno.EIO, "I/O error")
        real(handle)

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="I/O error"):
        file.flush(earlier + 1)
    monkeypatch.undo()
    file.abandon()

    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == (["bucket_00000", side.name] if earlier else [])
    if earlier:
        lengths = struct.unpack(">2q", side.read_bytes())
        assert (tmp_path / "bucket_00000").stat().st_size == lengths[-1] > lengths[0]


@pytest.mark.parametrize("closed", [False, True], ids=["open", "closed"])
def test_withdraw_when_an_earlier_transaction_was_flushed_then_its_rows_stay(tmp_path: Path, closed: bool) -> None:
    file = AppendableFile(tmp_path, COLUMNS, 0, 0, STANDARD)
    file.write(batch(2), 7)
    file.flush(7)
    bucket, side = tmp_path / "bucket_00000", tmp_path / f"bucket_00000{SIDE_FILE_SUFFIX}"
    flushed = bucket.stat().st_size
    file.write(batch(1), 8)
    file.flush(8)
    if closed:
        file.close()

    file.withdraw(8)
    file.abandon()

    assert bucket.stat().st_size == flushed
    assert struct.unpack(">q", side.read_bytes()[-8:]) == (flushed,)
    assert [row["n"] for row in orc.read_table(bucket)["row"].to_pylist()] == [0, 1]
    file.withdraw(9)
    assert bucket.stat().st_size == flushed


def test_withdraw_when_no_other_transaction_was_flushed_then_the_file_is_removed(tmp_path: Path) -> None:
    file = AppendableFile(tmp_path, COLUMNS, 0, 0, STANDARD)
    file.write(batch(1), 7)
    file.flush(7)
    file.withdraw(7)
    file.abandon()
    assert list(tmp_path.iterdir()) == []
