"""Topics with transactions, gaps, lost offsets, new partitions or tombstones, and the start positions of mappings.

Each case has its own topic, table and mapping. Two daemons, one after the other, run all cases.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from ingestd.clock import Deadline, now
from ingestd.kafka.ranges import OffsetRange
from ingestd.kafka.reader import read
from ingestd.sandbox import Addresses
from tests.support.daemon import Daemon
from tests.support.flow import wait_for_rows
from tests.support.patience import LIMIT
from tests.support.stack import Stack, eventually

HOT = 60_000


class _Topics:
    """The cases and the two daemons that have run them."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.admin = AdminClient({"bootstrap.servers": stack.addresses.kafka})
        self.mappings: list[dict[str, Any]] = []
        self.first: Daemon
        self.second: Daemon

    def name(self, case: str) -> str:
        return f"{self.stack.name}_{case}"

    def add(self, case: str, partitions: int = 1, settings: dict[str, str] | None = None, **mapping: Any) -> str:
        """Create the topic (unless `partitions` is 0), the table and the mapping of a case. Return the topic's name."""
        name = self.name(case)
        if partitions:
            self.stack.topic(partitions, name, **(settings or {}))
        self.stack.table("id bigint", name=f"default.{name}")
        self.mappings.append({"name": name[-40:], "topics": [name], "table": f"default.{name}"} | mapping)
        return name

    def produce(self, name: str, ids: range, partition: int = 0) -> None:
        self.stack.produce(({"id": n} for n in ids), name, partition)

    def drain(self) -> Daemon:
        """Run a daemon until it has caught up. Its exit code is 65, because some cases stop with an error."""
        return self.stack.drain(self.stack.config(*self.mappings), expect=65)

    def ids(self, case: str) -> list[int]:
        return self.stack.ids(self.name(case))

    def commits(self, daemon: Daemon, case: str) -> list[dict[str, Any]]:
        return [e for e in daemon.events("committed") if e["mapping"] == self.name(case)[-40:]]

    def error(self, daemon: Daemon, case: str) -> str:
        stops = [e for e in daemon.events("failed") if e["mapping"] == self.name(case)[-40:]]
        assert len(stops) == 1, stops
        return str(stops[0]["error"])

    def delete_before(self, name: str, offset: int) -> None:
        """Delete the records before `offset` from partition 0, as retention does."""
        for answer in self.admin.delete_records([TopicPartition(name, 0, offset)]).values():
            answer.result(LIMIT)


def test_topic_when_it_is_created_after_the_mapping_has_asked_for_it_then_its_records_are_read(stack: Stack) -> None:
    stack.table("id bigint")
    daemon = stack.start(stack.config())
    eventually(
        "the mapping to wait for the topic",
        lambda: "TopicMissing" in [event["reason"] for event in daemon.events("waiting")],
    )
    stack.topic(1)
    stack.produce([{"id": 1}], partition=0)
    wait_for_rows(daemon, stack.name[-40:], 1)
    daemon.terminate()
    assert daemon.wait() == 0


class _Transactions:
    """Transactions of one producer on partition 0 of a topic."""

    def __init__(self, stack: Stack, topic: str) -> None:
        settings = {"bootstrap.servers": stack.addresses.kafka, "transactional.id": topic}
        # A transaction stays open while a daemon runs, which may take longer than the default of one minute.
        self._producer = Producer(settings | {"transaction.timeout.ms": 600_000})
        self._producer.init_transactions(LIMIT)
        self._topic = topic

    def write(self, ids: range) -> None:
        self._producer.begin_transaction()
        for n in ids:
            self._producer.produce(self._topic, json.dumps({"id": n}), partition=0)
        assert self._producer.flush(LIMIT) == 0

    def commit(self) -> None:
        self._producer.commit_transaction(LIMIT)

    def abort(self) -> None:
        self._producer.abort_transaction(LIMIT)


def _transactional(cases: _Topics) -> _Transactions:
    """Add the cases `done`, which ends with an aborted transaction, and `open`. Return the open transaction."""
    done = _Transactions(cases.stack, cases.add("done"))
    for ids, end in ((range(10), done.commit), (range(100, 110), done.abort), (range(10, 15), done.commit)):
        done.write(ids)
        end()
    done.write(range(200, 210))
    done.abort()
    open_transaction = _Transactions(cases.stack, cases.add("open"))
    open_transaction.write(range(10))
    open_transaction.commit()
    open_transaction.write(range(10, 20))
    return open_transaction


def _compacted(cases: _Topics) -> None:
    """Create a compacted topic with 300 records and three keys, in which Kafka's cleaner creates gaps."""
    settings = {"cleanup.policy": "compact", "segment.ms": "100", "segment.bytes": "1048576"}
    settings |= {"min.cleanable.dirty.ratio": "0.001", "max.compaction.lag.ms": "100", "min.compaction.lag.ms": "0"}
    name = cases.stack.topic(1, cases.name("compacted"), **settings)
    producer = Producer({"bootstrap.servers": cases.stack.addresses.kafka})
    for n in range(300):
        producer.produce(name, json.dumps({"id": n}), key=str(n % 3), partition=0)
    assert producer.flush(LIMIT) == 0
    # A segment is cleaned only after a later record has closed it.
    _pass_time(0.2)
    producer.produce(name, json.dumps({"id": 300}), key="last", partition=0)
    assert producer.flush(LIMIT) == 0


def _pass_time(seconds: float) -> None:
    """Wait, so that later timestamps are at least `seconds` higher than earlier ones."""
    limit = Deadline.after(seconds)
    eventually("a later moment", lambda: limit.passed)


def _kept(cases: _Topics) -> int:
    ranges = [OffsetRange(cases.name("compacted"), 0, 0, 301)]
    return sum(len(block.values) for block in read({"bootstrap.servers": cases.stack.addresses.kafka}, ranges))


def _before_first(cases: _Topics) -> _Transactions:
    open_transaction = _transactional(cases)
    _compacted(cases)
    cases.add("empty", 3)
    one = cases.add("several")
    other = cases.stack.topic(2, cases.name("several_more"))
    cases.mappings[-1]["topics"] = [one, other]
    cases.produce(one, range(10))
    cases.produce(other, range(10, 20), 1)
    cases.produce(cases.add("grows"), range(10))
    cases.produce(cases.add("latest", start="latest"), range(10))
    timed = cases.add("timed")
    cases.produce(timed, range(10))
    _pass_time(0.05)
    cases.mappings[-1]["start"] = {"timestamp": _iso(now())}
    _pass_time(0.05)
    cases.produce(timed, range(10, 20))
    for case, policy in (("lost", "stop"), ("skipped", "earliest"), ("jumped", "latest")):
        cases.produce(cases.add(case, on_offset_loss=policy), range(10))
    trimmed = cases.add("trimmed")
    cases.produce(trimmed, range(10))
    cases.delete_before(trimmed, 4)
    for case, mode in (("tomb", "stop"), ("tombs", "skip")):
        cases.stack.produce([{"id": 1}, None, {"id": 2}], cases.add(case, format={"tombstones": mode}), 0)
    cases.add("missing", 0)
    # The limit is so high that all records fit into one transaction, even with the initial size estimate.
    cases.produce(cases.add("hot", 2, commit={"bytes": "4GiB"}), range(HOT), 1)
    return open_transaction


def _between(cases: _Topics, open_transaction: _Transactions) -> None:
    open_transaction.commit()
    grows = cases.name("grows")
    for answer in cases.admin.create_partitions([NewPartitions(grows, 3)]).values():
        answer.result(LIMIT)
    eventually("the new partitions", lambda: len(cases.admin.list_topics(grows).topics[grows].partitions) == 3)
    cases.produce(grows, range(10, 20), 1)
    cases.produce(grows, range(20, 30), 2)
    cases.produce(cases.name("latest"), range(10, 20))
    for case in ("lost", "skipped", "jumped"):
        cases.produce(cases.name(case), range(10, 20))
        cases.delete_before(cases.name(case), 15)
    # The cleaner may run between two segments. It has finished when the last record of each key is left.
    eventually("Kafka's cleaner to remove records", lambda: _kept(cases) == 4)
    cases.add("compacted", 0)


def _iso(moment: float) -> str:
    return datetime.fromtimestamp(moment, timezone.utc).isoformat(timespec="milliseconds")


@pytest.fixture(scope="module")
def cases(addresses: Addresses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Topics]:
    with Stack(addresses, "topics", Path(tmp_path_factory.mktemp("topics"))) as stack:
        made = _Topics(stack)
        open_transaction = _before_first(made)
        made.first = made.drain()
        assert stack.ids(made.name("open")) == list(range(10))
        _between(made, open_transaction)
        made.second = made.drain()
        yield made


def test_transactions_when_aborted_then_only_committed_rows_arrive_and_the_daemon_catches_up(cases: _Topics) -> None:
    assert cases.ids("done") == list(range(15))
    assert not cases.commits(cases.second, "done")


def test_transaction_when_open_then_its_rows_arrive_after_its_commit(cases: _Topics) -> None:
    assert sum(c["rows"] for c in cases.commits(cases.first, "open")) == 10
    assert cases.ids("open") == list(range(20))


def test_topic_when_compacted_then_gaps_are_skipped(cases: _Topics) -> None:
    assert cases.ids("compacted") == [297, 298, 299, 300]
    ranges = [text for c in cases.commits(cases.second, "compacted") for text in c["ranges"]]
    assert [text.rpartition(" ")[2] for text in ranges] == ["0..301"]


def test_topic_when_empty_then_no_transaction_is_opened(cases: _Topics) -> None:
    assert [c["rows"] for c in cases.commits(cases.first, "empty")] == [0]
    assert not cases.commits(cases.second, "empty")


def test_topics_when_several_then_all_are_written_to_one_table(cases: _Topics) -> None:
    assert cases.ids("several") == list(range(20))


def test_partitions_when_added_later_then_are_read_from_their_beginning(cases: _Topics) -> None:
    assert cases.ids("grows") == list(range(30))


def test_start_when_latest_then_only_later_records_arrive(cases: _Topics) -> None:
    assert cases.ids("latest") == list(range(10, 20))


def test_start_when_a_timestamp_then_only_later_records_arrive(cases: _Topics) -> None:
    assert cases.ids("timed") == list(range(10, 20))


def test_topic_when_first_records_were_deleted_before_the_first_run_then_starts_at_the_earliest(cases: _Topics) -> None:
    assert cases.ids("trimmed") == list(range(4, 10))


def test_offsets_when_lost_and_policy_is_stop_then_the_error_names_the_gap(cases: _Topics) -> None:
    text = cases.error(cases.second, "lost")
    assert f"{cases.name('lost')}[0]" in text
    assert "offsets 10..15 were removed by retention" in text
    assert "on_offset_loss" in text
    assert cases.ids("lost") == list(range(10))


def test_offsets_when_lost_and_policy_is_earliest_then_continues_and_logs_the_gap(cases: _Topics) -> None:
    assert cases.ids("skipped") == [*range(10), *range(15, 20)]
    gaps = [e["gap"] for e in cases.second.events("offsets_lost") if e["mapping"] == cases.name("skipped")[-40:]]
    assert len(gaps) == 1
    assert "offsets 10..15 were removed by retention" in gaps[0]


def test_offsets_when_lost_and_policy_is_latest_then_continues_at_the_end(cases: _Topics) -> None:
    assert cases.ids("jumped") == list(range(10))
    assert any(e["mapping"] == cases.name("jumped")[-40:] for e in cases.second.events("offsets_lost"))


def test_tombstone_when_policy_is_stop_then_the_error_names_its_offset(cases: _Topics) -> None:
    text = cases.error(cases.first, "tomb")
    assert f"{cases.name('tomb')}[0] offset 1" in text
    assert "tombstone" in text
    assert cases.ids("tomb") == []


def test_tombstone_when_policy_is_skip_then_is_skipped_and_counted(cases: _Topics) -> None:
    assert cases.ids("tombs") == [1, 2]
    assert sum(c.get("skipped", 0) for c in cases.commits(cases.first, "tombs")) == 1


def test_topic_when_missing_then_its_mapping_stops_and_the_others_continue(cases: _Topics) -> None:
    text = cases.error(cases.first, "missing")
    assert f"topic {cases.name('missing')}" in text
    assert "does not exist" in text
    assert "Traceback" not in cases.first.text()


def test_partition_when_hot_then_two_tasks_share_it(cases: _Topics) -> None:
    assert [(c["rows"], c["files"]) for c in cases.commits(cases.first, "hot") if c["rows"]] == [(HOT, 2)]
    name = cases.name("hot")
    assert cases.stack.sql(f"SELECT count(*), count(DISTINCT id) FROM {name}") == [(HOT, HOT)]
    files = cases.stack.sql(f"SELECT DISTINCT INPUT__FILE__NAME FROM {name}")
    assert sorted(row[0].rpartition("/")[2] for row in files) == ["bucket_00000", "bucket_00001"]
