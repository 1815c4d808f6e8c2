"""Parameters of row counts: a number that misses visible rows is detected, whatever the table's history."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingestd.acid.layout import Content, parse_directory
from ingestd.acid.visibility import ValidWriteIds
from ingestd.publish.row_count_parameters import (
    CountedIds,
    Increment,
    Known,
    Mark,
    doubtful,
    incremented,
    is_empty,
    is_right,
    recounted,
)


def _content(*names: str) -> Content:
    directories = [parse_directory(name) for name in names]
    return Content(tuple(directory for directory in directories if directory is not None))


@pytest.mark.parametrize(
    ("counted", "text"),
    [
        (CountedIds(0), "0"),
        (CountedIds(7, ((3, 3),)), "7:3"),
        (CountedIds(2000, ((1, 4), (9, 9), (11, 1010))), "2000:1-4,9,11-1010"),
    ],
)
def test_text_when_parsed_then_the_set_is_the_same(counted: CountedIds, text: str) -> None:
    assert counted.text() == text
    assert CountedIds.parse(text) == counted


@pytest.mark.parametrize("text", [None, "", "unknown", "7:", "7:x", "-1", "7:3-", "7;3"])
def test_text_when_another_program_wrote_it_then_parse_returns_none(text: str | None) -> None:
    assert CountedIds.parse(text) is None


@given(st.sets(st.integers(1, 60)), st.sets(st.integers(1, 60)), st.integers(0, 60), st.integers(1, 70))
def test_set_when_created_from_a_snapshot_then_it_contains_all_ended_write_ids_and_its_own(
    opened: set[int], aborted: set[int], high: int, own: int
) -> None:
    snapshot = ValidWriteIds(
        "t", high, frozenset(w for w in opened if w <= high), frozenset(w for w in aborted - opened if w <= high)
    )
    counted = CountedIds.of(snapshot, own)
    for write_id in range(1, 80):
        ended = write_id <= high and write_id not in snapshot.open
        assert (write_id in counted) == (ended or write_id == own)
    assert CountedIds.parse(counted.text()) == counted
    for first in range(1, 75, 7):
        missing = [w for w in range(first, first + 5) if snapshot.is_valid(w) and w not in counted]
        assert counted.has_all(first, first + 4, snapshot) == (not missing)


def test_set_when_more_ranges_are_open_than_fit_then_it_ends_before_the_first_that_does_not_fit() -> None:
    snapshot = ValidWriteIds("t", 1000, frozenset(range(1, 1000, 2)))
    counted = CountedIds.of(snapshot, 999)
    assert len(counted.text()) < 1000
    assert all(write_id % 2 == 0 for write_id in range(1, 1001) if write_id in counted)
    assert 2 in counted
    assert 999 not in counted


@pytest.mark.parametrize(
    ("names", "right"),
    [
        (["delta_0000005_0000005_0000"], True),
        (["delta_0000009_0000009_0000"], True),  # open: not visible
        (["delta_0000008_0000008_0000"], False),  # committed since the count
        (["delta_0000012_0000012_0000"], False),
        (["delete_delta_0000012_0000012_0000"], False),
        (["base_0000007_v0000099"], True),
        (["base_0000011_v0000099"], False),  # 8 may have written here
        (["base_0000012"], False),  # INSERT OVERWRITE or TRUNCATE
        (["delta_0000001_0000007_v0000099"], True),
        (["delta_0000001_0000010_v0000099"], False),
    ],
)
def test_directory_when_its_range_contains_an_uncounted_valid_write_id_then_it_is_not_accounted_for(
    names: list[str], right: bool
) -> None:
    counted = CountedIds(10, ((8, 9),))
    snapshot = ValidWriteIds("t", 12, frozenset({9}), frozenset({11}))
    content = _content("_orc_acid_version", "delta_0000001_0000001_0000", *names)
    assert counted.accounts_for(content, snapshot, Known()) == right


def test_shared_delta_when_its_batch_also_wrote_elsewhere_then_only_the_last_commit_here_must_be_counted() -> None:
    """The batch has write ids 1 to 1000. Of these, 1 to 3 have committed: 1 wrote here, 2 and 3 elsewhere."""
    snapshot = ValidWriteIds("t", 1000, frozenset(range(4, 1001)))
    content = _content("delta_0000001_0001000_0000")
    counted = CountedIds(1000, ((2, 1000),))
    batches = frozenset({(1, 1000)})
    assert not counted.accounts_for(content, snapshot, Known())
    assert counted.accounts_for(content, snapshot, Known(1, batches))
    assert not counted.accounts_for(content, snapshot, Known(3, batches))


def test_location_when_nothing_in_it_is_visible_then_it_is_empty() -> None:
    snapshot = ValidWriteIds("t", 12, frozenset({9}), frozenset({11}))
    for names, empty in (
        (["delta_0000009_0000009_0000", "delta_0000011_0000011_0000", "x"], True),
        (["delta_0000003_0000009_0000"], False),
        (["base_0000005"], False),
        (["base_-9223372036854775808_v0000003"], False),
    ):
        assert is_empty(_content(*names), snapshot, Known()) == empty
    assert not is_empty(Content((), has_originals=True), snapshot, Known())
    mine = Known(0, frozenset({(3, 9)}))
    assert is_empty(_content("delta_0000003_0000009_0000"), snapshot, mine)
    assert not is_empty(_content("delta_0000003_0000009_0000"), snapshot, Known(3, mine.batches))


_FLAG = {"COLUMN_STATS_ACCURATE": '{"BASIC_STATS":"true"}'}
_ONE_DELTA = ["delta_0000005_0000005_0000"]
_COUNTED = {"numRows": "7", "numFiles": "1", "totalSize": "70", "ingestd.rows": "7", "ingestd.counted": "5"}


def test_increment_when_the_number_was_right_then_the_sum_is_right_and_the_flag_is_dropped() -> None:
    snapshot = ValidWriteIds("t", 6, frozenset({6}))
    mark = Mark("web", 6, Increment(3, 1, 30))
    after, was_right = incremented(_COUNTED | _FLAG, mark, _content(*_ONE_DELTA), snapshot, Known())
    assert was_right
    assert after == {
        "numRows": "10",
        "numFiles": "2",
        "totalSize": "100",
        "ingestd.rows": "10",
        "ingestd.counted": "6",
        "ingestd.added.web": "6 3 1 30",
    }
    committed = _content(*_ONE_DELTA, "delta_0000006_0000006_0000")
    assert is_right(after, committed, ValidWriteIds("t", 6), Known())


def test_increment_when_an_earlier_one_was_aborted_then_its_rows_are_subtracted_and_its_mark_is_dropped() -> None:
    snapshot = ValidWriteIds("t", 7, frozenset({7}), frozenset({6}))
    before = _COUNTED | {"numRows": "10", "ingestd.rows": "10", "ingestd.added.web": "6 3 1 30", "ingestd.counted": "6"}
    assert not is_right(before, _content(*_ONE_DELTA), snapshot, Known())
    after, was_right = incremented(
        before, Mark("web", 7, Increment(1, 1, 10)), _content(*_ONE_DELTA), snapshot, Known()
    )
    assert was_right
    assert after["numRows"] == after["ingestd.rows"] == "8"
    assert after["ingestd.added.web"] == "7 1 1 10"


@pytest.mark.parametrize(
    "changed",
    [
        {"ingestd.added.other": "6 3 1 30"},  # in flight, so its writer did not hold the lease
        {"numRows": "9"},  # written by Hive
        {"ingestd.rows": "unknown"},
        {"ingestd.counted": "4"},
    ],
    ids=["in flight", "other writer", "in doubt", "not counted"],
)
def test_increment_when_the_number_was_not_known_to_be_right_then_the_result_shows_it(changed: dict[str, str]) -> None:
    snapshot = ValidWriteIds("t", 7, frozenset({6, 7}))
    mark = Mark("web", 7, Increment(1, 1, 10))
    after, was_right = incremented(_COUNTED | changed, mark, _content(*_ONE_DELTA), snapshot, Known())
    assert not was_right
    marked = doubtful(after)
    assert marked["ingestd.rows"] == "unknown"
    assert not is_right(marked, _content(*_ONE_DELTA), snapshot, Known())


def test_increment_when_the_directory_is_empty_then_the_old_parameters_are_discarded() -> None:
    """A partition that was recreated may have the parameters of the old one."""
    before = _COUNTED | {"ingestd.added.other": "4 3 1 30"}
    after, was_right = incremented(
        before, Mark("web", 7, Increment(1, 1, 10)), _content(), ValidWriteIds("t", 6), Known()
    )
    assert was_right
    assert after["numRows"] == after["numFiles"] == "1"
    assert "ingestd.added.other" not in after


def test_recount_when_the_number_was_wrong_then_the_flag_is_dropped() -> None:
    snapshot = ValidWriteIds("t", 8)
    before = _COUNTED | _FLAG | {"ingestd.added.web": "6 3 1 30"}
    same, other = (recounted(before, rows, snapshot, 9) for rows in (7, 8))
    assert same == _COUNTED | _FLAG | {"ingestd.counted": "9"}
    assert other == _COUNTED | {"numRows": "8", "ingestd.rows": "8", "ingestd.counted": "9"}


@dataclass
class _Partition:
    """A model of a partition and its parameters; write id N has N rows, so that sums show which ids were counted."""

    high: int = 0
    opened: set[int] = field(default_factory=set)
    aborted: set[int] = field(default_factory=set)
    here: set[int] = field(default_factory=set)
    compacted: int = 0
    number: int = 0
    counted: CountedIds = field(default_factory=lambda: CountedIds(0))
    read: tuple[int, CountedIds] = (0, CountedIds(0))

    def snapshot(self) -> ValidWriteIds:
        return ValidWriteIds("t", self.high, frozenset(self.opened), frozenset(self.aborted))

    def content(self) -> Content:
        names = [f"delta_{w:07d}_{w:07d}_0000" for w in self.here if w > self.compacted]
        return _content(*names, *([f"base_{self.compacted:07d}_v0000009"] if self.compacted else []))

    def truth(self) -> int:
        return sum(write_id for write_id in self.here if self.snapshot().is_valid(write_id))

    def is_known(self) -> bool:
        return self.counted.accounts_for(self.content(), self.snapshot(), Known())

    def begin(self) -> int:
        self.high += 1
        self.opened.add(self.high)
        return self.high

    def commit(self, write_id: int, *, here: bool, counting: bool) -> None:
        """A `counting` writer holds the lease and recounts a wrong number; others do not count at all."""
        if here:
            self.here.add(write_id)
            if counting:
                if not self.is_known():
                    self.recount()
                self.number += write_id
                self.counted = CountedIds.of(self.snapshot(), write_id)
        self.opened.discard(write_id)

    def recount(self) -> None:
        self.number = self.truth()
        self.counted = CountedIds.of(self.snapshot())

    def compact(self) -> None:
        below = min(self.opened, default=self.high + 1)
        self.compacted = max([self.compacted, *(w for w in self.here if w < below)])
        self.here = {w for w in self.here if w > self.compacted or w not in self.aborted}


_STEPS = st.sampled_from(
    ["begin", "begin", "ours", "ours", "elsewhere", "theirs", "abort", "compact", "read", "write back", "recount"]
)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(_STEPS, st.integers(0, 5)), max_size=40))
def test_number_when_it_is_known_after_any_history_then_it_is_correct(
    steps: list[tuple[str, int]],
) -> None:
    table = _Partition()
    for step, which in steps:
        some = sorted(table.opened)[which % len(table.opened)] if table.opened else 0
        if step == "begin":
            table.begin()
        elif step == "compact":
            table.compact()
        elif step == "recount":
            table.recount()
        elif step == "read":
            table.read = (table.number, table.counted)
        elif step == "write back":
            table.number, table.counted = table.read
        elif some and step == "abort":
            table.opened.discard(some)
            table.aborted.add(some)
        elif some:
            table.commit(some, here=step != "elsewhere", counting=step == "ours")
        if table.is_known():
            assert table.number == table.truth()
