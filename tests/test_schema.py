"""Which types can store every value of another type."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingestd.errors import InvalidTable
from ingestd.schema import Column, HiveType, require_queryable


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [
        ("bigint", "int"),
        ("smallint", "tinyint"),
        ("double", "float"),
        ("double", "int"),
        ("float", "smallint"),
        ("decimal(19,0)", "bigint"),
        ("decimal(12,3)", "decimal(10,2)"),
        ("string", "decimal(10,2)"),
        ("string", "boolean"),
        ("string", "timestamp"),
        ("varchar(20)", "varchar(10)"),
        ("varchar(20)", "char(20)"),
        ("array<bigint>", "array<int>"),
        ("map<string,double>", "map<string,float>"),
        ("struct<b:string,a:bigint,c:date>", "struct<a:int,b:varchar(3)>"),
    ],
)
def test_type_when_wider_then_holds_every_value_but_not_the_reverse(wide: str, narrow: str) -> None:
    type_, other = HiveType.parse(wide), HiveType.parse(narrow)
    assert type_.holds(other)
    assert type_.holds(type_)
    assert not other.holds(type_)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("double", "bigint"),
        ("float", "int"),
        ("decimal(10,2)", "int"),
        ("decimal(10,4)", "decimal(10,2)"),
        ("bigint", "decimal(5,0)"),
        ("string", "binary"),
        ("binary", "string"),
        ("timestamp", "date"),
        ("char(10)", "varchar(5)"),
        ("string", "array<string>"),
        ("array<string>", "map<string,string>"),
        ("struct<a:int>", "struct<b:int>"),
    ],
)
def test_types_when_a_value_may_be_lost_then_neither_is_wider_in_that_direction(one: str, other: str) -> None:
    assert not HiveType.parse(one).holds(HiveType.parse(other))


@pytest.mark.parametrize(
    ("one", "other", "extended", "widened"),
    [
        ("int", "bigint", "int", "bigint"),
        ("bigint", "int", "bigint", "bigint"),
        ("int", "string", "int", "int"),
        ("varchar(5)", "string", "varchar(5)", "string"),
        ("int", "struct<a:int>", "int", "int"),
        (
            "array<struct<a:int,b:string>>",
            "array<struct<c:date,a:bigint>>",
            "array<struct<a:int,b:string,c:date>>",
            "array<struct<a:bigint,b:string,c:date>>",
        ),
        ("map<string,float>", "map<string,double>", "map<string,float>", "map<string,double>"),
    ],
)
def test_type_when_evolved_then_keeps_its_fields_in_their_order(
    one: str, other: str, extended: str, widened: str
) -> None:
    mine, theirs = HiveType.parse(one), HiveType.parse(other)
    assert str(mine.extended(theirs)) == extended
    assert str(mine.widened(theirs)) == widened
    assert mine.widened(theirs).holds(mine)


_PRIMITIVES = st.sampled_from([
    "tinyint", "int", "bigint", "float", "double", "decimal(10,2)", "decimal(12,2)", "decimal(12,4)", "decimal(20,0)",
    "string", "varchar(5)", "varchar(9)", "char(7)", "boolean", "binary",
]).map(HiveType.parse)  # fmt: skip
_NUMBERS = st.just(HiveType("uniontype", children=(HiveType("bigint"), HiveType("double"))))


@settings(max_examples=300, deadline=None)
@given(_PRIMITIVES, st.lists(_PRIMITIVES | _NUMBERS, max_size=5), st.integers(0, 5), st.sampled_from(["", "array"]))
def test_type_when_some_are_wider_then_all_widen_it_to_one_type_in_any_order(
    mine: HiveType, others: list[HiveType], start: int, place: str
) -> None:
    if place:
        mine, *others = (HiveType(place, children=(kind,)) for kind in (mine, *others))
    widened = mine.widened(*others)
    assert widened.holds(mine)
    assert mine.widened(*others[start:], *reversed(others[:start]), *others) == widened
    assert (widened == mine) == all(mine.widened(other) == mine for other in others)


def _nested(levels: int, inner: str = "bigint", opening: str = "struct<a:") -> str:
    return opening * levels + inner + ">" * levels * opening.count("<")


@pytest.mark.parametrize("opening", ["struct<a:", "struct<a:array<", "struct<a:map<string,"])
def test_type_when_more_than_eight_structs_are_inside_each_other_then_refused_with_the_path(opening: str) -> None:
    require_queryable([_column(_nested(8, opening=opening)), _column(_nested(50, opening="array<"))])
    for levels in (9, 30):
        with pytest.raises(InvalidTable, match=r"^column x(\.a){8}: more than 8 structs would be inside each other"):
            require_queryable([_column("int"), _column(_nested(levels, opening=opening))])


def test_type_when_the_table_has_deep_structs_then_only_deeper_ones_are_refused() -> None:
    present = [_column(_nested(12)), _column("int", "y")]
    for kind in (_nested(12, "decimal(20,0)"), _nested(11, "struct<b:int,a:bigint>"), _nested(12)):
        require_queryable([_column(kind), _column("bigint", "y")], present)
    for kind, path in ((_nested(13), r"(\.a){12}"), (_nested(11, "struct<a:bigint,b:struct<c:int>>"), r"(\.a){11}\.b")):
        with pytest.raises(InvalidTable, match=f"^column x{path}: more than 8 structs"):
            require_queryable([_column(kind)], present)
    with pytest.raises(InvalidTable, match=r"^column y(\.a){8}: more than 8 structs"):
        require_queryable([_column(_nested(12), "y")], present)


def test_type_when_its_text_is_longer_than_the_metastore_stores_then_refused() -> None:
    longest = f"struct<a:int,{'b' * (32_672 - len('struct<a:int,:int>'))}:int>"
    require_queryable([_column(longest)])
    longer = _column(longest.replace("a:int", "a:date"))
    with pytest.raises(InvalidTable, match=r"^column x: the type would have 32,673 characters, .* declares 32,672 →"):
        require_queryable([longer], [_column(longest)])
    require_queryable([longer], [longer])


def _column(kind: str, name: str = "x") -> Column:
    return Column(name, HiveType.parse(kind))
