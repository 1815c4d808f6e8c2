"""Local files: what the contract's tests do not cover."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingestd.storage.local import LocalStorage
from ingestd.storage.stream import BytesStream


@pytest.mark.parametrize("is_replaced", [True, False], ids=["replaced", "removed"])
def test_file_when_replaced_or_removed_then_so_are_the_checksums_that_hadoop_wrote(
    tmp_path: Path, is_replaced: bool
) -> None:
    file, checksums = tmp_path / "000000_0", tmp_path / ".000000_0.crc"
    file.write_bytes(b"old")
    checksums.write_bytes(b"crc of old")
    if is_replaced:
        LocalStorage().replace(f"file:{file}", BytesStream(b"new"), ".temporary")
    else:
        LocalStorage().remove_file(f"file:{file}")
    assert not checksums.exists()


@pytest.mark.parametrize("is_replaced", [True, False], ids=["replaced", "removed"])
def test_file_when_the_name_of_its_checksums_would_be_too_long_then_is_replaced_or_removed(
    tmp_path: Path, is_replaced: bool
) -> None:
    file = tmp_path / ("f" * 255)
    file.write_bytes(b"old")
    if is_replaced:
        LocalStorage().replace(f"file:{file}", BytesStream(b"new"), ".temporary")
    else:
        LocalStorage().remove_file(f"file:{file}")
    assert [entry.read_bytes() for entry in tmp_path.iterdir()] == ([b"new"] if is_replaced else [])
