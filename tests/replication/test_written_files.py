"""The files of committed writes are found where they are now, in the archive, or reported as vanished."""

from __future__ import annotations

from pathlib import Path

import pytest
from hive_metastore import ttypes

from ingestd.hive import thrift_json
from ingestd.hive.events import Event, Write, WrittenFile
from ingestd.hive.tables import TableName
from ingestd.replication.dump.moves import Moves
from ingestd.replication.dump.written_files import CommittedWrite, WrittenFiles
from ingestd.storage.storages import Storages
from tests.support.replica_events import dropped, moves_of, table_renamed

Found = list[tuple[str, str, str, int]]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "t"


def _write(path: Path, content: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return f"file:{path}"


def _moves(*events: Event) -> Moves:
    return moves_of("db", *events)


def _found(moves: Moves, *files: WrittenFile, event: int = 5) -> Found:
    """Return directory, name, path and length of the files of one write."""
    write = Write(TableName("db", "t"), "", 3, files, "", "")
    found = WrittenFiles(Storages(), moves, [CommittedWrite(event, write)])
    records = list(found.records())
    assert [" has vanished" in reason for reason in found.unusable().values()] == [True] * any(
        record.length < 0 for record in records
    )
    return [(record.directory, record.name, record.source.removeprefix("file:"), record.length) for record in records]


def _of_partition(*directories: str) -> CommittedWrite:
    """Return what is kept of a write to the partition `day=1` with a file in each directory of the table."""
    files = tuple(WrittenFile(f"hdfs://a/t/{name}/bucket_00000", "", "", "delta_3_3_0000") for name in directories)
    table = thrift_json.encode(ttypes.Table(dbName="db", tableName="t", sd=ttypes.StorageDescriptor(location="/t")))
    place = ttypes.StorageDescriptor(location="hdfs:/t/day=1/")  # of the default file system, whose host is `a`
    partition = thrift_json.encode(ttypes.Partition(values=["1"], sd=place, parameters={}))
    return CommittedWrite.of(5, Write(TableName("db", "t"), "day=1", 3, files, table, partition))


def test_write_when_kept_then_has_the_files_in_its_directory_and_no_definitions() -> None:
    own, other = "day=1/delta_3_3_0000", "day=10/delta_3_3_0000"
    file = WrittenFile(f"hdfs://a/t/{own}/bucket_00000", "", "", "delta_3_3_0000")
    expected = CommittedWrite(5, Write(TableName("db", "t"), "day=1", 3, (file,), "", ""))
    assert [_of_partition(own), _of_partition(own, other)] == [expected, expected]


def test_write_when_all_files_are_of_another_partition_then_may_be_an_overwrite_without_rows() -> None:
    kept = _of_partition("day=10/delta_3_3_0000")
    assert (kept.write.files, kept.location) == ((), "hdfs:/t/day=1")


def test_files_when_in_place_then_have_their_lengths_and_side_files(table: Path) -> None:
    uri = _write(table / "delta_3_3_0000/bucket_00000", "rows")
    _write(table / "delta_3_3_0000/bucket_00000_flush_length", "12345678")
    version = _write(table / "delta_3_3_0000/_orc_acid_version", "2")
    files = [WrittenFile(file, "", "", "delta_3_3_0000") for file in (uri, version)]
    path = f"{table}/delta_3_3_0000/bucket_00000"
    assert _found(_moves(), *files) == [
        ("delta_3_3_0000", "bucket_00000", path, 4),
        ("delta_3_3_0000", "bucket_00000_flush_length", f"{path}_flush_length", 8),
    ]


def test_files_when_in_directories_of_a_union_then_keep_them_apart(table: Path) -> None:
    parts = ["delta_3_3_0000/HIVE_UNION_SUBDIR_1", "delta_3_3_0000/HIVE_UNION_SUBDIR_2"]
    files = [WrittenFile(_write(table / part / "000000_0", part[-1]), "", "", "delta_3_3_0000") for part in parts]
    assert [directory for directory, *_ in _found(_moves(), *files)] == parts


def test_file_when_of_a_compaction_then_its_directory_has_no_transaction(table: Path) -> None:
    uri = _write(table / "base_3_v12/bucket_00000", "rows")
    assert _found(_moves(), WrittenFile(uri, "", "", "base_3_v12"))[0][0] == "base_3"


def test_file_when_its_table_was_renamed_since_then_is_found_under_the_new_name(table: Path) -> None:
    _write(table.with_name("u") / "delta_3_3_0000/bucket_00000", "rows")
    file = WrittenFile(f"file:{table}/delta_3_3_0000/bucket_00000", "", "", "delta_3_3_0000")
    there = str(table.with_name("u") / "delta_3_3_0000/bucket_00000")
    rename = table_renamed(6, "db.t", "db.u", f"file:{table}", f"file:{table.with_name('u')}")
    assert _found(_moves(rename), file) == [("delta_3_3_0000", "bucket_00000", there, 4)]
    assert _found(_moves(rename), file, event=7)[0][3] == -1


def test_file_when_its_table_was_dropped_since_then_is_left_out(table: Path) -> None:
    file = WrittenFile(f"file:{table}/delta_3_3_0000/bucket_00000", "", "", "delta_3_3_0000")
    assert _found(_moves(dropped(6, "db.t", f"file:{table}")), file) == []


def test_file_when_removed_then_is_found_in_the_archive_of_the_change_manager(table: Path, tmp_path: Path) -> None:
    uri = f"file:{table}/delta_3_3_0000/bucket_00000"
    file = WrittenFile(uri, "c0ffee", f"file:{tmp_path}/cm", "delta_3_3_0000")
    assert _found(_moves(), file)[0][3] == -1
    _write(tmp_path / "cm/bucket_00000_c0ffee", "rows")
    assert _found(_moves(), file)[0][3] == 4


def test_file_when_of_a_transaction_batch_then_is_unusable(table: Path) -> None:
    uri = _write(table / "delta_3_5/bucket_00000", "rows")
    write = Write(TableName("db", "t"), "", 3, (WrittenFile(uri, "", "", "delta_3_5"),), "", "")
    found = WrittenFiles(Storages(), _moves(), [CommittedWrite(5, write)])
    assert found.unusable() == {"t": f"transactions share the file {uri}"}
