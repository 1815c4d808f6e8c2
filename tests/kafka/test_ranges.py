"""Offset ranges: nothing left out, nothing twice, equal shares; and which topic a position belongs to."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.kafka.ranges import OffsetRange, TopicIdentity, cap, split


@st.composite
def _backlogs(draw: st.DrawFn) -> list[OffsetRange]:
    """Ranges of distinct partitions, none empty: what the planner makes."""
    partitions = draw(st.sets(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 30)), min_size=1, max_size=12))
    spans = st.one_of(st.integers(1, 5), st.integers(1, 10**6))
    starts = st.integers(0, 2**40)
    return [
        OffsetRange(topic, number, first := draw(starts), first + draw(spans)) for topic, number in sorted(partitions)
    ]


def _total(ranges: Sequence[OffsetRange]) -> int:
    return sum(r.span for r in ranges)


@given(_backlogs(), st.integers(1, 10**6))
def test_cap_then_takes_a_beginning_of_each_and_all_that_it_may(backlog: list[OffsetRange], most: int) -> None:
    chosen = cap(backlog, most)
    assert _total(chosen) == min(most, _total(backlog))
    by_partition = {(r.topic, r.partition): r for r in backlog}
    assert len({(r.topic, r.partition) for r in chosen}) == len(chosen)
    for part in chosen:
        whole = by_partition[part.topic, part.partition]
        assert part.first == whole.first
        assert whole.first < part.next <= whole.next


@given(_backlogs(), st.integers(1, 10**6))
def test_cap_then_no_partition_gets_less_than_a_bigger_one_unless_it_is_done(
    backlog: list[OffsetRange], most: int
) -> None:
    taken = {(r.topic, r.partition): r.span for r in cap(backlog, most)}
    shares = [(r.span, taken.get((r.topic, r.partition), 0)) for r in backlog]
    largest = max(share for _, share in shares)
    assert all(share == span or share >= largest - 1 for span, share in shares)


@given(_backlogs(), st.integers(1, 16))
def test_split_then_covers_exactly(backlog: list[OffsetRange], tasks: int) -> None:
    pieces = sorted((r.topic, r.partition, r.first, r.next) for share in split(backlog, tasks) for r in share)
    assert all(first < next_ for _, _, first, next_ in pieces)
    joined: list[tuple[str, int, int, int]] = []
    for topic, partition, first, next_ in pieces:
        if joined and joined[-1][:2] == (topic, partition):
            assert joined[-1][3] == first
            joined[-1] = (topic, partition, joined[-1][2], next_)
        else:
            joined.append((topic, partition, first, next_))
    assert joined == [(r.topic, r.partition, r.first, r.next) for r in backlog]


@given(_backlogs(), st.integers(1, 16))
def test_split_then_a_task_has_one_range_of_a_partition_at_most(backlog: list[OffsetRange], tasks: int) -> None:
    for share in split(backlog, tasks):
        names = [(r.topic, r.partition) for r in share]
        assert len(names) == len(set(names))


@given(_backlogs(), st.integers(1, 16))
def test_split_then_shares_are_equal_to_within_one_offset(backlog: list[OffsetRange], tasks: int) -> None:
    shares = [_total(share) for share in split(backlog, tasks)]
    assert len(shares) == min(tasks, _total(backlog))
    assert max(shares) - min(shares) <= 1


def test_split_when_one_partition_is_hot_then_is_cut() -> None:
    hot, cold = OffsetRange("t", 0, 100, 1100), OffsetRange("t", 1, 0, 2)
    shares = split([hot, cold], 4)
    assert [_total(s) for s in shares] in ([251, 250, 251, 250], [250, 251, 250, 251], [251, 251, 250, 250])
    assert sum(r.partition == 0 for s in shares for r in s) == 4


def test_cap_when_less_than_one_each_then_still_takes_something() -> None:
    backlog = [OffsetRange("t", n, 0, 10) for n in range(5)]
    assert _total(cap(backlog, 3)) == 3


def test_ranges_then_speak_for_people() -> None:
    assert str(OffsetRange("orders", 3, 10, 20)) == "orders[3] 10..20"
    assert split([], 4) == []
    assert cap([], 10) == []


@pytest.mark.parametrize(
    ("one", "other", "differ"),
    [
        (TopicIdentity("c1", "t1"), TopicIdentity("c1", "t1"), False),
        (TopicIdentity("c1", "t1"), TopicIdentity("c1", "t2"), True),
        (TopicIdentity("c1", "t1"), TopicIdentity("c2", "t1"), False),
        (TopicIdentity("c1", "t1"), TopicIdentity("c1", ""), False),
        (TopicIdentity("c1", "t1"), TopicIdentity("c2", ""), True),
        (TopicIdentity("", ""), TopicIdentity("c1", "t1"), False),
    ],
)
def test_identities_then_the_topic_id_decides_and_else_the_cluster(
    one: TopicIdentity, other: TopicIdentity, differ: bool
) -> None:
    assert one.differs(other) is differ
    assert other.differs(one) is differ


def test_identity_when_merged_then_keeps_what_only_one_knows() -> None:
    assert TopicIdentity("c1", "t1").merged(TopicIdentity("", "")) == TopicIdentity("c1", "t1")
    assert TopicIdentity("c1", "").merged(TopicIdentity("c2", "t1")) == TopicIdentity("c2", "t1")
