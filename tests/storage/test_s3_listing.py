"""Listings of many directories: each is complete, in whatever way the objects are distributed over the answers."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from ingestd.storage.contract import Entry
from ingestd.storage.s3_listing import Page, list_together

PAGE = 200


class _Bucket:
    """Answers requests with at most PAGE keys, and counts them. `shuffles`: the keys of an answer are not ascending."""

    def __init__(self, keys: Sequence[str], *, shuffles: bool = False) -> None:
        self.keys = sorted(keys)
        self.requests = 0
        self._shuffles = shuffles

    def request(self, prefix: str, after: str) -> Page:
        self.requests += 1
        found = [key for key in self.keys if key.startswith(prefix) and key > after]
        page = found[:PAGE]
        if self._shuffles:
            random.shuffle(page)
        return Page([Entry(key, is_directory=False, size=len(key)) for key in page], len(found) > PAGE)

    def entries(self, prefix: str) -> list[Entry]:
        below = [key.removeprefix(prefix) for key in self.keys if key.startswith(prefix) and key != prefix]
        names = dict.fromkeys((*name.partition("/")[:2], len(prefix + name)) for name in below if "/" not in name)
        names |= dict.fromkeys((*name.partition("/")[:2], 0) for name in below if "/" in name)
        return sorted(Entry(name, slash == "/", size) for name, slash, size in names)


# `-` and `!` precede `/`, so the objects of p=1-x are between the marker of p=1 and that of p=10.
VALUES = [f"{number}{end}" for number in range(30) for end in ("", "-x", "!", "é", "😀")]


@pytest.mark.parametrize("objects", [0, 1, 2])
@pytest.mark.parametrize("parent", ["wh/t/", "wh/t/dt=1/", "wh/./t/", "./wh/", "wh//t/", "/", ""])
def test_listing_when_directories_have_few_objects_then_few_requests_list_them_all(parent: str, objects: int) -> None:
    prefixes = [f"{parent}p={value}/" for value in VALUES]
    markers = prefixes[::2]
    files = [f"{prefix}{name}" for prefix in prefixes for name in ("delta_1/b", "delta_1-x/b")[:objects]]
    bucket = _Bucket([*markers, *files, "wh/a", "wh/zz", f"{parent}p=/x", "wh/t/.staging/7/f"])
    found = list_together(bucket.request, prefixes)
    assert all(sorted(entries) == bucket.entries(prefix) for prefix, entries in found.items())
    assert len(found) > len(prefixes) - 40  # fewer are listed one by one
    assert bucket.requests <= len(bucket.keys) // PAGE + 1


def test_listing_when_directories_are_nested_or_repeated_then_each_has_its_names() -> None:
    prefixes = ["t/", *(f"t/p={value}/" for value in VALUES), "t/p=1/"]
    bucket = _Bucket([*(f"t/p={value}/d/b" for value in VALUES[:50]), "t/f"])
    found = list_together(bucket.request, prefixes)
    assert {prefix: sorted(entries) for prefix, entries in found.items()} == {
        prefix: bucket.entries(prefix) for prefix in prefixes
    }


def test_listing_when_answers_contain_few_directories_then_only_one_request_is_sent() -> None:
    prefixes = [f"t/p={value}/" for value in VALUES]
    bucket = _Bucket([f"{prefix}d_{number}/b" for prefix in prefixes for number in range(10)])
    found = list_together(bucket.request, prefixes)
    assert bucket.requests == 1
    assert len(found) < 20
    assert all(sorted(entries) == bucket.entries(prefix) for prefix, entries in found.items())


def test_listing_when_the_directories_are_few_then_no_request_is_sent() -> None:
    bucket = _Bucket(["t/p=1/f"])
    assert list_together(bucket.request, [f"t/p={number}/" for number in range(20)]) == {}
    assert bucket.requests == 0


def test_listing_when_the_server_does_not_sort_then_nothing_is_concluded_from_its_answers() -> None:
    prefixes = [f"t/p={value}/" for value in VALUES]
    bucket = _Bucket([f"{prefix}b" for prefix in prefixes], shuffles=True)
    assert list_together(bucket.request, prefixes) == {}
    assert bucket.requests == 1
