"""The visible directories and row counts are those of a Hive reader with the same snapshot."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyorc
import pytest
from pyarrow import orc

from ingestd.acid.appendable import AppendableFile
from ingestd.acid.encoding import STANDARD
from ingestd.acid.layout import batch_delta_name, bucket_name, bucket_property, delta_name
from ingestd.acid.pyarrow_writer import PyArrowWriter
from ingestd.acid.visibility import ValidWriteIds, visible_directories, visible_rows
from ingestd.errors import InvalidTable, StorageUnavailable
from ingestd.schema import Column, HiveType
from ingestd.storage.local import LocalStorage

COLUMNS = [Column("n", HiveType.parse("bigint"))]
EVENT = (
    "struct<operation:int,originalTransaction:bigint,bucket:int,rowId:bigint,currentTransaction:bigint,"
    "row:struct<n:bigint>>"
)
TEN = ValidWriteIds("d.t", 10)


def delta(root: Path, write_id: int, rows: int, statement: int = 0) -> None:
    directory = root / delta_name(write_id, statement)
    directory.mkdir()
    (directory / "_orc_acid_version").write_bytes(b"2")
    writer = PyArrowWriter(directory / bucket_name(0), COLUMNS, write_id, bucket_property(0, statement))
    writer.write(pa.RecordBatch.from_arrays([pa.array(range(rows), pa.int64())], names=["n"]))
    writer.close()


def events(path: Path, write_ids: list[int], operation: int = 0) -> None:
    """Write a bucket file with one event for each item of `write_ids`. Compaction and DELETE write such files."""
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as file, pyorc.Writer(file, EVENT) as writer:
        for row_id, write_id in enumerate(write_ids):
            writer.write((operation, 1, 1 << 29, row_id, write_id, None if operation == 2 else (row_id,)))


def original(path: Path, rows: int) -> None:
    path.parent.mkdir(exist_ok=True)
    orc.write_table(pa.table({"n": list(range(rows))}), str(path))


def count(root: Path, valid: ValidWriteIds = TEN, bad_txns: tuple[int, ...] = ()) -> int:
    return visible_rows(LocalStorage(), str(root), valid, lambda txn: txn not in bad_txns)


def test_visible_rows_when_rows_were_deleted_then_they_are_subtracted(tmp_path: Path) -> None:
    assert count(tmp_path) == 0
    delta(tmp_path, 1, 100)
    delta(tmp_path, 2, 10)
    delta(tmp_path, 2, 5, statement=1)
    events(tmp_path / "delete_delta_0000003_0000003_0000" / "bucket_00000", [3, 3, 3], 2)
    assert count(tmp_path) == 112
    assert count(tmp_path, ValidWriteIds("d.t", 2)) == 115
    assert count(tmp_path, ValidWriteIds("d.t", 10, aborted=frozenset({1}), open=frozenset({3}))) == 15


def test_visible_rows_when_some_write_ids_of_a_delta_are_aborted_then_rows_are_counted_by_write_id(
    tmp_path: Path,
) -> None:
    events(tmp_path / "delta_0000001_0000003" / "bucket_00000", [1, 1, 2, 3, 3, 3])
    events(tmp_path / "delete_delta_0000004_0000006" / "bucket_00000", [4, 5, 6], 2)
    valid = ValidWriteIds("d.t", 10, aborted=frozenset({2, 5}), open=frozenset({3}))
    assert count(tmp_path) == 3
    assert count(tmp_path, valid) == 2 - 2


def test_visible_rows_when_table_is_compacted_then_replaced_directories_do_not_count(tmp_path: Path) -> None:
    delta(tmp_path, 1, 100)
    delta(tmp_path, 2, 10)
    events(tmp_path / "base_0000001_v0000050" / "bucket_00000", [1] * 90)
    assert count(tmp_path) == 100
    assert count(tmp_path, bad_txns=(50,)) == 110


def test_visible_rows_when_there_are_original_and_hidden_files_then_only_original_files_count(tmp_path: Path) -> None:
    original(tmp_path / "000000_0", 7)
    original(tmp_path / "000001_0_copy_1", 3)
    original(tmp_path / "delta_0000004_0000004_0000" / "000000_0", 5)
    original(tmp_path / "_tmp" / "bucket_00000", 1000)
    original(tmp_path / ".hidden", 1000)
    (tmp_path / "000002_0").write_bytes(b"")
    assert count(tmp_path) == 15
    original(tmp_path / "base_0000005" / "000000_0", 2)
    assert count(tmp_path) == 2


def test_visible_rows_when_the_table_is_insert_only_then_plain_files_count(tmp_path: Path) -> None:
    original(tmp_path / "delta_0000001_0000003" / "000000_0", 7)  # compacted without the aborted write id 2
    original(tmp_path / "delta_0000004_0000004_0000" / "000000_0", 5)
    for part in (1, 2):
        (tmp_path / "delta_0000004_0000004_0000" / f"HIVE_UNION_SUBDIR_{part}").mkdir()
        original(tmp_path / "delta_0000004_0000004_0000" / f"HIVE_UNION_SUBDIR_{part}" / "000000_0", part)
    assert count(tmp_path, ValidWriteIds("d.t", 10, aborted=frozenset({2}))) == 15


def test_visible_rows_when_there_is_a_side_file_then_rows_are_counted_up_to_its_length(tmp_path: Path) -> None:
    directory = tmp_path / batch_delta_name(1, 3, 0)
    directory.mkdir()
    file = AppendableFile(directory, COLUMNS, 0, 0, STANDARD)
    for write_id in (1, 2, 3):
        file.write(pa.RecordBatch.from_arrays([pa.array(range(5), pa.int64())], names=["n"]), write_id)
        if write_id < 3:
            assert file.flush(write_id).rows == 5
    two = ValidWriteIds("d.t", 3, aborted=frozenset({3}))
    assert visible_rows(LocalStorage(), str(tmp_path), two, lambda _: True) == 10
    assert (
        visible_rows(LocalStorage(), str(tmp_path), ValidWriteIds("d.t", 3, open=frozenset({2, 3})), lambda _: True)
        == 5
    )
    with (directory / bucket_name(0)).open("ab") as more:
        more.write(b"rows of a killed writer")
    assert visible_rows(LocalStorage(), str(tmp_path), two, lambda _: True) == 10
    file.abandon()


def test_visible_rows_when_file_is_not_orc_then_invalid_table(tmp_path: Path) -> None:
    (tmp_path / delta_name(1, 0)).mkdir()
    (tmp_path / delta_name(1, 0) / "bucket_00000").write_bytes(b"not orc at all")
    with pytest.raises(InvalidTable, match="bucket_00000"):
        count(tmp_path)


def test_visible_rows_when_location_is_missing_then_storage_unavailable(tmp_path: Path) -> None:
    with pytest.raises(StorageUnavailable):
        count(tmp_path / "gone")


def seen(names: list[str], valid: ValidWriteIds, bad_txns: tuple[int, ...] = ()) -> list[str]:
    directories = visible_directories(names, valid, lambda txn: txn not in bad_txns)
    base = [directories.base.name] if directories.base else []
    deltas = [delta.name for delta in directories.deltas]
    return [*base, *deltas, *(delta.name for delta in directories.delete_deltas)]


@pytest.mark.parametrize(
    ("names", "valid", "bad_txns", "expected"),
    [
        (["delta_2_2_0000", "delta_1_1_0000", "delta_11_11_0000"], TEN, (), ["delta_1_1_0000", "delta_2_2_0000"]),
        (["delta_1_1_0000", "delta_1_1_0001"], TEN, (), ["delta_1_1_0000", "delta_1_1_0001"]),
        (["delta_1_1", "delta_1_1_0000"], TEN, (), ["delta_1_1"]),
        (["delta_1_1_0000", "delete_delta_1_1_0000"], TEN, (), ["delta_1_1_0000", "delete_delta_1_1_0000"]),
        (["delta_1_1", "delete_delta_1_1"], TEN, (), ["delta_1_1", "delete_delta_1_1"]),
        (["delta_1_3_v20", "delta_1_1_0000", "delta_2_2_0000", "delta_3_3_0000", "delta_4_4_0000"], TEN, (),
         ["delta_1_3_v20", "delta_4_4_0000"]),
        (["delta_1_3_v20", "delta_1_1_0000"], TEN, (20,), ["delta_1_1_0000"]),
        (["base_3_v20", "delta_3_3_0000", "delta_4_4_0000"], TEN, (), ["base_3_v20", "delta_4_4_0000"]),
        (["base_3_v20", "delta_3_3_0000"], TEN, (20,), ["delta_3_3_0000"]),
        (["base_3", "base_5", "delta_4_4_0000"], TEN, (), ["base_5"]),
        (["base_5", "delta_4_4_0000"], ValidWriteIds("d.t", 10, aborted=frozenset({5})), (), ["delta_4_4_0000"]),
        (["base_5_v20", "delta_4_4_0000"], ValidWriteIds("d.t", 10, open=frozenset({5})), (), ["delta_4_4_0000"]),
        (["delta_1_1_0000", "delta_2_2_0000"], ValidWriteIds("d.t", 10, aborted=frozenset({1})), (),
         ["delta_2_2_0000"]),
        (["delta_1_3"], ValidWriteIds("d.t", 10, open=frozenset({1}), aborted=frozenset({2})), (), ["delta_1_3"]),
        (["delta_1_3", "delta_2_2_0000"], TEN, (), ["delta_1_3"]),
    ],
)  # fmt: skip
def test_visible_directories_when_listing_is_given_then_the_choice_is_that_of_acid_utils(
    names: list[str], valid: ValidWriteIds, bad_txns: tuple[int, ...], expected: list[str]
) -> None:
    assert seen(names, valid, bad_txns) == expected


def test_is_valid_when_write_id_is_open_aborted_or_later_then_false() -> None:
    valid = ValidWriteIds("d.t", 5, open=frozenset({3}), aborted=frozenset({2}))
    assert [write_id for write_id in range(1, 8) if valid.is_valid(write_id)] == [1, 4, 5]
    assert [valid.is_settled(write_id) for write_id in (2, 3, 5)] == [True, False, False]
