"""Finds the Protobuf message in a record, and the id of its schema and the index path of its type.

Invariant: a record without the expected header fails, and is in no group.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from ingestd.formats.values import MAX_VARINT, Ints, Mask, Records, grouped

# What precedes the message:
# - confluent: a zero byte, the id of the schema in the registry in 4 bytes, and the index path of the message's type:
#   the number of indexes and the indexes, each as a zigzag integer of variable length. A single 0 is the path 0
# - none: nothing
Framing = Literal["confluent", "none"]

Key = tuple[int, tuple[int, ...]]  # the id of a schema and the index path
ONLY_TYPE: Key = (0, ())  # of records without a header
_HEADER = 5  # bytes before the index path
_MAX_INDEXES = 32  # more levels of nested types do not occur


def groups(records: Records, framing: Framing, *, by_id: bool) -> Iterator[tuple[Key, Ints, Ints]]:
    """Yield the id and the index path of each type, the indexes of its records in order, and the starts of their data.

    A record with a damaged header fails. Unless records are grouped `by_id`, all ids are 0.
    """
    starts = records.ends - records.sizes
    if framing == "none":
        yield ONLY_TYPE, np.arange(len(starts)), starts
        return
    ok = (records.sizes > _HEADER) & (records.data[starts] == 0)
    at = np.where(ok, starts + _HEADER, starts)
    count, at = _index(records, at, ok)
    ok &= (count >= 0) & (count <= _MAX_INDEXES)
    ids = records.words(">u4", np.minimum(starts + 1, records.ends)).astype(np.int64)
    columns = [ids if by_id else np.zeros_like(ids), count]
    for place in range(int(count[ok].max(initial=0))):
        has = ok & (count > place)
        index, behind = _index(records, at, has)
        ok &= ~has | (index >= 0)
        at = np.where(has, behind, at)
        columns.append(np.where(has, index, 0))
    for record in np.flatnonzero(~ok).tolist():
        records.fail(record, "", f"record does not begin with the header of the framing {framing}")
    indexes = np.flatnonzero(ok)
    keys = np.stack(columns, axis=1)[indexes]
    for members in grouped(keys):
        of_group = indexes[members]
        yield _key(keys[members[0]]), of_group, at[of_group]


def _index(records: Records, at: Ints, which: Mask) -> tuple[Ints, Ints]:
    """Read a zigzag integer at each position, and return it and its end; -1 for one that is outside its record."""
    bits, sizes = records.varints(np.minimum(at, records.ends))
    numbers = ((bits >> np.uint64(1)) ^ (~(bits & np.uint64(1)) + np.uint64(1))).view(np.int64)
    ends = at + sizes
    bad = (ends > records.ends) | (sizes > MAX_VARINT) | ~which
    return np.where(bad, -1, numbers), np.where(bad, at, ends)


def _key(row: Ints) -> Key:
    identifier, count, *path = row.tolist()
    return identifier, tuple(path[:count]) if count else (0,)
