"""The result of a query as rows of the table: what is stored, and what stops the mapping."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from ingestd.acid.encoding import Encoding
from ingestd.acid.routing import Shape
from ingestd.errors import ConfigError, RecordError
from ingestd.ingest.rows.partitioning import Partitioning
from ingestd.ingest.rows.transform import check_result, table_rows
from ingestd.schema import Column, HiveType

_WHOLE = Partitioning((), ())


def _stored(kind: str, values: list[Any], result: str) -> list[Any]:
    """Return the values of a column of type `kind`, if the result of the query has the type `result`."""
    shape = Shape((Column("c", HiveType.parse(kind)),), (), None, Encoding())
    found = Column("c", HiveType.parse(result))
    check_result([found], shape, _WHOLE)
    batch = pa.RecordBatch.from_arrays([pa.array(values, found.type.arrow)], names=["C"])
    rows: list[Any] = table_rows(batch, shape, _WHOLE).column("c").to_pylist()
    return rows


@pytest.mark.parametrize(
    ("kind", "value", "result"),
    [
        ("varchar(3)", "four", "string"),
        ("char(3)", "four  ", "string"),
        ("struct<a:varchar(3)>", {"a": "four"}, "struct<a:string>"),
        ("array<char(3)>", ["abc ", "four "], "array<string>"),
        ("map<varchar(3),int>", [("four", 1)], "map<string,int>"),
        ("map<int,array<struct<a:varchar(3)>>>", [(1, [{"a": "four"}])], "map<int,array<struct<a:string>>>"),
    ],
)
def test_text_when_it_is_longer_than_its_column_then_is_refused(kind: str, value: object, result: str) -> None:
    with pytest.raises(RecordError, match=r"a text of 4 characters is longer than (varchar|char)\(3\)"):
        _stored(kind, [None, value], result)


@pytest.mark.parametrize(
    ("kind", "value", "result"),
    [
        ("varchar(3)", "äöü", "string"),
        ("struct<a:varchar(3)>", {"a": None}, "struct<a:string>"),
        (
            "map<varchar(3),array<struct<a:char(3)>>>",
            [("a", [{"a": "abc"}, None])],
            "map<string,array<struct<a:string>>>",
        ),
        ("array<bigint>", [2**31 - 1, None], "array<int>"),
        ("decimal(12,2)", 7, "int"),
        ("struct<a:int,b:struct<c:int>>", {"a": 1, "b": None}, "struct<a:int>"),
        ("struct<b:int,a:bigint>", {"b": None, "a": 1}, "struct<a:int>"),
        ("array<struct<a:struct<b:int,c:date>>>", [{"a": {"b": 1, "c": None}}, None], "array<struct<a:struct<b:int>>>"),
        ("map<string,struct<a:int,b:int>>", [("k", {"a": 1, "b": None})], "map<string,struct<a:int>>"),
    ],
)
def test_value_when_it_fits_then_is_stored(kind: str, value: object, result: str) -> None:
    assert _stored(kind, [None, value], result) == [None, value]


@pytest.mark.parametrize(
    ("kind", "result"),
    [
        ("struct<b:int,a:int>", "struct<a:int,b:int>"),
        ("struct<a:int>", "struct<a:int,b:int>"),
        ("struct<a:int,b:string>", "struct<a:int,b:int>"),
        ("array<struct<a:int>>", "array<struct<b:int>>"),
        ("map<string,struct<a:int>>", "map<string,struct<a:bigint>>"),
    ],
)
def test_struct_when_its_fields_are_not_those_of_its_column_then_is_refused_without_a_cast(
    kind: str, result: str
) -> None:
    with pytest.raises(ConfigError, match=r"has the type \S+, but the column .* use named_struct") as error:
        _stored(kind, [], result)
    assert "CAST" not in str(error.value)


@pytest.mark.parametrize("kind", ["date", "timestamp", "array<date>", "struct<a:timestamp>", "map<date,int>"])
@pytest.mark.parametrize(("day", "fits"), [(-719_162, True), (2_932_896, True), (-719_163, False), (2_932_897, False)])
def test_time_when_its_year_is_not_one_of_hive_then_is_refused(kind: str, day: int, fits: bool) -> None:
    times = pa.array([day], pa.date32())
    leaf = times if "date" in kind else times.cast(pa.timestamp("us"))
    array = {
        "a": lambda: pa.ListArray.from_arrays([0, 1], leaf),
        "s": lambda: pa.StructArray.from_arrays([leaf], names=["a"]),
        "m": lambda: pa.MapArray.from_arrays([0, 1], leaf, pa.array([1], pa.int32())),
    }.get(kind[0], lambda: leaf)()
    shape = Shape((Column("c", HiveType.parse(kind)),), (), None, Encoding())
    batch = pa.RecordBatch.from_arrays([array], names=["c"])
    if fits:
        assert table_rows(batch, shape, _WHOLE).column("c").equals(array)
    else:
        with pytest.raises(RecordError, match=r"is not in the years 0001 to 9999"):
            table_rows(batch, shape, _WHOLE)


def test_text_when_its_column_is_char_then_is_stored_without_padding() -> None:
    assert _stored("char(3)", ["ab   ", "  ", None], "string") == ["ab", "", None]


def test_result_when_it_lacks_the_column_of_a_partition_expression_then_is_refused() -> None:
    columns = Column("id", HiveType("int")), Column("at", HiveType("timestamp"))
    shape = Shape(columns, (Column("day", HiveType("string")),), None, Encoding())
    partitioning = Partitioning.of(shape, {"day": "date_format(at, 'yyyy-MM-dd')"})
    check_result(columns, shape, partitioning)
    with pytest.raises(ConfigError, match="lacks the column at, from which `partition` computes day"):
        check_result(columns[:1], shape, partitioning)
