"""Manifests of dumps: what is written is read, and what is missing is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingestd.replication.directory.manifest import (
    ConstraintRecord,
    FileRecord,
    FunctionRecord,
    Manifest,
    ManifestIncomplete,
    ManifestWriter,
)
from ingestd.storage.local import LocalStorage

CONSTRAINT = ConstraintRecord("t", "primaryKeys", ('{"1":{"str":"é\\n"}}', "{}"))


def _file(number: int) -> FileRecord:
    return FileRecord("t", f"day={number}", "delta_1_1", "bucket_00000", f"file:///w/{'x' * 500}/{number}", number)


def _written(directory: Path, files: int) -> Manifest:
    writer = ManifestWriter(LocalStorage(), str(directory))
    writer.add(CONSTRAINT)
    for number in range(files):
        writer.add(_file(number))
    writer.finish()
    return Manifest(LocalStorage(), str(directory))


def test_manifest_when_larger_than_a_chunk_then_is_read_in_order(tmp_path: Path) -> None:
    manifest = _written(tmp_path, 20_000)
    assert len(list(tmp_path.glob("files-*.jsonl"))) > 2
    assert list(manifest.read(FileRecord)) == [_file(number) for number in range(20_000)]
    assert list(manifest.read(ConstraintRecord)) == [CONSTRAINT]
    assert list(manifest.read(FunctionRecord)) == []


@pytest.mark.parametrize(("kept", "forgotten"), [(3, 2), (3, 20_000), (12_000, 20_000), (0, 20_000)])
def test_manifest_when_rewound_then_contains_the_records_before_and_after(
    tmp_path: Path, kept: int, forgotten: int
) -> None:
    writer = ManifestWriter(LocalStorage(), str(tmp_path))
    for number in range(kept):
        writer.add(_file(number))
    start = writer.position()
    for number in range(forgotten):
        writer.add(_file(-number))
        writer.add(CONSTRAINT)
    writer.rewind(start)
    for number in range(kept, kept + 10_000):
        writer.add(_file(number))
    writer.finish()
    manifest = Manifest(LocalStorage(), str(tmp_path))
    assert list(manifest.read(FileRecord)) == [_file(number) for number in range(kept + 10_000)]
    assert list(manifest.read(ConstraintRecord)) == []


def test_manifest_when_unfinished_then_is_not_read(tmp_path: Path) -> None:
    ManifestWriter(LocalStorage(), str(tmp_path)).add(CONSTRAINT)
    with pytest.raises(ManifestIncomplete, match="is missing"):
        list(Manifest(LocalStorage(), str(tmp_path)).read(FileRecord))


def test_manifest_when_a_chunk_is_missing_then_is_incomplete(tmp_path: Path) -> None:
    manifest = _written(tmp_path, 20_000)
    (tmp_path / "files-000001.jsonl").unlink()
    with pytest.raises(ManifestIncomplete, match="the file files-000001"):
        list(manifest.read(FileRecord))


def test_manifest_when_a_chunk_is_shortened_then_is_incomplete(tmp_path: Path) -> None:
    manifest = _written(tmp_path, 3)
    chunk = tmp_path / "files-000000.jsonl"
    chunk.write_text(chunk.read_text().splitlines()[0] + "\n")
    with pytest.raises(ManifestIncomplete, match="missing"):
        list(manifest.read(FileRecord))


@pytest.mark.parametrize("name", ["summary.json", "files-000000.jsonl"])
@pytest.mark.parametrize("content", [b"", b'{"files', b"\xff\xfe\x00{", b"[]\n"])
def test_manifest_when_a_file_is_damaged_then_it_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    manifest = _written(tmp_path, 1)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ManifestIncomplete) as caught:
        list(manifest.read(FileRecord))
    assert str(tmp_path) in caught.value.where
    assert "resume --bootstrap" in caught.value.hint
