"""Mappings store each row in the partition into which HiveServer2 would insert it with the same expressions."""

from __future__ import annotations

from confluent_kafka import Producer

from tests.support.patience import LIMIT
from tests.support.stack import Stack

COLUMNS = "id int, ts timestamp, d date, s string, v varchar(9), t timestamp"
EXPRESSIONS = {
    "day": ("date", "to_date(ts)"),
    "month": ("varchar(7)", "date_format(ts, 'yyyy-MM')"),
    "stamp": ("bigint", "date_format(ts, 'yyyyMMddHH')"),
    "at": ("string", "date_format(ts, 'yyyy/MM/dd HH:mm:ss')"),
    "h": ("int", "date_format(ts, 'HH')"),
    "hh": ("string", "date_format(ts, 'HH')"),
    "hour": ("tinyint", "hour(ts)"),
    "minute": ("string", "minute(ts)"),
    "y": ("smallint", "year(d)"),
    "m": ("int", "month(d)"),
    "dd": ("string", "day(d)"),
    "dt": ("int", "date_format(d, 'yyyyMMdd')"),
    "part": ("string", "substr(s, 2, 3)"),
    "rest": ("varchar(9)", "substr(v, 2)"),
    "low": ("string", "lower(s)"),
    "up": ("string", "upper(v)"),
    "minute_t": ("varchar(16)", "date_format(t, 'yyyy-MM-dd HH:mm')"),
    "hour_t": ("string", "date_format(kafka.timestamp, 'HH')"),
}
VALUES = [
    ("2026-01-02 03:04:05.999999", "2026-01-02", "Äöüß x", "ΑΣΑ ΑΣ"),
    (None, None, None, None),
    ("1500-12-31 23:00:00", "0001-01-01", "", "x"),
    ("1969-12-31 23:59:58.5", "9999-12-31", "a😀b😀c", "İß"),
    ("0001-01-01 00:00:00", "1582-10-15", "A/b=c%", "AbC"),
    ("9999-12-31 23:59:59.999999", "1969-12-31", "   x ", "ŉ"),
]


def test_rows_when_a_partition_is_a_header_then_they_have_its_last_value(stack: Stack) -> None:
    stack.topic(1)
    stack.table("id int", "region string, dt string")
    regions = [b"DE", None, b"a/b=c", b"\xff", b"FR"]
    producer = Producer({"bootstrap.servers": stack.addresses.kafka})
    for number, region in enumerate(regions):
        value = b"{" if number == 4 else b'{"id": %d}' % number
        producer.produce(stack.name, value, partition=0, headers=[("Region", b"first"), ("Region", region)])
    assert producer.flush(LIMIT) == 0
    partition = {"region": "header('Region')", "dt": "d"}
    daemon = stack.drain(stack.config({"partition": partition, "on_error": "skip", "where": "region <> 'FR'"}))
    skipped = daemon.events("rejects_skipped")[0]["first"]
    assert [(reject["offset"], reject["column"]) for reject in skipped] == [(3, "kafka.header.Region"), (4, "")]
    assert stack.sql(f"SELECT id, region, dt FROM {stack.name}") == [(0, "DE", "d"), (2, "a/b=c", "d")]


def test_rows_when_partitions_are_expressions_then_they_are_those_of_hives_functions(stack: Stack) -> None:
    stack.topic(1)
    rows = [dict(zip(("ts", "d", "s", "v"), values, strict=True)) for values in VALUES]
    records = [row | {"id": number, "kept": "07", "hour": 99} for number, row in enumerate(rows)]
    stack.produce([*records, {"id": 99, "s": "x" * 300}])
    kinds = {name: kind for name, (kind, _) in EXPRESSIONS.items()} | {"kept": "int", "region": "decimal(4,1)"}
    partitioned = ", ".join(f"{name} {kind}" for name, kind in kinds.items())
    table = stack.table(COLUMNS, partitioned)
    twin = stack.table(COLUMNS, partitioned, f"{table}_hive")
    partition = {name: text for name, (_, text) in EXPRESSIONS.items()} | {"Region": "007.50"}
    daemon = stack.drain(stack.config({"partition": partition, "on_error": "skip", "columns": {"t": "timestamp"}}))
    [first] = daemon.events("rejects_skipped")[0]["first"]
    assert (first["column"], "longer than 255 bytes" in first["reason"]) == ("low", True)
    names = ", ".join(kinds)
    values = ", ".join(text.replace("kafka.timestamp", "t") for _, text in EXPRESSIONS.values())
    stack.sql(
        f"INSERT INTO {twin} PARTITION ({names}) SELECT id, ts, d, s, v, t, {values}, '07', '007.50' FROM {table}"
    )
    shown, wanted = (stack.sql(f"SHOW PARTITIONS {name}") for name in (table, twin))
    assert sorted(shown) == sorted(wanted)
    assert len(shown) == len(VALUES)
    found, wanted = (sorted(stack.sql(f"SELECT * FROM {name}")) for name in (table, twin))
    assert found == wanted
    assert stack.sql(f"SELECT id FROM {table} WHERE h = 3 AND hh = '03' AND hour = 3 AND kept = 7") == [(0,)]
