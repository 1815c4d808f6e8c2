"""The pool writes every row once, within its bounds, under unique row keys."""

from __future__ import annotations

import errno
import os
import random
import resource
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import orc

from ingestd.acid.appendable import AppendableFile
from ingestd.acid.encoding import Encoding
from ingestd.acid.layout import bucket_property
from ingestd.acid.writer_pool import StagingFile, WriterPool
from ingestd.errors import Reaction, StorageUnavailable
from ingestd.schema import Column, HiveType

COLUMNS = [Column("n", HiveType.parse("bigint")), Column("t", HiveType.parse("timestamp"))]


def batch(first: int, rows: int, stamp: int = 0, unit: str = "ns") -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array(range(first, first + rows), pa.int64()), pa.array([stamp] * rows, pa.timestamp(unit))],
        names=["n", "t"],
    )


def numbers(files: list[StagingFile]) -> dict[tuple[str, ...], list[int]]:
    """Stored `n` per partition, after checking each file's keys."""
    found: dict[tuple[str, ...], list[int]] = {}
    for file in files:
        table = orc.read_table(file.path)
        rows = table.select(["rowId", "bucket"]).to_pylist()
        assert file.rows == len(rows)
        assert file.bytes == Path(file.path).stat().st_size
        assert [row["rowId"] for row in rows] == list(range(len(rows)))
        assert {row["bucket"] for row in rows} == {bucket_property(file.bucket, file.statement)}
        found.setdefault(file.partition, []).extend(
            n for chunk in table["row"].chunks for n in chunk.field("n").to_pylist()
        )
    keys = Counter((file.partition, file.bucket, file.statement) for file in files)
    assert set(keys.values()) <= {1}
    return found


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 50), st.sampled_from([0, 1, -1])), max_size=25),
    st.integers(1, 4),
    st.sampled_from([0, 500, 1 << 20]),
)
def test_close_when_any_additions_then_every_row_once(
    tmp_path_factory: pytest.TempPathFactory, additions: list[tuple[str, int, int]], max_open: int, max_pending: int
) -> None:
    staging = tmp_path_factory.mktemp("staging")
    pool = WriterPool(staging, COLUMNS, 5, 3, max_open_writers=max_open, max_pending_bytes=max_pending)
    expected: dict[tuple[str, ...], list[int]] = {}
    first = 0
    for partition, rows, stamp in additions:
        pool.add((partition,), batch(first, rows, stamp))
        if rows:
            expected.setdefault((partition,), []).extend(range(first, first + rows))
        first += rows
    files = pool.close()
    assert {key: sorted(values) for key, values in numbers(files).items()} == expected
    assert {file.path for file in files} == {str(path) for path in staging.iterdir()}


def test_add_when_plenty_of_memory_then_one_file_per_partition(tmp_path: Path) -> None:
    pool = WriterPool(tmp_path, COLUMNS, 1, 0)
    for first in range(0, 1000, 10):
        pool.add((str(first % 30),), batch(first, 10))
    files = pool.close()
    assert [file.statement for file in files] == [0, 0, 0]
    assert all(values == sorted(values) for values in numbers(files).values())


def test_add_when_old_fractions_among_others_then_two_files_with_own_statements(tmp_path: Path) -> None:
    pool = WriterPool(tmp_path, COLUMNS, 1, 0)
    mixed = pa.RecordBatch.from_arrays(
        [pa.array([1, 2, 3], pa.int64()), pa.array([5, -1, 253402300799999999], pa.timestamp("us"))], names=["n", "t"]
    )
    pool.add((), mixed)
    pool.add((), batch(4, 1, 7))
    files = pool.close()
    assert sorted((file.statement, file.rows) for file in files) == [(0, 2), (1, 2)]
    stored = [row["row"]["n"] for row in orc.read_table(files[0].path, columns=["row.n"]).to_pylist()]
    assert stored in ([1, 4], [2, 3])


def test_abort_when_files_open_and_closed_then_staging_is_empty(tmp_path: Path) -> None:
    pool = WriterPool(tmp_path, COLUMNS, 1, 0, max_open_writers=1, max_pending_bytes=0)
    for partition in "abc":
        pool.add((partition,), batch(0, 10))
    assert list(tmp_path.iterdir())
    pool.abort()
    assert list(tmp_path.iterdir()) == []


def test_add_when_slice_of_large_batch_waits_then_large_batch_is_freed(tmp_path: Path) -> None:
    pool = WriterPool(tmp_path, COLUMNS, 1, 0)
    before = pa.total_allocated_bytes()
    for first in range(20):
        pool.add((str(first),), batch(0, 100_000).slice(0, 10))
    assert pa.total_allocated_bytes() - before < 1 << 20
    pool.abort()


@pytest.mark.parametrize("stamp", [0, -1])
def test_add_when_staging_is_missing_then_storage_unavailable(tmp_path: Path, stamp: int) -> None:
    pool = WriterPool(tmp_path / "gone", COLUMNS, 1, 0, max_pending_bytes=0)
    with pytest.raises(StorageUnavailable, match=r"f00001\.orc") as caught:
        pool.add((), batch(0, 1, stamp))
    assert caught.value.reaction is Reaction.RETRY
    pool.abort()


@pytest.mark.parametrize("stamp", [0, -1])
def test_close_when_disk_is_full_then_storage_unavailable(tmp_path: Path, stamp: int) -> None:
    (tmp_path / "f00001.orc").symlink_to("/dev/full")
    pool = WriterPool(tmp_path, COLUMNS, 1, 0)
    pool.add((), batch(0, 1000, stamp))
    with pytest.raises(StorageUnavailable, match=r"f00001\.orc.*No space left"):
        pool.close()
    pool.abort()
    assert list(tmp_path.iterdir()) == []


@contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    """A disk that fills up while a file is written; Python ignores the signal that would come with it."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("stamp", [0, -1])
@pytest.mark.parametrize("limit", [10, 50_000, 120_000])
def test_close_when_disk_fills_up_at_any_place_then_storage_unavailable(tmp_path: Path, limit: int, stamp: int) -> None:
    pool = WriterPool(tmp_path, COLUMNS, 1, 0, encoding=Encoding("none", stripe_bytes=64 << 10))
    with no_file_larger_than(limit), pytest.raises(StorageUnavailable, match=r"f00001\.orc.*too large"):
        fill(pool, stamp)
    pool.abort()
    assert list(tmp_path.iterdir()) == []


def fill(pool: WriterPool, stamp: int) -> None:
    choose = random.Random(1)
    for _ in range(20):
        numbers = pa.array([choose.getrandbits(62) for _ in range(1000)])
        pool.add((), pa.RecordBatch.from_arrays([numbers, batch(0, 1000, stamp).column(1)], names=["n", "t"]))
    pool.close()


INTERRUPTED = """
import signal, sys
from pathlib import Path
from ingestd.acid.writer_pool import WriterPool
from tests.acid.test_writer_pool import COLUMNS, batch

ended = 0
closing = False
def stop(*_):
    if closing:
        raise KeyboardInterrupt
signal.signal(signal.SIGALRM, stop)
for turn in range(40):
    folder = Path(sys.argv[1]) / str(turn)
    folder.mkdir()
    pool = WriterPool(folder, COLUMNS, 1, 0)
    for start in range(0, 60_000, 20_000):
        pool.add((), batch(start, 20_000, -(turn % 2)) if start else batch(start, 20_000))
    pool.flush()
    try:
        closing = True
        signal.setitimer(signal.ITIMER_REAL, 0.0002 * (turn + 1))
        pool.close()
        closing = False
    except KeyboardInterrupt:
        closing = False
        ended += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    pool.abort()
print(ended > 0)
"""


def test_close_when_a_signal_interrupts_it_then_the_process_lives(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(tmp_path)], capture_output=True, text=True, check=False, cwd=root
    )

    assert (ended.returncode, ended.stdout) == (0, "True\n"), ended.stderr


@pytest.mark.parametrize("earlier", [0, 1])
def test_appendable_file_when_its_side_file_fails_then_no_longer_than_that_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, earlier: int
) -> None:
    shared = AppendableFile(tmp_path, COLUMNS, 0, 0, Encoding())
    for write_id in range(1, earlier + 1):
        shared.write(batch(0, 100), write_id)
        shared.flush(write_id)
    shared.write(batch(0, 100), earlier + 1)
    real = os.fsync
    side = tmp_path / "bucket_00000_flush_length"

    def fail(handle: int) -> None:
        if os.readlink(f"/proc/self/fd/{handle}") == str(side):
            raise OSError(errno.EIO, "I/O error")
        real(handle)

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="I/O error"):
        shared.flush(earlier + 1)
    monkeypatch.undo()
    shared.abandon()

    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == (["bucket_00000", side.name] if earlier else [])
    if earlier:
        lengths = struct.unpack(">2q", side.read_bytes())
        assert (tmp_path / "bucket_00000").stat().st_size == lengths[-1] > lengths[0]
