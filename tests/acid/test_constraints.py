"""Rows that can be decoded but not stored in their table are found and rejected."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from ingestd.acid.constraints import unfit_rows
from ingestd.acid.encoding import STANDARD
from ingestd.acid.partitions import partition_name
from ingestd.acid.routing import Shape
from ingestd.formats.decoder import ConstraintDecoder, DecodeResult, Reject, without_violations
from ingestd.formats.json.decoder import JsonDecoder
from ingestd.formats.record_decoder import Tombstones
from ingestd.schema import Column
from tests.support.decoding import columns_of


def _shape(columns: tuple[Column, ...], keys: tuple[Column, ...], *not_null: str) -> Shape:
    return Shape(columns, keys, None, STANDARD, frozenset(not_null))


def test_rows_when_not_null_columns_contain_nulls_then_the_first_column_is_named() -> None:
    shape = _shape(columns_of(a="int", b="string"), columns_of(p="string", q="date"), "a", "b")
    batch = pa.record_batch(
        {
            "a": pa.array([1, None, 3, 4, 5, None], pa.int32()),
            "b": ["x", "x", None, "", "x", None],
            "p": ["p", "p", "p", "p", "", None],
            "q": pa.array([None] * 6, pa.date32()),
        }
    )
    assert {row: column for row, (column, _) in unfit_rows(batch, shape).items()} == {1: "a", 2: "b", 5: "a"}
    assert unfit_rows(batch.slice(0, 1), shape) == {}
    assert unfit_rows(batch, _shape(shape.columns, shape.partition_columns)) == {}


@pytest.mark.parametrize(
    ("kind", "fits", "too_long"),
    [
        ("string", ["a" * 253, "é" * 126, "/" * 84, "", None], ["a" * 254, "é" * 127, "/" * 85]),
        ("varchar(300)", ["a" * 253], ["a" * 254]),
        ("char(253)", ["a"], []),
        ("char(254)", [None], ["a", ""]),
    ],
)
def test_rows_when_a_directory_name_is_too_long_then_they_are_found(
    kind: str, fits: list[str | None], too_long: list[str]
) -> None:
    columns = columns_of(p=kind)
    batch = pa.record_batch({"p": pa.array([*fits, *too_long], pa.string())})
    assert sorted(unfit_rows(batch, _shape((), columns))) == list(range(len(fits), len(fits) + len(too_long)))


def test_rows_when_the_partition_name_is_too_long_then_the_last_column_is_named() -> None:
    columns = columns_of(p="string", q="string", r="string", s="string")
    rows = [["x" * 200] * 4, ["x" * 180] * 4, ["é" * 120] * 4]
    batch = pa.record_batch({c.name: [row[place] for row in rows] for place, c in enumerate(columns)})
    assert [len(partition_name([c.name for c in columns], row)) for row in rows] == [811, 731, 491]
    assert {row: column for row, (column, _) in unfit_rows(batch, _shape((), columns)).items()} == {0: "s"}


@pytest.mark.parametrize("tombstones", ["stop", "skip", "null_row"])
def test_decoder_when_rows_cannot_be_stored_then_rejects_contain_the_index_in_the_batch(tombstones: Tombstones) -> None:
    columns = columns_of(a="int")
    shape = _shape(columns, (), "a")
    decoder = ConstraintDecoder(JsonDecoder(columns, tombstones=tombstones), lambda batch: unfit_rows(batch, shape))
    values = [b'{"a":1}', None, b"{}", b"nonsense", b'{"a":null}', b'{"a":6}']
    decoded = decoder.decode(values)
    assert [row for batch in decoded.batches for row in batch.column("a").to_pylist()] == [1, 6]
    assert decoded.records_of_rows(values).tolist() == [0, 5]
    assert {reject.row: (reject.column, reject.head) for reject in decoded.rejects if reject.row != 3} == {
        2: ("a", b"{}"),
        4: ("a", b'{"a":null}'),
    } | ({} if tombstones == "skip" else {1: ("" if tombstones == "stop" else "a", b"")})
    assert [reject.row for reject in decoded.rejects] == ([2, 3, 4] if tombstones == "skip" else [1, 2, 3, 4])
    assert decoded.skipped == (1 if tombstones == "skip" else 0)


def test_decoder_when_one_row_of_a_record_cannot_be_stored_then_no_row_of_it_remains() -> None:
    batches = [pa.record_batch({"a": pa.array(ids, pa.int32())}) for ids in ([10, 11, None, 12], [30, None, 31])]
    values = [b"first", b"second", b"third", b"fourth"]
    reject = Reject.of(3, b"fourth", "", "is malformed")
    decoded = DecodeResult(batches, [reject], 0, np.array([0, 0, 1, 1, 2, 1, 2]))
    shape = _shape(columns_of(a="int"), (), "a")
    found = without_violations(decoded, values, lambda batch: unfit_rows(batch, shape))
    assert [batch.column("a").to_pylist() for batch in found.batches] == [[10, 11], [30, 31]]
    assert found.records is not None
    assert found.records.tolist() == [0, 0, 2, 2]
    violation = Reject.of(1, b"second", "a", "is NULL, but the column is NOT NULL")
    assert found.rejects == [violation, reject]
