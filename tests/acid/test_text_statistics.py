"""The statistics of texts are short, include every text, and readers find everything else unchanged."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import orc

from ingestd.acid.appendable import AppendableFile
from ingestd.acid.encoding import Compression, Encoding
from ingestd.acid.layout import SIDE_FILE_SUFFIX, FileLayout, bucket_property
from ingestd.acid.orc_proto import decode_chunks, fields, number, read_metadata, read_tail
from ingestd.acid.pyarrow_writer import PyArrowWriter
from ingestd.acid.pyorc_writer import PyOrcWriter
from ingestd.acid.text_statistics import lower_bound, upper_bound
from ingestd.schema import Column, HiveType

WRITERS = [PyArrowWriter, PyOrcWriter]
COMPRESSIONS: list[Compression] = ["zstd", "zlib", "snappy", "lz4", "none"]
NESTED = HiveType.parse("struct<a:string,b:array<string>,c:map<string,string>>")
COLUMNS = [
    Column("id", HiveType.parse("bigint")),
    Column("s", HiveType.parse("string")),
    Column("v", HiveType.parse("varchar(65535)")),
    Column("n", NESTED),
    Column("p", HiveType.parse("binary")),
]
_TEXTS, _SUM = 4, 3
_MINIMUM, _MAXIMUM, _LOWER, _UPPER = 1, 2, 4, 5


def batch(texts: list[str], first: int = 0) -> pa.RecordBatch:
    nested = [{"a": text, "b": [text, None], "c": [(text, text)]} for text in texts]
    binary = [text.encode() for text in texts]
    arrays = [range(first, first + len(texts)), texts, texts, pa.array(nested, NESTED.arrow), binary]
    return pa.record_batch([pa.array(array) for array in arrays], names=[column.name for column in COLUMNS])


def messages(message: bytes, key: int) -> list[bytes]:
    return [value for found, value in fields(message) if found == key and isinstance(value, bytes)]


def value_of(message: bytes, key: int) -> int:
    return number(dict(fields(message)), key)


def statistics_of(path: Path) -> Iterator[tuple[str, dict[int, int | bytes]]]:
    """Yield the statistics of texts in the footer, the metadata and the index of a file, and check its offsets."""
    with path.open("rb") as file:
        post_script, footer, start = read_tail(file)
        found = [("file", message) for message in messages(footer, 7)]
        for stripe in messages(read_metadata(file, post_script, start), 1):
            found += [("stripe", message) for message in messages(stripe, 1)]
        for stripe in messages(footer, 3):
            position, index, data, length = (value_of(stripe, key) for key in (1, 2, 3, 4))
            end = position + index + data
            file.seek(end)
            for stream in messages(decode_chunks(file.read(length), post_script), 1):
                file.seek(position)
                stored = file.read(value_of(stream, 3))
                if value_of(stream, 1) == 6:
                    entries = messages(decode_chunks(stored, post_script), 1)
                    found += [("entry", message) for entry in entries for message in messages(entry, 2)]
                position += len(stored)
            assert position == end
    for kind, one in found:
        for texts in messages(one, _TEXTS):
            yield kind, dict(fields(texts))


def long_texts(count: int) -> list[str]:
    """Return texts of which two thirds have the first 1,024 bytes in common, and cannot be compressed."""
    random = Random(count)
    return [
        f"short {number}" if number % 3 == 0 else "é" * 600 + random.randbytes(500).hex() for number in range(count)
    ]


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("writer_type", WRITERS)
def test_close_when_texts_are_long_then_all_their_statistics_are_short(
    tmp_path: Path, writer_type: type[PyArrowWriter] | type[PyOrcWriter], compression: Compression
) -> None:
    path = tmp_path / "f.orc"
    encoding = Encoding(compression, index_stride=1000, stripe_bytes=256 << 10, bloom_columns=("s", "v"))
    writer = writer_type(path, COLUMNS, 7, bucket_property(0, 0), encoding=encoding)
    batches = [batch(long_texts(600), first) for first in range(0, 1800, 600)]
    for rows in batches:
        writer.write(rows)
    size = writer.close()
    assert (size.rows, size.bytes) == (1800, path.stat().st_size)
    file = orc.ORCFile(path)
    assert file.nstripes > 1
    assert pa.Table.from_struct_array(file.read()["row"]).to_pylist() == pa.Table.from_batches(batches).to_pylist()
    kinds = set()
    for kind, texts in statistics_of(path):
        kinds.add(kind)
        assert texts.keys() == {_MINIMUM, _SUM, _UPPER}
        assert str(texts[_MINIMUM]).startswith("b'short ")
        assert texts[_UPPER] == ("é" * 511 + "ê").encode()
    assert kinds == {"file", "stripe", "entry"}


@pytest.mark.parametrize("layout", FileLayout)
@pytest.mark.parametrize("writer_type", WRITERS)
def test_close_when_texts_contain_nul_then_their_statistics_include_them(
    tmp_path: Path, writer_type: type[PyArrowWriter] | type[PyOrcWriter], layout: FileLayout
) -> None:
    path = tmp_path / "f.orc"
    writer = writer_type(path, COLUMNS[:2], 7, bucket_property(0, 0), encoding=Encoding(layout=layout))
    writer.write(batch(["a\0c", "a\0b", "a\0d"]).select([0, 1]))
    writer.close()
    found = list(statistics_of(path))
    assert {kind for kind, _ in found} == {"file", "stripe", "entry"}
    assert all((texts[_LOWER], texts[_UPPER]) == (b"a", b"a\1") for _, texts in found)


def test_close_when_no_text_is_long_then_minimum_and_maximum_are_exact(tmp_path: Path) -> None:
    path = tmp_path / "f.orc"
    writer = PyArrowWriter(path, COLUMNS[:2], 7, bucket_property(0, 0))
    writer.write(batch(["b" * 1024, "c" * 1024, "a"]).select([0, 1]))
    writer.close()
    for _, texts in statistics_of(path):
        assert (texts[_MINIMUM], texts[_MAXIMUM]) == (b"a", b"c" * 1024)


def test_flush_when_some_transactions_have_long_texts_then_each_flushed_length_is_readable(tmp_path: Path) -> None:
    file = AppendableFile(tmp_path, COLUMNS, 0, 0, Encoding(stripe_bytes=64 << 10))
    bucket, side = tmp_path / "bucket_00000", tmp_path / f"bucket_00000{SIDE_FILE_SUFFIX}"
    added = [["a", "b"], ["k" * 5000 + "\0"] * 40, ["c"], long_texts(30), ["a\0" + "ü" * 900], ["d"]]
    texts: list[str] = []
    states = []
    for write_id, more in enumerate(added, 1):
        file.write(batch(more, len(texts)), write_id)
        texts += more
        if write_id != 3:  # its rows are flushed with those of the next transaction
            file.flush(write_id)
            assert struct.unpack(">q", side.read_bytes()[-8:]) == (bucket.stat().st_size,)
            states.append((bucket.stat().st_size, len(texts)))
    file.close()
    prefix = tmp_path / "prefix.orc"
    for length, count in [*states, (bucket.stat().st_size, len(texts))]:
        prefix.write_bytes(bucket.read_bytes()[:length])
        stored = pa.Table.from_struct_array(orc.read_table(prefix)["row"])
        assert stored.to_pylist() == batch(texts[:count]).to_pylist()
        for _, found in statistics_of(prefix):
            assert all(len(value) <= 1024 for value in found.values() if isinstance(value, bytes))


@pytest.mark.parametrize(
    ("text", "lower", "upper"),
    [
        ("a" * 1025, "a" * 1024, "a" * 1023 + "b"),
        ("a" * 1023 + "éz", "a" * 1023, "a" * 1022 + "b"),
        ("a" * 1023 + "\x7fz", "a" * 1023 + "\x7f", "a" * 1022 + "b"),  # the next character has two bytes
        ("\ud7ff" * 400, "\ud7ff" * 341, "\ud7ff" * 340 + "\ue000"),
        ("a" + "\uffff" * 400, "a" + "\uffff" * 341, "b"),
        ("b" + "\U0010ffff" * 400, "b" + "\U0010ffff" * 255, "c"),
        ("\U0010ffff" * 400, "\U0010ffff" * 256, None),
        ("a\0b", "a", "a\1"),
        ("\0", "", "\1"),
        ("a" * 1024 + "\0", "a" * 1024, "a" * 1023 + "b"),
        ("a" * 1023 + "\0", "a" * 1023, "a" * 1023 + "\1"),
    ],
)
def test_bounds_when_a_text_is_long_or_contains_nul_then_they_are_short(
    text: str, lower: str, upper: str | None
) -> None:
    assert lower_bound(text.encode()) == lower.encode()
    assert upper_bound(text.encode()) == (None if upper is None else upper.encode())


def test_upper_bound_when_the_text_is_not_utf_8_then_there_is_none() -> None:
    assert upper_bound(b"\xff" * 2000) is None


@settings(deadline=None, max_examples=300)
@given(st.text(st.sampled_from("a\x7f\x80\ud7ff\ue000\uffff\U0001f600\U0010ffff"), max_size=5), st.integers(200, 1030))
def test_bounds_when_texts_are_random_then_both_orders_agree(end: str, length: int) -> None:
    text = "b" * length + end * 300
    if len(text.encode()) <= 1024:
        return
    lower, upper = lower_bound(text.encode()), upper_bound(text.encode())
    assert upper is not None
    assert len(lower) <= 1024
    assert len(upper) <= 1024
    assert lower <= text.encode() < upper
    low, middle, high = (bound.encode("utf-16-be") for bound in (lower.decode(), text, upper.decode()))
    assert low <= middle < high
