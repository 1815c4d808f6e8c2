"""The columns that a table gets for its records."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from ingestd.acid.encoding import STANDARD
from ingestd.acid.routing import Bucketing, Shape
from ingestd.errors import ConfigError, IngestdError, InvalidTable, InvalidTopic
from ingestd.formats.avro.options import AvroOptions
from ingestd.formats.json.options import JsonOptions
from ingestd.formats.options import FormatOptions, join_of
from ingestd.formats.whole_value import TextOptions
from ingestd.hive.creation import NewTable
from ingestd.hive.tables import Table, TableName
from ingestd.ingest.options import Evolution, KafkaField, MappingOptions
from ingestd.ingest.rows.decoding import KafkaColumns, RowDecoder
from ingestd.ingest.rows.partitioning import Partitioning
from ingestd.ingest.table.columns import columns_of
from ingestd.ingest.table.evolution import ColumnsNeeded, evolved_columns, merged, plan_columns, require_columns
from ingestd.kafka.reader import Batch
from ingestd.schema import Column, HiveType
from tests.support.avro import ZONED_TIMESTAMP, encode, schema_of, single_object


def _columns(**types: str) -> tuple[Column, ...]:
    return tuple(Column(name, HiveType.parse(text)) for name, text in types.items())


EVOLUTIONS: tuple[Evolution, ...] = ("add_columns", "widen")
TABLE = Shape(_columns(id="int", n="int"), _columns(dt="string"), bucketing=None, encoding=STANDARD)


@pytest.mark.parametrize(("evolution", "n"), [("add_columns", "int"), ("widen", "bigint")])
def test_columns_when_fields_are_new_or_wider_then_only_new_ones_or_both_change(evolution: Evolution, n: str) -> None:
    needed = (*_columns(n="bigint", new="int", dt="int"), *_columns(new="bigint", id="smallint"))
    assert evolved_columns(evolution, TABLE, needed) == _columns(id="int", n=n, new="bigint")


def test_columns_when_the_table_is_bucketed_by_one_then_it_keeps_its_type() -> None:
    bucketed = Shape(TABLE.columns, (), Bucketing(TABLE.columns[:1], 4, 2), STANDARD)
    assert evolved_columns("widen", bucketed, _columns(id="bigint", n="bigint")) == _columns(id="int", n="bigint")


@pytest.mark.parametrize("evolution", EVOLUTIONS)
def test_columns_when_schemas_have_deeper_structs_than_queries_allow_then_refused_unless_the_table_has_them(
    evolution: Evolution,
) -> None:
    levels: Any = "int"
    for number in range(10):
        levels = {"type": "record", "name": f"r{number}", "fields": [{"name": "a", "type": levels}]}
    schema = schema_of({"id": "int", "deep": {"type": "array", "items": levels}})
    value = [encode(schema, {"id": 1, "deep": []})]
    for stored in ({}, {"deep": f"array<{'struct<a:' * 8}string{'>' * 9}"}):
        table = Shape(_columns(id="int", **stored), (), None, STANDARD)
        decoder = AvroOptions(framing="none", schemas=(schema,)).decoder(table.columns)
        decoder.decode(value)
        needed = decoder.needed_columns(value, ())
        if stored:  # a string is not replaced
            assert evolved_columns(evolution, table, needed) == table.columns
            continue
        with pytest.raises(InvalidTable, match=r"^column deep(\.a){8}: more than 8 structs would be inside each other"):
            evolved_columns(evolution, table, needed)
    own = Shape(_columns(id="int", deep=f"array<{'struct<a:' * 10}tinyint{'>' * 11}"), (), None, STANDARD)
    [_, deep] = evolved_columns(evolution, own, needed)
    assert str(deep.type) == f"array<{'struct<a:' * 10}{'int' if evolution == 'widen' else 'tinyint'}{'>' * 11}"


def test_columns_when_hive_has_a_virtual_one_of_the_name_then_refused() -> None:
    with pytest.raises(InvalidTable, match="column row__id: a virtual column of Hive has this name"):
        evolved_columns("add_columns", TABLE, _columns(row__id="int"))
    with pytest.raises(InvalidTable, match=r"table web\.a, column input__file__name: a virtual column"):
        _table(id="int", input__file__name="string")
    assert evolved_columns("add_columns", TABLE, _columns(snapshot__id="bigint"))[-1].name == "snapshot__id"


def test_error_when_it_crosses_a_process_boundary_then_its_columns_survive() -> None:
    needed = ColumnsNeeded("what", where="where", columns=TABLE.columns, present=TABLE.columns[:1])
    error = pickle.loads(pickle.dumps(needed))
    assert (error.what, error.where, error.columns) == ("what", "where", TABLE.columns)
    assert error.present == TABLE.columns[:1]


def _decoder(schema: str, shape: Shape, **fields: KafkaField) -> RowDecoder:
    options = AvroOptions(framing="none", schemas=(schema,))
    return RowDecoder(options, KafkaColumns.of(shape.columns, fields), Partitioning.of(shape, {}), shape, None)


def _decoded(decoder: RowDecoder, schema: str, **record: object) -> Batch:
    batch = Batch("t", [encode(schema, record)], np.zeros(1, np.int32), np.zeros(1, np.int64), 0)
    assert not decoder.decode(batch).rejects
    return batch


def _table(**types: str) -> Table:
    return NewTable(TableName("web", "a"), _columns(**types)).checked()


def test_columns_when_the_table_lost_one_since_the_stage_then_stops_and_does_not_add_it_again() -> None:
    options = MappingOptions("m", ("t",), TableName("web", "a"), AvroOptions(), schema_evolution="widen")
    staged = _table(id="int", note="string", n="int")
    schema = schema_of({"id": "int", "n": "long", "note": "string", "new": "int"})
    decoder = _decoder(schema, staged.shape)
    batch = _decoded(decoder, schema, id=1, n=1, note="", new=1)
    with pytest.raises(ColumnsNeeded) as raised:
        require_columns("widen", decoder, staged.shape, batch)
    assert (raised.value.columns, raised.value.present) == (_columns(n="bigint", new="int"), staged.shape.columns)

    wider = _table(id="bigint", note="string", n="int", other="date")
    planned = plan_columns(options, wider, raised.value, columns_of(staged))
    assert planned == _columns(id="bigint", note="string", n="bigint", other="date", new="int")
    with pytest.raises(InvalidTable, match="note string was removed or renamed; n int was removed or renamed"):
        plan_columns(options, _table(id="int", title="string"), raised.value, columns_of(staged))


def test_columns_when_nothing_changes_although_records_need_it_then_stops_and_does_not_read_them_for_ever() -> None:
    options = MappingOptions("m", ("t",), TableName("web", "a"), AvroOptions(), schema_evolution="widen")
    table = _table(id="int", n="bigint")
    stale = ColumnsNeeded("what", columns=_columns(n="bigint"), present=_columns(id="int", n="int"))
    assert plan_columns(options, table, stale, columns_of(table)) == table.shape.columns  # altered by another daemon
    useless = ColumnsNeeded("what", columns=_columns(n="double"), present=table.shape.columns)
    merged_error = merged([useless], "here", join_of(AvroOptions()))
    assert isinstance(merged_error, ColumnsNeeded)
    with pytest.raises(InvalidTable, match=r"mapping m, table web\.a: no change of the table .* which need n double"):
        plan_columns(options, table, merged_error, columns_of(table))


def test_columns_when_several_tasks_need_them_then_each_type_stores_what_all_have_found() -> None:
    needs = [
        ColumnsNeeded("what", columns=columns)
        for columns in (_columns(n="bigint", m="map<string,int>"), _columns(n="double", m="map<string,bigint>"))
    ]
    orders: Sequence[Sequence[IngestdError]] = (needs, needs[::-1], [*needs, InvalidTopic("what")])
    for json in (merged(errors, "here", join_of(JsonOptions())) for errors in orders):
        assert isinstance(json, ColumnsNeeded)
        assert json.where == "here"
        # A double does not store all values of bigint, but is the only type for a new field with both.
        for table, n in ((TABLE, "bigint"), (Shape(TABLE.columns[:1], (), None, STANDARD), "double")):
            evolved = _columns(id="int", n=n, m="map<string,bigint>")
            assert evolved_columns("widen", table, json.columns) == evolved
    # The types of schemas are joined with those of the table.
    avro = [_merged_columns(parts) for parts in orders]
    assert [evolved_columns("widen", TABLE, columns)[1:] for columns in avro] == [
        _columns(n="bigint", m="map<string,bigint>")
    ] * 3


@pytest.mark.parametrize("evolution", EVOLUTIONS)
def test_columns_when_texts_of_avro_are_timestamps_of_debezium_then_new_ones_are_strings_and_others_stay(
    evolution: Evolution,
) -> None:
    at = ["null", ZONED_TIMESTAMP]
    schemas = [schema_of({"at": at, "new": at}), schema_of({"at": at, "new": ["string", "null"]})]
    options = AvroOptions(framing="single_object", schemas=tuple(schemas))
    values = [single_object(schema, encode(schema, {"at": "2026-11-21T10:00:00Z", "new": "x"})) for schema in schemas]
    table = Shape(_columns(at="timestamp"), (), None, STANDARD)
    for order in (values, values[::-1]):
        decoder = options.decoder(table.columns)
        decoder.decode(order)
        needed = decoder.needed_columns(order, ())
        assert evolved_columns(evolution, table, needed) == _columns(at="timestamp", new="string")


def _merged_columns(errors: Sequence[IngestdError]) -> tuple[Column, ...]:
    needed = merged(errors, "here", join_of(AvroOptions()))
    assert isinstance(needed, ColumnsNeeded)
    return needed.columns


def test_columns_when_another_task_has_records_that_no_column_can_store_then_the_table_is_not_altered() -> None:
    needed, refused = ColumnsNeeded("what", columns=_columns(new="int")), InvalidTable("no type in common")
    join = join_of(AvroOptions())
    assert merged([needed, refused], "here", join) is merged([refused, needed], "here", join) is refused
    assert merged([refused], "here", join) is None


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_columns_when_schemas_have_several_types_for_a_field_then_their_order_does_not_matter(
    order: tuple[int, ...],
) -> None:
    def evolved(evolution: Evolution, *types: str) -> dict[str, str]:
        needed = [column for number in order if number < len(types) for column in _columns(n=types[number])]
        return {column.name: str(column.type) for column in evolved_columns(evolution, shape, needed)}

    shape = Shape(_columns(id="int"), (), None, STANDARD)
    assert evolved("add_columns", "int", "float", "double") == {"id": "int", "n": "double"}
    assert evolved("add_columns", "struct<a:int>", "struct<b:date>", "struct<a:bigint>")["n"] in (
        "struct<a:bigint,b:date>",
        "struct<b:date,a:bigint>",
    )
    for types, where, reason in [
        (("int", "string"), "n", "int, string"),
        (("bigint", "double", "int"), "n", "bigint, double, int"),
        (("array<struct<a:int>>", "array<struct<a:string,b:int>>"), "n", "array<struct<a:int>>, array<struct<a:string"),
    ]:
        with pytest.raises(InvalidTable, match=rf"column {where}: .* no type in common for a new field: {reason}"):
            evolved("widen", *types)
    shape = Shape(_columns(id="int", n="array<struct<a:int>>"), (), None, STANDARD)
    for evolution in EVOLUTIONS:
        with pytest.raises(InvalidTable, match=r"column n\.b: .* no type in common for a new field: int, string"):
            evolved(evolution, "array<struct<b:int>>", "array<struct<b:string>>")
        # Of an existing field, the type becomes a wider one, exact types before others, even if it is not sufficient.
        some = evolved(evolution, "array<struct<a:bigint>>", "array<struct<a:double,b:int>>", "array<struct<a:string>>")
        assert some["n"] == f"array<struct<a:{'bigint' if evolution == 'widen' else 'int'},b:int>>"
    assert evolved("widen", "array<struct<a:bigint>>", "array<struct<a:string>>")["n"] == "array<struct<a:bigint>>"


def test_needed_columns_when_a_field_is_not_decoded_then_its_type_does_not_matter() -> None:
    schema = schema_of({"id": "long", "K": ["string", "int"], "dt": "null"})
    decoder = _decoder(schema, Shape(_columns(id="int", k="string"), _columns(dt="string"), None, STANDARD), k="topic")
    batch = _decoded(decoder, schema, id=1, K="k", dt=None)
    assert decoder.needed_columns(batch) == _columns(id="bigint")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (TextOptions(), "the format text does not"),
        (JsonOptions(lenient=True), "json with fields or lenient does not"),
        (JsonOptions(fields={"id": "$.i"}), "json with fields or lenient does not"),
    ],
)
def test_evolution_when_the_format_cannot_name_new_fields_then_is_refused(options: FormatOptions, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        MappingOptions("m", ("t",), TableName("web", "a"), options, schema_evolution="widen")
