"""Replays of dead letters: each letter becomes its rows exactly once, whatever happens to the replay."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from ingestd.clock import now
from ingestd.config.document import load
from ingestd.errors import ConfigError, IngestdError, RecordError
from ingestd.hive.client import Metastore
from ingestd.hive.partitions import ROWS_WRITTEN
from ingestd.ingest.letters.reader import Selection, read_letters
from ingestd.ingest.offline.replay import ReplayResult, replay, try_replay
from ingestd.ingest.options import MappingOptions
from ingestd.ingest.ownership.owner import OwnerAlive
from ingestd.ingest.steps import Observe, ignore
from ingestd.kafka.record import Record
from ingestd.publish.warehouse import Warehouse
from ingestd.sandbox import Addresses
from ingestd.spark.errors import QueryFailed
from ingestd.storage.storages import Storages
from tests.support import replays
from tests.support.compaction import compact
from tests.support.counters import number, read_parameters
from tests.support.daemon import Hold, shared_engine
from tests.support.patience import LIMIT
from tests.support.proxy import Proxy
from tests.support.records import produce_all
from tests.support.stack import Stack, eventually

AN_HOUR_AGO = int(now() * 1000) - 3_600_000
# As JSON, only the first record fits. As CSV, the others are the rows 1 to 4, and the last one does not fit.
RECORDS = [
    Record(None, b'{"id": 100}', (), AN_HOUR_AGO),
    *(Record(b"k%d" % n, b"%d" % n, (("trace", b"%d" % n), ("trace", b"x")), AN_HOUR_AGO + n) for n in range(1, 5)),
    Record(None, b"six", (), AN_HOUR_AGO + 5),
]
TRANSFORM = {
    "columns": {"id": "bigint"},
    "select": "SELECT id, n FROM records LATERAL VIEW explode(array(1, 2)) AS n WHERE id + n < 101",
}
STEPS = ("opened", "staged", "locked", "registered", "placed", "announced", "counted", "committed")


@dataclass(frozen=True)
class Cases:
    """Mappings whose dead letters are those of `RECORDS`. Each has its own tables, and now decodes CSV."""

    stack: Stack
    config: Path
    mappings: dict[str, MappingOptions] = field(default_factory=dict)

    def name(self, case: str) -> str:
        return f"{self.stack.name}_{case}"[-40:]

    def options(self, case: str) -> MappingOptions:
        return self.mappings[self.name(case)]

    @contextmanager
    def warehouse(self, uri: str = "") -> Iterator[Warehouse]:
        metastore = Metastore(uri or self.stack.addresses.metastore)
        try:
            yield Warehouse(metastore, Storages(load([self.config]).storage))
        finally:
            metastore.close()

    def replay(self, case: str, observe: Observe = ignore, uri: str = "", **conditions: Any) -> ReplayResult:
        with self.warehouse(uri) as warehouse:
            return replay(warehouse, self.options(case), Selection(**conditions), shared_engine, observe)

    def letters(self, case: str) -> dict[int, bool]:
        """Return the offsets of the letters, and whether they were replayed."""
        with self.warehouse() as warehouse:
            return {letter.offset: letter.replay is not None for letter in read_letters(warehouse, self.options(case))}

    def assert_stored(self, case: str, *replayed: int, others: tuple[int, ...] = ()) -> None:
        """Check that the table has these ids once, and a mark for each, by a scan and by a trusted row count."""
        marked = f"SELECT record_offset FROM {self.dead(case)} WHERE error_stage = 'REPLAYED'"
        assert sorted(row[0] for row in self.stack.sql(marked)) == sorted(replayed)
        assert self.stack.ids(self.name(case)) == sorted((*replayed, 100, *others))
        for table, rows in ((self.name(case), 1 + len(replayed) + len(others)), (self.dead(case), 5 + len(replayed))):
            self.assert_counted(table, rows)

    def assert_counted(self, table: str, rows: int) -> None:
        stack, name = self.stack, table.removeprefix("default.")
        eventually("a trusted row count", lambda: read_parameters(stack, table=name).get(ROWS_WRITTEN) == str(rows))
        assert (number(stack, table=name), stack.count(name=table)) == (rows, rows)

    def dead(self, case: str) -> str:
        return f"default.{self.name(case)}_dead"


@pytest.fixture(scope="module")
def cases(addresses: Addresses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cases]:
    with Stack(addresses, "replay", tmp_path_factory.mktemp("replay")) as stack:
        stack.topic(1)
        produce_all(stack, stack.name, RECORDS)
        made = Cases(stack, Path())
        columns = {name: name for name in ("key", "headers", "timestamp", "topic", "offset")} | {"p": "partition"}
        others = ("some", "stopped", "lost", "beside", "compacted")
        wanted: dict[str, dict[str, Any]] = {case: {} for case in (*STEPS, *others)}
        wanted["placed"] = {"where": "id > 0"}
        wanted["queried"] = {"where": "id <> 2", "transform": TRANSFORM}
        wanted["faulty"] = {"where": "1 / (id - 3) < 9"}
        unfit = "SELECT IF(id = 4, 'long', 'a') AS t FROM records"
        wanted["unfit"] = {"transform": {"columns": {"id": "bigint"}, "select": unfit}}
        wanted["columns"] = {"columns": {f"k_{name}" if name != "p" else name: kind for name, kind in columns.items()}}
        mappings = []
        for case, more in wanted.items():
            name = made.name(case)
            if case == "queried":
                stack.table("id bigint, n int", name=f"default.{name}")
            elif case == "unfit":
                stack.table("t varchar(3)", name=f"default.{name}")
            elif case == "columns":
                kinds = "k_key string, k_headers map<string,string>, k_timestamp timestamp, k_topic string"
                stack.table(f"id bigint, {kinds}, k_offset bigint", "p int", name=f"default.{name}")
            else:
                stack.table("id bigint", name=f"default.{name}")
            letters = {"on_error": "dead_letter", "dead_letter": {"table": made.dead(case)}}
            mappings.append({"name": name, "table": f"default.{name}"} | letters | more)
        stack.drain(stack.config(*mappings))
        fixed = [mapping | {"format": {"type": "csv", "fields": ["id"]}} for mapping in mappings]
        made = replace(made, config=stack.config(*fixed))
        made.mappings.update({mapping.name: mapping for mapping in load([made.config]).mappings})
        yield made


def test_replay_when_records_fit_then_their_rows_have_what_kafka_had_and_the_others_remain(cases: Cases) -> None:
    stack, name = cases.stack, cases.name("columns")
    with cases.warehouse() as warehouse:
        expected = try_replay(warehouse, cases.options("columns"), Selection(), shared_engine)
    assert (expected.replayed, expected.rows, expected.partitions, expected.transaction) == (4, 4, 1, None)
    assert cases.letters("columns") == dict.fromkeys(range(1, 6), False)
    done = cases.replay("columns")
    assert replace(done, transaction=None) == expected
    [remaining] = done.remaining
    assert (remaining.column, remaining.count, remaining.id.endswith(":0:5")) == ("id", 1, True)
    assert "six" in remaining.reason
    shown = "id, k_key, k_headers['trace'], cast(k_timestamp AS string), k_topic, k_offset, p"
    for row, n in zip(stack.sql(f"SELECT {shown} FROM {name} WHERE id < 100 ORDER BY id"), range(1, 5), strict=True):
        assert (*row[:3], *row[4:]) == (n, f"k{n}", "x", stack.name, n, 0)
        moment = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=AN_HOUR_AGO + n)
        assert row[3] == f"{moment:%Y-%m-%d %H:%M:%S.%f}".rstrip("0").rstrip(".")
    assert cases.letters("columns") == {1: True, 2: True, 3: True, 4: True, 5: False}
    again = cases.replay("columns")
    assert (again.replayed, again.rows, again.transaction, again.remaining) == (0, 0, None, done.remaining)
    assert stack.count(name=name) == 5
    cases.assert_counted(cases.dead("columns"), 9)


def test_replay_when_letters_are_selected_then_only_these_are_replayed_and_repetitions_count_once(
    cases: Cases,
) -> None:
    dead = cases.dead("some")
    assert cases.replay("some", limit=2).replayed == 2
    first = [offset for offset, is_replayed in cases.letters("some").items() if is_replayed]
    cases.stack.sql(f"INSERT INTO {dead} SELECT * FROM {dead} WHERE error_stage <> 'REPLAYED'")
    with cases.warehouse() as warehouse:
        ids = {letter.offset: letter.id for letter in read_letters(warehouse, cases.options("some"))}
    third = next(offset for offset in range(1, 5) if offset not in first)
    assert cases.replay("some", ids=frozenset([ids[third], ids[first[0]]])).replayed == 1
    assert cases.replay("some", reason="no such reason").replayed == 0
    assert cases.replay("some", until=datetime(2020, 1, 1, tzinfo=timezone.utc)).replayed == 0
    assert cases.stack.ids(cases.name("some")) == sorted([*first, third, 100])
    assert cases.replay("some", column="", since=datetime(2020, 1, 1, tzinfo=timezone.utc)).replayed == 1
    assert cases.stack.ids(cases.name("some")) == [1, 2, 3, 4, 100]


def test_kill_after_each_step_when_the_replay_is_repeated_then_each_letter_is_replayed_once(cases: Cases) -> None:
    """A process is killed in which the replay of another mapping waits after each step. One of them has a query."""
    directory = cases.stack.directory
    killed = replays.start(cases.config, directory, {cases.name(step): step for step in STEPS})
    for step in STEPS:
        eventually(f"a replay to wait after {step}", Path(directory, f"{step}.held").exists)
    killed.kill()
    killed.communicate(timeout=LIMIT)
    assert cases.stack.ids(cases.name("committed")) == [1, 2, 3, 4, 100]
    for step in STEPS:
        assert cases.replay(step).replayed == (0 if step == "committed" else 4)
        cases.assert_stored(step, 1, 2, 3, 4)


def test_replay_when_the_mapping_has_sql_then_its_result_is_stored_once_and_every_letter_that_fits_is_marked(
    cases: Cases,
) -> None:
    stack, name = cases.stack, cases.name("queried")
    with cases.warehouse() as warehouse:
        expected = try_replay(warehouse, cases.options("queried"), Selection(), shared_engine)
    assert (expected.replayed, expected.rows) == (4, 6)
    assert stack.count(name=name) == 0
    done = cases.replay("queried")
    assert replace(done, transaction=None) == expected
    assert done.transaction is not None
    assert sorted(stack.sql(f"SELECT id, n FROM {name}")) == [(id_, n) for id_ in (1, 3, 4) for n in (1, 2)]
    assert cases.letters("queried") == {1: True, 2: True, 3: True, 4: True, 5: False}
    assert cases.replay("queried").replayed == 0
    cases.assert_counted(name, 6)


@pytest.mark.parametrize(
    ("case", "kind", "offset", "text"),
    [
        ("faulty", QueryFailed, 3, r"\[DIVIDE_BY_ZERO\]"),
        ("unfit", RecordError, 4, "column t: a row of the result cannot"),
    ],
)
def test_replay_when_its_sql_fails_for_a_record_then_the_error_names_it_and_nothing_is_stored(
    cases: Cases, case: str, kind: type[IngestdError], offset: int, text: str
) -> None:
    with pytest.raises(kind, match=rf"^{cases.stack.name}\[0\] offset {offset}, .*{text}"):
        cases.replay(case)
    assert cases.letters(case) == dict.fromkeys(range(1, 6), False)
    assert cases.stack.count(name=cases.name(case)) == 1


def test_replay_when_letters_were_deleted_and_compacted_then_the_others_are_replayed_once(cases: Cases) -> None:
    stack, dead = cases.stack, cases.dead("compacted")
    stack.sql(f"DELETE FROM {dead} WHERE record_offset = 4")
    assert cases.replay("compacted", limit=1).replayed == 1
    compact(stack, dead, "major")
    assert cases.replay("compacted", limit=1).replayed == 1
    compact(stack, dead, "minor")
    assert cases.replay("compacted").replayed == 1
    assert cases.replay("compacted").replayed == 0
    assert stack.ids(cases.name("compacted")) == [1, 2, 3, 100]
    assert cases.letters("compacted") == {1: True, 2: True, 3: True, 5: False}


def test_second_replay_when_the_first_one_runs_then_is_refused_and_when_it_is_suspended_then_takes_over(
    cases: Cases, tmp_path: Path
) -> None:
    first = replays.start(cases.config, tmp_path, {cases.name("stopped"): "locked"})
    eventually("the first replay to wait", Path(tmp_path, "locked.held").exists)
    with pytest.raises(OwnerAlive, match="another replay of the mapping runs: ingestd/"):
        cases.replay("stopped")
    os.kill(first.pid, signal.SIGSTOP)
    assert cases.replay("stopped").replayed == 4
    Path(tmp_path, "locked").touch()
    os.kill(first.pid, signal.SIGCONT)
    output, _ = first.communicate(timeout=LIMIT)
    assert output.startswith(f"{cases.name('stopped')}: ")
    cases.assert_stored("stopped", 1, 2, 3, 4)


def test_replay_when_the_answer_to_its_commit_is_lost_then_has_replayed_each_letter_once(cases: Cases) -> None:
    proxy = Proxy(cases.stack.addresses.metastore)
    try:
        proxy.lose_answer("commit_txn")
        assert cases.replay("lost", uri=proxy.uri).replayed == 4
    finally:
        proxy.shut()
    cases.assert_stored("lost", 1, 2, 3, 4)


def test_replay_when_the_daemon_writes_the_same_tables_then_both_commit(cases: Cases) -> None:
    """The daemon starts while a replay is staged, and another replay commits while a transaction of it is staged."""
    stack, name = cases.stack, cases.name("beside")
    document = stack.config(
        {
            "name": name,
            "table": f"default.{name}",
            "format": {"type": "csv", "fields": ["id"]},
            "on_error": "dead_letter",
            "dead_letter": {"table": cases.dead("beside")},
        }
    )
    hold = Hold("staged")
    daemon_ids = (7, 8)

    def run_daemon(step: str) -> None:
        if step == "staged":
            daemon = stack.start(document, hold=hold)
            eventually("the mapping to be owned", lambda: daemon.events("owner"))
            stack.produce([b"%d" % id_ for id_ in daemon_ids])
            hold.wait()

    assert cases.replay("beside", run_daemon, limit=2).replayed == 2
    hold.release()
    eventually("the records of the daemon", lambda: set(daemon_ids) <= set(stack.ids(name)))
    assert cases.replay("beside").replayed == 2
    cases.assert_stored("beside", 1, 2, 3, 4, others=daemon_ids)


def test_replay_when_letters_are_not_in_a_table_or_the_sql_is_invalid_then_is_refused(cases: Cases) -> None:
    options = cases.options("lost")
    with cases.warehouse() as warehouse:
        assert options.dead_letter is not None
        in_topic = replace(options, dead_letter=replace(options.dead_letter, table=None, topic="dead"))
        for refused in (in_topic, replace(options, where="id > rand()"), replace(options, dead_letter=None)):
            with pytest.raises(ConfigError):
                replay(warehouse, refused, Selection(), shared_engine)
