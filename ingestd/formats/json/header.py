"""Finds the JSON text in records with the header of a schema registry, as JSON Schema serializers write them.

Invariant: a record without the header fails. The id of the schema is not used: JSON needs no schema to be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Literal

from ingestd.formats.decoder import RejectError

# What precedes the JSON text:
# - confluent: a zero byte and the id of the schema in the registry in 4 bytes
# - none: nothing
Framing = Literal["none", "confluent"]

HEADER_SIZE = 5
_FIRST, _REST = itemgetter(slice(1)), itemgetter(slice(HEADER_SIZE, None))


def texts_of(values: Sequence[bytes]) -> tuple[list[bytes], list[int]]:
    """Return the texts behind the headers of records, and the indexes of records without one, whose text is empty."""
    if (
        b"".join(map(_FIRST, values)) == bytes(len(values))
        and min(map(len, values), default=HEADER_SIZE) >= HEADER_SIZE
    ):
        return list(map(_REST, values)), []
    others = [index for index, value in enumerate(values) if not has_header(value)]
    texts = list(map(_REST, values))
    for index in others:
        texts[index] = b""
    return texts, others


def has_header(value: bytes) -> bool:
    """Return whether a record is long enough for the header, and begins with its first byte."""
    return value.startswith(b"\0") and len(value) >= HEADER_SIZE


def text_of(value: bytes) -> bytes:
    """Return the text behind the header of one record. Raises RejectError."""
    if not has_header(value):
        raise no_header()
    return value[HEADER_SIZE:]


def no_header() -> RejectError:
    """Return the reject of a record without the header."""
    return RejectError("", "record does not begin with the header of the framing confluent")


def may_be_framed(value: bytes) -> bool:
    """Return whether a record, which is not JSON, looks like JSON with a header."""
    return has_header(value) and value[HEADER_SIZE:].lstrip(b" \t\r\n")[:1] in (b"{", b"[")
