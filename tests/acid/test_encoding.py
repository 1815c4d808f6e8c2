"""A table's ORC properties set the encoding; those that cannot be applied yield warnings."""

from __future__ import annotations

import pytest

from ingestd.acid.encoding import STANDARD, Encoding, table_encoding
from ingestd.acid.layout import FileLayout
from ingestd.errors import InvalidTable
from ingestd.schema import Column, HiveType

COLUMNS = [Column("id", HiveType.parse("int")), Column("c", HiveType.parse("char(5)"))]


@pytest.mark.parametrize(
    ("properties", "encoding"),
    [
        ({}, STANDARD),
        ({"transactional": "true", "orc.compress": ""}, STANDARD),
        ({"orc.compress": "LZ4"}, Encoding("lz4")),
        ({"ORC.COMPRESS": " none "}, Encoding("none")),
        ({"orc.stripe.size": "67108864"}, Encoding(stripe_bytes=8 << 20)),
        ({"orc.stripe.size": "1"}, Encoding(stripe_bytes=64 << 10)),
        ({"orc.stripe.size": str(1 << 40)}, Encoding(stripe_bytes=64 << 20)),
        ({"orc.compress.size": "262144"}, Encoding(block_bytes=64 << 10)),
        ({"orc.compress.size": "1500000"}, Encoding(block_bytes=128 << 10)),
        ({"orc.row.index.stride": "5000"}, Encoding(index_stride=5000)),
        ({"orc.row.index.stride": "5000", "orc.create.index": "false"}, Encoding(index_stride=0)),
        (
            {"orc.bloom.filter.columns": "ID, id", "orc.bloom.filter.fpp": "0.1"},
            Encoding(bloom_columns=("id",), bloom_fpp=0.1),
        ),
        ({"transactional_properties": "INSERT_ONLY"}, Encoding(layout=FileLayout.PLAIN)),
        ({"orc.compression.strategy": "COMPRESSION", "orc.block.padding": "true"}, Encoding(strategy="compression")),
    ],
)
def test_encoding_when_properties_are_supported_then_they_are_applied(
    properties: dict[str, str], encoding: Encoding
) -> None:
    found = table_encoding(properties, COLUMNS)
    assert (found.encoding, found.warnings) == (encoding, ())


@pytest.mark.parametrize(
    ("properties", "warning"),
    [
        ({"orc.compress": "LZO"}, "orc.compress = 'LZO' was ignored: it must be one of"),
        ({"orc.stripe.size": "64 MB"}, "orc.stripe.size = '64 MB' was ignored: it must be a whole number"),
        ({"orc.stripe.size": "-1"}, "it must be a positive number of bytes"),
        ({"orc.row.index.stride": "10"}, "it must be 0 or at least 1000"),
        ({"orc.create.index": "no"}, "it must be true or false"),
        ({"orc.bloom.filter.columns": "c"}, "c has type char"),
        ({"orc.bloom.filter.columns": "nope"}, "nope is not a column"),
        ({"orc.bloom.filter.columns": "id", "orc.create.index": "false"}, "filters need an index"),
        ({"orc.bloom.filter.fpp": "1"}, "it must be between 0 and 1"),
        ({"orc.write.format": "0.11"}, "orc.write.format is not supported"),
    ],
)
def test_encoding_when_a_property_cannot_be_applied_then_there_is_one_warning(
    properties: dict[str, str], warning: str
) -> None:
    found = table_encoding(properties, COLUMNS)
    assert len(found.warnings) == 1
    assert warning in found.warnings[0]
    assert found.encoding == Encoding(index_stride=0 if properties.get("orc.create.index") == "false" else 10_000)


def test_encoding_when_columns_must_be_encrypted_then_invalid_table() -> None:
    with pytest.raises(InvalidTable, match="column encryption"):
        table_encoding({"orc.encrypt": "pii:c"}, COLUMNS)


@pytest.mark.parametrize(("layout", "expected"), [(FileLayout.EVENTS, {8}), (FileLayout.PLAIN, {2})])
def test_bloom_ids_when_the_layout_is_known_then_they_are_the_numbers_of_the_columns_in_the_file(
    layout: FileLayout, expected: set[int]
) -> None:
    assert Encoding(bloom_columns=("c",), layout=layout).bloom_ids(COLUMNS) == expected
