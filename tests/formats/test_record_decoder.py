"""The base class of all formats: how batches are split, and how rows and rejects are collected."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingestd.formats.decoder import FalseReject, Reject, RejectError, with_places
from ingestd.formats.json.decoder import JsonDecoder
from ingestd.formats.record_decoder import (
    MAX_FAILURES,
    PARTS,
    SMALLEST_BATCH,
    NotColumnar,
    RecordDecoder,
    RejectReasons,
    Tombstones,
)
from ingestd.formats.row_batches import Row, batch_of
from ingestd.schema import Column, HiveType

COLUMNS = [Column("id", HiveType.parse("int"))]


class Numbers(RecordDecoder):
    """Decodes numbers written as text. `-` is a reject of the batch; any other text raises NotColumnar."""

    def __init__(self, *, max_bytes: int = 1 << 30, tombstones: Tombstones = "stop") -> None:
        super().__init__(COLUMNS, max_bytes=max_bytes, tombstones=tombstones)
        self.batches: list[int] = []
        self.records = 0

    def decode_batch(self, values: Sequence[bytes]) -> tuple[pa.RecordBatch, RejectReasons]:
        self.batches.append(len(values))
        if not all(value.isdigit() or value == b"-" for value in values):
            raise NotColumnar
        rejects = {row: ("id", "is a dash") for row, value in enumerate(values) if value == b"-"}
        ids = [0 if row in rejects else int(value) for row, value in enumerate(values)]
        return batch_of(self.columns, [pa.array(ids, pa.int32())]), rejects

    def decode_record(self, value: bytes) -> Row:
        self.records += 1
        if value == b"-":
            raise RejectError("id", "is a dash")
        if not value.isdigit():
            raise RejectError("", "is not a number")
        return [int(value)]


def numbers(count: int, bad: dict[int, bytes]) -> list[bytes]:
    return [bad.get(number, b"%d" % number) for number in range(count)]


@settings(deadline=None)
@given(
    values=st.lists(st.sampled_from([b"1", b"22", b"-", b"x", None]), max_size=40),
    repeated=st.integers(1, 40),
    max_bytes=st.sampled_from([1, 30, 1 << 30]),
    tombstones=st.sampled_from(["stop", "skip", "dead_letter", "null_row"]),
)
def test_decode_when_records_are_arbitrary_then_result_is_the_same_as_one_by_one(
    values: list[bytes | None], repeated: int, max_bytes: int, tombstones: Tombstones
) -> None:
    records = values * repeated
    decoder = Numbers(max_bytes=max_bytes, tombstones=tombstones)

    decoded = decoder.decode(records)

    rows = [row for batch in decoded.batches for row in batch.column(0).to_pylist()]
    assert sorted(zip(decoded.records_of_rows(records).tolist(), rows, strict=True)) == [
        (index, None if record is None else int(record))
        for index, record in enumerate(records)
        if (tombstones == "null_row" if record is None else record.isdigit())
    ]
    no_value = ("", "record has no value (tombstone)")
    expected = {b"-": ("id", "is a dash"), b"x": ("", "is not a number"), None: no_value}
    assert [(reject.row, reject.column, reject.reason) for reject in decoded.rejects] == [
        (index, *expected[record])
        for index, record in enumerate(records)
        if record in expected and (record is not None or tombstones in ("stop", "dead_letter"))
    ]
    assert decoded.skipped == (records.count(None) if tombstones == "skip" else 0)
    assert decoded.rows + len(decoded.rejects) + decoded.skipped == len(records)


def test_decode_when_tombstones_are_rows_then_columns_of_all_types_are_null() -> None:
    types = ["timestamp", "decimal(9,2)", "array<timestamp>", "map<string,date>", "struct<a:binary,b:array<int>>"]
    columns = [Column(f"c{number}", HiveType.parse(text)) for number, text in enumerate(types)]
    old = b'{"c0": "1500-01-01T00:00:00Z"}'
    decoded = JsonDecoder(columns, tombstones="null_row").decode([None, old, None])
    assert decoded.records_of_rows([None, old, None]).tolist() == [1, 0, 2]
    assert decoded.batches[1].to_pylist() == [dict.fromkeys(["c0", "c1", "c2", "c3", "c4"])] * 2


def test_decode_when_all_records_are_valid_then_decodes_one_batch() -> None:
    decoder = Numbers()
    decoded = decoder.decode(numbers(10_000, {7: b"-"}))
    assert (decoder.batches, decoder.records) == ([10_000], 0)
    assert ([batch.num_rows for batch in decoded.batches], [reject.row for reject in decoded.rejects]) == ([9_999], [7])


def test_decode_when_one_record_fails_then_only_its_smallest_batch_is_decoded_one_by_one() -> None:
    count = SMALLEST_BATCH * PARTS * PARTS
    decoder = Numbers()
    decoded = decoder.decode(numbers(count, {5_000: b"x"}))
    assert decoder.records == SMALLEST_BATCH
    assert len(decoder.batches) == 1 + 2 * PARTS
    assert [reject.row for reject in decoded.rejects] == [5_000]


def test_decode_when_all_records_fail_then_stops_splitting_after_some_failures() -> None:
    decoder = Numbers()
    decoder.decode([b"x"] * (SMALLEST_BATCH * PARTS * PARTS))
    assert decoder.batches.count(SMALLEST_BATCH) == PARTS >= MAX_FAILURES  # only the first part of the first split
    assert decoder.records == SMALLEST_BATCH * PARTS * PARTS


def test_decode_when_records_are_too_large_for_one_batch_then_decodes_them_in_parts() -> None:
    decoder = Numbers(max_bytes=40)
    decoded = decoder.decode([None, *numbers(100, {70: b"-"})])
    assert [(reject.row, reject.column) for reject in decoded.rejects] == [(0, ""), (71, "id")]
    assert [row for batch in decoded.batches for row in batch.column(0).to_pylist()] == [
        n for n in range(100) if n != 70
    ]
    assert decoder.records == 0
    assert max(decoder.batches) * 3 <= 40


def test_decode_when_one_record_is_too_large_then_it_is_decoded_alone() -> None:
    decoder = Numbers(max_bytes=4)
    assert decoder.decode([b"123456", b"7"]).rows == 2
    assert decoder.records == 1


class LateReasons(Numbers):
    """Knows in a batch which records are rejects, but not why."""

    def decode_batch(self, values: Sequence[bytes]) -> tuple[pa.RecordBatch, RejectReasons]:
        batch, rejects = super().decode_batch(values)
        return batch, dict.fromkeys(rejects)


@pytest.mark.parametrize("tombstones", ["stop", "null_row"])
def test_decode_when_a_batch_has_no_reasons_then_each_is_found_when_its_reject_is_read(tombstones: Tombstones) -> None:
    values = [None, *numbers(1_000, dict.fromkeys(range(0, 1_000, 2), b"-"))]
    decoder, other = LateReasons(tombstones=tombstones), Numbers(tombstones=tombstones)
    decoded, expected = decoder.decode(values), other.decode(values)
    assert (decoded.rows, len(decoded.rejects), decoder.records) == (expected.rows, len(expected.rejects), 0)
    assert decoded.records_of_rows(values).tolist() == expected.records_of_rows(values).tolist()
    assert decoded.rejects[-3:] == list(expected.rejects)[-3:]
    assert decoder.records == 3
    assert decoded.rejects == expected.rejects
    assert list(decoded.rejects) == list(expected.rejects) != list(expected.rejects)[1:]
    violation = Reject.of(2, b"1", "id", "is odd")
    added = decoded.without([violation], values).rejects
    assert list(added) == sorted([*expected.rejects, violation], key=lambda reject: reject.row)


class FalseRejects(Numbers):
    """Rejects a record in a batch that is a row alone."""

    def decode_batch(self, values: Sequence[bytes]) -> tuple[pa.RecordBatch, RejectReasons]:
        batch, _ = super().decode_batch(values)
        return batch, {2: None}


def test_decode_when_a_reject_of_a_batch_is_a_row_alone_then_its_error_says_where_the_record_is() -> None:
    values = numbers(5, {})
    decoded = FalseRejects().decode([None, *values])
    assert decoded.rejects[0].reason == "record has no value (tombstone)"
    with pytest.raises(FalseReject, match=r"starts with b'2', is a reject in its batch, but not alone → this is a def"):
        list(decoded.rejects)

    rejects = with_places(decoded.rejects, lambda row: f"t[0] offset {row + 70}")
    assert rejects[0] == decoded.rejects[0]
    with pytest.raises(FalseReject, match=r"^t\[0\] offset 73: the record, which starts with b'2'"):
        list(rejects)


@pytest.mark.parametrize(("value", "reason"), [(b"1", None), (b"-", "is a dash"), (b"x", "is not a number")])
def test_check_when_called_then_returns_the_reject_of_decode(value: bytes, reason: str | None) -> None:
    rejects: list[Reject] = [reject for reject in [Numbers().check(value)] if reject]
    assert [reject.reason for reject in rejects] == ([reason] if reason else [])
    assert rejects == Numbers().decode([value]).rejects
