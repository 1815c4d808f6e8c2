"""Lists many directories of a bucket with few requests: one answer may contain the objects of many directories.

Invariant: a directory is returned only if answers in the order that S3 guarantees, that of the keys, show that no
further object is below it. A server that answers in another order costs one request.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile

from ingestd.storage.contract import Entry

# An answer with 1,000 keys costs as much processor time as this many answers with a few keys.
_LEAST_DIRECTORIES = 40


@dataclass(frozen=True, slots=True)
class Page:
    """An answer of the server: objects, whose names are their keys, and whether further objects follow."""

    objects: Sequence[Entry]
    is_truncated: bool


def list_together(request: Callable[[str, str], Page], prefixes: Iterable[str]) -> dict[str, list[Entry]]:
    """Return what is in directories by prefix, such as `table/p=1/`. Directories with many objects are omitted.

    `request(prefix, after)` returns the first objects whose keys begin with `prefix` and are greater than `after`.
    Requests end when an answer contains the objects of few directories.
    """
    listed: dict[str, list[Entry]] = {}
    waiting = sorted(set(prefixes))
    while len(waiting) >= _LEAST_DIRECTORIES:
        after = waiting[0]
        answer = request(_common_parent(waiting[0], waiting[-1]), after)
        keys = [entry.name for entry in answer.objects]
        if keys != sorted({key for key in keys if key > after}):
            break
        last = keys[-1] if keys else ""
        complete = [
            directory
            for directory in waiting
            if not answer.is_truncated or (directory < last and not last.startswith(directory))
        ]
        listed |= {directory: _entries(answer.objects, keys, directory) for directory in complete}
        if len(complete) < _LEAST_DIRECTORIES:
            break
        waiting = [directory for directory in waiting if directory not in listed]
    return listed


def _common_parent(first: str, last: str) -> str:
    """Return the longest prefix of both that ends with a slash, or ''. The levels `.` and '' are parts of a key."""
    levels = zip(first.split("/")[:-1], last.split("/")[:-1], strict=False)
    return "".join(f"{level}/" for level, other in takewhile(lambda pair: pair[0] == pair[1], levels))


def _entries(objects: Sequence[Entry], keys: Sequence[str], prefix: str) -> list[Entry]:
    """Return what is in the directory `prefix`; `keys` are ascending, so those below it are consecutive."""
    entries: dict[str, Entry] = {}
    start = bisect_right(keys, prefix)
    for entry in takewhile(lambda entry: entry.name.startswith(prefix), islice(objects, start, None)):
        name, slash, _ = entry.name[len(prefix) :].partition("/")
        if slash:
            entries[f"{name}/"] = Entry(name, is_directory=True, size=0)
        else:
            entries[name] = entry._replace(name=name)
    return list(entries.values())
