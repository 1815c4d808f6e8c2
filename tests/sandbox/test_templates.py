"""Templates of data folders are complete, and several processes may create the same template concurrently."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ingestd.sandbox import templates


def _source(folder: Path) -> Path:
    (folder / "seg0").mkdir(parents=True)
    (folder / "seg0" / "c10.dat").write_bytes(b"rows")
    (folder / "db.lck").touch()
    return folder


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_template_when_kept_then_found_without_lock_files_and_only_for_its_jars(tmp_path: Path) -> None:
    jars = tmp_path / "jars-1"
    assert templates.find(jars, "derby") is None
    templates.keep(jars, "derby", _source(tmp_path / "source"))
    found = templates.find(jars, "derby")
    assert found
    assert _files(found) == {"seg0/c10.dat": b"rows"}
    assert templates.find(tmp_path / "jars-2", "derby") is None
    assert templates.find(jars, "kafka") is None


def test_template_when_kept_concurrently_then_one_complete_template_remains(tmp_path: Path) -> None:
    jars = tmp_path / "jars-1"
    sources = [_source(tmp_path / f"source-{n}") for n in range(8)]
    with ThreadPoolExecutor(8) as starts:
        list(starts.map(lambda source: templates.keep(jars, "derby", source), sources))
    found = templates.find(jars, "derby")
    assert found
    assert _files(found) == {"seg0/c10.dat": b"rows"}
    assert [path.name for path in found.parent.iterdir()] == [found.name]
