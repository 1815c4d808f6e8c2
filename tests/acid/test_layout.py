"""The names of directories and files, and the bucket property, are those of Hive."""

from __future__ import annotations

import pytest

from ingestd.acid.layout import (
    Base,
    DeleteDelta,
    Delta,
    FileLayout,
    bucket_name,
    bucket_property,
    delta_name,
    parse_directory,
    without_visibility,
)


def test_names_when_numbers_are_small_or_large_then_they_are_padded_as_in_hive() -> None:
    assert delta_name(7, 3) == "delta_0000007_0000007_0003"
    assert delta_name(123456789, 4095) == "delta_123456789_123456789_4095"
    assert bucket_name(12) == "bucket_00012"
    assert bucket_name(12, FileLayout.PLAIN) == "000012_0"


@pytest.mark.parametrize(
    ("bucket", "statement", "expected"), [(0, 0, 536870912), (1, 0, 537001984 - 65536), (0, 1, 536870913)]
)
def test_bucket_property_when_the_value_of_hive_is_known_then_it_is_equal(
    bucket: int, statement: int, expected: int
) -> None:
    assert bucket_property(bucket, statement) == expected


@pytest.mark.parametrize(("bucket", "statement"), [(4096, 0), (0, 4096), (-1, 0), (0, -1)])
def test_bucket_property_when_out_of_range_then_value_error(bucket: int, statement: int) -> None:
    with pytest.raises(ValueError, match="is not in"):
        bucket_property(bucket, statement)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("base_0000005", Base("base_0000005", 5)),
        ("base_0000005_v0000012", Base("base_0000005_v0000012", 5, 12)),
        ("base_-9223372036854775808", Base("base_-9223372036854775808", -(2**63))),
        ("delta_0000001_0000003", Delta("delta_0000001_0000003", 1, 3)),
        ("delta_0000001_0000001_0000", Delta("delta_0000001_0000001_0000", 1, 1, 0)),
        ("delta_0000001_0000003_v0000009", Delta("delta_0000001_0000003_v0000009", 1, 3, -1, 9)),
        ("delete_delta_0000002_0000002_0001", DeleteDelta("delete_delta_0000002_0000002_0001", 2, 2, 1)),
        ("_tmp", None), (".hive-staging", None), ("delta_x_1", None), ("delta_1", None), ("k=delta_1_1", None),
    ],
)  # fmt: skip
def test_parse_directory_when_name_is_of_an_acid_directory_then_its_parts_else_none(
    name: str, expected: object
) -> None:
    assert parse_directory(name) == expected


def test_directory_when_a_compaction_wrote_it_then_its_transaction_can_be_left_out() -> None:
    names = ["base_0000005_v0000123", "delta_0000001_0000005_v7", "delete_delta_0000001_0000005_v0000123", "dt=a_v1"]
    found = [without_visibility(name) for name in [*names, "delta_0000001_0000001_0000", "base_5"]]
    expected = ["base_0000005", "delta_0000001_0000005", "delete_delta_0000001_0000005", "dt=a_v1"]
    assert found == [*expected, "delta_0000001_0000001_0000", "base_5"]
