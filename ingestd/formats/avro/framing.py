"""Finds the Avro data in a record, and the id of the schema that it was written with.

Invariant: a record without the expected header fails, and is in no group.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from ingestd.formats.values import Ints, Records, grouped

# What precedes the data of a record:
# - confluent: a zero byte, and the id of the schema in the registry in 4 bytes
# - apicurio: the same with 8 bytes
# - single_object: C3 01, and the fingerprint of the schema in 8 bytes, the least significant first
# - none: nothing
Framing = Literal["confluent", "apicurio", "single_object", "none"]

ONLY_SCHEMA = 0  # the id of the schema of all records without a header
# The first bytes of a header, and the type of the id for numpy.
_HEADERS: dict[str, tuple[bytes, str]] = {
    "confluent": (b"\0", ">u4"),
    "apicurio": (b"\0", ">u8"),
    "single_object": (b"\xc3\x01", "<u8"),
}


def groups(records: Records, framing: Framing) -> Iterator[tuple[int, Ints, Ints]]:
    """Yield the id of each schema, the indexes of its records in order, and the positions of their data."""
    starts = records.ends - records.sizes
    if framing == "none":
        yield ONLY_SCHEMA, np.arange(len(starts)), starts
        return
    magic, kind = _HEADERS[framing]
    size = len(magic) + np.dtype(kind).itemsize
    framed = records.sizes >= size
    for place, byte in enumerate(magic):
        framed &= records.data[starts + place] == byte
    for record in np.flatnonzero(~framed).tolist():
        records.fail(record, "", f"record does not begin with the header of the framing {framing}")
    indexes = np.flatnonzero(framed)
    ids = records.words(kind, starts[indexes] + len(magic))
    for members in grouped(ids):
        of_group = indexes[members]
        yield int(ids[members[0]]), of_group, starts[of_group] + size
