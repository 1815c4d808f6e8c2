"""Creates the records of the benchmarks: JSON of the shapes that topics have. All records have the column `id`.

Other formats (`bench.formats`) have the same content.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ingestd.schema import Column, HiveType

Format = Literal["json", "avro", "protobuf", "delimited"]

_REJECT_EVERY = 100
COLUMNS = "id bigint, ts timestamp, user_name string, amount double, flag boolean, note string"
_NOTES = tuple(f"{'the quick brown fox jumps over it'[: 24 + n % 10]}{n:03d}" for n in range(997))


def records(count: int) -> Iterator[bytes]:
    """Yield `count` records with the ids 0, 1, 2 …"""
    return map(_flat, range(count))


def _flat(number: int) -> bytes:
    return b'{"id":%d,"ts":"%s","user_name":"user-%05d","amount":%d.%02d,"flag":%s,"note":"%s"}' % (
        number,
        _time(number, b" "),
        number * 7919 % 50_000,
        number % 9973,
        number % 100,
        b"true" if number % 3 else b"false",
        _NOTES[number % 997].encode(),
    )


def _time(number: int, separator: bytes) -> bytes:
    seconds, millis = divmod(number, 1000)
    minutes, second = divmod(seconds % 86_400, 60)
    hour, minute = divmod(minutes, 60)
    return b"2026-11-%02d%s%02d:%02d:%02d.%03d" % (1 + seconds // 86_400 % 28, separator, hour, minute, second, millis)


def _nested(number: int) -> bytes:
    items = b",".join(
        b'{"sku":"sku-%d","count":%d,"price":%d.5}' % (number * k % 9973, k, number % 97) for k in (1, 2, 3)
    )
    return (
        b'{"id":%d,"buyer":{"name":"user-%d","address":{"city":"city-%d","zip":"%05d"}},"items":[%s],'
        b'"labels":{"region":"r%d","tier":"%d","source":"web"}}'
        % (number, number * 7919 % 50_000, number % 997, number % 99_991, items, number % 7, number % 3)
    )


def _wide(number: int) -> bytes:
    fields = b",".join(
        b'"n%d":%d,"t%d":"value %d"' % (k, number * (k + 1) % 1_000_003, k, number * (k + 3) % 9973) for k in range(49)
    )
    return b'{"id":%d,%s,"note":"%s"}' % (number, fields, _NOTES[number % 997].encode())


def _json_text(number: int) -> bytes:
    inner = json.dumps({"kind": "click", "at": number, "path": ["home", f"page {number % 997}"], "ok": True})
    return b'{"id":%d,"payload":%s,"source":"web-%d"}' % (number, inner.encode(), number % 7)


def _hexadecimal(number: int) -> bytes:
    return b'{"id":%d,"trace":"%08x","amount":%d.%02d}' % (
        number,
        number * 2_654_435_761 % (1 << 32),
        number % 9973,
        number % 100,
    )


def _zoned(number: int) -> bytes:
    zones = (b"Z", b"+02:00", b"-0530")
    return b'{"id":%d,"created":"%s%s","updated":"%s%s","note":"%s"}' % (
        number,
        _time(number, b"T"),
        zones[number % 3],
        _time(number * 31, b"T"),
        zones[number // 3 % 3],
        _NOTES[number % 997].encode(),
    )


def _long_text(number: int) -> bytes:
    return b'{"id":%d,"body":"%s"}' % (number, (_NOTES[number % 997] + " ").encode() * 350)


def _partitioned(number: int) -> bytes:
    return b'{"id":%d,"note":"%s","part":%d}' % (number, _NOTES[number % 997].encode(), number * 7919 % 300)


def misfit(value: bytes) -> bytes:
    """Return the record with a text in place of the digits of its id, which is the first field."""
    head, _, tail = value.partition(b",")
    return head.partition(b":")[0] + b':"x",' + tail


def is_reject(number: int) -> bool:
    """Return whether the record with this number is a reject, in shapes with rejects: 1 % of the records."""
    return number % _REJECT_EVERY == _REJECT_EVERY // 2


def _some_rejects(number: int) -> bytes:
    return misfit(_flat(number)) if is_reject(number) else _flat(number)


@dataclass(frozen=True, slots=True)
class Shape:
    """Records of one shape, and the table that stores them. `size` is the approximate number of bytes of a record.

    `record` returns the record with a given id as JSON, `format` is the format in which it is produced. The table is
    partitioned by `partition`, unless it is empty. `on_error` is that of the mapping if some records are rejects, and
    `sql` are its keys `where` and `transform`.
    """

    name: str
    size: int
    columns: str
    record: Callable[[int], bytes]
    partition: str = ""
    kafka_partitions: int = 16
    format: Format = "json"
    on_error: Literal["stop", "skip", "dead_letter"] = "stop"
    sql: Mapping[str, Any] = field(default_factory=dict)

    @property
    def has_rejects(self) -> bool:
        """Whether some of the records are rejects (`is_reject`)."""
        return self.on_error != "stop"

    def all_columns(self) -> list[Column]:
        """Return the columns of the table and its partition columns."""
        parts, depth = [""], 0
        for letter in ", ".join(filter(None, (self.columns, self.partition))):
            depth += (letter in "<(") - (letter in ">)")
            if letter == "," and not depth:
                parts.append("")
            else:
                parts[-1] += letter
        record = HiveType.parse(f"struct<{', '.join(part.strip().replace(' ', ':', 1) for part in parts)}>")
        return [Column(name, kind) for name, kind in zip(record.names, record.children, strict=True)]


_SELECT = "SELECT id, ts, upper(user_name) AS user_name, amount * 2 AS amount, NOT flag AS flag, note FROM records"
FLAT = Shape("flat", 142, COLUMNS, _flat)
NESTED = Shape(
    "nested",
    275,
    "id bigint, buyer struct<name:string,address:struct<city:string,zip:string>>, "
    "items array<struct<sku:string,count:int,price:double>>, labels map<string,string>",
    _nested,
)
SHAPES = (
    FLAT,
    Shape(
        "wide", 1900, "id bigint, " + ", ".join(f"n{k} int, t{k} string" for k in range(49)) + ", note string", _wide
    ),
    NESTED,
    Shape("json_text", 115, "id bigint, payload string, source string", _json_text),
    Shape("hexadecimal", 48, "id bigint, trace string, amount decimal(10,2)", _hexadecimal),
    Shape("zoned", 130, "id bigint, created timestamp, updated timestamp, note string", _zoned),
    Shape("long_text", 10_200, "id bigint, body string", _long_text),
    Shape("partitions", 65, "id bigint, note string", _partitioned, "part int"),
    Shape("hot", 142, COLUMNS, _flat, "", 1),
    Shape("rejects", 142, COLUMNS, _some_rejects, on_error="skip"),
    Shape("dead_letters", 142, COLUMNS, _some_rejects, on_error="dead_letter"),
    replace(FLAT, name="flat_where", sql={"where": "user_name >= '' AND amount < 10000"}),
    replace(FLAT, name="flat_transform", sql={"transform": {"select": _SELECT}}),
    replace(NESTED, name="nested_where", sql={"where": "buyer.name >= ''"}),
    replace(FLAT, name="flat_avro", size=82, format="avro"),
    replace(NESTED, name="nested_avro", size=157, format="avro"),
    replace(FLAT, name="flat_protobuf", size=90, format="protobuf"),
    replace(NESTED, name="nested_protobuf", size=190, format="protobuf"),
    replace(FLAT, name="flat_delimited", size=94, format="delimited"),
    replace(NESTED, name="nested_delimited", size=136, format="delimited"),
)
