"""Names and visibility are Hive's."""

from __future__ import annotations

import pytest

from ingestd.acid import (
    Base,
    DeleteDelta,
    Delta,
    ValidWriteIds,
    bucket_name,
    bucket_property,
    delta_name,
    parse_directory,
    visible_directories,
)


def test_names_when_small_and_large_then_as_hive_pads() -> None:
    assert delta_name(7, 3) == "delta_0000007_0000007_0003"
    assert delta_name(123456789, 4095) == "delta_123456789_123456789_4095"
    assert bucket_name(12) == "bucket_00012"


@pytest.mark.parametrize(
    ("bucket", "statement", "expected"), [(0, 0, 536870912), (1, 0, 537001984 - 65536), (0, 1, 536870913)]
)
def test_bucket_property_when_known_pairs_then_codec_v1(bucket: int, statement: int, expected: int) -> None:
    assert bucket_property(bucket, statement) == expected


@pytest.mark.parametrize(("bucket", "statement"), [(4096, 0), (0, 4096), (-1, 0), (0, -1)])
def test_bucket_property_when_out_of_range_then_error(bucket: int, statement: int) -> None:
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
def test_parse_directory_when_name_then_value(name: str, expected: object) -> None:
    assert parse_directory(name) == expected


def seen(names: list[str], valid: ValidWriteIds, bad_txns: tuple[int, ...] = ()) -> list[str]:
    directories = visible_directories(names, valid, lambda txn: txn not in bad_txns)
    base = [directories.base.name] if directories.base else []
    deltas = [one.name for one in directories.deltas]
    return [*base, *deltas, *(one.name for one in directories.delete_deltas)]


TEN = ValidWriteIds("d.t", 10)


@pytest.mark.parametrize(
    ("names", "valid", "bad_txns", "expected"),
    [
        (["delta_2_2_0000", "delta_1_1_0000", "delta_11_11_0000"], TEN, (), ["delta_1_1_0000", "delta_2_2_0000"]),
        (["delta_1_1_0000", "delta_1_1_0001"], TEN, (), ["delta_1_1_0000", "delta_1_1_0001"]),
        (["delta_1_1", "delta_1_1_0000"], TEN, (), ["delta_1_1"]),
        (["delta_1_1_0000", "delete_delta_1_1_0000"], TEN, (), ["delta_1_1_0000", "delete_delta_1_1_0000"]),
        (["delta_1_1", "delete_delta_1_1"], TEN, (), ["delta_1_1", "delete_delta_1_1"]),
        (["delta_1_3_v20", "delta_1_1_0000", "delta_2_2_0000", "delta_3_3_0000", "delta_4_4_0000"], TEN, (),
         ["delta_1_3_v20", "delta_4_4_0000"]),
        (["delta_1_3_v20", "delta_1_1_0000"], TEN, (20,), ["delta_1_1_0000"]),
        (["base_3_v20", "delta_3_3_0000", "delta_4_4_0000"], TEN, (), ["base_3_v20", "delta_4_4_0000"]),
        (["base_3_v20", "delta_3_3_0000"], TEN, (20,), ["delta_3_3_0000"]),
        (["base_3", "base_5", "delta_4_4_0000"], TEN, (), ["base_5"]),
        (["base_5", "delta_4_4_0000"], ValidWriteIds("d.t", 10, aborted=frozenset({5})), (), ["delta_4_4_0000"]),
        (["base_5_v20", "delta_4_4_0000"], ValidWriteIds("d.t", 10, open=frozenset({5})), (), ["delta_4_4_0000"]),
        (["delta_1_1_0000", "delta_2_2_0000"], ValidWriteIds("d.t", 10, aborted=frozenset({1})), (),
         ["delta_2_2_0000"]),
        (["delta_1_3"], ValidWriteIds("d.t", 10, open=frozenset({1}), aborted=frozenset({2})), (), ["delta_1_3"]),
        (["delta_1_3", "delta_2_2_0000"], TEN, (), ["delta_1_3"]),
    ],
)  # fmt: skip
def test_visible_directories_when_listing_then_as_acid_utils(
    names: list[str], valid: ValidWriteIds, bad_txns: tuple[int, ...], expected: list[str]
) -> None:
    assert seen(names, valid, bad_txns) == expected


def test_is_valid_when_open_aborted_or_later_then_false() -> None:
    valid = ValidWriteIds("d.t", 5, open=frozenset({3}), aborted=frozenset({2}))
    assert [write_id for write_id in range(1, 8) if valid.is_valid(write_id)] == [1, 4, 5]
    assert [valid.is_settled(write_id) for write_id in (2, 3, 5)] == [True, False, False]
