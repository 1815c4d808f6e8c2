"""Lenient JSON records become the rows that HiveServer2 reads from the same text with Hive's JsonSerDe."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ingestd.errors import SandboxError
from ingestd.sandbox import Addresses
from tests.support.stack import Stack

SERDE = "org.apache.hadoop.hive.serde2.JsonSerDe"
COLUMNS = {
    "id": "int",
    "t": "tinyint",
    "b": "bigint",
    "d": "double",
    "f": "float",
    "n": "decimal(10,2)",
    "o": "boolean",
    "s": "string",
    "v": "varchar(4)",
    "c": "char(4)",
    "x": "binary",
    "day": "date",
    "ts": "timestamp",
    "a": "array<int>",
    "m": "map<int,string>",
    "r": "struct<x:int,y:string>",
}
SCALARS = [
    *("5", "-5.9", "1e3", "1e400", "300", "3000000000", "9223372036854775808", "12.505", "12.50", "0.0001", "1e7"),
    *("-0", "-0.0", "true", "false", '"5"', '" 5 "', '"5.9"', '"x"', '""', '"+-5"', '"0x1p3"', '"1.5f"', '"NaN"'),
    *('"TRUE"', '"true"', '"99999999999999999999"', '"2026-01-02"', '"2026-1-2 3:4:5"', '"2026-01-02T03:04"'),
    *('"2026-01-02T03:04:05.123456789"', '"2026-01-02T03:04:05Z"', '"1500-01-02 00:00:00.5"', '"YWJj"', "null"),
]
ANY_SCALAR = ("t", "b", "d", "f", "n", "o", "s", "v", "c", "ts")  # columns for which Hive accepts all scalars
OTHERS = [
    *(
        '{"x":"YWJj YQ=="}',
        '{"x":5}',
        '{"day":"2026-1-2x"}',
        '{"day":" 26-01-02 "}',
        '{"s":{"b":1.50,"a":[null,"\\/"]}}',
        '{"s":{"b":[1e400,-1e400]}}',
    ),
    *(
        '{"s":{"b":[1e400,-1e400]}}',
        '{"a":[null,"5",true,1e9,"x"]}',
        '{"m":{"1":"x","01":"y"}}',
        '{"m":{"z":1.0}}',
        '{"r":{"_col1":"b","0":"7"}}',
    ),
    *('{"T":1} x', '{"t":1}{"t":2}', '{"_col1":7,"_COL2":8,"2":9}', '{"t":1,"T":2,"t":3}', '{"other":{}}'),
]
FAILING = ['{"t":{}}', '{"v":[1]}', '{"x":"YWJ"}', '{"day":"2026-02-30"}', '{"a":5}', '{"_col99":1}', "[]", '{"t":1,}']


def _records() -> list[str]:
    """Return records with an id each, which is always the first field."""
    scalars = ["{" + ",".join(f'"{name}":{value}' for name in ANY_SCALAR) + "}" for value in SCALARS]
    return [f'{{"id":{number},{text[1:]}' for number, text in enumerate([*scalars, *OTHERS], 1)] + ["null"]


@dataclass(frozen=True)
class _Loaded:
    """The table that a daemon has written, and the external table of the same text; each error has a partition `p`."""

    stack: Stack
    written: str
    text: str

    def rows(self, table: str, where: str) -> list[tuple[object, ...]]:
        shown = {"x": "hex(x)", "ts": "cast(ts AS string)", "day": "cast(day AS string)"}
        select = ", ".join(shown.get(name, name) for name in COLUMNS)
        return self.stack.sql(f"SELECT {select} FROM {table} WHERE {where} ORDER BY id")


@pytest.fixture(scope="module")
def loaded(addresses: Addresses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Loaded]:
    directory = Path(tmp_path_factory.mktemp("json_lenient"))
    with Stack(addresses, "json_lenient", directory) as stack:
        columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
        written, text = stack.table(columns), f"default.{stack.name}_text"
        stack.sql(f"CREATE EXTERNAL TABLE {text} ({columns}) PARTITIONED BY (p int) ROW FORMAT SERDE '{SERDE}'")
        for number, lines in enumerate([_records(), *([line] for line in FAILING)]):
            place = directory / f"p{number}"
            place.mkdir()
            (place / "records.json").write_text("\n".join(lines) + "\n", encoding="utf-8")
            stack.sql(f"ALTER TABLE {text} ADD PARTITION (p={number}) LOCATION 'file://{place}'")
        stack.produce([line.encode() for line in [*_records(), *FAILING]], stack.topic(1))
        mapping = {"format": {"type": "json", "lenient": True}, "on_error": "skip"}
        stack.drain(stack.config(mapping))
        yield _Loaded(stack, written, text)


def test_lenient_records_when_a_daemon_has_run_then_rows_are_those_of_hives_serde(loaded: _Loaded) -> None:
    *others, null = _records()
    rows = zip(loaded.rows(loaded.written, "true"), loaded.rows(loaded.text, "p = 0"), strict=True)
    for (ours, hives), record in zip(rows, [null, *others], strict=True):
        assert str(ours) == str(hives), record  # NaN is not equal to itself


def test_lenient_records_when_they_are_rejects_then_hive_fails_to_read_them(loaded: _Loaded) -> None:
    for number in range(1, len(FAILING) + 1):
        with pytest.raises(SandboxError):
            loaded.stack.sql(f"SELECT * FROM {loaded.text} WHERE p = {number}")
