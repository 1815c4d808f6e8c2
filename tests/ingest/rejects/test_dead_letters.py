"""Dead letters in a topic: they are the original records, and every reject is one, even if the daemon is killed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, Message

from ingestd.clock import now
from ingestd.errors import BrokerUnavailable
from ingestd.kafka.admin import Broker
from ingestd.kafka.record import Record
from ingestd.kafka.topic_writer import TopicWriter
from ingestd.sandbox import Addresses
from tests.support.daemon import DaemonThread
from tests.support.records import produce_all, read_all
from tests.support.stack import Stack

MALFORMED, MISFIT = b"\xff{oops\x00", b'{"id": "seven"}'
AN_HOUR_AGO = int(now() * 1000) - 3_600_000
# The rejects of the case `origin`: key, value, headers and timestamp.
REJECTS = [
    Record(b"\x00k\xff", MALFORMED, (("trace", b"\x01\xfe"), ("trace", b""), ("none", None)), AN_HOUR_AGO),
    Record(None, MISFIT, (), AN_HOUR_AGO + 1),
    Record(b"", b"", (("__connect.errors.topic", b"earlier"),), AN_HOUR_AGO + 2),
    Record(b"tombstone", None, (("trace", b"1"),), AN_HOUR_AGO + 3),
]

# The records of the case `large`, which cannot be compressed.
LARGE, SMALL = Record(b"key", os.urandom(5_000)), [os.urandom(500) for _ in range(6)]


def _added(letter: Message, original: Sequence[tuple[str, bytes | None]] = ()) -> dict[str, str]:
    """Return the texts of the headers that follow the original ones."""
    headers = letter.headers() or []
    assert headers[: len(original)] == list(original)
    return {name: (value or b"").decode() for name, value in headers[len(original) :]}


class _Cases:
    """The mappings, and the daemon that has run them. Each case has its own topics and table."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.mappings: list[dict[str, Any]] = []
        self.daemon: DaemonThread

    def name(self, case: str) -> str:
        return f"{self.stack.name}_{case}"[-40:]

    def add(self, case: str, records: Sequence[Record], *, letters: dict[str, str] | None, **mapping: Any) -> None:
        """Add a mapping. `letters` are the properties of the topic of its dead letters; None if there is no topic."""
        name = self.name(case)
        self.stack.topic(1, name)
        if letters is not None:
            self.stack.topic(1, f"{name}.dead", **letters)
        self.stack.table("id int", name=f"default.{name}")
        produce_all(self.stack, name, records)
        wanted = {"name": name, "topics": [name], "table": f"default.{name}"}
        self.mappings.append(wanted | {"on_error": "dead_letter", "dead_letter": {"topic": f"{name}.dead"}} | mapping)

    def events(self, event: str, case: str) -> list[dict[str, Any]]:
        return [logged for logged in self.daemon.events(event) if logged["mapping"] == self.name(case)]


def _rows(*ids: int) -> list[Record]:
    return [Record(None, b'{"id": %d}' % n) for n in ids]


@pytest.fixture(scope="module")
def cases(addresses: Addresses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Cases]:
    with Stack(addresses, "letters", Path(tmp_path_factory.mktemp("letters"))) as stack:
        made, small = _Cases(stack), {"max.message.bytes": "2000"}
        made.add("origin", [*_rows(1, 2), *REJECTS, *_rows(3)], letters={}, format={"tombstones": "dead_letter"})
        made.add("missing", _rows(1), letters=None, refusals={"retries": 2, "period": "300ms"})
        made.add("large", [*_rows(1), LARGE, *(Record(None, value) for value in SMALL)], letters=small)
        made.add("beyond", [*_rows(1), *REJECTS[:3]], letters={}, max_rejects=2)
        made.daemon = stack.drain(stack.config(*made.mappings), expect=65)
        yield made


def test_reject_when_it_becomes_a_dead_letter_then_has_the_bytes_headers_and_timestamp_of_its_record(
    cases: _Cases,
) -> None:
    letters = read_all(cases.stack, f"{cases.name('origin')}.dead")
    assert len(letters) == len(REJECTS)
    for letter, record in zip(letters, REJECTS, strict=True):
        assert (letter.key(), letter.value()) == (record.key, record.value)
        assert letter.timestamp() == (TIMESTAMP_CREATE_TIME, record.timestamp_ms)
        assert (letter.headers() or [])[: len(record.headers)] == list(record.headers)


def test_reject_when_it_becomes_a_dead_letter_then_further_headers_say_where_it_is_from_and_why(cases: _Cases) -> None:
    name = cases.name("origin")
    letters = read_all(cases.stack, f"{name}.dead")
    topic_id = Broker({"bootstrap.servers": cases.stack.addresses.kafka}).topics([name])[name].identity.topic_id
    for number, (letter, record) in enumerate(zip(letters, REJECTS, strict=True)):
        added = _added(letter, record.headers)
        assert added["__connect.errors.topic"] == name
        assert (added["__connect.errors.partition"], added["__connect.errors.offset"]) == ("0", str(number + 2))
        assert (added["__connect.errors.connector.name"], added["__connect.errors.task.id"]) == (name, "0")
        assert added["__connect.errors.stage"] == "VALUE_CONVERTER"
        assert added["__connect.errors.class.name"] == "ingestd.formats.json.options.JsonOptions"
        assert added["__connect.errors.exception.class.name"] == "ingestd.errors.RecordError"
        assert added["ingestd.id"] == f"{name}:{topic_id}:0:{number + 2}"
        assert added["ingestd.mapping"] == name
        assert added["ingestd.reason"] in added["__connect.errors.exception.message"]
        assert added["ingestd.time"].endswith("+00:00")
        assert (added["ingestd.timestamp.type"], added["ingestd.timestamp"]) == ("CreateTime", str(record.timestamp_ms))
    assert [_added(x, r.headers)["ingestd.column"] for x, r in zip(letters, REJECTS, strict=True)] == ["", "id", "", ""]


def test_reject_when_it_becomes_a_dead_letter_then_the_others_become_rows_and_it_is_counted(cases: _Cases) -> None:
    assert cases.stack.ids(cases.name("origin")) == [1, 2, 3]
    [event] = cases.events("dead_letters", "origin")
    assert (event["rejects"], event["records"], len(event["first"])) == (4, 7, 4)
    totals = cases.daemon.supervisor.monitors[cases.name("origin")].snapshot().totals
    assert (totals.rejects, totals.rejects_skipped, totals.dead_letters) == (0, 0, 4)
    assert cases.stack.group_offsets(f"ingestd-{cases.name('origin')}", cases.name("origin"), 1) == [7]


def test_topic_of_dead_letters_when_missing_then_the_mapping_stops_before_it_reads_a_record(cases: _Cases) -> None:
    [failed] = cases.events("failed", "missing")
    assert failed["reason"] == "TopicMissing"
    assert f"topic {cases.name('missing')}.dead: the topic does not exist" in failed["error"]
    assert cases.stack.ids(cases.name("missing")) == []


def test_dead_letter_when_the_topic_refuses_its_size_then_a_reference_is_written_and_all_others_are_complete(
    cases: _Cases,
) -> None:
    name = cases.name("large")
    by_offset = {_added(letter)["__connect.errors.offset"]: letter for letter in read_all(cases.stack, f"{name}.dead")}
    reference = by_offset.pop("1")
    # Together, these letters exceed the limit of the topic.
    assert {letter.value() for letter in by_offset.values()} == set(SMALL)
    assert (reference.key(), reference.value()) == (None, None)
    added = _added(reference)
    assert added["ingestd.omitted"] == "key: 3 bytes, value: 5000 bytes, headers: 0"
    assert (added["__connect.errors.topic"], added["__connect.errors.partition"]) == (name, "0")
    assert cases.stack.ids(name) == [1]


def test_dead_letters_when_beyond_the_limit_then_none_is_written(cases: _Cases) -> None:
    [failed] = cases.events("failed", "beyond")
    assert "3 of 4 records are rejects; max_rejects is 2" in failed["error"]
    assert read_all(cases.stack, f"{cases.name('beyond')}.dead") == []


def test_kill_when_dead_letters_are_written_and_not_committed_then_rows_arrive_once_and_letters_at_least_once(
    stack: Stack,
) -> None:
    dead = f"{stack.name}.dead"
    stack.topic(2)
    stack.topic(1, dead)
    stack.table("id int")
    for partition in (0, 1):
        rows = [{"id": n} if n % 3 else b"{oops %d" % n for n in range(partition * 100, partition * 100 + 100)]
        stack.produce(rows, partition=partition)
    config = stack.config({"on_error": "dead_letter", "dead_letter": {"topic": dead}})
    killed = stack.start_process(config, INGESTD_TESTING="1", INGESTD_FAILPOINT="staged=kill")
    assert killed.wait() == -9, killed.text()
    assert stack.ids() == []
    expected = {b"{oops %d" % n for n in range(200) if n % 3 == 0}
    assert {letter.value() for letter in read_all(stack, dead)} == expected
    stack.drain(config)
    assert stack.ids() == [n for n in range(200) if n % 3]
    letters = read_all(stack, dead)
    assert {letter.value() for letter in letters} == expected
    # Both attempts have written them, with the same ids, and perhaps another one.
    assert len(letters) >= 2 * len(expected)
    assert len({_added(letter)["ingestd.id"] for letter in letters}) == len(expected)


def test_writer_when_the_broker_does_not_answer_then_the_error_is_retriable() -> None:
    writer = TopicWriter({"bootstrap.servers": "127.0.0.1:1", "socket.timeout.ms": 1000, "fetch.min.bytes": 1}, "dead")
    writer.send([Record(b"k", b"v")] * 3)
    with pytest.raises(BrokerUnavailable, match="topic dead"):
        writer.flush()
    writer.close()
