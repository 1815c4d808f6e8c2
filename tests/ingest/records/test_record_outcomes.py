"""Valid, damaged and hostile records of every format: Hive reads the right row, or the dead letter is exact."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from ingestd.acid.hive_text import hive_text
from ingestd.config.document import load
from ingestd.formats.decoder import DecodeResult
from ingestd.formats.options import decoder_of
from ingestd.schema import Column, HiveType
from tests.support.avro import encode, logical
from tests.support.decoding import columns_of
from tests.support.protobuf import Field, class_of, file_of, message, set_of
from tests.support.stack import Stack

Values = dict[str, Any]

COUNT = 400
SCALARS = {
    "id": "bigint", "name": "varchar(8)", "price": "decimal(10,2)", "ok": "boolean", "x": "double", "day": "date",
    "at": "timestamp", "tiny": "tinyint", "small": "smallint", "num": "int", "single": "float", "fix": "char(4)",
    "txt": "string", "raw": "binary",
}  # fmt: skip
COMPLEX = {"tags": "map<string,int>", "place": "struct<x:bigint,name:string>"}
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
DEEP = b"[" * 1000 + b"]" * 1000
HOSTILE: tuple[bytes, ...] = (
    *(
        b"",
        b"\xff\xfe",
        b"\x00" * 40,
        b"null",
        b"[]",
        b"5",
        b'"' * 31,
        b"1|" * 300,
        b'{"id": 1',
        b"\x00\x00\x00\x00\x63x",
    ),
    *(b'{"id": 1e400}', b'{"x": 1e400}', b'{"x": NaN}', b'{"x": -Infinity}', b'{"id": 1, "ID": "x", "iD": 2}'),
    *(b'{"name": "\\ud800"}', b'{"name": "a\\u0000b"}', b'{"name": ' + DEEP + b"}", b'{"other": ' + DEEP + b"}"),
    *(b'{"id": 1} {"id": 2}', b'{"at": "0000-00-00 00:00:00"}', b'{"day": "2026-02-30"}', b'{"price": 123456789}'),
    *(b"\x02" + b"\xff" * 9 + b"\x01", b"x" * 900_000, b'{"name": "' + b"x" * 900_000 + b'"}', b"\xef\xbb\xbf{}"),
)


def _value(random: Random) -> Values:
    """Return values that every format can store; each may be NULL."""
    found = {
        "id": random.choice([0, -1, 2**63 - 1, -(2**63), random.getrandbits(40)]),
        "name": random.choice(["", "Ann", "é日本", "12345678", "a b", "\\", "\U0001f600"]),
        "price": Decimal(random.randint(-(10**10) + 1, 10**10 - 1)).scaleb(-2),
        "ok": random.random() < 0.5,
        "x": random.choice([0.5, -1e300, 123456.789, 1e-7]),
        "day": date(1, 1, 1) + timedelta(random.randint(0, 3_652_058)),
        "at": EPOCH + timedelta(microseconds=random.randint(-(2**52), 2**52)),
        "tiny": random.choice([0, 127, -128]),
        "small": random.choice([0, 32_767, -32_768]),
        "num": random.choice([0, 2**31 - 1, -(2**31)]),
        "single": random.choice([0.5, -0.1, 3.4028234663852886e38, 1e-7]),
        "fix": random.choice(["", "ab", "é日", "12 4", "\U0001f600"]),
        "txt": random.choice(["", "x" * 300, "é漢 \U0001f600"]),
        "raw": random.choice([b"", b"\0\xff|\n", b"abc", bytes(range(256))]),
        "tags": random.choice([{}, {"a": 1}, {"é": -(2**31), "b c": None}]),
        "place": random.choice([{"x": 2**63 - 1, "name": "é日本"}, {"x": None, "name": ""}, {"x": 0, "name": None}]),
    }
    return {name: None if random.random() < 0.1 else value for name, value in found.items()}


def _texts(value: Values) -> dict[str, str | None]:
    """Return the values of the scalars as text."""
    return {
        name: None
        if one is None
        else base64.b64encode(one).decode()
        if isinstance(one, bytes)
        else f"{one:%Y-%m-%d %H:%M:%S.%f}"
        if isinstance(one, datetime)
        else one.isoformat()
        if isinstance(one, date)
        else str(one)
        for name, one in value.items()
        if name in SCALARS
    }


def _json(value: Values) -> bytes:
    texts = {name: text for name, text in _texts(value).items() if text is not None}
    unquoted = ("x", "ok", "id", "tiny", "small", "num", "single", *COMPLEX)
    return json.dumps(texts | {name: value[name] for name in unquoted}).encode()


def _delimited(value: Values) -> bytes:
    return "|".join("\\N" if text is None else text for text in _texts(value).values()).encode()


def _delimited_complex(value: Values) -> bytes:
    def text(scalar: Any) -> str:
        return "\\N" if scalar is None else str(scalar)

    tags, place = value["tags"], value["place"]
    entries = tags if tags is None else ",".join(f"{key}:{text(one)}" for key, one in tags.items())
    fields = place if place is None else ",".join(map(text, place.values()))
    return b"|".join([_delimited(value), text(entries).encode(), text(fields).encode()])


def _csv(value: Values) -> bytes:
    texts = _texts(value)
    return "|".join("" if text is None else f'"{text}"' for text in texts.values()).encode()


AVRO: dict[str, Any] = {
    "type": "record",
    "name": "row",
    "fields": [
        {"name": name, "type": ["null", kind]}
        for name, kind in {
            "id": "long", "name": "string", "price": logical("bytes", "decimal", precision=10, scale=2),
            "ok": "boolean", "x": "double", "day": logical("int", "date"), "at": logical("long", "timestamp-micros"),
            "tiny": "int", "small": "int", "num": "int", "single": "float", "fix": "string", "txt": "string",
            "raw": "bytes", "tags": {"type": "map", "values": ["null", "int"]},
            "place": {"type": "record", "name": "place", "fields": [
                {"name": "x", "type": ["null", "long"]}, {"name": "name", "type": ["null", "string"]},
            ]},
        }.items()
    ],
}  # fmt: skip
OLD_AVRO = {
    **AVRO,
    "fields": [{**field, "name": "key"} if field["name"] == "id" else field for field in AVRO["fields"]],
}
READER = {
    **AVRO,
    "fields": [{**field, "aliases": ["key"]} if field["name"] == "id" else field for field in AVRO["fields"]],
}
_SINGLE = {
    "id": "sint64", "name": "string", "ok": "bool", "x": "double", "tiny": "sint32", "small": "int32",
    "num": "sfixed32", "single": "float", "fix": "string", "txt": "string", "raw": "bytes",
}  # fmt: skip
_MESSAGES = {
    "at": ".google.protobuf.Timestamp", "day": ".google.type.Date", "price": ".confluent.type.Decimal",
    "place": ".shop.Place",
}  # fmt: skip
FILE = file_of(
    message("Place", [Field("x", 1, "int64", "optional"), Field("name", 2, "string", "optional")]),
    message(
        "Row",
        [
            *(Field(name, number, kind, "optional") for number, (name, kind) in enumerate(_SINGLE.items(), 1)),
            *(Field(name, number, kind) for number, (name, kind) in enumerate(_MESSAGES.items(), 20)),
            Field("tags", 30, "int32", key="string"),
        ],
    ),
)
FILE.dependency.extend(["google/type/date.proto", "confluent/type/decimal.proto"])


def _protobuf(value: Values) -> bytes:
    place, price, day = value["place"], value["price"], value["day"]
    found: Any = class_of(FILE)(
        **{name: value[name] for name in _SINGLE},
        tags=_of_protobuf(value)["tags"],
        place=place and {name: one for name, one in place.items() if one is not None},
        day=day and {"year": day.year, "month": day.month, "day": day.day},
        price=price and {"value": int(price.scaleb(2)).to_bytes(5, "big", signed=True), "scale": 2},
    )
    if value["at"] is not None:
        found.at.FromDatetime(value["at"])
    data: bytes = found.SerializeToString(deterministic=True)
    return data


def _of_protobuf(value: Values) -> Values:
    """Return values as Protobuf has them: its maps are never NULL, and neither are the values in them."""
    return value | {"tags": {key: one for key, one in (value["tags"] or {}).items() if one is not None}}


@dataclass(frozen=True)
class Case:
    """The options of a format, how it writes values, the columns that equal them, and what is written of values."""

    options: Mapping[str, Any]
    write: Callable[[Values], bytes]
    types: Mapping[str, str]
    written: Callable[[Values], Values] = dict


def _case(options: Mapping[str, Any], write: Callable[[Values], bytes], *names: str) -> Case:
    types = {**SCALARS, **COMPLEX}
    return Case(options, write, {name: types[name] for name in names} if names else types)


NAMES = list(SCALARS)
CASES = {
    "json": _case({"type": "json"}, _json),
    "delimited": _case(
        {
            "type": "delimited",
            "fields": [*NAMES, *COMPLEX],
            "field_delimiter": "|",
            "collection_delimiter": ",",
            "map_key_delimiter": ":",
        },
        _delimited_complex,
    ),
    "csv": _case({"type": "csv", "fields": NAMES, "field_delimiter": "|"}, _csv, *NAMES),
    "regex": _case(
        {"type": "regex", "fields": NAMES, "pattern": r"\|".join([r"(?:\\N|([^|]*))"] * len(NAMES))},
        _delimited,
        *NAMES,
    ),
    "avro": _case(
        {"type": "avro", "framing": "none", "schemas": [json.dumps(AVRO)]},
        lambda value: encode(json.dumps(AVRO), value),
    ),
    "resolved": _case(
        {"type": "avro", "framing": "none", "schemas": [json.dumps(OLD_AVRO)], "reader_schema": json.dumps(READER)},
        lambda value: encode(json.dumps(OLD_AVRO), {**value, "key": value["id"]}),
    ),
    "protobuf": Case(
        {"type": "protobuf", "framing": "none", "message": "shop.Row", "descriptor_set": set_of(FILE)},
        _protobuf,
        SCALARS | COMPLEX,
        _of_protobuf,
    ),
    "text": _case({"type": "text"}, lambda value: (value["name"] or "").encode(), "name"),
    "binary": _case({"type": "binary"}, lambda value: value["raw"] or b"", "raw"),
}


def _damaged(random: Random, record: bytes) -> bytes:
    place = random.randrange(len(record) + 1)
    if random.random() < 0.6:
        return record[:place] + bytes([random.randrange(256)]) + record[place + 1 :]
    return record[:place] if random.random() < 0.5 else record + record[place:]


def _records(case: Case, random: Random) -> tuple[list[bytes], dict[int, Values]]:
    """Return the values of records, and what was written in those that are valid, by their index."""
    records: list[bytes] = []
    written: dict[int, Values] = {}
    for index in range(COUNT):
        value, chance = _value(random), random.random()
        record = case.write(value)
        if chance < 0.6:
            written[index] = case.written(value)
        records.append(record if chance < 0.6 else _damaged(random, record))
    return [*records, *HOSTILE], written


def _shown(column: Column, scalar: Any) -> Any:
    """Return a value as the query of `_rows` returns it."""
    if column.type.kind in ("date", "timestamp", "decimal", "char", "struct"):
        return hive_text(column.type, scalar)
    if column.type.kind == "map":
        return _read(column, hive_text(column.type, scalar))
    found = scalar.as_py()
    return found.hex().upper() if isinstance(found, bytes) else _read(column, found)


def _read(column: Column, value: Any) -> Any:
    """Return a value of the client so that it equals the stored one: digits of floats, NaN, the order of maps."""
    if value is None:
        return None
    if column.type.kind == "map":
        return json.loads(value)
    if column.type.kind in ("float", "double") and math.isnan(value):
        return "NaN"
    return float(np.float32(value)) if column.type.kind == "float" else value


def _outcomes(columns: list[Column], decoded: DecodeResult, values: list[bytes]) -> dict[int, Any]:
    records = iter(decoded.records_of_rows(values).tolist())
    found: dict[int, Any] = {reject.row: (reject.column, reject.reason) for reject in decoded.rejects}
    for batch in decoded.batches:
        for row in range(batch.num_rows):
            pairs = zip(columns, batch.columns, strict=True)
            found[next(records)] = [_shown(column, array[row]) for column, array in pairs]
    return found


def _rows(stack: Stack, table: str, columns: list[Column]) -> list[tuple[int, list[Any]]]:
    casts = {"binary": "hex({})", **dict.fromkeys(("date", "timestamp", "decimal"), "cast({} AS string)")}
    selected = ", ".join(casts.get(column.type.kind, "{}").format(column.name) for column in columns)
    rows = stack.sql(f"SELECT o, {selected} FROM {table}")
    return [(row[0], [_read(column, value) for column, value in zip(columns, row[1:], strict=True)]) for row in rows]


@pytest.fixture(scope="module")
def loaded(addresses: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Produce the records of all formats and run one daemon."""
    with Stack(addresses, "outcomes", Path(tmp_path_factory.mktemp("outcomes"))) as stack:
        records, mappings = {}, []
        for name, case in CASES.items():
            table = f"{stack.name}_{name}"
            stack.topic(1, table)
            columns = ", ".join(f"{column} {kind}" for column, kind in case.types.items())
            stack.table(f"{columns}, o bigint", name=f"default.{table}")
            records[name] = _records(case, Random(name))
            stack.produce(records[name][0], table)
            mappings.append({
                "name": table[-40:], "topics": [table], "table": f"default.{table}", "format": dict(case.options),
                "columns": {"o": "offset"}, "on_error": "dead_letter",
                "dead_letter": {"table": f"default.{stack.name}_dead"},
            })  # fmt: skip
        config = stack.config(*mappings)
        stack.drain(config)
        letters = stack.sql(
            "SELECT record_topic, record_offset, hex(record_value), error_column, error_reason"
            f" FROM default.{stack.name}_dead"
        )
        yield stack, records, config, letters


@pytest.mark.parametrize("name", CASES)
def test_records_when_valid_damaged_or_hostile_then_each_is_a_right_row_or_an_exact_dead_letter(
    loaded: Any, name: str
) -> None:
    stack, records, config, letters = loaded
    (values, written), case, table = records[name], CASES[name], f"{stack.name}_{name}"
    columns = list(columns_of(**case.types))
    options = next(mapping for mapping in load([config]).mappings if mapping.topics == (table,))
    alone = [
        _outcomes(columns, decoder_of(options.format, columns, None).decode([value]), [value])[0] for value in values
    ]

    rows = _rows(stack, table, columns)
    dead = [row[1:] for row in letters if row[0] == table]

    assert sorted([offset for offset, _ in rows] + [row[0] for row in dead]) == list(range(len(values)))
    for offset, row in rows:
        assert row == alone[offset], values[offset][:200]
    for offset, value, column, reason in dead:
        assert value == values[offset].hex().upper()
        assert ((column or ""), reason) == alone[offset]
    of_offsets = dict(rows)
    for offset, value in written.items():
        assert of_offsets[offset] == _expected(case, value), values[offset]


def _expected(case: Case, value: Values) -> list[Any]:
    """Return the row of a valid record, from the values that were written."""
    texts = _texts(value)
    found: list[Any] = []
    for name, text in case.types.items():
        kind, one = HiveType.parse(text), value[name]
        if one is None:
            found.append(None)
        elif kind.kind == "timestamp":
            found.append(str(texts[name]).rstrip("0").removesuffix("."))
        elif kind.kind in ("date", "decimal"):
            found.append(texts[name])
        elif kind.kind == "char":
            found.append(one.ljust(kind.length))
        elif kind.kind == "float":
            found.append(float(np.float32(one)))
        elif kind.kind == "binary":
            found.append(one.hex().upper())
        elif kind.kind == "struct":
            found.append(json.dumps(one, ensure_ascii=False, separators=(",", ":")))
        else:
            found.append(one)
    return [found[0] or ""] if case.options["type"] in ("text", "binary") else found
