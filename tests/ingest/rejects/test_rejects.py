"""Records that cannot become a row, with `on_error: skip`: what is committed, counted and logged, and the limits.

Each case has its own topic, table and mapping. One daemon runs all cases.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingestd.errors import RecordError
from ingestd.formats.decoder import Reject
from ingestd.ingest.letters.rejects import Rejects, check_limit
from ingestd.ingest.options import RejectLimit
from ingestd.kafka.reader import Batch
from ingestd.sandbox import Addresses
from tests.support.daemon import DaemonThread
from tests.support.stack import Stack

MALFORMED, MISFIT = b"{oops", b'{"id": "seven"}'


def _batch(first: int, count: int) -> Batch:
    values: list[bytes | None] = [MALFORMED] * count
    return Batch("clicks", values, np.zeros(count, np.int32), np.arange(first, first + count), 5 * count)


def _rejects(first: int, count: int) -> Rejects:
    batch = _batch(first, count)
    return Rejects.of(batch, [Reject.of(row, MALFORMED, "id", "r" * 1000) for row in range(count)])


def test_rejects_when_there_are_many_then_all_are_counted_and_few_are_kept() -> None:
    total = _rejects(10, 3) + _rejects(100, 1000)
    assert (total.count, [reject.offset for reject in total.first]) == (1003, [10, 11, 12, 100, 101])
    assert max(len(reject.reason) for reject in total.first) == 500


@pytest.mark.parametrize("limit", [None, RejectLimit(count=3), RejectLimit(percent=RejectLimit().percent + 1)])
def test_limit_when_not_exceeded_then_nothing_is_raised(limit: RejectLimit | None) -> None:
    check_limit(_rejects(0, 3), limit, read=300, planned=300)


def test_limit_when_exceeded_then_the_error_has_the_numbers_and_the_first_record() -> None:
    with pytest.raises(
        RecordError, match=r"\(in this transaction, 4 of 2,000 records are rejects; max_rejects is 3\)"
    ) as caught:
        check_limit(_rejects(7, 4), RejectLimit(count=3), read=2000, planned=5000)
    assert caught.value.where == "clicks[0] offset 7, column id"
    assert repr(MALFORMED) in caught.value.what


class _Cases:
    """The mappings, and the daemon that has run them."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.mappings: list[dict[str, Any]] = []
        self.daemon: DaemonThread

    def add(self, case: str, records: list[Any], columns: str = "id int", **mapping: Any) -> None:
        name = f"{self.stack.name}_{case}"[-40:]
        self.stack.topic(1, name)
        self.stack.table(columns, name=f"default.{name}")
        self.stack.produce(records, name)
        wanted = {"name": name, "topics": [name], "table": f"default.{name}", "on_error": "skip"}
        self.mappings.append(wanted | mapping)

    def name(self, case: str) -> str:
        return f"{self.stack.name}_{case}"[-40:]

    def events(self, event: str, case: str) -> list[dict[str, Any]]:
        return [logged for logged in self.daemon.events(event) if logged["mapping"] == self.name(case)]


@pytest.fixture(scope="module")
def cases(addresses: Addresses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Cases]:
    with Stack(addresses, "rejects", Path(tmp_path_factory.mktemp("rejects"))) as stack:
        made = _Cases(stack)
        good: list[Any] = [{"id": n} for n in range(10)]
        made.add("mixed", [*good[:5], MALFORMED, MISFIT, {"id": None}, *good[5:]], "id int NOT NULL ENABLE NOVALIDATE")
        made.add("none", [MALFORMED] * 8)
        made.add("within", [*good, MALFORMED], max_rejects="1%")
        made.add("beyond", [*good, MALFORMED, MALFORMED], max_rejects="1%")
        made.add("tombs", [*good, None], format={"tombstones": "stop"})
        made.add("nulls", [good[0], None, good[1], None], format={"tombstones": "null_row"})
        not_null = "id int NOT NULL ENABLE NOVALIDATE"
        made.add("unfit", [good[0], None, good[1]], not_null, format={"tombstones": "null_row"})
        made.daemon = stack.drain(stack.config(*made.mappings), expect=65)
        yield made


def test_rejects_when_skipped_then_the_other_records_become_rows_and_the_commit_counts_them(cases: _Cases) -> None:
    assert cases.stack.ids(cases.name("mixed")) == list(range(10))
    [commit] = [event for event in cases.events("committed", "mixed") if event["records"]]
    assert (commit["rows"], commit["records"], commit["rejects"]) == (10, 13, 3)
    [event] = cases.events("rejects_skipped", "mixed")
    assert (event["txn"], event["rejects"], event["records"]) == (commit["txn"], 3, 13)
    assert [(reject["partition"], reject["offset"], reject["column"]) for reject in event["first"]] == [
        (0, 5, ""),
        (0, 6, "id"),
        (0, 7, "id"),
    ]
    assert {reject["topic"] for reject in event["first"]} == {cases.name("mixed")}
    assert all(reject["reason"] for reject in event["first"])
    assert MALFORMED.decode() not in json.dumps(event)


def test_rejects_when_all_records_are_rejects_then_their_offsets_are_committed(cases: _Cases) -> None:
    assert cases.stack.ids(cases.name("none")) == []
    [event] = cases.events("rejects_skipped", "none")
    assert (event["rejects"], len(event["first"])) == (8, 5)
    assert cases.stack.group_offsets(f"ingestd-{cases.name('none')}", cases.name("none"), 1) == [8]
    snapshot = cases.daemon.supervisor.monitors[cases.name("none")].snapshot()
    assert (snapshot.totals.rejects, snapshot.totals.rejects_skipped) == (0, 8)


def test_rejects_when_within_the_limit_then_the_mapping_continues(cases: _Cases) -> None:
    assert cases.stack.ids(cases.name("within")) == list(range(10))


def test_rejects_when_beyond_the_limit_then_the_mapping_stops_and_nothing_is_committed(cases: _Cases) -> None:
    [failed] = cases.events("failed", "beyond")
    assert failed["reason"] == "RecordError"
    assert f"{cases.name('beyond')}[0] offset 10: " in failed["error"]
    assert "2 of 12 records are rejects; max_rejects is 1%" in failed["error"]
    assert cases.stack.ids(cases.name("beyond")) == []
    assert not cases.events("rejects_skipped", "beyond")


def test_tombstone_when_its_policy_is_stop_then_stops_a_mapping_that_skips_rejects(cases: _Cases) -> None:
    [failed] = cases.events("failed", "tombs")
    assert f"{cases.name('tombs')}[0] offset 10: record has no value (tombstone)" in failed["error"]


def test_tombstone_when_its_policy_is_null_row_then_becomes_a_row_or_a_reject(cases: _Cases) -> None:
    name = cases.name("nulls")
    assert cases.stack.sql(f"SELECT id, count(*) FROM {name} GROUP BY id ORDER BY id NULLS FIRST") == [
        (None, 2),
        (0, 1),
        (1, 1),
    ]
    assert not cases.events("rejects_skipped", "nulls")
    assert cases.stack.ids(cases.name("unfit")) == [0, 1]
    [event] = cases.events("rejects_skipped", "unfit")
    assert [(reject["offset"], reject["column"], reject["reason"]) for reject in event["first"]] == [
        (1, "id", "is NULL, but the column is NOT NULL")
    ]
