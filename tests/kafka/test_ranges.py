"""Offset ranges: limits and distribution over tasks, and the identities of topics."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestd.kafka.ranges import OffsetRange, TopicIdentity, cap, cut, split


@st.composite
def _backlogs(draw: st.DrawFn) -> list[OffsetRange]:
    """Generate non-empty ranges of distinct partitions, as the planner creates them."""
    partitions = draw(st.sets(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 30)), min_size=1, max_size=12))
    spans = st.one_of(st.integers(1, 5), st.integers(1, 10**6))
    starts = st.integers(0, 2**40)
    return [
        OffsetRange(topic, number, first := draw(starts), first + draw(spans), draw(st.none() | st.integers(0, 9)))
        for topic, number in sorted(partitions)
    ]


def _total(ranges: Sequence[OffsetRange]) -> int:
    return sum(r.length for r in ranges)


@given(_backlogs(), st.integers(1, 10**6))
def test_cap_when_a_limit_is_given_then_uses_all_of_it_from_the_start_of_ranges(
    backlog: list[OffsetRange], most: int
) -> None:
    chosen = cap(backlog, most)
    assert _total(chosen) == min(most, _total(backlog))
    by_partition = {(r.topic, r.partition): r for r in backlog}
    assert len({(r.topic, r.partition) for r in chosen}) == len(chosen)
    for part in chosen:
        whole = by_partition[part.topic, part.partition]
        assert (part.first, part.epoch) == (whole.first, whole.epoch)
        assert whole.first < part.next <= whole.next


@given(_backlogs(), st.integers(1, 10**6))
def test_cap_when_ranges_differ_in_length_then_shares_are_even(backlog: list[OffsetRange], most: int) -> None:
    taken = {(r.topic, r.partition): r.length for r in cap(backlog, most)}
    shares = [(r.length, taken.get((r.topic, r.partition), 0)) for r in backlog]
    largest = max(share for _, share in shares)
    assert all(share == span or share >= largest - 1 for span, share in shares)


@given(st.data())
def test_cut_when_ranges_are_cut_anywhere_then_the_pieces_have_each_offset_in_order(data: st.DataObject) -> None:
    starts = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5)), max_size=5)
    backlog = [OffsetRange("a", n, first, first + length) for n, (first, length) in enumerate(data.draw(starts))]
    total = _total(backlog)
    ends = sorted({0, total, *data.draw(st.lists(st.integers(0, total)))})
    pieces = [cut(backlog, range(first, end)) for first, end in pairwise(ends)]
    assert [_total(piece) for piece in pieces] == [end - first for first, end in pairwise(ends)]

    def offsets(ranges: Sequence[OffsetRange]) -> list[tuple[int, int]]:
        return [(part.partition, offset) for part in ranges for offset in range(part.first, part.next)]

    assert [place for piece in pieces for place in offsets(piece)] == offsets(backlog)


@given(_backlogs(), st.integers(1, 16))
def test_split_when_its_shares_are_joined_then_they_equal_the_ranges(backlog: list[OffsetRange], tasks: int) -> None:
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
def test_split_when_a_range_is_divided_then_no_share_has_two_parts(backlog: list[OffsetRange], tasks: int) -> None:
    for share in split(backlog, tasks):
        names = [(r.topic, r.partition) for r in share]
        assert len(names) == len(set(names))


@given(_backlogs(), st.integers(1, 16))
def test_split_when_called_then_shares_differ_by_at_most_one_offset(backlog: list[OffsetRange], tasks: int) -> None:
    shares = [_total(share) for share in split(backlog, tasks)]
    assert len(shares) == min(tasks, _total(backlog))
    assert max(shares) - min(shares) <= 1


def test_split_when_one_partition_is_hot_then_it_is_divided() -> None:
    hot, cold = OffsetRange("t", 0, 100, 1100), OffsetRange("t", 1, 0, 2)
    shares = split([hot, cold], 4)
    assert [_total(s) for s in shares] in ([251, 250, 251, 250], [250, 251, 250, 251], [251, 251, 250, 250])
    assert sum(r.partition == 0 for s in shares for r in s) == 4


def test_cap_when_the_limit_is_below_the_number_of_partitions_then_uses_all_of_it() -> None:
    backlog = [OffsetRange("t", n, 0, 10) for n in range(5)]
    assert _total(cap(backlog, 3)) == 3


def test_str_when_a_range_is_printed_then_names_topic_partition_and_offsets() -> None:
    assert str(OffsetRange("orders", 3, 10, 20)) == "orders[3] 10..20"


def test_split_and_cap_when_there_are_no_ranges_then_return_no_ranges() -> None:
    assert split([], 4) == []
    assert cap([], 10) == []


@pytest.mark.parametrize(
    ("identity", "other", "differ"),
    [
        (TopicIdentity("c1", "t1"), TopicIdentity("c1", "t1"), False),
        (TopicIdentity("c1", "t1"), TopicIdentity("c1", "t2"), True),
        (TopicIdentity("c1", "t1"), TopicIdentity("c2", "t1"), False),
        (TopicIdentity("c1", "t1"), TopicIdentity("c1", ""), False),
        (TopicIdentity("c1", "t1"), TopicIdentity("c2", ""), True),
        (TopicIdentity("", ""), TopicIdentity("c1", "t1"), False),
    ],
)
def test_differs_when_a_topic_id_is_unknown_then_compares_the_cluster_ids(
    identity: TopicIdentity, other: TopicIdentity, differ: bool
) -> None:
    assert identity.differs(other) is differ
    assert other.differs(identity) is differ


def test_merged_when_an_id_is_known_once_then_keeps_it() -> None:
    assert TopicIdentity("c1", "t1").merged(TopicIdentity("", "")) == TopicIdentity("c1", "t1")
    assert TopicIdentity("c1", "").merged(TopicIdentity("c2", "t1")) == TopicIdentity("c2", "t1")
