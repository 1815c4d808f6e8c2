"""Topics that are recreated, deleted, truncated or moved to another cluster, on a broker with Kafka's defaults.

Each case has its own topic, table and mapping. Three daemons, one after the other, run all cases.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition as _TopicPartition

from ingestd.errors import BrokerUnavailable
from ingestd.hive.control import ControlTable, ensure_control_table, read_state
from ingestd.hive.tables import TableName
from ingestd.ingest.state import MappingState
from ingestd.kafka.admin import Broker, OffsetMirror
from ingestd.kafka.ranges import OffsetRange, TopicPartition
from ingestd.kafka.reader import ReadLimits, read
from ingestd.sandbox import Addresses
from tests.support.daemon import Daemon, Hold
from tests.support.kafka import KafkaBroker, kafka_broker
from tests.support.patience import LIMIT
from tests.support.stack import Stack, eventually

FIRST, AFTER_CUT, NEW, MORE = range(10), range(50, 54), range(100, 115), range(200, 205)


class _Topics:
    """The cases on `broker`. The Kafka of the shared stack serves as the other cluster."""

    def __init__(self, stack: Stack, broker: KafkaBroker, shared: Stack) -> None:
        self.stack = stack
        self.broker = broker
        self.shared = shared
        self.mappings: dict[str, dict[str, Any]] = {}
        self.daemons: list[Daemon] = []
        self.first_ids: dict[str, str] = {}
        self.second_states: dict[str, MappingState] = {}

    def name(self, case: str) -> str:
        return f"{self.stack.name}_{case}"

    def add(self, case: str, policy: str, partitions: int = 1) -> None:
        name = self.name(case)
        self.broker.create(name, partitions)
        self.stack.table("id bigint", name=f"default.{name}")
        self.mappings[case] = {"name": name, "topics": [name], "table": f"default.{name}", "on_offset_loss": policy}
        self.produce(case, FIRST, partitions - 1)

    def produce(self, case: str, ids: range, partition: int = 0) -> None:
        self.stack.produce(({"id": n} for n in ids), self.name(case), partition)

    def recreate(self, case: str, ids: range = NEW) -> None:
        self.broker.delete(self.name(case))
        self.broker.create(self.name(case))
        self.produce(case, ids)

    def start(self, *arguments: str) -> Daemon:
        self.daemons.append(self.stack.start(self.stack.config(*self.mappings.values()), *arguments))
        return self.daemons[-1]

    def topic_id(self, case: str) -> str:
        name = self.name(case)
        return Broker({"bootstrap.servers": self.broker.servers}).topics([name])[name].identity.topic_id

    def control(self, case: str) -> ControlTable:
        return ensure_control_table(self.stack.metastore, TableName("ingestd", f"mapping_{self.name(case)}"))

    def state(self, case: str) -> MappingState:
        state = MappingState.parse(read_state(self.stack.metastore, self.control(case)))
        assert state is not None
        return state

    def ids(self, case: str) -> list[int]:
        return self.stack.ids(self.name(case))

    def told(self, daemon: int, event: str, case: str) -> list[dict[str, Any]]:
        return [e for e in self.daemons[daemon].events(event) if e["mapping"] == self.name(case)]


def _arrive(stack: Stack, name: str, last: int) -> None:
    """Wait for the row with the id `last`. The tests check all rows later."""
    eventually(f"row {last} of {name}", lambda: last in stack.ids(name))


def _store_version_1(topics: _Topics, case: str) -> None:
    """Replace the state of a mapping with one of version 1, which did not contain topic ids."""
    document = json.loads(topics.state(case).text())
    assert document.pop("topics")
    text = json.dumps(document | {"v": 1}, separators=(",", ":"))
    topics.stack.sql(f"ALTER TABLE {topics.control(case).name} SET TBLPROPERTIES ('_meta.ingestd.state'='{text}')")
    assert not topics.state(case).position.topics


def _first_run(topics: _Topics) -> None:
    for case, policy in (("stopped", "stop"), ("ended", "latest"), ("old", "stop")):
        topics.add(case, policy)
    topics.add("again", "earliest", partitions=3)
    topics.add("moved", "earliest")
    topics.add("cut_stopped", "stop")
    topics.add("cut", "earliest")
    topics.add("live", "earliest")
    # It is missing for as long as a busy broker needs to recreate another topic.
    topics.mappings["live"]["refusals"] = {"retries": 12, "period": "10m"}
    assert topics.start("--until-caught-up").wait() == 0


def _second_run(topics: _Topics) -> None:
    """Change the topics while no daemon runs, and then run the second daemon."""
    for case in ("stopped", "ended", "again"):
        topics.recreate(case)
    topics.shared.topic(1, topics.name("moved"))
    topics.shared.produce(({"id": n} for n in NEW), topics.name("moved"), 0)
    topics.mappings["moved"]["kafka"] = {"bootstrap.servers": topics.shared.addresses.kafka}
    _store_version_1(topics, "old")
    topics.broker.stop()
    for case in ("cut_stopped", "cut"):
        topics.broker.truncate_log(topics.name(case))
    topics.broker.start()
    topics.produce("cut", AFTER_CUT)
    assert topics.start("--until-caught-up").wait() == 65


def _third_run(topics: _Topics) -> None:
    """Run the third daemon with another policy for a stopped mapping. Delete and recreate topics while it runs."""
    del topics.mappings["cut_stopped"]
    topics.mappings["stopped"]["on_offset_loss"] = "earliest"
    for case in ("ended", "cut"):
        topics.produce(case, MORE)
    daemon = topics.start()
    eventually("all mappings", lambda: len({e["mapping"] for e in daemon.events("owner")}) == len(topics.mappings))
    topics.broker.delete(topics.name("live"))
    topics.recreate("old")  # a running daemon describes its topics every ten seconds, so recreate both at once
    missing = "the topic no longer exists"

    def looked() -> bool:
        return sum(missing in e["error"] for e in topics.told(2, "waiting", "live")) >= 2

    eventually("the daemon to look for the deleted topic", looked)
    assert topics.name("live") not in topics.broker.topics()
    topics.broker.create(topics.name("live"))
    topics.produce("live", NEW)
    for case, ids in (("stopped", NEW), ("ended", MORE), ("cut", MORE), ("live", NEW)):
        _arrive(topics.stack, topics.name(case), ids[-1])
    eventually("the mapping to stop", lambda: topics.told(2, "failed", "old"))
    daemon.terminate()
    assert daemon.wait() == 65


@pytest.fixture(scope="module")
def broker(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    with kafka_broker(tmp_path_factory.mktemp("kafka")) as started:
        yield started


@pytest.fixture(scope="module")
def topics(addresses: Addresses, broker: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Topics]:
    folder = Path(tmp_path_factory.mktemp("recreated"))
    shared = Stack(addresses, "recreated", folder)
    with Stack(replace(addresses, kafka=broker.servers), "recreated", folder) as stack:
        made = _Topics(stack, broker, shared)
        _first_run(made)
        made.first_ids = {case: made.topic_id(case) for case in made.mappings}
        _second_run(made)
        made.second_states = {case: made.state(case) for case in made.mappings}
        _third_run(made)
        yield made
        shared.close()


def test_topic_when_recreated_and_policy_is_stop_then_stops_and_names_both_ids(topics: _Topics) -> None:
    [stop] = topics.told(1, "failed", "stopped")
    assert stop["reason"] == "OffsetsLost"
    for text in (topics.name("stopped"), "recreated", topics.first_ids["stopped"], topics.topic_id("stopped")):
        assert text in stop["error"]


def test_topic_when_recreated_and_policy_is_earliest_then_all_new_records_arrive_once(topics: _Topics) -> None:
    assert topics.ids("again") == [*FIRST, *NEW]
    [gap] = topics.told(1, "offsets_lost", "again")
    assert "recreated" in gap["gap"]


def test_topic_when_recreated_with_fewer_partitions_then_the_position_contains_only_those(topics: _Topics) -> None:
    position = topics.second_states["again"].position
    assert position.offsets == {TopicPartition(topics.name("again"), 0): len(NEW)}
    assert position.topics[topics.name("again")].topic_id == topics.topic_id("again")


def test_topic_when_recreated_and_policy_is_latest_then_its_end_is_stored_at_once(topics: _Topics) -> None:
    assert list(topics.second_states["ended"].position.offsets.values()) == [len(NEW)]
    assert topics.ids("ended") == [*FIRST, *MORE]


def test_topic_when_recreated_and_the_user_changes_the_policy_then_all_new_records_arrive_once(topics: _Topics) -> None:
    assert topics.ids("stopped") == [*FIRST, *NEW]


def test_topic_when_in_another_cluster_then_is_not_read_from_the_old_position(topics: _Topics) -> None:
    assert topics.ids("moved") == [*FIRST, *NEW]
    [gap] = topics.told(1, "offsets_lost", "moved")
    clusters = [
        Broker({"bootstrap.servers": servers}).topics([topics.name("moved")])[topics.name("moved")].identity.cluster_id
        for servers in (topics.broker.servers, topics.shared.addresses.kafka)
    ]
    assert len(set(clusters)) == 2
    assert all(cluster in gap["gap"] for cluster in clusters)


def test_partition_when_truncated_and_policy_is_stop_then_the_error_names_both_offsets(topics: _Topics) -> None:
    [stop] = topics.told(1, "failed", "cut_stopped")
    assert "the partition was truncated at 0, before the committed position 10" in stop["error"]


def test_partition_when_truncated_and_policy_is_earliest_then_only_new_records_are_read(topics: _Topics) -> None:
    assert topics.ids("cut") == sorted([*FIRST, *AFTER_CUT, *MORE])
    [gap] = topics.told(1, "offsets_lost", "cut")
    assert "the partition was truncated at 0, before the committed position 10" in gap["gap"]


def test_state_when_of_version_1_then_the_topic_id_is_added(topics: _Topics) -> None:
    assert topics.second_states["old"].position.topics[topics.name("old")].topic_id == topics.first_ids["old"]
    assert topics.ids("old") == list(FIRST)


def test_topic_when_recreated_while_the_daemon_runs_then_is_detected(topics: _Topics) -> None:
    [stop] = topics.told(2, "failed", "old")
    assert "recreated" in stop["error"]
    assert topics.ids("live") == [*FIRST, *NEW]


@pytest.fixture
def own(addresses: Addresses, broker: KafkaBroker, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stack]:
    """Yield the same as `stack`, but with the broker of this module."""
    with Stack(replace(addresses, kafka=broker.servers), request.node.name, tmp_path) as made:
        yield made


def test_range_when_lost_between_plan_and_read_then_the_policy_applies(own: Stack, broker: KafkaBroker) -> None:
    """Block two daemons after they have planned offsets 10..20, then trim one topic and recreate the other."""
    names = trimmed, recreated = f"{own.name}_trimmed", f"{own.name}_recreated"
    daemons, holds = [], []
    for name in names:
        broker.create(name)
        own.table("id bigint", name=f"default.{name}")
        own.produce(({"id": n} for n in FIRST), name)
        mapping = {"name": name, "topics": [name], "table": f"default.{name}", "on_offset_loss": "earliest"}
        holds.append(Hold("planned", times=2))
        daemons.append(own.start(own.config(mapping), hold=holds[-1]))
    for name, hold in zip(names, holds, strict=True):
        _arrive(own, name, FIRST[-1])
        own.produce(({"id": n} for n in range(10, 20)), name)
        hold.wait()
    broker.admin.delete_records([_TopicPartition(trimmed, 0, 15)])[_TopicPartition(trimmed, 0)].result(LIMIT)
    broker.delete(recreated)
    broker.create(recreated)
    own.produce(({"id": n} for n in range(100, 125)), recreated)
    for hold in holds:
        hold.release()
    for name, last, daemon in ((trimmed, 19, daemons[0]), (recreated, 124, daemons[1])):
        _arrive(own, name, last)
        daemon.terminate()
        assert daemon.wait() == 0
        assert "RangeLost" in [e["reason"] for e in daemon.events("waiting")]
        assert daemon.events("offsets_lost")
    assert own.ids(trimmed) == [*FIRST, *range(15, 20)]
    assert own.ids(recreated) == [*FIRST, *range(100, 125)]


def test_topic_when_missing_on_a_broker_that_creates_topics_then_is_not_created(
    own: Stack, broker: KafkaBroker
) -> None:
    own.table("id bigint")
    config = own.config({"refusals": {"retries": 2, "period": "300ms"}})
    command = [sys.executable, "-m", "ingestd", "check", "--config", str(config), "--online"]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert checked.returncode == 65, checked.stdout + checked.stderr
    assert "the topic does not exist" in checked.stdout
    daemon = own.drain(config, expect=65)
    assert [event["reason"] for event in daemon.events("waiting")].count("TopicMissing") >= 2
    settings = {"bootstrap.servers": broker.servers}
    with pytest.raises(BrokerUnavailable):
        list(read(settings, [OffsetRange(own.name, 0, 0, 5)], ReadLimits(silence_seconds=2)))
    mirror = OffsetMirror(settings, own.name)
    with pytest.raises(BrokerUnavailable):
        mirror.commit({TopicPartition(own.name, 0): 5})
    mirror.close()
    with pytest.raises(BrokerUnavailable):
        Broker(settings, timeout_seconds=5).ends([TopicPartition(own.name, 0)])
    assert own.name not in broker.topics()
