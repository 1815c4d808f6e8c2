"""The columns that JSON records need, and the fields that no column stores."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingestd.acid.encoding import STANDARD
from ingestd.acid.routing import Shape
from ingestd.errors import InvalidTable
from ingestd.formats.json.decoder import JsonDecoder
from ingestd.formats.json.options import JsonOptions
from ingestd.formats.options import join_of
from ingestd.ingest.table.evolution import evolved_columns
from ingestd.schema import Column, HiveType


def _columns(**types: str) -> tuple[Column, ...]:
    return tuple(Column(name, HiveType.parse(text)) for name, text in types.items())


def _decoder(options: JsonOptions | None = None, /, **types: str) -> JsonDecoder:
    return (options or JsonOptions()).decoder(_columns(**types))


def _needed(decoder: JsonDecoder, *records: Any, others: Sequence[str] = ()) -> dict[str, str]:
    values = [record if isinstance(record, bytes) else json.dumps(record).encode() for record in records]
    return {column.name: str(column.type.known) for column in decoder.needed_columns(values, others)}


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["true", "null"], "boolean"),
        (["1", "-2"], "bigint"),
        (["9223372036854775807", "-5"], "bigint"),
        (["9223372036854775808"], "string"),
        (["1", "1.5", "2e3"], "double"),
        (["1", '"x"'], "string"),
        (["true", "1"], "string"),
        (['"2026-11-01"'], "string"),
        (["[]"], "array<string>"),
        (["[null]", "[1]", "[2.5]"], "array<double>"),
        (["[[1], [\"a\"]]"], "array<array<string>>"),
        (["{}"], "string"),
        (['{"a": null}'], "string"),
        (['{"A": 1}', '{"b": [{"c": true}], "a": 2}'], "struct<a:bigint,b:array<struct<c:boolean>>>"),
        (['{"first name": 1}'], "string"),
        (['{"a": 1}', "[1]"], "string"),
    ],
)  # fmt: skip
def test_new_column_then_its_type_stores_all_values_of_the_field(values: list[str], kind: str) -> None:
    records = [b'{"id": 1, "New": %s}' % value.encode() for value in values]
    assert _needed(_decoder(id="bigint"), *records) == {"id": "bigint", "new": kind}
    decoded = _decoder(id="bigint", new=kind).decode(records)
    assert (decoded.rows, decoded.rejects) == (len(records), [])


def test_new_column_when_objects_are_deep_then_those_below_eight_structs_are_text() -> None:
    deep = "struct<a:" * 8 + "string" + ">" * 8
    record = b'{"id": 1, "new": %s1%s}' % (b'{"a":' * 30, b"}" * 30)
    assert _needed(_decoder(id="int"), record)["new"] == deep
    array = b'{"id": 1, "new": %s1%s}' % (b'[{"a":' * 30, b"}]" * 30)
    assert _needed(_decoder(id="int"), array)["new"] == "array<struct<a:" * 8 + "array<string>" + ">>" * 8
    for stored in ("struct<a:struct<b:int>>", "struct<a:struct<a:struct<b:int>>>"):
        found = _needed(_decoder(id="int", new=stored), record)["new"]
        assert found.count("struct<") == 8
        decoded = _decoder(id="int", new=found).decode([record])
        assert (decoded.rows, decoded.rejects) == (1, [])
    deeper = "struct<a:" * 12 + "int" + ">" * 12
    record = b'{"id": 1, "new": %s1, "b": {"c": 1}%s}' % (b'{"a":' * 12, b"}" * 12)
    assert _needed(_decoder(id="int", new=deeper), record)["new"] == deeper.replace("int", "int,b:string")


def test_new_column_when_the_metastore_could_not_store_its_type_then_is_text_in_any_task() -> None:
    names = [f"a_long_name_{'x' * 100}_{number}" for number in range(70)]
    records = [
        json.dumps({"id": 1, "new": {f"{part}{number}": dict.fromkeys(names, 1) for number in range(2)}}).encode()
        for part in ("a", "b")
    ]
    half = str(_of_tasks({}, records[:1])[1].type)
    assert half.count("bigint") == 140
    assert 16_336 < len(half) < 32_672
    for parts in ([records], [records[:1], records[1:]], [records[1:], records[:1], records]):
        assert _of_tasks({}, *parts) == _columns(id="int", new="string")
        with pytest.raises(InvalidTable, match=r"column new: the type would have .* the metastore declares 32,672"):
            _of_tasks({"new": half}, *parts)


def test_new_column_when_its_field_is_null_or_stored_elsewhere_or_of_a_reject_then_is_not_needed() -> None:
    decoder = _decoder(id="int")
    assert _needed(decoder, {"id": 1, "x": None, "Dt": "a"}, {"y": 1}, b"{", {"id": None}, others=["dt"]) == {
        "id": "tinyint"
    } | {"id": "int"}
    assert _needed(_decoder(JsonOptions(unmatched="null"), id="int"), {"y": 1}) == {"y": "bigint"}
    event = {"before": None, "after": {"id": 1}, "op": "c"}
    assert _needed(_decoder(id="int", op="string"), event) == {}
    rows = [{**event, "OP": "u", "y": 1}, {"op": "c", "source": True}, {"schema": 1, "payload": 2}]
    found = _needed(_decoder(id="int", op="string"), event, *rows)
    assert found == {"after": "struct<id:bigint>", "op": "string", "y": "bigint", "source": "boolean"}


def test_stored_column_then_is_only_wider_for_numbers_and_new_fields() -> None:
    decoder = _decoder(
        a="int", b="int", c="smallint", d="decimal(9,2)", e="float", f="string", g="timestamp", h="boolean",
        i="struct<x:int>", j="map<string,struct<x:int>>", k="array<int>",
    )  # fmt: skip
    record = {
        "a": 5, "b": 2**40, "c": 1.5, "d": 1.5, "e": 0.1, "f": {"x": 1}, "g": "2026-11-01", "h": "yes",
        "i": {"X": 2**40, "Y": "y", "z": None}, "j": {"k": {"y": 1}}, "k": [2**40, None],
    }  # fmt: skip
    assert _needed(decoder, record, {"a": 6, "k": []}) == {
        "a": "int",
        "b": "bigint",
        "c": "double",
        "d": "decimal(9,2)",
        "e": "float",
        "f": "string",
        "g": "timestamp",
        "h": "boolean",
        "i": "struct<x:bigint,y:string>",
        "j": "map<string,struct<x:int,y:bigint>>",
        "k": "array<bigint>",
    }


_MIXED_VALUES: dict[str, list[object]] = {
    "n": ["text", 1.5, True, {"y": 1}, 2**70],
    "k": [2**70, 2**40, "text"],
    "s": ["text", {"y": 1}, [1], {"x": 2**40}],
    "a": [[{"y": 1}, "text"], "text", [2**40]],
    "m": [{"k": "text"}, {"k": 2.5}, 7],
}


def test_stored_column_when_others_of_its_values_do_not_fit_then_is_widened_for_those_that_do() -> None:
    types = {"n": "int", "k": "int", "s": "struct<x:int>", "a": "array<struct<x:int>>", "m": "map<string,int>"}
    expected = {
        "n": "double",
        "k": "bigint",
        "s": "struct<x:bigint,y:bigint>",
        "a": "array<struct<x:int,y:bigint>>",
        "m": "map<string,double>",
    }
    records = [{name: value} for name, values in _MIXED_VALUES.items() for value in values]
    for ordered in (records, records[::-1]):
        assert _needed(_decoder(**types), *ordered) == expected
        decoder = _decoder(**types)
        for record in ordered:
            needed = _needed(decoder, record)
        assert needed == expected
    values = [json.dumps(record).encode() for record in records]
    assert sorted(_decoder(**types).unstored_fields(values, ())) == ["a.y", "s.y"]
    new = dict.fromkeys(types, "string")
    assert _needed(_decoder(JsonOptions(unmatched="null"), id="int"), *records) == new


def test_rows_when_they_are_in_an_envelope_or_several_in_a_record_then_their_fields_are_found() -> None:
    connect = {"schema": {"a": 1}, "payload": {"id": 1, "x": 1}}
    assert _needed(_decoder(JsonOptions(envelope="connect"), id="int"), connect) == {"id": "int", "x": "bigint"}
    changes = [
        {"op": "c", "before": None, "after": {"id": 1, "x": 1}, "source": {"ts": 1}},
        {"op": "d", "before": {"id": 1, "y": 1}, "after": None},
        {"op": "u", "before": {"id": 1}, "after": {"id": 1, "z": 1}},
    ]
    debezium = JsonOptions(envelope="debezium", deletes="row")
    assert _needed(_decoder(debezium, id="int"), *changes) == {"id": "int", "x": "bigint", "y": "bigint"}
    assert _needed(_decoder(JsonOptions(records="array"), id="int"), [{"id": 1}, {"id": 2, "x": "a"}]) == {
        "id": "int",
        "x": "string",
    }
    assert _needed(_decoder(JsonOptions(records="lines"), id="int")) == {}


def test_objects_when_they_have_too_many_names_then_need_a_column_of_text_or_a_map() -> None:
    records = [{"id": 1, "m": {f"{n}-{part}": {"x": 1} for n in range(600)}} for part in "ab"]
    assert _needed(_decoder(id="int"), *records) == {"id": "int", "m": "string"}
    stored = _decoder(id="int", m="map<string,struct<y:int>>")
    assert _needed(stored, records[0]) == _needed(stored, records[1])
    assert _needed(stored, {"id": 1, "m": {"k": {"z": "z"}}})["m"] == "map<string,struct<y:int,x:bigint,z:string>>"
    with pytest.raises(InvalidTable, match="objects in m have more than 1,000 different names"):
        _needed(_decoder(id="int", m="struct<x:int>"), *records)
    values = [json.dumps({"id": 1, "n": n, "m": {f"{n}-{k}": 1 for k in range(600)}}).encode() for n in range(2)]
    assert _decoder(id="int", m="struct<x:int>").unstored_fields(values, ()) == ("n", "m.*")


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"id": 1, "a`; DROP": 1}, "'a`; drop' is not a name of a column"),
        ({"id": 1, "s": {"user-id": 1}}, "'s.user-id' is not a name of a column"),
        ({"id": 1} | {f"user{n}": 1 for n in range(1000)}, "more than 1,000 different names"),
    ],
)
def test_field_when_no_column_can_have_its_name_then_says_so(record: Any, words: str) -> None:
    with pytest.raises(InvalidTable, match=words):
        _needed(_decoder(id="int", s="struct<x:int>"), record)


def test_objects_when_they_have_many_names_then_a_map_stores_them_and_a_struct_does_not() -> None:
    values = [json.dumps({name: {f"k{n}": {"x": n} for n in range(1200)} for name in "mn"}).encode()]
    few = [b'{"m": {"k": {"x": 1099511627776, "y": "a"}, "l": {"y": "b"}}}']
    decoder = _decoder(m="map<string,struct<x:int>>")
    assert _needed(decoder, *few, *values) == {"m": "map<string,struct<x:bigint,y:string>>", "n": "string"}
    assert decoder.unstored_fields([*few, *values], ()) == ("m.y", "n")
    assert decoder.unstored_fields(few, ()) == ("m.y",)
    struct = _decoder(m="struct<x:int>")
    assert struct.unstored_fields(values, ()) == ("m.*", "n")
    assert struct.unstored_fields([json.dumps({"m": 1} | {f"k{n}": n for n in range(1200)}).encode()], ()) == ("*",)
    with pytest.raises(InvalidTable, match="the objects in m have more than 1,000 different names"):
        _needed(struct, *values)


def test_unstored_fields_then_are_those_without_a_column_at_any_depth() -> None:
    decoder = _decoder(id="int", s="struct<x:int>", t="string", a="array<struct<x:int>>")
    record = {"ID": 1, "S": {"x": 1, "z ip": 2}, "t": {"u": 1}, "a": [{"y": 1}], "n": None, "dt": 1}
    assert decoder.unstored_fields([json.dumps(record).encode()], ["dt"]) == ("s.z ip", "a.y", "n")


def test_unstored_fields_when_columns_have_paths_then_are_those_on_no_path() -> None:
    paths = {"id": "$.data.id", "tag": "$.tags[1].name", "user": "$.user", "city": "$.user.city"}
    types = {"id": "int", "tag": "string", "user": "struct<zip:int>", "city": "string", "op": "string"}
    records = [
        {"data": {"ID": 1, "x": 1}, "tags": [{"name": "a", "b": 1}], "user": {"zip": 1, "city": "c", "d": 1}, "new": 1},
        {"op": "c", "after": 1},  # an envelope without a field on the way to a column
        {"tag": "a", "city": "c"},  # nor has this one
    ]
    values = [json.dumps(record).encode() for record in records]
    unstored = ("data.x", "tags.b", "user.d", "new")
    found = _decoder(JsonOptions(fields=paths), **types).unstored_fields(values, ())
    assert found == unstored
    stored = _decoder(JsonOptions(fields=paths, unmatched="null"), **types).unstored_fields(values, ())
    assert stored == (*unstored, "after", "tag", "city")
    for whole in ({"id": "$"}, {"id": "$.data", "tag": "$.data.x"}):
        decoder = _decoder(JsonOptions(fields=whole), id="string", tag="string")
        assert decoder.unstored_fields([b'{"data":{"y":{}},"tag":1}'], ()) == (() if "tag" not in whole else ("tag",))

    event = {"op": "c", "after": {"id": 1, "x": 1}, "source": {"y": 1}}
    debezium = JsonOptions(envelope="debezium", fields={"op": "$.op", "city": "$.after.city"})
    decoder = _decoder(debezium, id="int", op="string", city="string")
    assert decoder.unstored_fields([json.dumps(event).encode()], ()) == ("x",)
    assert decoder.unstored_fields([json.dumps({"op": "c", "after": {"op": 1}}).encode()], ()) == ()


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abAB"), inner, max_size=3),
    max_leaves=8,
)


_STORED: list[dict[str, str]] = [
    {},
    {"x": "int", "y": "struct<a:int>"},
    {"x": "array<struct<a:tinyint>>", "y": "map<string,smallint>"},
]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.dictionaries(st.sampled_from("xyXY"), _JSON, max_size=3), min_size=1, max_size=5),
    st.sampled_from(_STORED),
    st.data(),
)
def test_needed_columns_then_store_each_record_and_need_no_others(
    records: list[dict[str, Any]], stored: dict[str, str], data: Any
) -> None:
    values = [json.dumps({"id": 1, **record}).encode() for record in records]
    parts = [values[slice(*sorted(ends))] for ends in data.draw(st.lists(st.tuples(_ENDS, _ENDS), max_size=3))]
    columns = _of_tasks(stored, *parts, values)
    assert _in_order(columns) == _in_order(_of_tasks(stored, values))
    decoder = _decoder(id="int", **stored)
    for part in parts:
        decoder.needed_columns(part, ())
    assert _in_order(_evolved(stored, decoder.needed_columns(values, ()))) == _in_order(columns)
    if not stored:
        assert JsonDecoder(columns).decode(values).rejects == []


_ENDS = st.integers(0, 5)


def _in_order(columns: Iterable[Column]) -> list[tuple[str, HiveType]]:
    """Return names and types with columns, and fields of structs, in the order of their names."""
    types = {column.name: _sorted(column.type) for column in columns}
    return sorted(types.items(), key=lambda item: item[0])


def _sorted(kind: HiveType) -> HiveType:
    inside = tuple(map(_sorted, kind.children))
    if kind.kind != "struct":
        return replace(kind, children=inside)
    fields = dict(zip(kind.names, inside, strict=True))
    return replace(kind, names=tuple(sorted(fields)), children=tuple(fields[name] for name in sorted(fields)))


def _of_tasks(stored: dict[str, str], *parts: Sequence[bytes]) -> tuple[Column, ...]:
    """Return the columns for the records of several tasks, which find their types without those of the others."""
    needed = (column for part in parts for column in _decoder(id="int", **stored).needed_columns(part, ()))
    return _evolved(stored, join_of(JsonOptions())(needed, _columns(id="int", **stored)))


def _evolved(stored: dict[str, str], needed: Iterable[Column]) -> tuple[Column, ...]:
    return evolved_columns("widen", Shape(_columns(id="int", **stored), (), None, STANDARD), needed)


@pytest.mark.parametrize(("values", "kind"), [([5, 1.5], "double"), ([2**60 + 1, 1.5], "bigint"), ([2**60], "bigint")])
def test_stored_column_when_no_type_stores_all_numbers_exactly_then_is_one_that_stores_those_it_has(
    values: list[float], kind: str
) -> None:
    records = [json.dumps({"id": 1, "x": value, "a": [value], "new": value}).encode() for value in values]
    stored = {"x": "int", "a": "array<int>"}
    new = "double" if 1.5 in values else "bigint"
    for order in (records, records[::-1]):
        for parts in ([order], [[record] for record in order]):
            types = {column.name: str(column.type) for column in _of_tasks(stored, *parts)}
            assert types == {"id": "int", "x": kind, "a": f"array<{kind}>", "new": new}
    columns = _of_tasks(stored, records)
    rejects = JsonDecoder(columns).decode(records).rejects
    assert [values[reject.row] for reject in rejects] == ([1.5] if kind == "bigint" and 1.5 in values else [])
