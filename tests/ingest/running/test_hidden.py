"""Records behind an open Kafka transaction are not part of the lag, and everything that reports the lag shows them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from click.testing import CliRunner
from confluent_kafka import Producer

from ingestd.cli.main import cli
from ingestd.clock import now
from ingestd.config.document import load
from ingestd.doctor.finding import Verdict
from ingestd.doctor.mapping import KAFKA_CHECKS, Examined
from ingestd.hive.tables import TableName
from ingestd.ingest.monitoring.lag_watch import LagWatch
from ingestd.ingest.monitoring.monitor import Monitor
from ingestd.ingest.options import MappingOptions
from ingestd.kafka.admin import Broker
from ingestd.kafka.hidden import Hidden, find_hidden
from ingestd.kafka.ranges import TopicPartition
from ingestd.kafka.shared import KafkaClients
from ingestd.publish.warehouse import Warehouse
from ingestd.storage.options import StorageOptions
from ingestd.storage.storages import Storages
from tests.support.patience import LIMIT
from tests.support.stack import Stack, eventually
from tests.support.tables import make_table

_P = TopicPartition("clicks", 0)


def _monitor() -> Monitor:
    monitor = Monitor(MappingOptions("clicks", ("clicks",), TableName("default", "clicks")))
    monitor.entered("running", owner="here")
    monitor.polled({_P: 5}, {_P: 5})
    return monitor


def test_hidden_when_the_last_stable_offset_stays_then_counts_from_when_it_was_first_seen() -> None:
    monitor = _monitor()
    seen = monitor.snapshot()
    assert (seen.hidden_offsets, seen.hidden_seconds, seen.hidden_since) == (None, None, None)
    for first, end, at, offsets, seconds in (
        (5, 5, 100.0, 0, 0.0),
        (5, 9, 110.0, 4, 0.0),
        (5, 60, 170.0, 55, 60.0),
        (7, 60, 180.0, 53, 0.0),  # the transaction has ended, and another one is open
        (60, 60, 190.0, 0, 0.0),
    ):
        monitor.measured({_P: Hidden(first, end)}, at)
        seen = monitor.snapshot()
        assert (seen.lag, seen.hidden_offsets, seen.hidden_seconds) == (0, offsets, seconds)
    monitor.measured({_P: Hidden(60, 70)}, 200.0)
    monitor.measured({}, 900.0)  # Kafka does not answer: it is not known how long this has lasted
    assert monitor.snapshot().hidden_seconds == 0.0
    monitor.entered("standby", owner="there")
    monitor.measured({_P: Hidden(60, 70)}, 910.0)
    assert monitor.snapshot().hidden_offsets is None


@contextmanager
def _hanging(stack: Stack, topic: str, age_seconds: float) -> Iterator[Producer]:
    """Yield a producer with an open transaction of one record."""
    producer = Producer(
        {"bootstrap.servers": stack.addresses.kafka, "transactional.id": topic, "transaction.timeout.ms": 900_000}
    )
    producer.init_transactions(LIMIT)
    producer.begin_transaction()
    producer.produce(topic, b'{"id": 2}', partition=0, timestamp=int((now() - age_seconds) * 1000))
    assert producer.flush(LIMIT) == 0
    yield producer
    producer.abort_transaction(LIMIT)


def _examined(stack: Stack, config: Path) -> list[Verdict]:
    [check] = [check for check in KAFKA_CHECKS if check.name == "kafka.transactions"]
    [options] = load([config]).mappings
    warehouse = Warehouse(stack.metastore, Storages(StorageOptions()))
    return list(check.run(Examined(options, warehouse)))


def test_hidden_records_when_a_transaction_hangs_then_drain_status_and_doctor_name_them(stack: Stack) -> None:
    topic = stack.topic(1)
    make_table(stack.metastore, TableName("default", topic))
    stack.produce([{"id": 1}], partition=0)
    config = stack.config()
    with _hanging(stack, topic, 1000):
        stack.produce([{"id": number} for number in range(10, 30)], partition=0)
        settings = {"bootstrap.servers": stack.addresses.kafka}
        partition = TopicPartition(topic, 0)
        assert find_hidden(Broker(settings), [partition]) == {partition: Hidden(1, 22)}
        [left] = stack.drain(config).events("left_hidden")
        assert (left["offsets"], left["from_offset"]) == (21, {f"{topic}[0]": 1})
        assert stack.ids() == [1]
        printed = CliRunner().invoke(cli, ["status", "--config", str(config)], env={"COLUMNS": "200"})
        assert printed.exit_code == 0, printed.output
        assert "21 offsets, not part of the lag" in printed.output
        [verdict] = _examined(stack, config)
        assert verdict.status == "warning"
        assert f"{topic}[0]: 21 offsets from 1 on" in verdict.evidence
        assert f"describe-producers --topic {topic} --partition 0" in verdict.fix
        daemon = stack.start(config)
        monitor = eventually("the mapping", lambda: daemon.supervisor.monitors.get(topic[-40:]))
        with LagWatch(lambda: daemon.supervisor.monitors, KafkaClients()):
            eventually("the hidden records", lambda: monitor.snapshot().hidden_offsets == 21)
            eventually("two measurements", lambda: (monitor.snapshot().hidden_seconds or 0) > 1)
            assert monitor.snapshot().lag == 0
    eventually("the other records", lambda: monitor.snapshot().totals.rows == 20)
    daemon.terminate()
    daemon.wait()
    assert stack.ids() == [1, *range(10, 30)]
    [verdict] = _examined(stack, config)
    assert verdict.status == "ok"
