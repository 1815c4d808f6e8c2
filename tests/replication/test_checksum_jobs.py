"""Checksums of columns are the same whether a Spark job or this process computes them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import orc, parquet

from ingestd.acid.rows import FileFormat, RowFile
from ingestd.replication.verify.checksum_jobs import ColumnChecks, Layout
from ingestd.replication.verify.column_checksum import Checksums
from ingestd.storage.storages import Storages
from tests.support.daemon import shared_engine

WRITERS = {FileFormat.ORC: orc.write_table, FileFormat.PARQUET: parquet.write_table}


def _file(path: Path, file_format: FileFormat, first: int, last: int) -> RowFile:
    table = pa.table({"n": list(range(first, last)), "s": [f"text {number}" for number in range(first, last)]})
    WRITERS[file_format](table, path)
    return RowFile(f"file:{path}", path.stat().st_size)


@pytest.mark.parametrize("file_format", FileFormat)
def test_checksums_when_a_job_computes_them_then_are_the_same(tmp_path: Path, file_format: FileFormat) -> None:
    layout = Layout(file_format, 2, None)
    parts = [_file(tmp_path / f"{first}", file_format, first, first + 10) for first in range(0, 30, 10)]
    whole = _file(tmp_path / "whole", file_format, 0, 30)
    damaged = RowFile(f"file:{tmp_path}/damaged", 5)
    (tmp_path / "damaged").write_bytes(b"12345")
    locations = {"parts": parts, "whole": [whole], "part": parts[:1], "empty": [], "damaged": [parts[0], damaged]}
    here = ColumnChecks().run(Storages(), layout, locations)
    assert ColumnChecks(shared_engine(), job_bytes=0).run(Storages(), layout, locations) == here
    assert here["parts"] == here["whole"] != here["part"]
    assert here["empty"] == Checksums.none(2)
    assert "damaged" in str(here["damaged"])
