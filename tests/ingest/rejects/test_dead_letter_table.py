"""Dead letters in a table: they are visible exactly once, in the same transaction as the rows of their records."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from ingestd.clock import now
from ingestd.hive.partitions import ROWS_WRITTEN
from ingestd.hive.tables import TableName, read_table
from ingestd.ingest.letters.table import definition
from ingestd.ingest.steps import STEPS
from ingestd.kafka.admin import Broker
from ingestd.kafka.record import Record
from ingestd.publish.staging import DAEMON
from ingestd.sandbox import Addresses
from ingestd.storage.local import local_path
from tests.support.counters import number, read_parameters
from tests.support.daemon import DaemonThread
from tests.support.records import produce_all, read_all
from tests.support.stack import Row, Stack, eventually

AN_HOUR_AGO = int(now() * 1000) - 3_600_000
# The rejects of the case `origin`: key, value, headers and timestamp. The last timestamp is in microseconds.
REJECTS = [
    Record(b"\x00k\xff", b"\xff{oops\x00", (("trace", b"\x01\xfe"), ("trace", b""), ("none", None)), AN_HOUR_AGO),
    Record(None, b'{"id": "seven"}', (), AN_HOUR_AGO + 1),
    Record(b"", b"", (("h", b"1"),), AN_HOUR_AGO + 2),
    Record(b"tombstone", None, (), AN_HOUR_AGO + 3),
    Record(b"late", b"{", (), AN_HOUR_AGO * 1000),
]
_SHOWN = (
    "SELECT id, mapping, record_topic, record_partition, record_offset, cast(record_timestamp AS string),"
    " hex(record_key), hex(record_value), size(record_headers), record_headers[0].key, hex(record_headers[0].value),"
    " hex(record_headers[2].value), error_stage, error_column, error_reason, error_time FROM {}"
)


def _hex(value: bytes | None) -> str | None:
    return None if value is None else value.hex().upper()


def _at(milliseconds: int) -> str:
    """Return Hive's text of a timestamp: UTC, without zeros at the end of the fraction."""
    moment = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=milliseconds)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{milliseconds % 1000:03d}".rstrip("0").rstrip(".")


def _letters(stack: Stack, table: str) -> list[Row]:
    """Return the mapping, the partition and the offset of each letter, sorted."""
    return sorted(stack.sql(f"SELECT mapping, record_partition, record_offset FROM {table}"))


def _assert_counted(stack: Stack, table: str, rows: int) -> None:
    """Check that a table has so many rows by a scan, by `count(*)`, and by a row count that ingestd trusts."""
    assert len(stack.sql(f"SELECT * FROM {table}")) == rows
    name = table.removeprefix("default.")
    eventually("a trusted row count", lambda: read_parameters(stack, table=name).get(ROWS_WRITTEN) == str(rows))
    assert number(stack, table=name) == rows
    assert stack.count(name=table) == rows


class _Cases:
    """The mappings, and the daemon that has run them. Each case has its own topic and table."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.shared = f"default.{stack.name}_dead"
        self.mappings: list[dict[str, Any]] = []
        self.daemon: DaemonThread

    def name(self, case: str) -> str:
        return f"{self.stack.name}_{case}"[-40:]

    def add(self, case: str, records: Sequence[Record], table: str, topic: str = "") -> None:
        """Add a mapping whose dead letters are written to `table`, and to `topic` unless it is ''.

        If `table` is '', the mapping does not say where they are written.
        """
        name = self.name(case)
        self.stack.topic(1, name, **{"message.timestamp.after.max.ms": str(2**62)})
        self.stack.table("id int", name=f"default.{name}")
        produce_all(self.stack, name, records)
        letters = {"table": table} | ({"topic": topic} if topic else {})
        mapping: dict[str, Any] = {"name": name, "topics": [name], "table": f"default.{name}"}
        mapping |= {"on_error": "dead_letter", "format": {"tombstones": "dead_letter"}}
        mapping |= {"dead_letter": letters} if table else {}
        self.mappings.append(mapping)

    def failed(self, case: str) -> dict[str, Any]:
        [event] = [one for one in self.daemon.events("failed") if one["mapping"] == self.name(case)]
        return event


def _rows(*ids: int) -> list[Record]:
    return [Record(None, b'{"id": %d}' % n) for n in ids]


@pytest.fixture(scope="module")
def cases(addresses: Addresses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Cases]:
    with Stack(addresses, "letter_table", Path(tmp_path_factory.mktemp("letter_table"))) as stack:
        made = _Cases(stack)
        other = stack.table("id string, note string", name=f"default.{stack.name}_other")
        topic = stack.topic(1, f"{stack.name}.dead")
        made.add("origin", [*_rows(1, 2), *REJECTS, *_rows(3)], made.shared)
        made.add("both", [*_rows(1), *REJECTS[:2]], made.shared, topic)
        made.add("default", [*_rows(1), REJECTS[0]], "")
        made.add("columns", [*_rows(1), REJECTS[0]], other)
        made.add("database", [*_rows(1), REJECTS[0]], f"{stack.name}_missing.dead")
        made.daemon = stack.drain(stack.config(*made.mappings), expect=65)
        yield made


def test_reject_when_it_becomes_a_dead_letter_then_the_row_has_its_bytes_and_origin(cases: _Cases) -> None:
    name = cases.name("origin")
    topic_id = Broker({"bootstrap.servers": cases.stack.addresses.kafka}).topics([name])[name].identity.topic_id
    found = cases.stack.sql(f"{_SHOWN.format(cases.shared)} WHERE mapping = '{name}' ORDER BY record_offset")
    assert len(found) == len(REJECTS)
    for at, (row, record) in enumerate(zip(found, REJECTS, strict=True), 2):
        headers = record.headers or ((None, None),)
        shown = None if record is REJECTS[-1] else _at(record.timestamp_ms or 0)
        assert row[:6] == (f"{name}:{topic_id}:0:{at}", name, name, 0, at, shown)
        assert row[6:8] == (_hex(record.key), _hex(record.value))
        assert row[8:12] == (len(record.headers), headers[0][0], _hex(headers[0][1]), None)
        assert row[12:14] == ("VALUE_CONVERTER", "id" if at == 3 else "")
        assert row[14]
        assert abs(row[15].replace(tzinfo=timezone.utc).timestamp() - now()) < 3_600


def test_reject_when_it_becomes_a_dead_letter_then_the_others_become_rows_and_both_tables_are_counted(
    cases: _Cases,
) -> None:
    assert cases.stack.ids(cases.name("origin")) == [1, 2, 3]
    _assert_counted(cases.stack, cases.shared, len(REJECTS) + 2)
    _assert_counted(cases.stack, f"default.{cases.name('origin')}", 3)


def test_dead_letters_when_a_topic_and_a_table_are_given_then_both_have_the_same_ids(cases: _Cases) -> None:
    found = cases.stack.sql(f"SELECT id FROM {cases.shared} WHERE mapping = '{cases.name('both')}'")
    letters = read_all(cases.stack, f"{cases.stack.name}.dead")
    ids = {value.decode() for letter in letters for key, value in letter.headers() or [] if key == "ingestd.id"}
    assert sorted(ids) == sorted(row[0] for row in found)
    assert len(ids) == 2


def test_table_of_dead_letters_when_none_is_named_then_one_beside_the_table_of_the_mapping_is_created(
    cases: _Cases,
) -> None:
    name = cases.name("default")
    assert _letters(cases.stack, f"default.{name}_rejects") == [(name, 0, 1)]
    assert cases.stack.ids(name) == [1]


def test_table_of_dead_letters_when_it_has_other_columns_then_the_mapping_stops_and_names_the_first(
    cases: _Cases,
) -> None:
    failed = cases.failed("columns")
    assert failed["reason"] == "InvalidTable"
    assert "it has the column note string instead of mapping string" in failed["error"]
    assert cases.stack.ids(cases.name("columns")) == []


def test_table_of_dead_letters_when_its_database_is_missing_then_the_error_contains_its_definition(
    cases: _Cases,
) -> None:
    failed = cases.failed("database")
    assert failed["reason"] == "InvalidTable"
    assert f"CREATE TABLE `{cases.stack.name}_missing`.`dead` (" in failed["error"]
    assert "`record_headers` array<struct<`key`:string,`value`:binary>>" in failed["error"]


def test_table_of_dead_letters_when_created_by_the_definition_of_the_error_then_is_accepted(stack: Stack) -> None:
    stack.topic(1)
    stack.table("id int")
    name = TableName("default", f"{stack.name}_dead")
    stack.sql(definition(name))
    stack.produce([{"id": 1}, b"{"])
    stack.drain(stack.config({"on_error": "dead_letter", "dead_letter": {"table": str(name)}}))
    assert _letters(stack, str(name)) == [(stack.name, 0, 1)]
    _assert_counted(stack, str(name), 1)


def test_table_of_dead_letters_when_renamed_while_the_daemon_runs_then_a_new_one_gets_later_letters(
    stack: Stack,
) -> None:
    stack.topic(1)
    stack.table("id int")
    letters, old = f"default.{stack.name}_dead", f"default.{stack.name}_old"
    stack.produce([{"id": 1}, b"{"])
    daemon = stack.start(stack.config({"on_error": "dead_letter", "dead_letter": {"table": letters}}))
    eventually("the first letter", lambda: daemon.events("dead_letters"))
    stack.sql(f"ALTER TABLE {letters} RENAME TO {old}")
    stack.produce([{"id": 2}, b"{"])
    eventually("the second letter", lambda: len(daemon.events("dead_letters")) >= 2)
    assert (_letters(stack, old), _letters(stack, letters)) == ([(stack.name, 0, 1)], [(stack.name, 0, 3)])
    assert stack.ids() == [1, 2]


_ODD = range(1, 20, 2)


def _prepare(stack: Stack, mappings: int, columns: str = "id int", **options: Any) -> tuple[Path, list[str], str]:
    """Create a topic with rejects, and mappings with these options that share a table and a topic of dead letters.

    Returns the configuration, the names of the mappings and of their tables, and the table of dead letters.
    """
    stack.topic(2)
    letters, topic = f"default.{stack.name}_dead", stack.topic(1, f"{stack.name}.dead")
    names = [f"{stack.name}_{number}"[-40:] for number in range(mappings)]
    for name in names:
        stack.table(columns, name=f"default.{name}")
    wanted = ({"name": name, "table": f"default.{name}"} for name in names)
    options |= {"on_error": "dead_letter", "dead_letter": {"table": letters, "topic": topic}}
    config = stack.config(*(one | options for one in wanted))
    stack.drain(config)  # stores the start positions and creates the table
    for partition in (0, 1):
        ids = range(partition * 10, partition * 10 + 10)
        stack.produce([{"id": n, "big": n * 2**40} if n % 2 else b"{" for n in ids], partition=partition)
    return config, names, letters


def _assert_exactly_once(stack: Stack, names: Sequence[str], letters: str, ids: Sequence[int] = _ODD) -> None:
    rejects = [(partition, offset) for partition in (0, 1) for offset in range(0, 10, 2)]
    assert _letters(stack, letters) == sorted((name, *reject) for name in names for reject in rejects)
    assert stack.count(name=letters) == len(names) * len(rejects)
    # The topic has the same letters. It may have them several times, with the same ids.
    in_topic = [dict(letter.headers() or [])["ingestd.id"] or b"" for letter in read_all(stack, f"{stack.name}.dead")]
    assert {identity.decode() for identity in in_topic} == {
        identity for (identity,) in stack.sql(f"SELECT id FROM {letters}")
    }
    for name in names:
        assert stack.ids(name) == list(ids)
        assert stack.count(name=f"default.{name}") == len(ids)


def _stagings(stack: Stack, table: str) -> list[Path]:
    place = local_path(read_table(stack.metastore, TableName.parse(table)).sd.location)
    return list((place / DAEMON).glob("*"))


# After each of the others, the tables and what is staged are as after the step before; see `test_exactly_once.py`.
_STEPS = [step for step in STEPS if step not in ("planned", "queued", "registered")]
_SELECT = "SELECT id, big FROM records LATERAL VIEW explode(array(1, 2)) AS n"
_TRANSFORM = {"columns": {"id": "int", "big": "bigint"}, "select": _SELECT}


@pytest.mark.parametrize(
    ("options", "columns", "ids"),
    [
        ({"where": "id < 12", "schema_evolution": "widen"}, "id tinyint", range(1, 12, 2)),
        pytest.param(
            {"where": "id > 10", "transform": _TRANSFORM},
            "id int, big bigint",
            [n for n in range(11, 20, 2) for _ in range(2)],
            marks=pytest.mark.soak,
        ),
    ],
    ids=["where_and_evolution", "transform"],
)
def test_kill_after_each_step_when_restarted_then_each_row_and_each_dead_letter_is_stored_once(
    stack: Stack, options: dict[str, Any], columns: str, ids: Sequence[int]
) -> None:
    """A process is killed in which a transaction of another mapping waits after each step; they share the letters.

    With schema evolution, the first step is that of a transaction that finds the new column, the others those of
    transactions that write it.
    """
    config, names, letters = _prepare(stack, len(_STEPS), columns=columns, **options)
    killed, _ = stack.start_held(config, _STEPS)
    killed.kill()
    assert killed.wait() == -9, killed.text()
    assert len(_letters(stack, letters)) == 2 * 10  # the steps `committed` and `mirrored`
    stack.drain(config)
    _assert_exactly_once(stack, names, letters, ids)
    for name in names:
        assert sorted(stack.sql(f"SELECT id, big FROM default.{name}")) == [(n, n * 2**40) for n in ids]
    assert _stagings(stack, letters) == []


def test_staged_letters_when_the_configuration_names_another_table_then_are_removed_by_the_next_owner(
    stack: Stack,
) -> None:
    stack.topic(1)
    stack.table("id int")
    old, new = f"default.{stack.name}_old", f"default.{stack.name}_new"

    def config(letters: str) -> Path:
        return stack.config({"on_error": "dead_letter", "dead_letter": {"table": letters}})

    stack.drain(config(old))
    stack.produce([{"id": 1}, b"{"])
    failpoint = {"INGESTD_TESTING": "1", "INGESTD_FAILPOINT": "staged=kill"}
    assert stack.start_process(config(old), **failpoint).wait() == -signal.SIGKILL
    assert len(_stagings(stack, old)) == 1
    stack.drain(config(new))
    assert _stagings(stack, old) == []
    assert (_letters(stack, old), _letters(stack, new)) == ([], [(stack.name, 0, 1)])
    assert stack.ids() == [1]


def test_owner_when_suspended_in_a_commit_then_publishes_no_dead_letter_after_a_takeover(stack: Stack) -> None:
    config, names, letters = _prepare(stack, 2)
    suspended, gates = stack.start_held(config, ("locked", "placed"))
    os.kill(suspended.process.pid, signal.SIGSTOP)
    successor = stack.start(config)
    eventually(
        "the successor to commit", lambda: {event["mapping"] for event in successor.events("committed")} == {*names}
    )
    for gate in gates:
        gate.touch()
    os.kill(suspended.process.pid, signal.SIGCONT)
    eventually("the former owner to step back", lambda: len(suspended.events("standby")) >= len(names))
    _assert_exactly_once(stack, names, letters)
    assert _stagings(stack, letters) == []
    for daemon in (suspended, successor):
        daemon.terminate()
        assert daemon.wait() == 0, daemon.text()
