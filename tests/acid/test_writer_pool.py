"""The pool writes every row once, within its limits and under unique row keys."""

from __future__ import annotations

import random
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import orc

from ingestd.acid.encoding import Encoding
from ingestd.acid.layout import ALL_STATEMENTS, bucket_property
from ingestd.acid.writer import WriterName
from ingestd.acid.writer_pool import (
    FileKey,
    OpenStagingFile,
    Partition,
    PoolLimits,
    SingleStatementFiles,
    StagingFile,
    StagingFiles,
    WriterPool,
)
from ingestd.errors import InvalidTable, StorageUnavailable
from ingestd.schema import Column, HiveType
from ingestd.storage.local import LocalOutbox, LocalStorage
from tests.support.patience import LIMIT

COLUMNS = [Column("n", HiveType.parse("bigint")), Column("t", HiveType.parse("timestamp"))]
NO_MEMORY = PoolLimits(pending_bytes=0)


def batch(first: int, rows: int, stamp: int = 0, unit: str = "ns") -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array(range(first, first + rows), pa.int64()), pa.array([stamp] * rows, pa.timestamp(unit))],
        names=["n", "t"],
    )


def outbox(directory: Path) -> LocalOutbox:
    return LocalStorage().outbox(str(directory), "task")


def staging_pool(
    directory: Path, limits: PoolLimits | None = None, encoding: Encoding | None = None
) -> tuple[StagingFiles, WriterPool[OpenStagingFile]]:
    files = StagingFiles(outbox(directory), COLUMNS, 1, encoding=encoding or Encoding())
    return files, WriterPool(files, limits)


def stored_numbers(files: list[StagingFile]) -> dict[tuple[Partition, int], list[int]]:
    """Check the row keys and the size of each file; return the values of `n` by partition and bucket."""
    found: dict[tuple[Partition, int], list[int]] = {}
    for file in files:
        table = orc.read_table(file.uri)
        rows = table.select(["rowId", "bucket"]).to_pylist()
        assert file.rows == len(rows)
        assert file.bytes == Path(file.uri).stat().st_size
        assert [row["rowId"] for row in rows] == list(range(len(rows)))
        assert {row["bucket"] for row in rows} == {bucket_property(file.bucket, file.statement)}
        found.setdefault((file.partition, file.bucket), []).extend(
            n for chunk in table["row"].chunks for n in chunk.field("n").to_pylist()
        )
    keys = Counter((file.partition, file.bucket, file.statement) for file in files)
    assert set(keys.values()) <= {1}
    return found


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.integers(0, 2), st.integers(0, 50), st.sampled_from([0, 1, -1])),
        max_size=25,
    ),
    st.integers(1, 4),
    st.sampled_from([0, 500, 20_000, 1 << 20]),
)
def test_close_when_random_rows_were_added_then_each_is_stored_once(
    tmp_path_factory: pytest.TempPathFactory,
    additions: list[tuple[str, int, int, int]],
    open_files: int,
    pending_bytes: int,
) -> None:
    staging = tmp_path_factory.mktemp("staging")
    files, pool = staging_pool(staging, PoolLimits(open_files, pending_bytes))
    expected: dict[tuple[Partition, int], list[int]] = {}
    first = 0
    for partition, bucket, rows, stamp in additions:
        pool.add((partition,), bucket, batch(first, rows, stamp))
        if rows:
            expected.setdefault(((partition,), bucket), []).extend(range(first, first + rows))
        first += rows
    pool.close()
    assert {key: sorted(values) for key, values in stored_numbers(files.closed).items()} == expected
    assert {file.uri for file in files.closed} == {str(path) for path in staging.rglob("*.orc")}
    assert pool.partitions == {partition for partition, _ in expected}


def test_add_when_memory_suffices_then_there_is_one_file_per_partition_and_bucket_with_rows_in_order(
    tmp_path: Path,
) -> None:
    files, pool = staging_pool(tmp_path)
    for first in range(0, 1000, 10):
        pool.add((str(first % 30),), first % 20 // 10, batch(first, 10))
    pool.close()
    assert [file.statement for file in files.closed] == [0] * 6
    assert all(values == sorted(values) for values in stored_numbers(files.closed).values())


def test_close_when_partitions_outnumber_the_open_files_then_open_files_are_completed_first(
    tmp_path: Path,
) -> None:
    """A file that is closed too early must be followed by another file, in another delta of the partition."""
    files, pool = staging_pool(tmp_path, PoolLimits(open_files=2, write_bytes=1000))
    for partition, rows in [("small", 1), ("a", 100), ("b", 100), ("other", 1), ("a", 1), ("b", 1)]:
        pool.add((partition,), 0, batch(0, rows))
    pool.close()
    assert {file.partition[0]: file.rows for file in files.closed} == {"small": 1, "a": 101, "b": 101, "other": 1}
    assert len(files.closed) == 4


def test_add_when_rows_need_both_writers_then_two_files_have_different_statements(tmp_path: Path) -> None:
    files, pool = staging_pool(tmp_path)
    mixed = pa.RecordBatch.from_arrays(
        [pa.array([1, 2, 3], pa.int64()), pa.array([5, -1, 253402300799999999], pa.timestamp("us"))], names=["n", "t"]
    )
    pool.add((), 0, mixed)
    pool.add((), 0, batch(4, 1, 7))
    pool.close()
    assert sorted((file.statement, file.rows) for file in files.closed) == [(0, 2), (1, 2)]
    stored = [row["row"]["n"] for row in orc.read_table(files.closed[0].uri, columns=["row.n"]).to_pylist()]
    assert stored in ([1, 4], [2, 3])


def test_add_when_statement_is_fixed_then_each_bucket_has_one_file(tmp_path: Path) -> None:
    files = SingleStatementFiles(outbox(tmp_path), COLUMNS, 1, statement=7)
    pool = WriterPool(files, PoolLimits(open_files=None, pending_bytes=0))
    for turn in range(2):
        for bucket in range(20):
            pool.add((), bucket, batch(turn, 1, -1))
            pool.add((), bucket, batch(turn + 2, 1))
    pool.close()
    assert stored_numbers(files.closed) == {((), bucket): [0, 2, 1, 3] for bucket in range(20)}
    assert {file.statement for file in files.closed} == {7}


def test_add_when_two_tasks_write_the_same_bucket_then_no_two_files_have_the_same_statement(tmp_path: Path) -> None:
    written: list[StagingFile] = []
    for task in range(2):
        box = LocalStorage().outbox(str(tmp_path), f"task-{task}")
        files = StagingFiles(box, COLUMNS, 1, statements=ALL_STATEMENTS[task::2])
        pool = WriterPool(files, PoolLimits(1, 0))
        for turn in range(6):
            pool.add((), turn % 2, batch(turn, 1))
        pool.close()
        written += files.closed
    assert [file.statement for file in written if file.bucket == 1] == [0, 2, 4, 1, 3, 5]
    assert stored_numbers(written) == {((), 0): [0, 2, 4] * 2, ((), 1): [1, 3, 5] * 2}


def test_add_when_statements_are_exhausted_then_invalid_table(tmp_path: Path) -> None:
    pool = WriterPool(SingleStatementFiles(outbox(tmp_path), COLUMNS, 1, statement=0), PoolLimits(1, 0))
    pool.add(("a",), 0, batch(0, 1))
    pool.add(("b",), 0, batch(0, 1))
    with pytest.raises(InvalidTable, match="need more than 1 files") as caught:
        pool.add(("a",), 0, batch(1, 1))
    assert "partition a, bucket 0" in str(caught.value)
    pool.abort()


class _Log:
    """Logs its calls. Files outlive transactions; those of the partition `moved` accept no more rows."""

    statements = range(10)

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def split(self, batch: pa.RecordBatch) -> Iterable[tuple[WriterName, pa.RecordBatch]]:
        return [("pyorc", batch)]

    def prepare(self, partitions: Collection[Partition]) -> None:
        self.calls.append(("prepare", *sorted(partition[0] for partition in partitions)))

    def open(self, key: FileKey, statement: int) -> str:
        self.calls.append(("open", f"{key.partition[0]}{statement}"))
        return f"{key.partition[0]}{statement}"

    def accepts_rows(self, key: FileKey, _file: str) -> bool:
        return key.partition != ("moved",)

    def write(self, _key: FileKey, file: str, batch: pa.RecordBatch) -> None:
        self.calls.append(("write", file, batch.num_rows))

    def close(self, _key: FileKey, file: str) -> None:
        self.calls.append(("close", file))

    def finish(self) -> None:
        self.calls.append(("finish",))

    def abort(self, files: Iterable[str]) -> None:
        self.calls.append(("abort", *files))

    def take(self) -> list[tuple[object, ...]]:
        calls, self.calls = self.calls, []
        return calls


def test_transaction_when_it_begins_then_partitions_are_prepared_again_and_files_stay_open() -> None:
    log = _Log()
    pool = WriterPool(log, PoolLimits(write_bytes=None))
    pool.begin_transaction()
    pool.add(("a",), 0, batch(0, 2))
    pool.add(("moved",), 0, batch(0, 3))
    pool.flush()
    assert log.take() == [
        ("prepare", "a", "moved"), ("open", "a0"), ("write", "a0", 2), ("open", "moved0"), ("write", "moved0", 3),
    ]  # fmt: skip
    pool.add(("a",), 0, batch(0, 4))
    pool.flush()
    assert log.take() == [("write", "a0", 4)]
    pool.add(("a",), 0, batch(0, 1))
    pool.begin_transaction()
    assert not pool.partitions
    pool.add(("moved",), 0, batch(0, 5))
    pool.flush()
    assert log.take() == [("prepare", "moved"), ("open", "moved1"), ("write", "moved1", 5)]
    pool.abort()
    assert log.take() == [("abort", "a0", "moved1")]


def test_add_when_memory_is_needed_then_all_partitions_are_prepared_and_the_largest_is_written() -> None:
    log = _Log()
    pool = WriterPool(log, PoolLimits(open_files=1, pending_bytes=6000, write_bytes=None))
    for partition, rows in (("a", 30), ("b", 60), ("c", 10), ("a", 5)):
        pool.add((partition,), 0, batch(0, rows))
    assert log.take() == [("prepare", "a", "b", "c"), ("open", "b0"), ("write", "b0", 60)]
    pool.close()
    assert log.take() == [
        ("close", "b0"), ("open", "a0"), ("write", "a0", 35),
        ("close", "a0"), ("open", "c0"), ("write", "c0", 10), ("close", "c0"), ("finish",),
    ]  # fmt: skip


def test_add_when_batches_are_small_then_they_are_merged_before_rows_are_written(tmp_path: Path) -> None:
    limits = PoolLimits(pending_bytes=2 << 20)
    log = _Log()
    pool, before = WriterPool(log, limits), pa.total_allocated_bytes()
    for n in range(20_000):
        # The unit of timestamps can change between batches.
        pool.add((f"p{n % 100}",), 0, batch(3 * n, 3, unit="ns" if n < 10_000 else "us"))
        assert pa.total_allocated_bytes() - before < limits.pending_bytes
    assert log.take() == []
    pool.flush()
    written = [call for call in log.take() if call[0] == "write"]
    assert sum(int(str(rows)) for _, _, rows in written) == 60_000
    assert len(written) == 200

    files, stored = staging_pool(tmp_path, PoolLimits(pending_bytes=200_000))
    for n in range(1000):
        stored.add((f"p{n % 10}",), 0, batch(n, 1, unit="ns" if n < 500 else "us"))
    stored.close()
    assert stored_numbers(files.closed) == {((f"p{p}",), 0): list(range(p, 1000, 10)) for p in range(10)}


def test_add_when_rows_reach_the_write_size_then_they_are_written_only_if_no_file_must_be_closed() -> None:
    log = _Log()
    pool = WriterPool(log, PoolLimits(open_files=1, write_bytes=160))
    for partition in ("a", "b", "a"):
        pool.add((partition,), 0, batch(0, 10))
    calls = log.take()
    assert calls == [("prepare", "a"), ("open", "a0"), ("write", "a0", 10), ("prepare", "b"), ("write", "a0", 10)]


def test_abort_when_files_are_open_and_closed_then_staging_is_empty(tmp_path: Path) -> None:
    _, pool = staging_pool(tmp_path, PoolLimits(1, 0))
    for partition in "abc":
        pool.add((partition,), 0, batch(0, 10))
    assert list(tmp_path.iterdir())
    pool.abort()
    assert list(tmp_path.iterdir()) == []


def test_add_when_a_slice_of_a_large_batch_waits_then_the_large_batch_is_freed(tmp_path: Path) -> None:
    _, pool = staging_pool(tmp_path)
    before = pa.total_allocated_bytes()
    for first in range(20):
        pool.add((str(first),), 0, batch(0, 100_000).slice(0, 10))
    assert pa.total_allocated_bytes() - before < 1 << 20
    pool.abort()


@pytest.mark.parametrize("stamp", [0, -1], ids=["pyarrow", "pyorc"])
def test_add_when_staging_directory_is_missing_then_storage_unavailable(tmp_path: Path, stamp: int) -> None:
    _, pool = staging_pool(tmp_path, NO_MEMORY)
    (tmp_path / "task").rmdir()
    with pytest.raises(StorageUnavailable, match=r"f00001\.orc") as caught:
        pool.add((), 0, batch(0, 1, stamp))
    assert caught.value.is_retriable
    pool.abort()


@pytest.mark.parametrize("stamp", [0, -1], ids=["pyarrow", "pyorc"])
def test_close_when_disk_is_full_then_storage_unavailable(tmp_path: Path, stamp: int) -> None:
    _, pool = staging_pool(tmp_path)
    (tmp_path / "task" / "f00001.orc").symlink_to("/dev/full")
    pool.add((), 0, batch(0, 1000, stamp))
    with pytest.raises(StorageUnavailable, match=r"f00001\.orc.*No space left"):
        pool.close()
    pool.abort()
    assert list(tmp_path.iterdir()) == []


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Simulate a disk that fills up while a file is written. Python ignores the SIGXFSZ that the kernel sends."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("stamp", [0, -1], ids=["pyarrow", "pyorc"])
@pytest.mark.parametrize("limit", [10, 50_000, 120_000])
def test_close_when_disk_fills_up_at_any_offset_then_storage_unavailable(
    tmp_path: Path, limit: int, stamp: int
) -> None:
    _, pool = staging_pool(tmp_path, encoding=Encoding("none", stripe_bytes=64 << 10))
    with file_size_limit(limit), pytest.raises(StorageUnavailable, match=r"f00001\.orc.*too large"):
        fill(pool, stamp)
    pool.abort()
    assert list(tmp_path.iterdir()) == []


def fill(pool: WriterPool[OpenStagingFile], stamp: int) -> None:
    choose = random.Random(1)
    for _ in range(20):
        numbers = pa.array([choose.getrandbits(62) for _ in range(1000)])
        pool.add((), 0, pa.RecordBatch.from_arrays([numbers, batch(0, 1000, stamp).column(1)], names=["n", "t"]))
    pool.close()


INTERRUPTED = """
import signal, sys
from pathlib import Path
from tests.acid.test_writer_pool import batch, staging_pool

interrupted = 0
closing = False
def stop(*_):
    if closing:
        raise KeyboardInterrupt
signal.signal(signal.SIGALRM, stop)
for turn in range(40):
    folder = Path(sys.argv[1]) / str(turn)
    folder.mkdir()
    _, pool = staging_pool(folder)
    for start in range(0, 60_000, 20_000):
        pool.add((), 0, batch(start, 20_000, -(turn % 2)) if start else batch(start, 20_000))
    pool.flush()
    try:
        closing = True
        signal.setitimer(signal.ITIMER_REAL, 0.0002 * (turn + 1))
        pool.close()
        closing = False
    except KeyboardInterrupt:
        closing = False
        interrupted += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    pool.abort()
print(interrupted > 0)
"""


def test_close_when_a_signal_handler_raises_inside_it_then_the_process_survives(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=root,
        timeout=LIMIT,
    )

    assert (ended.returncode, ended.stdout) == (0, "True\n"), ended.stderr


def test_add_when_texts_are_very_long_then_a_file_contains_a_limited_number_of_them(tmp_path: Path) -> None:
    columns, encoding = [Column("s", HiveType.parse("string"))], Encoding(stripe_bytes=64 << 10)
    files = StagingFiles(outbox(tmp_path), columns, 1, encoding=encoding)
    pool = WriterPool(files)
    text = random.Random(0).randbytes(3 << 20).hex()
    for _ in range(8):
        pool.add((), 0, pa.record_batch({"s": [text]}))
    pool.close()
    assert sum(file.rows for file in files.closed) == 8
    assert [file.statement for file in files.closed] == list(range(len(files.closed)))
    assert len(files.closed) > 1


MANY_FILES = """
import re, sys
from pathlib import Path
from tests.acid.test_writer_pool import batch, staging_pool

def memory(kind):
    return int(re.search(kind + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) >> 10

for count in (1, 400):
    folder = Path(sys.argv[1]) / str(count)
    folder.mkdir()
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    before = memory("VmRSS")
    files, pool = staging_pool(folder)
    for number in range(count):
        pool.add((str(number),), 0, batch(0, 10))
    pool.close()
    assert len(files.closed) == count
print(memory("VmHWM") - before)
"""


def test_close_when_each_partition_has_few_rows_then_many_files_need_no_more_memory_than_a_few(tmp_path: Path) -> None:
    """An open file reserves 29 MiB or more, and the parts of it that were used are spread over the heap."""
    root = Path(__file__).resolve().parents[2]
    ended = subprocess.run(
        [sys.executable, "-c", MANY_FILES, str(tmp_path)], capture_output=True, text=True, check=True, cwd=root
    )
    assert int(ended.stdout) < 40
