"""The files of a table that a copy needs, and their directories in the copy."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingestd.acid.layout import parse_directory
from ingestd.acid.visibility import ValidWriteIds, visible_directories
from ingestd.replication.dump.table_files import all_files, copied_name, visible_files
from ingestd.replication.marks import without_marks
from ingestd.storage.local import LocalStorage

IDS = ValidWriteIds("d.t", 9, aborted=frozenset({4, 5, 8}))
FILES = (
    "base_0000003/bucket_00000",
    "base_0000005_v0000020/bucket_00000",
    "base_0000005_v0000020/_metadata_acid",
    "base_0000007_v0000099/bucket_00000",
    "delta_0000003_0000003_0000/bucket_00000",
    "delta_0000006_0000006_0000/bucket_00000",
    "delta_0000006_0000006_0000/bucket_00000_flush_length",
    "delta_0000007_0000009_v0000021/HIVE_UNION_SUBDIR_1/000000_0",
    "delta_0000008_0000008_0000/bucket_00000",
    "delta_0000010_0000010_0000/bucket_00000",
    "delete_delta_0000006_0000006_0000/bucket_00001",
    ".hive-staging/x",
    "000000_0",
)


def _make(location: Path, *names: str) -> str:
    for name in names:
        file = location / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"12345")
    return f"file:{location}"


def test_table_when_it_has_a_base_then_visible_directories_are_copied_under_visible_names(tmp_path: Path) -> None:
    location = _make(tmp_path, *FILES)
    found = list(visible_files(LocalStorage(), location, IDS, lambda txn: txn < 50))
    assert {f"{file.directory}/{file.name}" for file in found} == {
        "base_0000003/bucket_00000",  # of the base 5, whose last two write ids were aborted
        "delta_0000006_0000006_0000/bucket_00000",
        "delta_0000006_0000006_0000/bucket_00000_flush_length",
        "delta_0000007_0000009/HIVE_UNION_SUBDIR_1/000000_0",
        "delete_delta_0000006_0000006_0000/bucket_00001",
    }
    assert {file.uri for file in found if file.directory == "base_0000003"} == {
        f"{location}/base_0000005_v0000020/bucket_00000"
    }
    assert {file.length for file in found} == {5}
    names = {file.directory.partition("/")[0] for file in found}
    seen = visible_directories(names, IDS, lambda _: False)
    assert seen.base is not None
    visible = {seen.base.name, *(delta.name for delta in seen.deltas), *(delta.name for delta in seen.delete_deltas)}
    assert visible == names


def test_table_when_it_has_no_base_then_original_files_are_copied(tmp_path: Path) -> None:
    location = _make(tmp_path, "000000_0", "part/000001_0", "_tmp/x", "delta_0000008_0000008_0000/bucket_00000")
    found = visible_files(LocalStorage(), location, IDS, lambda _: True)
    assert {(file.directory, file.name) for file in found} == {("", "000000_0"), ("part", "000001_0")}


def test_table_when_without_transactions_then_all_files_but_hidden_ones_are_copied(tmp_path: Path) -> None:
    location = _make(tmp_path, "a", "b/c", ".d", "_e/f")
    found = all_files(LocalStorage(), location)
    assert {(file.directory, file.name) for file in found} == {("", "a"), ("b", "c")}


@pytest.mark.parametrize(
    ("name", "copied"),
    [
        ("base_0000007_v0000020", "base_0000007"),
        ("base_0000008_v0000020", "base_0000007"),
        ("base_0000005_v0000020", "base_0000003"),
        ("base_0000007", "base_0000007"),
        (f"base_{-(2**63)}_v0000020", f"base_{-(2**63)}"),
        ("delta_0000004_0000006_v0000020", "delta_0000004_0000006"),
        ("delta_0000004_0000004_0001", "delta_0000004_0000004_0001"),
    ],
)
def test_directory_when_copied_then_is_named_after_a_valid_write(name: str, copied: str) -> None:
    parsed = parse_directory(name)
    assert parsed is not None
    assert copied_name(parsed, IDS) == copied


def test_base_when_no_write_is_valid_then_is_named_after_none() -> None:
    parsed = parse_directory("base_0000002_v0000020")
    assert parsed is not None
    assert copied_name(parsed, ValidWriteIds("d.t", 2, aborted=frozenset({1, 2}))) == "base_0000000"


def test_parameters_when_copied_then_lack_the_marks_of_replications() -> None:
    parameters = {"repl.last.id": "1", "hive.repl.ckpt.key": "x", "ingestd.repl.origin": "y", "replica": "z"}
    assert without_marks(parameters) == {"replica": "z"}
