"""Partitions have the names, locations and rows that HiveServer2 would give them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from ingestd.errors import MetastoreUnavailable
from ingestd.hive.partitions import ensure_partitions
from ingestd.hive.tables import TableName, load_acid_table
from ingestd.publish.deltas import create_partitions
from ingestd.sandbox import Addresses
from ingestd.storage.local import LocalLocation
from tests.support.compaction import compact
from tests.support.stack import Stack

DEFAULT = "__HIVE_DEFAULT_PARTITION__"
STRINGS = ["a/b", "a:b", "a=b", "100%", "%41", "a b", "it's", 'say "x"', "a\\b", "{x}[y]", "#^?*", "äöü", "漢字𝄞"]
STRINGS += ["", "2026-11-21", "a,b;c&d", "~", "a\tb", "UPPER", "1e5", "-1", "null", "a+b", "<x>|"]
TIMES = ["2026-11-21T10:11:12", "2026-11-21 10:11:12.5", "1999-12-31 00:00:00"]
NULL: tuple[Any, str] = (None, "NULL")
DAYS = [f"2026-{month:02d}-{day:02d}" for month in (9, 10) for day in range(1, 31)]


def _literal(text: str) -> str:
    """Return `text` as a HiveQL string literal."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


# The columns of a partitioned table, and of its twin into which Hive inserts: type, JSON values and HiveQL literals.
TWINS: dict[str, tuple[str, list[tuple[Any, str]]]] = {
    "text": ("string", [*((text, _literal(text)) for text in STRINGS), NULL]),
    "day": ("date", [*((d, f"'{d}'") for d in ("0001-01-01", "1582-10-15", "2026-11-21")), NULL]),
    "whole": ("int", [(0, "0"), (-5, "-5"), (2147483647, "2147483647"), ("7", "7"), NULL]),
    "flag": ("boolean", [(True, "true"), (False, "false"), NULL]),
    "money": ("decimal(10,2)", [(1, "1"), ("1.5", "1.5"), (-0.01, "-0.01"), (100, "100"), (0, "0"), NULL]),
    "at": ("timestamp", [*((at, f"'{at.replace('T', ' ')}'") for at in TIMES), NULL]),
    "var": ("varchar(5)", [("abc", "'abc'"), ("é", "'é'"), ("", "''"), NULL]),
    "fix": ("char(5)", [("abc", "'abc'"), ("abcde", "'abcde'"), ("", "''"), NULL]),
}


# Static values in notations that users may write: type, value, literal for WHERE, and value in the partition name.
STATIC = {
    "tiny": ("tinyint", "007", "7", "7"),
    "int": ("int", "+5", "5", "5"),
    "big": ("bigint", "009223372036854775807", "9223372036854775807", "9223372036854775807"),
    "dec": ("decimal(10,2)", "001.50", "1.50", "1.5"),
    "bool": ("boolean", "TRUE", "true", "true"),
    "day": ("date", "2026-1-5", "'2026-01-05'", "2026-01-05"),
    "time": ("timestamp", "2026-01-05T10:00:00.50", "'2026-01-05 10:00:00.5'", "2026-01-05 10%3A00%3A00.5"),
    "char": ("char(5)", "ab", "'ab'", "ab   "),
    "varchar": ("varchar(5)", "ab", "'ab'", "ab"),
    "double": ("double", "1.50", "1.5", "1.5"),
    "float": ("float", "10000000000", "10000000000.0", "1.0E10"),
    "str": ("string", "007", "'007'", "007"),
}


class _Partitions:
    """The tables of all cases. One daemon loads them together."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.mappings: list[dict[str, Any]] = []
        self.commits: dict[str, list[dict[str, Any]]] = {}

    def name(self, case: str) -> str:
        return f"{self.stack.name}_{case}"

    def add(self, case: str, partitioned: str, records: list[dict[str, Any]], **mapping: Any) -> str:
        """Create the topic, the table and the mapping of a case, and return the table name."""
        name = self.name(case)
        self.stack.topic(2, name)
        self.stack.produce(records, name)
        self.stack.table("id int, note string", partitioned, f"default.{name}")
        self.mappings.append({"name": name[-40:], "topics": [name], "table": f"default.{name}"} | mapping)
        return name

    def load(self) -> None:
        daemon = self.stack.drain(self.stack.config(*self.mappings))
        for event in daemon.events("committed"):
            self.commits.setdefault(event["mapping"], []).append(event)

    def shown(self, name: str) -> set[str]:
        """Return the partition names of SHOW PARTITIONS."""
        return {row[0] for row in self.stack.sql(f"SHOW PARTITIONS {name}")}

    def rows(self, name: str) -> list[tuple[Any, ...]]:
        return sorted(self.stack.sql(f"SELECT * FROM {name}"), key=lambda row: row[0])


def _columns(cases: Mapping[str, tuple[Any, ...]]) -> str:
    """Return the partition columns `p_CASE` of TWINS or STATIC."""
    return ", ".join(f"p_{case} {kind}" for case, (kind, *_) in cases.items())


def _twin_records() -> list[dict[str, Any]]:
    """Return records with all values of TWINS. In the last record the fields are missing, which is the same as NULL."""
    count = max(len(values) for _, values in TWINS.values())
    records = [
        {"id": n, "note": "n"} | {f"p_{case}": values[n % len(values)][0] for case, (_, values) in TWINS.items()}
        for n in range(count)
    ]
    return [*records, {"id": count, "note": "n"}]


def _twin_rows() -> str:
    """Return the rows of `_twin_records` as the VALUES of an INSERT."""
    rows = []
    for record in _twin_records():
        texts = (
            f"cast({values[record['id'] % len(values)][1] if f'p_{case}' in record else 'NULL'} AS {kind})"
            for case, (kind, values) in TWINS.items()
        )
        rows.append(f"({record['id']}, 'n', {', '.join(texts)})")
    return ", ".join(rows)


def _records(values: Sequence[Any], column: str) -> list[dict[str, Any]]:
    return [{"id": n, "note": "n", column: value} for n, value in enumerate(values)]


@pytest.fixture(scope="module")
def loaded(addresses: Addresses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Partitions]:
    directory = Path(tmp_path_factory.mktemp("partitions"))
    with Stack(addresses, "part", directory) as stack:
        cases = _Partitions(stack)
        cases.add("twin", _columns(TWINS), _twin_records())
        two = [{"id": n, "dt": f"2026-11-{n % 3 + 1:02d}", "region": "DE/é" if n % 2 else None} for n in range(60)]
        cases.add("two", "dt date, region string", two)
        static = {"dt": "2026-11-21", "Region": "a/ü b"}
        cases.add(
            "static", "dt date, region string", [{"id": n, "region": "ignored"} for n in range(10)], partition=static
        )
        cases.add("none", "p string", _records(range(3), "q"), partition={"p": ""})
        cases.add("wide", "dt string", [{"id": n, "dt": DAYS[n % 60]} for n in range(600)], commit={"interval": "1s"})
        texts = {f"p_{case}": text for case, (_, text, _, _) in STATIC.items()}
        cases.add("notation", _columns(STATIC), _records(range(3), "q"), partition=texts)
        place = cases.add("place", "p string", [{"id": n, "p": "far" if n % 2 else "hive"} for n in range(10)])
        stack.sql(f"ALTER TABLE {place} ADD PARTITION (p='far')")
        (directory / "elsewhere").mkdir()  # ingestd never creates a location
        # Hive ignores ADD PARTITION … LOCATION for managed tables, but not this statement.
        stack.sql(f"ALTER TABLE {place} PARTITION (p='far') SET LOCATION '{(directory / 'elsewhere').as_uri()}'")
        stack.sql(f"INSERT INTO {place} PARTITION (p='hive') VALUES (100, 'theirs')")
        cases.load()
        yield cases


def test_values_when_dynamic_then_partitions_are_named_as_hive_names_them(loaded: _Partitions) -> None:
    name = loaded.name("twin")
    twin = loaded.stack.table("id int, note string", _columns(TWINS), f"default.{name}_t")
    columns = ", ".join(f"p_{case}" for case in TWINS)
    loaded.stack.sql(f"INSERT INTO {twin} PARTITION ({columns}) VALUES {_twin_rows()}")
    assert loaded.shown(name) == loaded.shown(twin)
    assert loaded.rows(name) == loaded.rows(twin)


def test_directories_when_values_need_escaping_then_named_as_hive_names_them(loaded: _Partitions) -> None:
    name = loaded.name("twin")
    root = Path(unquote(loaded.stack.addresses.warehouse.removeprefix("file://"))) / name
    assert {str(path.parent.relative_to(root)) for path in root.rglob("delta_*")} == loaded.shown(name)


def test_partition_column_when_filtered_by_null_then_the_metastore_answers(loaded: _Partitions) -> None:
    # Without commons-codec on its class path, the metastore closes the connection.
    name = loaded.name("two")
    assert loaded.stack.count("WHERE dt IS NULL", name) == 0
    assert loaded.stack.count("WHERE dt IS NOT NULL", name) == 60


def test_two_levels_when_one_is_null_then_only_that_level_is_the_default_partition(loaded: _Partitions) -> None:
    name = loaded.name("two")
    wanted = {f"dt=2026-11-0{d}/region={r}" for d in (1, 2, 3) for r in ("DE%2Fé", DEFAULT)}
    assert loaded.shown(name) == wanted
    counted = loaded.stack.sql(f"SELECT cast(dt AS string), region, count(*) FROM {name} GROUP BY dt, region")
    assert sorted(counted, key=str) == sorted(
        ((f"2026-11-0{d}", r, 10) for d in (1, 2, 3) for r in ("DE/é", DEFAULT)), key=str
    )


def test_static_values_when_set_then_fields_of_the_record_are_ignored(loaded: _Partitions) -> None:
    name = loaded.name("static")
    assert loaded.shown(name) == {"dt=2026-11-21/region=a%2Fü b"}
    assert [row[0] for row in loaded.rows(name)] == list(range(10))
    assert {row[3] for row in loaded.rows(name)} == {"a/ü b"}


def test_static_value_when_empty_then_is_the_default_partition(loaded: _Partitions) -> None:
    assert loaded.shown(loaded.name("none")) == {f"p={DEFAULT}"}
    assert loaded.rows(loaded.name("none")) == [(n, "n", DEFAULT) for n in range(3)]


def test_static_values_when_not_in_hives_notation_then_hive_reads_overwrites_and_drops_the_partition(
    loaded: _Partitions,
) -> None:
    name = loaded.name("notation")
    wanted = "/".join(f"p_{case}={shown}" for case, (_, _, _, shown) in STATIC.items())
    literals = [f"p_{case} = {literal}" for case, (_, _, literal, _) in STATIC.items()]
    assert loaded.shown(name) == {wanted}
    for literal in literals:
        found = loaded.stack.sql(f"SELECT id FROM {name} WHERE {literal}")
        assert sorted(row[0] for row in found) == [0, 1, 2], literal
    texts = ", ".join(f"p_{case} = '{text}'" for case, (_, text, _, _) in STATIC.items())
    loaded.stack.sql(f"INSERT OVERWRITE TABLE {name} PARTITION ({texts}) VALUES (100, 'theirs')")
    assert loaded.shown(name) == {wanted}
    assert loaded.stack.ids(name) == [100]
    loaded.stack.sql(f"ALTER TABLE {name} DROP PARTITION ({', '.join(literals)})")
    assert loaded.shown(name) == set()


def test_static_value_when_not_valid_for_the_type_then_run_and_check_report_it(stack: Stack) -> None:
    stack.topic()
    stack.table("id int, note string", "p int")
    stack.sql(f"ALTER TABLE {stack.name} ADD PARTITION (p=7)")
    config = stack.config({"partition": {"p": "abc"}})
    daemon = stack.drain(config, expect=65)
    check = [sys.executable, "-m", "ingestd", "check", "--online", "--config", str(config)]
    checked = subprocess.run(check, capture_output=True, text=True, check=False)
    assert checked.returncode == 65
    for said in (daemon.text(), checked.stdout):
        assert f"table default.{stack.name}, partition column p: 'abc' is not a value of type int" in said


def test_partition_when_its_name_differs_from_that_of_hive_then_logged_once(stack: Stack) -> None:
    stack.topic()
    stack.produce({"id": n, "note": "n", "p": "7"} for n in range(4))
    stack.table("id int, note string", "p int")
    table = load_acid_table(stack.metastore, TableName("default", stack.name))
    create_partitions(stack.metastore, table, LocalLocation.of(table.location), [["007"], ["8"]])
    told = stack.drain().events("odd_partitions")
    assert [(event["count"], event["table"]) for event in told] == [(1, f"default.{stack.name}")]
    assert "p=007" in told[0]["partitions"]
    assert "p=8" not in told[0]["partitions"]


def test_partitions_when_the_metastore_refuses_one_of_them_then_the_error_names_it(stack: Stack) -> None:
    keys = ("a", "b", "c", "d")
    stack.table("id int", partitioned=", ".join(f"{key} string" for key in keys))
    table = load_acid_table(stack.metastore, TableName("default", stack.name))
    long = "x" * 200  # the metastore stores at most 767 characters of a partition's name
    values = {"/".join(f"{key}={value}" for key in keys): [value] * 4 for value in ["1", "2", long, "3", "4"]}
    with pytest.raises(MetastoreUnavailable, match="cannot create the partition a=xxx"):
        ensure_partitions(stack.metastore, table, values, lambda _names: None)
    del values["/".join(f"{key}={long}" for key in keys)]
    assert set(ensure_partitions(stack.metastore, table, values, lambda _names: None)) == set(values)


def test_partitions_when_the_database_takes_one_for_the_other_then_the_mapping_stops(stack: Stack) -> None:
    stack.topic()
    stack.produce([{"id": 1, "p": "a"}, {"id": 2, "p": "a "}])
    stack.table("id int", "p string")
    daemon = stack.drain(stack.config(), expect=65)
    [event] = daemon.events("failed")
    assert "the metastore cannot create the partition p=a" in event["error"]
    assert "Derby ignore blanks at the end" in event["error"]
    assert stack.ids() == []


def test_sixty_partitions_when_in_one_transaction_then_all_are_written(loaded: _Partitions) -> None:
    name = loaded.name("wide")
    assert loaded.shown(name) == {f"dt={day}" for day in DAYS}
    assert loaded.stack.ids(name) == list(range(600))
    commits = [c for c in loaded.commits[name[-40:]] if c["rows"]]
    assert [(c["rows"], c["files"]) for c in commits] == [(600, 60)]
    counted = loaded.stack.sql(f"SELECT dt, count(*) FROM {name} GROUP BY dt")
    assert sorted(counted) == [(day, 10) for day in DAYS]


def test_partition_when_it_has_its_own_location_then_rows_are_written_there(loaded: _Partitions) -> None:
    name = loaded.name("place")
    assert loaded.stack.ids(name) == [*range(10), 100]
    assert list((loaded.stack.directory / "elsewhere").glob("delta_*"))
    files = loaded.stack.sql(f"SELECT DISTINCT INPUT__FILE__NAME FROM {name} WHERE p = 'far'")
    assert files
    assert all("/elsewhere/delta_" in row[0] for row in files)


def test_partition_when_created_by_hive_then_both_write_to_it(loaded: _Partitions) -> None:
    name = loaded.name("place")
    assert sorted(row[0] for row in loaded.rows(name) if row[2] == "hive") == [0, 2, 4, 6, 8, 100]
    assert loaded.stack.count("WHERE p = 'hive'", name) == 6


def test_rows_when_updated_deleted_and_compacted_then_are_correct(loaded: _Partitions) -> None:
    name = loaded.name("two")
    loaded.stack.sql(f"UPDATE {name} SET note = 'changed' WHERE id % 4 < 2")
    loaded.stack.sql(f"DELETE FROM {name} WHERE id % 3 = 0")
    wanted = [(n, "changed" if n % 4 < 2 else None) for n in range(60) if n % 3]
    assert [row[:2] for row in loaded.rows(name)] == wanted
    # Do not compact `DE/é`: Hive's MR compactor empties partitions with non-ASCII names (CompactorInputSplit).
    compact(loaded.stack, f"default.{name}", "major", f"dt='2026-11-02', region='{DEFAULT}'")
    assert [row[:2] for row in loaded.rows(name)] == wanted
    assert loaded.stack.count("", name) == len(wanted)
