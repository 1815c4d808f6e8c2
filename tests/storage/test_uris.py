"""URIs as the metastore stores them: their parts, and paths that look like URIs."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingestd.storage.contract import StagedDelta, child, split
from ingestd.storage.storages import Storages


@pytest.mark.parametrize(
    ("uri", "parts"),
    [
        ("hdfs://name:8020/warehouse/t", ("hdfs", "name:8020", "/warehouse/t")),
        ("HDFS://ns", ("hdfs", "ns", "/")),
        ("hdfs:/warehouse/t", ("hdfs", "", "/warehouse/t")),
        ("hdfs:///t", ("hdfs", "", "/t")),
        ("s3a://bucket/a%3Ab//c/", ("s3a", "bucket", "/a%3Ab//c/")),
        ("file:/t", ("file", "", "/t")),
        ("file:///t", ("file", "", "/t")),
        ("/t", ("file", "", "/t")),
        ("/t/a:b", ("file", "", "/t/a:b")),
    ],
)
def test_uri_then_has_parts_that_are_not_decoded(uri: str, parts: tuple[str, str, str]) -> None:
    assert split(uri) == parts


@pytest.mark.parametrize(
    ("uri", "other", "are_equal"),
    [
        ("s3://b/t/", "s3a://b//t", True),
        ("s3n://b/t", "s3a://c/t", False),
        ("s3a://b/t", "hdfs://b/t", False),
        ("/t", "file:///t", True),
    ],
)
def test_levels_of_a_uri_then_are_equal_for_the_same_directory(uri: str, other: str, are_equal: bool) -> None:
    assert (split(uri).levels == split(other).levels) == are_equal


def test_local_table_when_its_path_contains_a_colon_then_files_are_staged_and_published(tmp_path: Path) -> None:
    (tmp_path / "a:b").mkdir()
    storages = Storages()
    location = storages.location(f"file:{tmp_path}/a:b")
    staging = location.make_directory(".staging", "1")
    outbox = storages.at(staging).outbox(staging, "task")
    (outbox.directory / "f").write_bytes(b"rows")
    staged = outbox.send(outbox.directory / "f")
    outbox.finish()
    delta = StagedDelta(location, "delta_1", {"bucket_0": staged}, {}, child(staging, "delta-0"), ".hidden")
    storages.publish([delta], staging)
    assert storages.at(location.uri).read(child(location.uri, "delta_1", "bucket_0")) == b"rows"
