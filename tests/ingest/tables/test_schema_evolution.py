"""With `schema_evolution`, the columns of a table follow the schemas of the records, and no field is lost."""

from __future__ import annotations

import json
import os
import signal
from decimal import Decimal
from typing import Any

import pytest

from ingestd.config.document import load
from ingestd.hive.tables import TableName, read_table
from ingestd.hive.transactions import open_transactions
from ingestd.ingest.control import Request
from ingestd.ingest.offline.change import change_stored
from ingestd.publish.warehouse import Warehouse
from ingestd.storage.storages import Storages
from tests.support.avro import encode, logical, schema_of, single_object
from tests.support.compaction import compact
from tests.support.daemon import Daemon
from tests.support.proxy import proxy
from tests.support.stack import Stack, eventually

BIG = 2**40
OLD = schema_of(
    {"id": "int", "n": "int", "s": {"type": "record", "name": "s", "fields": [{"name": "x", "type": "int"}]}}
)
INNER = {
    "type": "record",
    "name": "s",
    "fields": [{"name": "x", "type": "long"}, {"name": "Y", "type": ["null", "string"]}],
}
NEW = schema_of(
    {
        "n": "long",
        "amount": ["null", logical("bytes", "decimal", precision=9, scale=2)],
        "tags": {"type": "array", "items": "string"},
        "s": INNER,
        "id": "int",
    }
)
COLUMNS = "id int, n int, s struct<x:int>"


def _old(n: int) -> bytes:
    return single_object(OLD, encode(OLD, {"id": n, "n": n, "s": {"x": n}}))


def _new(n: int, number: int) -> bytes:
    value = {"id": n, "n": number, "amount": Decimal(n), "tags": ["t"], "s": {"x": number, "Y": "y"}}
    return single_object(NEW, encode(NEW, value))


def _mapping(evolution: str, **more: Any) -> dict[str, Any]:
    options = {"type": "avro", "framing": "single_object", "schemas": [OLD, NEW]}
    return {"format": options, "schema_evolution": evolution, **more}


def _statements(daemon: Daemon) -> list[str]:
    return [statement for event in daemon.events("table_altered") for statement in event["statements"]]


def test_schemas_when_interleaved_for_two_mappings_then_one_change_and_no_more_transactions(stack: Stack) -> None:
    topics = [stack.topic(1, f"{stack.name}_{side}") for side in "ab"]
    stack.table(COLUMNS, "dt string")
    for side, topic in enumerate(topics):
        first = side * 10_000
        stack.produce((_new(n, BIG) if n % 2 else _old(n) for n in range(first, first + 4000)), topic)
    mapping = _mapping("widen", partition={"dt": "a"})
    daemon = stack.drain(stack.config(*({"name": topic[-40:], "topics": [topic], **mapping} for topic in topics)))

    place = f"ALTER TABLE `default`.`{stack.name}`"
    assert _statements(daemon) == [
        f"{place} CHANGE COLUMN `n` `n` bigint",
        f"{place} CHANGE COLUMN `s` `s` struct<`x`:bigint,`y`:string>",
        f"{place} ADD COLUMNS (`amount` decimal(9,2), `tags` array<string>)",
    ]
    commits = [event for event in daemon.events("committed") if event["rows"]]
    assert [(event["rows"], event["files"]) for event in commits] == [(4000, 1)] * 2
    assert stack.count() == 8000
    assert stack.sql(f"SELECT id, n, s.x, s.y, amount, tags[0] FROM {stack.name} WHERE id IN (2, 3) ORDER BY id") == [
        (2, 2, 2, None, None, None),
        (3, BIG, BIG, "y", Decimal("3.00"), "t"),
    ]
    totals = f"SELECT count(amount), sum(amount), count(s.y), sum(n), count(DISTINCT id) FROM {stack.name}"
    odd = sum(n for first in (0, 10_000) for n in range(first + 1, first + 4000, 2))
    even = sum(n for first in (0, 10_000) for n in range(first, first + 4000, 2))
    assert stack.sql(totals) == [(4000, Decimal(odd), 4000, 4000 * BIG + even, 8000)]
    # Statements of HiveServer2, and rows of the old definition, agree with the new one.
    stack.sql(f"UPDATE {stack.name} SET n = 7 WHERE id IN (2, 3)")
    compact(stack, f"default.{stack.name}", "major", "dt='a'")
    assert stack.sql(f"SELECT id, n, s.x, s.y, amount FROM {stack.name} WHERE id IN (2, 3, 4) ORDER BY id") == [
        (2, 7, 2, None, None),
        (3, 7, BIG, "y", Decimal("3.00")),
        (4, 4, 4, None, None),
    ]


_DAY = 200_000
_X = [{"name": "x", "type": "int"}]
_AMOUNT = ["null", logical("bytes", "decimal", precision=9, scale=2)]
# The schemas of a producer in the course of a day. Each has all fields of the one before, or a wider type.
_VERSIONS = [
    schema_of(fields)
    for fields in (
        {"id": "int", "n": "int", "s": {"type": "record", "name": "s", "fields": _X}},
        {"id": "int", "n": "int", "s": {"type": "record", "name": "s", "fields": _X}, "amount": _AMOUNT},
        {"amount": _AMOUNT, "n": "long", "s": INNER, "id": "int"},
        {"amount": _AMOUNT, "n": "long", "s": INNER, "id": "int", "tags": {"type": "array", "items": "string"}},
    )
]


def _version(n: int) -> int:
    """Return the version of the schema of a record. Every second one is from a producer that is one version behind."""
    return max(0, n * len(_VERSIONS) // _DAY - n % 2)


def _of_day(n: int) -> bytes:
    version = _version(n)
    x = BIG + n if version >= 2 else n
    value = {"id": n, "n": x, "s": {"x": x, "Y": f"y{n}"}, "amount": Decimal(n % 1000), "tags": ["t"]}
    return single_object(_VERSIONS[version], encode(_VERSIONS[version], value))


@pytest.mark.soak
def test_day_when_two_producers_change_their_schemas_then_no_more_files_or_transactions_than_with_one(
    stack: Stack,
) -> None:
    stack.topic(2)
    stack.table(COLUMNS)
    for partition in range(2):
        stack.produce((_of_day(n) for n in range(_DAY) if n // 2 % 2 == partition), partition=partition)
    options = {"type": "avro", "framing": "single_object", "schemas": _VERSIONS}
    commit = {"rows": _DAY // 4, "bytes": "1GiB", "interval": "10m"}
    daemon = stack.drain(stack.config({"format": options, "schema_evolution": "widen", "commit": commit}))

    assert [text.partition(f"`{stack.name}` ")[2] for text in _statements(daemon)] == [
        "ADD COLUMNS (`amount` decimal(9,2))",
        "CHANGE COLUMN `n` `n` bigint",
        "CHANGE COLUMN `s` `s` struct<`x`:bigint,`y`:string>",
        "ADD COLUMNS (`tags` array<string>)",
    ]
    commits = [event for event in daemon.events("committed") if event["rows"]]
    assert [(event["rows"], event["files"]) for event in commits] == [(_DAY // 4, 2)] * 4
    found = stack.sql(
        "SELECT count(*), count(DISTINCT id), sum(n), sum(s.x), count(s.y), count(amount), sum(amount), count(tags)"
        f" FROM {stack.name}"
    )
    versions = list(map(_version, range(_DAY)))
    wide = sum(version >= 2 for version in versions)
    total = sum(range(_DAY)) + wide * BIG
    amounts = [n % 1000 for n, version in enumerate(versions) if version]
    tags = sum(version == 3 for version in versions)
    assert found == [(_DAY, _DAY, total, total, wide, len(amounts), Decimal(sum(amounts)), tags)]


def test_add_columns_when_a_type_is_wider_then_the_column_keeps_its_type(stack: Stack) -> None:
    stack.topic(1)
    stack.table(COLUMNS)
    stack.produce([_old(0), _new(1, 5)])
    daemon = stack.drain(stack.config(_mapping("add_columns")))
    assert [text.partition(f"`{stack.name}` ")[2] for text in _statements(daemon)] == [
        "CHANGE COLUMN `s` `s` struct<`x`:int,`y`:string>",
        "ADD COLUMNS (`amount` decimal(9,2), `tags` array<string>)",
    ]
    stack.produce([_new(2, BIG)])
    stopped = stack.drain(stack.config(_mapping("add_columns")), expect=65)
    assert "column n" in stopped.events("failed")[0]["error"]
    assert stack.sql(f"SELECT id, n, s.x, s.y, amount FROM {stack.name} ORDER BY id") == [
        (0, 0, 0, None, None),
        (1, 5, 5, "y", Decimal("1.00")),
    ]


@pytest.mark.parametrize("columns", ["id int", "id int, either string"], ids=["missing", "present"])
def test_field_when_no_column_can_store_it_then_stops_unless_the_table_has_the_column(
    stack: Stack, columns: str
) -> None:
    schema = schema_of({"id": "int", "either": ["string", "int"]})
    stack.topic(1)
    stack.table(columns)
    stack.produce([single_object(schema, encode(schema, {"id": 1, "either": "text"}))])
    options = {"type": "avro", "framing": "single_object", "schemas": [schema]}
    config = stack.config({"format": options, "schema_evolution": "widen"})
    if "either" in columns:
        stack.drain(config)
        assert stack.sql(f"SELECT id, either FROM {stack.name}") == [(1, "text")]
    else:
        error = stack.drain(config, expect=65).events("failed")[0]["error"]
        assert "a field without a column: either: a union of string, int has no column type" in error
        assert stack.ids() == []


def test_field_when_two_tasks_find_types_that_no_column_can_store_then_stops_before_the_table_is_altered(
    stack: Stack,
) -> None:
    stack.topic(2)
    stack.table("id int")
    schemas = [schema_of({"id": "int", "code": kind, "note": "string"}) for kind in ("int", "string")]
    for partition, (schema, code) in enumerate(zip(schemas, (7, "x7"), strict=True)):
        record = single_object(schema, encode(schema, {"id": partition, "code": code, "note": ""}))
        stack.produce([record] * 25_000, partition=partition)
    options = {"type": "avro", "framing": "single_object", "schemas": schemas}
    commit = {"rows": 100_000, "bytes": "1GiB", "interval": "10m"}
    stopped = stack.drain(stack.config({"format": options, "schema_evolution": "widen", "commit": commit}), expect=65)
    error = stopped.events("failed")[0]["error"]
    assert "column code: the schemas of the records have no type in common for a new field: int, string" in error
    assert (_statements(stopped), stack.ids()) == ([], [])


def test_json_when_fields_are_new_or_wider_then_the_table_follows_and_no_value_is_lost(stack: Stack) -> None:
    stack.topic(2)
    stack.table("id int, s struct<x:int>", "dt string")
    old = [{"id": n, "s": {"x": n}, "dt": "a"} for n in range(0, 100, 2)]
    new = [
        {
            "id": n,
            "s": {"x": BIG, "Y": "y"},
            "dt": "a",
            "Price": n + 0.5,
            "tags": [{"t": n}],
            "mixed": n if n % 4 == 1 else "m",
        }
        for n in range(1, 100, 2)
    ]
    stack.produce([record for pair in zip(old, new, strict=True) for record in pair], partition=0)
    # Enough records for two tasks, which find different types for the last field, and its first values late.
    for partition, late in ((0, 1), (1, 0.5)):
        first = 1_000_000 * (partition + 1)
        stack.produce(
            ({"id": first + n, "dt": "a"} | ({"late": late} if n >= 24_000 else {}) for n in range(25_000)),
            partition=partition,
        )
    commit = {"rows": 100_000, "bytes": "1GiB", "interval": "10m"}
    config = stack.config({"schema_evolution": "widen", "commit": commit})
    daemon = stack.drain(config)

    place = f"ALTER TABLE `default`.`{stack.name}`"
    assert _statements(daemon) == [
        f"{place} CHANGE COLUMN `s` `s` struct<`x`:bigint,`y`:string>",
        f"{place} ADD COLUMNS (`price` double, `tags` array<struct<`t`:bigint>>, `mixed` string, `late` double)",
    ]
    assert [(event["rows"], event["files"]) for event in daemon.events("committed") if event["rows"]] == [(50_100, 2)]
    assert stack.sql(f"SELECT sum(late), count(late), count(DISTINCT id) FROM {stack.name}") == [(1500.0, 2000, 50_100)]
    query = f"SELECT id, s.x, s.y, price, tags[0].t, mixed FROM {stack.name} WHERE id IN (2, 3, 5) ORDER BY id"
    assert stack.sql(query) == [
        (2, 2, None, None, None, None),
        (3, BIG, "y", 3.5, 3, "m"),
        (5, BIG, "y", 5.5, 5, "5"),
    ]
    # Back to the old fields, and to a type that does not fit: nothing changes but a reject.
    stack.produce(
        [old[0] | {"id": 200, "price": None}, new[0] | {"id": 201}, new[1] | {"id": 202, "price": {"a": 1}}],
        partition=0,
    )
    stopped = stack.drain(config, expect=65)
    assert "price" in stopped.events("failed")[0]["error"]
    assert not stopped.events("table_altered")
    assert stack.sql(f"SELECT count(*) FROM {stack.name}") == [(50_100,)]


def test_json_when_fractions_follow_whole_numbers_then_are_rejects_until_the_user_accepts_double(stack: Stack) -> None:
    stack.topic(1)
    stack.table("id int, n bigint")
    stack.produce([{"id": 1, "n": BIG + 1}])
    config = stack.config({"schema_evolution": "widen"})
    daemon = stack.start(config)
    eventually("the first row", lambda: stack.count() == 1)
    stack.produce([{"id": 2, "n": 0.5}])
    assert daemon.wait() == 65
    assert "'0.5' is not a whole number, but the type is bigint" in daemon.events("failed")[0]["error"]
    assert not _statements(daemon)

    stack.sql(f"ALTER TABLE {stack.name} CHANGE COLUMN n n double")
    options = load([config]).mappings[0]
    change_stored(Warehouse(stack.metastore, Storages()), options, Request("resume", "test"))
    stack.drain(config)
    assert stack.sql(f"SELECT id, n FROM {stack.name} ORDER BY id") == [(1, BIG + 1.0), (2, 0.5)]


def test_columns_when_two_daemons_and_a_user_change_them_at_once_then_all_changes_are_kept(stack: Stack) -> None:
    stack.table("id int, n int")
    sides: list[dict[str, Any]] = [
        {"id": 1, "n": 1, "price": 1.5, "a": {"x": 1}},
        {"id": 2, "n": BIG, "price": 7, "a": {"y": 2}, "b": "b"},
    ]
    topics = [stack.topic(1, f"{stack.name}_{side}") for side in "ab"]
    for topic, record in zip(topics, sides, strict=True):
        stack.produce([record | {"id": record["id"] + n} for n in range(0, 100, 2)], topic)
    mappings = [{"name": topic[-40:], "topics": [topic], "schema_evolution": "widen"} for topic in topics]
    with proxy(stack.addresses.metastore) as slow:
        slow.delay("alter_table_req", 2.0)
        daemons = [stack.start(stack.config(mappings[0], metastore={"uri": slow.uri}), "--until-caught-up")]
        eventually("the first daemon to alter the table", lambda: slow.calls["alter_table_req"])
        daemons.append(stack.start(stack.config(mappings[1]), "--until-caught-up"))
        stack.sql(f"ALTER TABLE {stack.name} ADD COLUMNS (mine string)")
        stack.sql(f"ALTER TABLE {stack.name} CHANGE COLUMN id id bigint")
        assert [daemon.wait() for daemon in daemons] == [0, 0]

    assert dict(row[:2] for row in stack.sql(f"DESCRIBE {stack.name}")) == {
        "id": "bigint",
        "n": "bigint",
        "price": "double",
        "a": "struct<x:bigint,y:bigint>",
        "mine": "string",
        "b": "string",
    }
    assert stack.ids() == list(range(1, 101))
    assert stack.sql(f"SELECT DISTINCT id % 2, n, price, a.x, a.y, b, mine FROM {stack.name} ORDER BY n") == [
        (1, 1, 1.5, 1, None, None, None),
        (0, BIG, 7.0, None, 2, "b", None),
    ]


def _types(stack: Stack) -> dict[str, str]:
    columns = read_table(stack.metastore, TableName("default", stack.name)).sd.cols
    fields = [(column.name, column.type) for column in columns]
    assert len(fields) == len(dict(fields))
    return dict(fields)


@pytest.mark.parametrize("case", ["killed before", "suspended after"])
def test_columns_when_a_daemon_is_killed_or_suspended_while_it_alters_them_then_its_successor_goes_on(
    stack: Stack, case: str
) -> None:
    stack.topic(1)
    stack.table("id int, n int")
    stack.produce([{"id": n, "n": BIG, "price": n + 0.5} for n in range(100)])
    wanted = {"id": "int", "n": "bigint", "price": "double"}
    mapping = {"schema_evolution": "widen"}
    with proxy(stack.addresses.metastore) as between:
        if case == "killed before":
            between.hold("alter_table_req")
        else:
            between.delay("alter_table_req", 1.0)
        first = stack.start_process(stack.config(mapping, metastore={"uri": between.uri}))
        if case == "killed before":
            eventually("the daemon to alter the table", lambda: between.calls["alter_table_req"])
            first.kill()
            assert _types(stack) == {"id": "int", "n": "int"}
        else:
            # Derby refuses the first call, because it cannot compare parameters. The answer to the second one is lost.
            eventually("the daemon to alter the table", lambda: between.calls["alter_table_req"] > 1)
            between.answering.clear()
            eventually("the columns", lambda: _types(stack) == wanted)
            os.kill(first.process.pid, signal.SIGSTOP)
        second = stack.start(stack.config(mapping))
        eventually("the rows", lambda: stack.count() == 100)
        if case == "suspended after":
            stack.sql(f"ALTER TABLE {stack.name} ADD COLUMNS (mine string)")
            os.kill(first.process.pid, signal.SIGCONT)
            between.answering.set()
            eventually("the first daemon to become standby", lambda: first.events("standby"))
            wanted["mine"] = "string"
        stack.produce([{"id": n, "n": BIG, "price": n + 0.5, "late": "x"} for n in range(100, 200)])
        eventually("all rows", lambda: stack.ids() == list(range(200)))
        assert _types(stack) == wanted | {"late": "string"}
        assert stack.sql(f"SELECT count(*), sum(n), sum(price), count(late) FROM {stack.name}") == [
            (200, 200 * BIG, 20_000.0, 100)
        ]
        second.terminate()
        assert second.wait() == 0
        first.kill()
    assert len(_statements(second)) == (1 if case == "suspended after" else 3)
    assert open_transactions(stack.metastore, f"ingestd/ingestd/{stack.name[-40:]}/") == []


def test_json_when_objects_are_deep_or_large_then_text_that_hive_reads_and_growing_columns_stop(stack: Stack) -> None:
    stack.topic(1)
    stack.table("id int, s struct<x:int>")
    names = [f"a_long_name_{'x' * 100}_{number}" for number in range(90)]
    large = {"a": dict.fromkeys(names, 1), "b": dict.fromkeys(names, 2), "c": dict.fromkeys(names, 3)}
    stack.produce([{"id": 1, "large": large}, b'{"id": 2, "deep": %s7%s}' % (b'{"a":' * 30, b"}" * 30)])
    config = stack.config({"schema_evolution": "add_columns"})
    stack.drain(config)
    deep, path = f"{'struct<a:' * 8}string{'>' * 8}", ".a" * 8
    assert stack.sql(f"DESCRIBE {stack.name}")[2:] == [("large", "string", ""), ("deep", deep, "")]
    # HiveServer2 would compile this for ever if each object were a struct.
    [first, second] = stack.sql(f"SELECT id, large, deep{path} FROM {stack.name} ORDER BY id")
    assert (first[0], json.loads(first[1]), first[2]) == (1, large, None)
    assert second[:2] == (2, None)
    assert second[2].count('"a"') == 22

    stack.produce([{"id": 3, "s": {"x": 1, **large}}])
    [failed] = stack.drain(config, expect=65).events("failed")
    assert failed["reason"] == "InvalidTable"
    assert "the metastore declares 32,672" in failed["error"]
    assert stack.ids() == [1, 2]
