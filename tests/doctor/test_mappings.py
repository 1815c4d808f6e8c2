"""Mappings that are broken in different ways, on the shared services: the report names each fault, and no other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition

from ingestd.clock import Deadline, now
from ingestd.hive import leases, transactions
from ingestd.hive.leases import Claim
from ingestd.hive.parameters import Parameters, WriterView, change_parameters
from ingestd.hive.tables import TableName, load_acid_table
from ingestd.hive.transactions import Wait
from ingestd.hive.write_ids import read_snapshot
from ingestd.ingest.letters.table import create_letter_table
from ingestd.ingest.options import MappingOptions
from ingestd.ingest.ownership.claims import last_heartbeat
from ingestd.sandbox import Addresses
from ingestd.storage.local import local_path
from ingestd.streaming import HiveStreamingConnection, StrictJsonWriter
from tests.doctor.conftest import Examine, Report
from tests.support.flow import wait_for_rows
from tests.support.patience import LIMIT
from tests.support.stack import Stack, eventually
from tests.support.tables import make_table

HOUR_MS = 3_600_000
# No check of services that answer takes so long, even on a busy machine.
_TIMEOUT = "180"


class _Cases:
    """Mappings with one fault each, next to one without, and the report of one examination of all of them."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.topic = stack.topic(1)
        stack.produce([{"id": 1}, {"id": 2}])

    def name(self, case: str) -> str:
        """Return the name of a mapping, which is unique on the shared services."""
        return f"{self.stack.name}_{case}"[-40:]

    def mapping(self, case: str, **keys: object) -> dict[str, object]:
        """Return a mapping whose topic exists, and whose table is `fine` unless `keys` contains another."""
        return {"name": self.name(case), "table": f"default.{self.stack.name}_fine"} | keys

    def table(self, case: str) -> TableName:
        """Create an empty table and return its name."""
        name = TableName("default", f"{self.stack.name}_{case}")
        make_table(self.stack.metastore, name)
        return name

    def other_names(self, case: str) -> dict[str, object]:
        """Return a mapping none of whose records has a field `named`; `empty` is null, and `place` comes from Kafka."""
        topic, table = self.stack.topic(1, f"{self.stack.name}_{case}"), f"{self.stack.name}_{case}"
        self.stack.table("id int, named string, empty string, place bigint", name=f"default.{table}")
        self.stack.produce([{"id": number, "name": "a", "empty": None} for number in range(20)], topic)
        return self.mapping(case, topics=[topic], table=f"default.{table}", columns={"place": "offset"})

    def old_topic(self, case: str, age_ms: int) -> str:
        """Create a topic with a retention time of an hour and a record of that age.

        A present record follows it, so that Kafka does not remove the segment of both during the test.
        """
        topic = self.stack.topic(1, f"{self.stack.name}_{case}", **{"retention.ms": str(HOUR_MS)})
        producer = Producer({"bootstrap.servers": self.stack.addresses.kafka})
        for age in (age_ms, 0):
            producer.produce(topic, b"{}", timestamp=int(now() * 1000) - age)
        assert producer.flush(LIMIT) == 0
        return topic

    def lose_records(self) -> tuple[str, str]:
        """Store positions of two topics, then delete a record of the first that was not stored, and recreate the other.

        Return their names.
        """
        stack = self.stack
        lost, recreated = (stack.topic(1, f"{stack.name}_{case}") for case in ("lost", "recreated"))
        for topic in (lost, recreated):
            stack.produce([{"id": 1}], topic)
        mappings = [self.mapping("lost", topics=[lost]), self.mapping("recreated", topics=[recreated])]
        stack.drain(stack.config(*mappings, self.mapping("fine")))
        stack.produce([{"id": 2}, {"id": 3}], lost)
        partition = TopicPartition(lost, 0, 2)
        stack.admin.delete_records([partition])[partition].result(LIMIT)
        stack.admin.delete_topics([recreated])[recreated].result(LIMIT)
        eventually("the topic to be deleted", lambda: recreated not in stack.admin.list_topics(timeout=LIMIT).topics)
        stack.topic(1, recreated)
        return lost, recreated

    def count_wrong(self) -> TableName:
        """Claim a row count that is not that of the files, which contain two rows."""
        name, metastore = self.write(self.table("miscounted"), 2), self.stack.metastore
        table = load_acid_table(metastore, name)
        txn, write_id = transactions.begin_writing(metastore, name, "tests")

        def change(found: Sequence[Parameters]) -> list[dict[str, str]]:
            return [{**parameters.values, "numRows": "7"} for parameters in found]

        view = WriterView(write_id, read_snapshot(metastore, name))
        change_parameters(metastore, table, [""], change, view, Wait(Deadline.after(LIMIT), threading.Event()))
        transactions.commit(metastore, txn)
        return name

    def letters(self, case: str) -> TableName:
        """Create an empty table of dead letters and return its name."""
        name = TableName("default", f"{self.stack.name}_{case}")
        assert create_letter_table(self.stack.metastore, name, TableName("ingestd", f"create_{name.table}"))
        return name

    def write(self, name: TableName, transactions: int, record: bytes = b'{"id": 1}') -> TableName:
        """Commit a record in each of several transactions, and return the name of the table."""
        with HiveStreamingConnection(
            database=name.database,
            table=name.table,
            record_writer=StrictJsonWriter(),
            metastore_uri=self.stack.addresses.metastore,
        ) as connection:
            for _ in range(transactions):
                with connection.transaction():
                    connection.write(record)
        return name

    def own_without_heartbeats(self, stop: ExitStack) -> Claim:
        """Acquire the lease of the mapping `suspended`, as a daemon that is then suspended. `stop` releases it."""
        lease = MappingOptions(self.name("suspended"), (), TableName("default", "x")).owner_lease
        lock_id = leases.try_acquire(self.stack.metastore, lease, "a daemon-0")
        assert lock_id
        stop.callback(leases.release, self.stack.metastore, lock_id)
        [claim] = leases.claims(self.stack.metastore, lease)
        return claim

    def own(self) -> None:
        """Start a daemon that owns the mapping `owned`, whose lease itself has received no heartbeat for a while.

        It commits nothing during the examination, which would change the table that is examined.
        """
        daemon = self.stack.start(self.stack.config(self.mapping("owned")))
        wait_for_rows(daemon, self.name("owned"), 2)


@pytest.fixture(scope="module")
def cases(addresses: Addresses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Cases]:
    with Stack(addresses, "doctor", tmp_path_factory.mktemp("doctor")) as stack:
        yield _Cases(stack)


def _bad(report: Report, mapping: str) -> dict[str, str]:
    """Return the checks of a mapping with a warning or a fault, and their status."""
    found = [finding for finding in report.document["findings"] if finding["subject"] == f"mapping {mapping}"]
    assert found
    # The tables of tests are excluded from automatic compaction.
    found = [check for check in found if check["check"] != "table.compaction"]
    return {check["check"]: check["status"] for check in found if check["status"] in ("warning", "fault")}


def _mappings(cases: _Cases, stop: ExitStack) -> list[dict[str, object]]:
    """Return mappings with one fault each, next to two without."""
    stack = cases.stack
    cases.table("fine")
    homeless = cases.table("homeless")
    place = local_path(load_acid_table(stack.metastore, homeless).location)
    place.rename(place.with_name(f"{place.name}.moved"))
    lost, recreated = cases.lose_records()
    stack.sql(f"CREATE EXTERNAL TABLE default.{stack.name}_plain (id int)")
    cases.own()
    silent = cases.own_without_heartbeats(stop)
    mappings = [
        cases.mapping("fine"),
        cases.mapping("no_topic", topics=[f"{stack.name}-none"]),
        cases.mapping("no_table", table=f"default.{stack.name}_none"),
        cases.mapping("new_table", table=f"default.{stack.name}_new", create_table={"columns": {"id": "int"}}),
        cases.mapping("not_acid", table=f"default.{stack.name}_plain"),
        cases.mapping("homeless", table=str(homeless)),
        cases.mapping("lost", topics=[lost]),
        cases.mapping("recreated", topics=[recreated]),
        cases.mapping("expired", topics=[cases.old_topic("expired", 2 * HOUR_MS)]),
        cases.mapping("expiring", topics=[cases.old_topic("expiring", HOUR_MS * 9 // 10)]),
        cases.mapping("future", topics=[cases.old_topic("future", -HOUR_MS)]),
        cases.mapping("miscounted", table=str(cases.count_wrong())),
        cases.mapping("crowded", table=str(cases.write(cases.table("crowded"), 3)), pacing={"deltas": 2}),
        cases.mapping("owned"),
        cases.mapping("suspended"),
        cases.mapping("no_registry", format={"type": "avro"}),
        cases.other_names("names"),
        cases.mapping("letters", pacing={"deltas": 2}, **_dead_letters(cases.write(cases.letters("many"), 3, b"{}"))),
    ]
    eventually("the heartbeat of `suspended` to be old", lambda: now() - last_heartbeat(stack.metastore, silent) > 7)
    return mappings


def _dead_letters(table: TableName) -> dict[str, object]:
    return {"on_error": "dead_letter", "dead_letter": {"table": str(table)}}


def test_mappings_when_each_is_broken_differently_then_each_fault_is_named_and_nothing_else(
    examine: Examine, cases: _Cases
) -> None:
    with ExitStack() as stop:
        stack, mappings = cases.stack, _mappings(cases, stop)
        config = stack.config(*mappings, registry={"url": "http://127.0.0.1:1"})
        report = examine(config, "--timeout", _TIMEOUT)
    assert {str(mapping["name"]): _bad(report, str(mapping["name"])) for mapping in mappings} == {
        cases.name("fine"): {},
        cases.name("no_topic"): {"kafka.topic": "fault"},
        cases.name("no_table"): {"table.definition": "fault"},
        cases.name("new_table"): {},
        cases.name("not_acid"): {"table.definition": "fault"},
        cases.name("homeless"): {"table.storage": "fault"},
        cases.name("lost"): {"kafka.retention": "fault"},
        cases.name("recreated"): {"kafka.retention": "fault"},
        cases.name("expired"): {"kafka.retention": "fault"},
        cases.name("expiring"): {"kafka.retention": "warning"},
        cases.name("future"): {"kafka.clock": "warning"},
        cases.name("miscounted"): {"table.row_counts": "warning"},
        cases.name("crowded"): {"table.deltas": "warning"},
        cases.name("owned"): {},
        cases.name("suspended"): {"mapping.lease": "warning"},
        cases.name("no_registry"): {"registry.schemas": "fault"},
        cases.name("names"): {"mapping.columns": "warning"},
        cases.name("letters"): {"table.deltas": "warning"},
    }
    assert report.one("mapping.columns", cases.name("names"))["evidence"] == (
        "no field in the last 20 records for 1 column, NULL in all 20 rows: named"
    )
    assert report.one("mapping.columns", cases.name("no_table"))["status"] == "skipped"
    assert "no_auto_compaction is true" in report.one("table.compaction", cases.name("fine"))["evidence"]
    assert "has 3 deltas" in report.one("table.deltas", "crowded")["evidence"]
    assert f"dead letters in default.{stack.name}_many: " in report.all("table.deltas", "letters")[1]["evidence"]
    assert report.one("kafka.topic", cases.name("no_topic"))["exit_code"] == 65
    # Another test may have left the services a fault, which comes first.
    assert report.code == next(
        finding["exit_code"] for finding in report.document["findings"] if finding["status"] == "fault"
    )
    assert "numRows is 7, but the files contain 2 rows" in report.one("table.row_counts", "miscounted")["evidence"]
    assert "last heartbeat" in report.one("mapping.lease", "suspended")["evidence"]
    assert "deleted 1 offset of" in report.one("kafka.retention", cases.name("lost"))["evidence"]
    assert all(finding["fix"] for finding in report.document["findings"] if finding["status"] in ("warning", "fault"))
    fine = TableName("default", f"{stack.name}_fine")
    assert not list(local_path(load_acid_table(stack.metastore, fine).location).glob(".ingestd-check*"))


_AS_OTHER_USER = ("setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all")


def test_storage_when_a_directory_is_not_writable_then_the_fault_names_it(cases: _Cases) -> None:
    name = cases.table("readonly")
    place = local_path(load_acid_table(cases.stack.metastore, name).location)
    place.chmod(0o500)
    parts = TableName("default", f"{cases.stack.name}_parts")
    make_table(cases.stack.metastore, parts, partitioned=True)
    cases.write(parts, 1, b'{"id": 1, "day": "monday"}')
    monday = local_path(load_acid_table(cases.stack.metastore, parts).location) / "day=monday"
    monday.chmod(0o500)
    letters = cases.letters("readonly_letters")
    dead = local_path(load_acid_table(cases.stack.metastore, letters).location)
    dead.chmod(0o500)
    config = cases.stack.config(
        cases.mapping("readonly", table=str(name)),
        cases.mapping("parts", table=str(parts)),
        cases.mapping("readonly_letters", **_dead_letters(letters)),
    )
    # Root can write to any directory unless it lacks the capability to override permissions.
    command = [*(_AS_OTHER_USER if os.geteuid() == 0 else ()), sys.executable, "-m", "ingestd"]

    def result(*arguments: str) -> tuple[int, Any]:
        options = ("--config", str(config), "--output", "json")
        done = subprocess.run([*command, *arguments, *options], capture_output=True, text=True, check=False)
        return done.returncode, json.loads(done.stdout)

    _, examined = result("doctor", "--timeout", _TIMEOUT)
    found = [
        finding for finding in examined["findings"] if finding["check"] == "table.storage" and finding["status"] != "ok"
    ]
    code, findings = result("check", "--online")
    assert code == 77
    checked = [finding["problem"] for finding in findings if ", storage" in finding["subject"] and finding["problem"]]
    for finding, problem, denied in zip(found, checked, (place, monday, dead), strict=True):
        assert (finding["status"], finding["exit_code"]) == ("fault", 77)
        assert problem["reason"] == "PermissionDenied"
        assert f"{denied}" in finding["evidence"]
        assert f"{denied}" in problem["where"]
        assert "Permission denied" in finding["evidence"]
        assert "grant this process write permission" in finding["fix"]
    assert place.is_dir()
    assert not list(Path(place).iterdir())
