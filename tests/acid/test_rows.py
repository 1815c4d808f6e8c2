"""The rows that are read from files are those of a Hive reader with the same snapshot."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyorc
import pytest
from pyarrow import orc, parquet

from ingestd.acid.layout import bucket_property
from ingestd.acid.rows import FileFormat, RowFile, count_rows, read_rows, row_files
from ingestd.acid.visibility import ValidWriteIds
from ingestd.errors import InvalidTable
from ingestd.storage.local import LocalStorage

EVENT = (
    "struct<operation:int,originalTransaction:bigint,bucket:int,rowId:bigint,currentTransaction:bigint,"
    "row:struct<n:bigint,s:string>>"
)
VALID = ValidWriteIds("d.t", 10, aborted=frozenset({2, 6}))
ONE_BUCKET = bucket_property(1, 0)


def _inserts(path: Path, *rows: tuple[int, int], bucket: int = bucket_property(0, 0)) -> None:
    """Write a file with a row for each pair of a write id and a number."""
    _events(path, [(0, write_id, bucket, at, write_id, (number, "x")) for at, (write_id, number) in enumerate(rows)])


def _deletes(path: Path, write_id: int, *rows: tuple[int, int], bucket: int = bucket_property(0, 0)) -> None:
    """Write a file with a delete event for each pair of the row's write id and row id."""
    _events(path, [(2, deleted, bucket, row_id, write_id, None) for deleted, row_id in rows])


def _events(path: Path, events: list[tuple[object, ...]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file, pyorc.Writer(file, EVENT) as writer:
        writer.writerows(events)


def _numbers(root: Path, valid: ValidWriteIds = VALID) -> list[int]:
    storage = LocalStorage()
    files = row_files(storage, str(root), valid, lambda _: True)
    batches = [batch for file in files for batch in read_rows(storage, file, FileFormat.ORC, valid)]
    return sorted(number for batch in batches for number in batch.column(0).to_pylist())


def test_rows_when_files_are_base_and_deltas_then_are_those_of_valid_write_ids(tmp_path: Path) -> None:
    _inserts(tmp_path / "base_0000001" / "bucket_00000", (1, 1))
    _inserts(tmp_path / "delta_0000001_0000001_0000" / "bucket_00000", (1, 99))
    _inserts(tmp_path / "delta_0000002_0000004_0000" / "bucket_00000", (2, 2), (3, 3), (4, 4))
    _inserts(tmp_path / "delta_0000011_0000011_0000" / "bucket_00000", (11, 11))
    orc.write_table(pa.table({"n": [98]}), tmp_path / "000000_0")
    assert _numbers(tmp_path) == [1, 3, 4]


def test_rows_when_deleted_then_are_missing(tmp_path: Path) -> None:
    _inserts(tmp_path / "delta_0000001_0000001_0000" / "bucket_00000", (1, 10), (1, 11), (1, 12))
    _inserts(tmp_path / "delta_0000001_0000001_0000" / "bucket_00001_0", (1, 20), (1, 21), bucket=ONE_BUCKET)
    _deletes(tmp_path / "delete_delta_0000003_0000003_0000" / "bucket_00000", 3, (1, 1))
    _deletes(tmp_path / "delete_delta_0000004_0000004_0000" / "bucket_00001_0", 4, (1, 0), bucket=ONE_BUCKET)
    _deletes(tmp_path / "delete_delta_0000005_0000006_0000" / "bucket_00000", 6, (1, 2))
    assert _numbers(tmp_path) == [10, 12, 21]


def test_rows_when_original_then_are_read_with_their_columns(tmp_path: Path) -> None:
    orc.write_table(pa.table({"n": [1, 2], "s": ["a", None]}), tmp_path / "000000_0")
    (tmp_path / "000001_0").touch()
    assert _numbers(tmp_path) == [1, 2]


def test_rows_when_original_and_deleted_then_cannot_be_read(tmp_path: Path) -> None:
    orc.write_table(pa.table({"n": [1, 2]}), tmp_path / "000000_0")
    _deletes(tmp_path / "delete_delta_0000003_0000003_0000" / "bucket_00000", 3, (0, 1))
    with pytest.raises(InvalidTable, match="rows have no ids"):
        _numbers(tmp_path)


def test_parquet_file_then_is_read_and_counted(tmp_path: Path) -> None:
    table = pa.table({"n": list(range(100_000))})
    parquet.write_table(table, tmp_path / "a")
    file = RowFile(str(tmp_path / "a"), (tmp_path / "a").stat().st_size)
    found = list(read_rows(LocalStorage(), file, FileFormat.PARQUET, None))
    assert pa.Table.from_batches(found) == table
    assert count_rows(LocalStorage(), file, FileFormat.PARQUET) == 100_000


@pytest.mark.parametrize("file_format", FileFormat)
def test_file_when_empty_or_damaged_then_has_no_rows_or_is_rejected(tmp_path: Path, file_format: FileFormat) -> None:
    empty, damaged = RowFile(str(tmp_path / "empty"), 0), RowFile(str(tmp_path / "damaged"), 5)
    (tmp_path / "empty").touch()
    (tmp_path / "damaged").write_bytes(b"12345")
    assert list(read_rows(LocalStorage(), empty, file_format, None)) == []
    assert count_rows(LocalStorage(), empty, file_format) == 0
    with pytest.raises(InvalidTable):
        list(read_rows(LocalStorage(), damaged, file_format, None))
    with pytest.raises(InvalidTable):
        count_rows(LocalStorage(), damaged, file_format)
