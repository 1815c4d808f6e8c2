"""Three brokers that restart, elect leaders, lose records and disappear while data flows: every id arrives once."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ElectionType
from confluent_kafka.admin import NewPartitions, NewTopic

from ingestd.clock import Deadline, pause
from ingestd.errors import RangeLost
from ingestd.kafka.admin import Broker
from ingestd.kafka.ranges import EpochOffset, OffsetRange, TopicPartition
from ingestd.kafka.reader import read
from ingestd.sandbox import Addresses, Sandbox, SandboxOptions
from ingestd.sandbox.options import BROKERS
from tests.support.daemon import DaemonProcess, Hold
from tests.support.flow import Flow, proceed, rows, wait_for_rows
from tests.support.patience import LIMIT
from tests.support.quota import consumer_quota
from tests.support.records import read_all
from tests.support.stack import Stack, eventually, wait_for_topic

_SECONDS = float(os.environ.get("INGESTD_TEST_CHAOS_SECONDS", "180"))
_SEED = int(os.environ.get("INGESTD_TEST_CHAOS_SEED", "0")) or random.SystemRandom().randrange(10**6)


@pytest.fixture(scope="module")
def cluster(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """Yield three brokers without a metastore: tests use that of the shared stack."""
    options = SandboxOptions(tmp_path_factory.mktemp("cluster"), brokers=3, kafka_heap_mb=256)
    box = Sandbox(options)
    try:
        box.start_service(*BROKERS)
        yield box
    finally:
        box.down()


@pytest.fixture(scope="module")
def addresses(addresses: Addresses, cluster: Sandbox) -> Addresses:
    """Return the addresses that the fixture `stack` uses in this module."""
    return replace(addresses, kafka=cluster.addresses().kafka)


def _leaders(stack: Stack, topic: str) -> list[int]:
    partitions = stack.admin.list_topics(topic, timeout=LIMIT).topics[topic].partitions
    return [partitions[number].leader for number in sorted(partitions)]


def _restart(cluster: Sandbox, broker: str) -> None:
    cluster.stop_service(broker)
    cluster.start_service(broker)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_brokers_when_they_restart_in_turn_and_partitions_are_added_then_every_id_arrives_once(
    stack: Stack, cluster: Sandbox
) -> None:
    stack.topic(3)
    stack.table("id bigint")
    daemon = stack.start(stack.config({"commit": {"interval": "500ms"}}))
    with Flow(stack.addresses.kafka, stack.name) as flow:
        proceed(daemon, stack.name, flow)
        for number in range(10):
            for broker in BROKERS:
                _restart(cluster, broker)
                proceed(daemon, stack.name, flow)
            _elect_preferred(stack)
            stack.admin.create_partitions([NewPartitions(stack.name, 4 + number)])[stack.name].result(LIMIT)
            proceed(daemon, stack.name, flow)
        eventually("a record of the first new partition", lambda: "[3] " in daemon.text())
    wait_for_rows(daemon, stack.name, flow.sent)
    daemon.terminate()
    assert daemon.wait() == 0
    assert stack.ids() == list(range(flow.sent))
    assert not daemon.events("failed")


@pytest.mark.soak
def test_brokers_when_disturbed_at_random_while_a_quota_delays_records_then_every_id_arrives_once(
    stack: Stack, cluster: Sandbox
) -> None:
    """At most one broker is down at a time, and at most five partitions are added."""
    dice = random.Random(_SEED)
    stack.topic(3)
    stack.table("id bigint")
    mapping = {"commit": {"interval": "500ms"}, "kafka": {"client.id": stack.name}}
    daemon = stack.start_process(stack.config(mapping))

    def restart() -> None:
        cluster.stop_service(broker, kill=dice.random() < 0.7)
        pause(dice.uniform(0, 8))
        cluster.start_service(broker)

    def suspend() -> None:
        cluster.pause_service(broker)
        pause(dice.uniform(1, 25))
        cluster.resume_service(broker)

    def grow() -> None:
        partitions = len(_leaders(stack, stack.name))
        if partitions < 8:
            stack.admin.create_partitions([NewPartitions(stack.name, partitions + 1)])[stack.name].result(LIMIT)

    def elect() -> None:
        stack.admin.elect_leaders(ElectionType.PREFERRED, None).result(LIMIT)

    done = []
    end = Deadline.after(_SECONDS)
    with (
        consumer_quota(stack.addresses.kafka, stack.name, 20_000),
        Flow(stack.addresses.kafka, stack.name) as flow,
    ):
        while not end.passed:
            broker, act = dice.choice(BROKERS), dice.choice((restart, restart, suspend, grow, elect))
            done.append((act.__name__, broker))
            act()
    eventually(f"all rows after {_SEED} {done}", lambda: rows(daemon, stack.name) >= flow.sent)
    daemon.terminate()
    assert daemon.wait() == 0
    assert stack.ids() == list(range(flow.sent)), (_SEED, done)
    assert not daemon.events("failed")


def _elect_preferred(stack: Stack) -> None:
    """Move the leaders that a restart has moved back to the preferred replicas."""
    before = _leaders(stack, stack.name)
    stack.admin.elect_leaders(ElectionType.PREFERRED, None).result(LIMIT)
    eventually("other leaders", lambda: _leaders(stack, stack.name) != before)


def _create_unclean(stack: Stack) -> None:
    """Create a topic of one partition, whose leader is the first broker, and may become the second one at any time."""
    topic = NewTopic(
        stack.name,
        1,
        replica_assignment=[[1, 2]],
        config={"unclean.leader.election.enable": "true", "min.insync.replicas": "1"},
    )
    stack.admin.create_topics([topic])[stack.name].result(LIMIT)


def _elect_second(stack: Stack, cluster: Sandbox) -> None:
    """Replace the first broker by the second one, which lacks the records that were sent while it was stopped."""
    cluster.stop_service(BROKERS[0])
    cluster.start_service(BROKERS[1])
    eventually("the new leader", lambda: _leaders(stack, stack.name) == [2])


def _policies(stack: Stack, *policies: str) -> tuple[dict[str, str], Path]:
    """Create a table for each value of `on_offset_loss`; return their names and the configuration of the mappings."""
    names = {policy: f"{stack.name}_{policy}" for policy in policies}
    for name in names.values():
        stack.table("id bigint", name=f"default.{name}")
    mappings = [{"name": name, "table": f"default.{name}", "on_offset_loss": p} for p, name in names.items()]
    return names, stack.config(*mappings)


def test_leader_election_when_it_is_unclean_then_follows_on_offset_loss_and_no_id_arrives_twice(
    stack: Stack, cluster: Sandbox
) -> None:
    """The new leader has the first 10 records, and the mappings have stored 20. Later records reuse the offsets."""
    _create_unclean(stack)
    names, config = _policies(stack, "stop", "latest")
    daemon = stack.start(config)
    stack.produce({"id": n} for n in range(10))
    for name in names.values():
        wait_for_rows(daemon, name, 10)
    cluster.stop_service(BROKERS[1])
    stack.produce({"id": n} for n in range(10, 20))
    for name in names.values():
        wait_for_rows(daemon, name, 20)  # the last 10 get lost
    _elect_second(stack, cluster)
    [failed] = eventually("the mapping to stop", lambda: daemon.events("failed"))
    assert (failed["mapping"], failed["reason"]) == (names["stop"], "OffsetsLost")
    assert "the partition was truncated at 10, before the committed position 20" in failed["error"]
    lost = eventually("the loss to be skipped", lambda: daemon.events("offsets_lost"))
    assert {event["mapping"] for event in lost} == {names["latest"]}
    cluster.start_service(BROKERS[0])
    stack.produce({"id": n} for n in range(20, 30))
    wait_for_rows(daemon, names["latest"], 30)
    daemon.terminate()
    assert daemon.wait() == 65
    assert stack.ids(names["latest"]) == list(range(30))
    assert stack.ids(names["stop"]) == list(range(20))


def test_leader_election_when_it_is_unclean_and_the_partition_outgrows_the_position_then_is_detected(
    stack: Stack, cluster: Sandbox
) -> None:
    """Before the daemon runs again, the new leader gets 15 records, so that its log ends behind the position, 20."""
    _create_unclean(stack)
    names, config = _policies(stack, "stop", "latest", "earliest")
    stack.produce({"id": n} for n in range(10))
    cluster.stop_service(BROKERS[1])
    stack.produce({"id": n} for n in range(10, 20))
    stack.drain(config)
    settings, partition = {"bootstrap.servers": stack.addresses.kafka}, TopicPartition(stack.name, 0)
    end = Broker(settings).find_ends([partition])[partition]
    assert isinstance(end, EpochOffset)
    assert (end.offset, end.epoch is None) == (20, False)
    _elect_second(stack, cluster)
    stack.produce({"id": n} for n in range(20, 35))
    daemon = stack.drain(config, expect=65)
    [failed] = daemon.events("failed")
    assert (failed["mapping"], failed["reason"]) == (names["stop"], "OffsetsLost")
    assert "the partition was truncated at 10, before the committed position 20" in failed["error"]
    assert {lost["mapping"] for lost in daemon.events("offsets_lost")} == {names["latest"], names["earliest"]}
    assert stack.ids(names["stop"]) == stack.ids(names["latest"]) == list(range(20))
    assert stack.ids(names["earliest"]) == list(range(35))
    with pytest.raises(RangeLost, match="truncated by an unclean leader election"):
        list(read(settings, [OffsetRange(*partition, 10, end.offset, end.epoch)]))
    cluster.start_service(BROKERS[0])


def test_leader_election_when_unclean_before_planned_records_are_read_then_only_committed_ones_count_as_lost(
    stack: Stack, cluster: Sandbox
) -> None:
    """The new leader has the 20 records that are committed, and replaces the 10 that are planned by others."""
    _create_unclean(stack)
    stack.table("id bigint")
    stack.produce({"id": n} for n in range(20))
    hold = Hold("opened", times=3)  # the first transaction stores the start
    daemon = stack.start(stack.config(), hold=hold)
    wait_for_rows(daemon, stack.name, 20)
    cluster.stop_service(BROKERS[1])
    stack.produce({"id": n} for n in range(20, 30))
    hold.wait()
    _elect_second(stack, cluster)
    stack.produce({"id": n} for n in range(100, 115))
    hold.release()
    wait_for_rows(daemon, stack.name, 35)
    daemon.terminate()
    assert daemon.wait() == 0
    assert stack.ids() == [*range(20), *range(100, 115)]
    assert "RangeLost" in [event["reason"] for event in daemon.events("waiting")]
    cluster.start_service(BROKERS[0])


def test_dead_letters_when_their_broker_is_suspended_and_the_daemon_killed_then_each_record_is_a_row_or_a_letter(
    stack: Stack, cluster: Sandbox
) -> None:
    """The tasks of one mapping wait for their letters at the end, those of the other before, as the letters are large.

    The broker of the records answers meanwhile, and the other one is alone in having the topics of the letters.
    """
    values = {"small": [b"{oops %d" % n for n in range(100)], "large": [os.urandom(100_000) for _ in range(200)]}
    names = {case: f"{stack.name}_{case}" for case in values}
    mappings = []
    for case, name in names.items():
        for topic, broker in ((name, 1), (f"{name}.dead", 2)):
            stack.admin.create_topics([NewTopic(topic, 1, replica_assignment=[[broker]])])[topic].result(LIMIT)
            wait_for_topic(stack.admin, topic, 1)
        stack.table("id int", name=f"default.{name}")
        rows_of_case = [{"id": n} for n in range(len(values[case]))]
        stack.produce((record for pair in zip(rows_of_case, values[case], strict=True) for record in pair), name)
        mapping: dict[str, Any] = {"name": name, "topics": [name], "table": f"default.{name}"}
        mappings.append(mapping | {"on_error": "dead_letter", "dead_letter": {"topic": f"{name}.dead"}})
    impatient = {"bootstrap.servers": stack.addresses.kafka, "socket.timeout.ms": 3000}
    cluster.pause_service(BROKERS[1])
    killed = stack.start_process(stack.config(*mappings, kafka=impatient))
    eventually(
        "letters that nobody acknowledges",
        lambda: all(_has_waited_for(killed, f"{name}.dead") for name in names.values()),
    )
    killed.kill()
    cluster.resume_service(BROKERS[1])
    assert [stack.ids(name) for name in names.values()] == [[], []]
    stack.drain(stack.config(*mappings))
    for case, name in names.items():
        assert stack.ids(name) == list(range(len(values[case])))
        letters = {dict(letter.headers() or [])["ingestd.id"]: letter for letter in read_all(stack, f"{name}.dead")}
        assert sorted(letter.value() or b"" for letter in letters.values()) == sorted(values[case])


def _has_waited_for(daemon: DaemonProcess, topic: str) -> bool:
    """Return whether the broker has not acknowledged letters that were sent to a topic."""
    return any(f"topic {topic}: " in event["error"] for event in daemon.events("waiting"))


def test_broker_when_it_is_lost_for_good_then_every_id_arrives_once(stack: Stack, cluster: Sandbox) -> None:
    """The last test of the module, because the broker does not come back."""
    stack.topic(3)
    stack.table("id bigint")
    daemon = stack.start(stack.config({"commit": {"interval": "500ms"}}))
    with Flow(stack.addresses.kafka, stack.name) as flow:
        proceed(daemon, stack.name, flow)
        lost = _leaders(stack, stack.name)[0]
        cluster.stop_service(BROKERS[lost - 1], kill=True)
        assert cluster.options.state_dir
        shutil.rmtree(cluster.options.state_dir / "data" / BROKERS[lost - 1])
        eventually("another leader", lambda: lost not in _leaders(stack, stack.name))
        proceed(daemon, stack.name, flow)
    wait_for_rows(daemon, stack.name, flow.sent)
    daemon.terminate()
    assert daemon.wait() == 0
    assert stack.ids() == list(range(flow.sent))
