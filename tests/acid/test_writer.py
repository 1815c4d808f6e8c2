"""pyarrow and pyorc read the files of both writers back unchanged."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyorc
import pytest
from pyarrow import orc

from ingestd.acid.encoding import Compression, Encoding
from ingestd.acid.layout import FileLayout, bucket_property
from ingestd.acid.orc_proto import fields, read_tail
from ingestd.acid.pyarrow_writer import PyArrowWriter
from ingestd.acid.pyorc_writer import PyOrcWriter
from ingestd.acid.writer import rows_for_pyorc
from ingestd.schema import Column, HiveType

WRITERS = [PyArrowWriter, PyOrcWriter]
COMPRESSIONS: list[Compression] = ["zstd", "zlib", "snappy", "lz4", "none"]
TYPES = {
    "c_bool": ("boolean", [True, None, False]),
    "c_tiny": ("tinyint", [-128, None, 127]),
    "c_small": ("smallint", [-(2**15), None, 2**15 - 1]),
    "c_int": ("int", [-(2**31), None, 2**31 - 1]),
    "c_big": ("bigint", [-(2**63), None, 2**63 - 1]),
    "c_float": ("float", [-0.5, None, float("inf")]),
    "c_double": ("double", [5e-324, None, 1.7976931348623157e308]),
    "c_dec": ("decimal(38,18)", [Decimal("12345678901234567890.123456789012345678"), None, Decimal("-1e-18")]),
    "c_dec2": ("decimal(10,2)", [Decimal("12345678.90"), None, Decimal("-0.01")]),
    "c_str": ("string", ["", None, "ünï \0 😀"]),
    "c_var": ("varchar(10)", ["0123456789", None, "é"]),
    "c_char": ("char(5)", ["abcde", None, "x"]),
    "c_bin": ("binary", [b"", None, b"\x00\xff"]),
    "c_date": ("date", [date(1, 1, 1), None, date(9999, 12, 31)]),
    "c_ts": ("timestamp", [datetime(1970, 1, 1), None, datetime(2026, 11, 21, 10, 0, 0, 123456)]),
}
COLUMNS = [Column(name, HiveType.parse(text)) for name, (text, _) in TYPES.items()]


def batch_of_all_types() -> pa.RecordBatch:
    arrays = [pa.array(values, column.type.arrow) for column, (_, values) in zip(COLUMNS, TYPES.values(), strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=list(TYPES))


def rows_by_pyarrow(path: Path) -> list[dict[str, Any]]:
    return list(orc.read_table(str(path)).to_pylist())


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("writer_type", WRITERS)
def test_write_when_columns_have_every_type_then_rows_are_read_back(
    tmp_path: Path, writer_type: type[PyArrowWriter] | type[PyOrcWriter], compression: Compression
) -> None:
    path = tmp_path / "f.orc"
    writer = writer_type(path, COLUMNS, 7, bucket_property(1, 2), encoding=Encoding(compression))
    batch = batch_of_all_types()
    writer.write(batch)
    writer.write(batch.slice(1, 2))
    done = writer.close()
    assert (done.rows, done.bytes) == (5, path.stat().st_size)
    rows = rows_by_pyarrow(path)
    expected = batch.to_pylist() + batch.slice(1, 2).to_pylist()
    stored: list[dict[str, Any]] = [row["row"] for row in rows]
    for row in stored:
        row["c_char"] = row["c_char"] and row["c_char"].rstrip(" ")
    assert stored == expected
    assert [row["rowId"] for row in rows] == list(range(5))
    property_ = (1 << 29) | (1 << 16) | 2
    for row in rows:
        keys = [row["operation"], row["originalTransaction"], row["bucket"], row["currentTransaction"]]
        assert keys == [0, 7, property_, 7]


@pytest.mark.parametrize("writer_type", WRITERS)
def test_write_when_the_table_is_insert_only_then_the_file_contains_the_columns_only(
    tmp_path: Path, writer_type: type[PyArrowWriter] | type[PyOrcWriter]
) -> None:
    path = tmp_path / "f.orc"
    encoding = Encoding(layout=FileLayout.PLAIN)
    writer = writer_type(path, COLUMNS, 7, bucket_property(1, 2), encoding=encoding)
    batch = batch_of_all_types()
    writer.write(batch)
    writer.write(batch)
    assert writer.close().rows == 6
    rows = rows_by_pyarrow(path)
    for row in rows:
        row["c_char"] = row["c_char"] and row["c_char"].rstrip(" ")
    assert rows == batch.to_pylist() * 2
    with path.open("rb") as file:
        assert pyorc.Reader(file).user_metadata == {}
    with path.open("rb") as file:
        _, footer, _ = read_tail(file)
        assert dict(fields(footer))[11] == 2  # the calendar, PROLEPTIC_GREGORIAN


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("writer_type", WRITERS)
def test_close_when_file_has_several_stripes_then_metadata_contains_the_last_key_of_each(
    tmp_path: Path, writer_type: type[PyArrowWriter] | type[PyOrcWriter], compression: Compression
) -> None:
    path = tmp_path / "f.orc"
    columns = [Column("a", HiveType.parse("bigint"))]
    writer = writer_type(path, columns, 9, 1 << 29, encoding=Encoding(compression, stripe_bytes=64 << 10))
    for start in range(0, 100_000, 10_000):
        values = pa.array([hash((n, n * n)) for n in range(start, start + 10_000)])
        writer.write(pa.RecordBatch.from_arrays([values], names=["a"]))
    writer.close()
    with path.open("rb") as file:
        reader = pyorc.Reader(file)
        metadata = reader.user_metadata
        ends, rows = [], 0
        for stripe in reader.iter_stripes():
            rows += len(stripe)
            ends.append(rows)
    assert rows == 100_000
    assert len(ends) > 1
    assert metadata["hive.acid.key.index"] == "".join(f"9,{1 << 29},{end - 1};" for end in ends).encode()
    assert metadata["hive.acid.stats"] == b"100000,0,0"
    assert metadata["hive.acid.version"] == b"2"


@pytest.mark.parametrize("writer_type", WRITERS)
def test_close_when_there_are_no_rows_then_file_is_readable(
    tmp_path: Path, writer_type: type[PyArrowWriter] | type[PyOrcWriter]
) -> None:
    writer = writer_type(tmp_path / "f.orc", COLUMNS, 1, 1 << 29)
    assert writer.close().rows == 0
    assert orc.ORCFile(str(tmp_path / "f.orc")).nrows == 0


@pytest.mark.parametrize("writer_type", WRITERS)
def test_abort_when_rows_were_written_then_file_is_removed(
    tmp_path: Path, writer_type: type[PyArrowWriter] | type[PyOrcWriter]
) -> None:
    writer = writer_type(tmp_path / "f.orc", COLUMNS, 1, 1 << 29)
    writer.write(batch_of_all_types())
    writer.abort()
    assert list(tmp_path.iterdir()) == []


def stamps(values: list[int | None], unit: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(values, pa.timestamp(unit))], names=["t"])


@pytest.mark.parametrize(
    ("values", "unit", "expected"),
    [
        ([0, 1, None], "ns", False),
        ([None, None], "ns", False),
        ([], "ns", False),
        ([-1_000_000_000, None], "ns", False),
        ([-1_000_000_000, -1], "ns", True),
        ([-1_000_000, 5], "us", False),
        ([-1], "us", True),
        ([253402300799999999], "us", True),
        ([-62135596800000000], "us", True),
    ],
)
def test_rows_for_pyorc_when_pyarrow_would_corrupt_a_timestamp_then_its_row_is_selected(
    values: list[int | None], unit: str, expected: bool
) -> None:
    assert (rows_for_pyorc(stamps(values, unit)) is not None) is expected


def test_pyorc_writer_when_timestamps_exceed_the_range_of_nanoseconds_then_they_are_exact(tmp_path: Path) -> None:
    path = tmp_path / "f.orc"
    columns = [Column("t", HiveType.parse("timestamp")), Column("d", HiveType.parse("date"))]
    writer = PyOrcWriter(path, columns, 1, 1 << 29)
    days = pa.array([0, -719162, 2932896], pa.int32()).view(pa.date32())
    micros = [-1_500_001, -62135596800000000, 253402300799999999]
    writer.write(pa.RecordBatch.from_arrays([pa.array(micros, pa.timestamp("us")), days], names=["t", "d"]))
    nanos = pa.array([-2_000_000_001, None, 1], pa.timestamp("ns"))
    writer.write(pa.RecordBatch.from_arrays([nanos, days], names=["t", "d"]))
    writer.close()

    class Pair:
        @staticmethod
        def from_orc(seconds: int, nanos: int, _zone: object) -> int:
            return seconds * 10**9 + nanos

        @staticmethod
        def to_orc(_value: int, _zone: object) -> tuple[int, int]:
            raise NotImplementedError

    with path.open("rb") as file:
        rows = [row[5] for row in pyorc.Reader(file, converters={pyorc.TypeKind.TIMESTAMP: Pair})]  # type: ignore[dict-item]
    assert [row[0] for row in rows] == [*(micro * 1000 for micro in micros), -2_000_000_001, None, 1]
    assert [row[1] for row in rows][:3] == [date(1970, 1, 1), date(1, 1, 1), date(9999, 12, 31)]


@pytest.mark.parametrize("writer_type", WRITERS)
def test_write_when_column_names_have_special_characters_then_they_are_kept(
    tmp_path: Path, writer_type: type[PyArrowWriter] | type[PyOrcWriter]
) -> None:
    columns = [Column(name, HiveType.parse("int")) for name in ("a b", "x:y", "größe", "1st", "a`b", "p<q>", "c,d")]
    writer = writer_type(tmp_path / "f.orc", columns, 1, 1 << 29)
    writer.write(
        pa.RecordBatch.from_arrays([pa.array([n], pa.int32()) for n in range(7)], names=[c.name for c in columns])
    )
    writer.close()
    row = rows_by_pyarrow(tmp_path / "f.orc")[0]["row"]
    assert row == {column.name: place for place, column in enumerate(columns)}


@pytest.mark.parametrize("writer_type", WRITERS)
def test_writer_when_the_library_refuses_the_encoding_then_the_file_is_removed(
    tmp_path: Path, writer_type: type[PyArrowWriter] | type[PyOrcWriter]
) -> None:
    with pytest.raises(ValueError, match=r"(?i)false positive"):
        writer_type(tmp_path / "f.orc", COLUMNS, 1, 1 << 29, encoding=Encoding(bloom_fpp=7.0))
    assert list(tmp_path.iterdir()) == []
