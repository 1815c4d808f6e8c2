"""Finds the records that make pyarrow's JSON reader fail, so that it can read the others.

The reader tells why it fails, but rarely which records are the cause. These are found by a search for the same cause.

Invariant: a suspect may be a valid record, because it is decoded on its own. A cause that is not found is none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ingestd.formats.decoder import NEWLINE

Lines = npt.NDArray[np.intp]

TYPE_CHANGED = re.compile(r"Column\(/(.*)\) changed from (\w+) to (\w+)", re.DOTALL)
_NOT_CONVERTED = re.compile("Failed to convert JSON to |not a valid decimal")
_TOO_BIG = "Number too big"
_IN_STRING = re.compile("in string|escape|surrogate|Invalid encoding")
# Each pattern begins with a literal, which makes the search fast.
_LARGE = tuple(re.compile(letter + rb"(?<=[0-9.]" + letter + rb")\+?[0-9]{3}") for letter in (b"e", b"E"))
_BAD_ESCAPE = re.compile(rb'\\(?:[^"\\/bfnrtu]|u(?![0-9a-fA-F]{4})|u[dD][89a-fA-F])')
# Integers with this number of digits may be out of range.
_DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 19}
_BLANK, _EMPTY = 0x20, b"{}"


def suspects(error: str, text: bytes, schema: pa.Schema, limit: int) -> Lines | None:
    """Return the lines of the text that are suspected to cause an error of the reader.

    `schema` contains the fields that were requested. Returns None if there are none or more than `limit`.
    """
    letters = np.frombuffer(text, np.uint8)
    places: list[int] = []
    for pattern in _causes(error, schema):
        places += (match.start() for match in islice(pattern.finditer(text), limit + 1))
    if _IN_STRING.search(error):
        places += np.flatnonzero((letters < _BLANK) & (letters != NEWLINE))[: limit + 1].tolist()
    if not 0 < len(places) <= limit:
        return None
    return np.unique(np.searchsorted(np.flatnonzero(letters == NEWLINE), places))


def without_lines(text: bytes, lines: Lines) -> bytes:
    """Return the text with empty objects in place of these lines, which have at least two bytes."""
    letters = np.frombuffer(text, np.uint8).copy()
    breaks = np.flatnonzero(letters == NEWLINE)
    starts, ends = np.append(-1, breaks) + 1, np.append(breaks, len(letters))
    for start, end in zip(starts[lines].tolist(), ends[lines].tolist(), strict=True):
        letters[start:end] = _BLANK
        letters[start : start + 2] = tuple(_EMPTY)
    kept: bytes = letters.tobytes()
    return kept


def _causes(error: str, schema: pa.Schema) -> Sequence[re.Pattern[bytes]]:
    changed = TYPE_CHANGED.search(error)
    if changed:
        return [_with_other_type(schema.field(changed[1]))] if changed[1] in schema.names else []
    if _NOT_CONVERTED.search(error):
        numbers = (field for field in schema if field.type in _DIGITS or pa.types.is_decimal(field.type))
        return [re.compile(_member(field) + _unfit(field.type)) for field in numbers]
    if _TOO_BIG in error:
        return _LARGE
    return [_BAD_ESCAPE] if _IN_STRING.search(error) else []


def _with_other_type(field: pa.Field) -> re.Pattern[bytes]:
    """Return a pattern for values of a field that begin as no value of its type does."""
    if pa.types.is_string(field.type):
        first = rb'"n'
    elif pa.types.is_boolean(field.type):
        first = rb"tfn"
    else:
        first = rb'-0-9nNI"' if pa.types.is_decimal(field.type) else rb"-0-9nNI"
    return re.compile(_member(field) + rb"[^" + first + rb" \t]")


def _unfit(kind: pa.DataType) -> bytes:
    """Return a pattern for numbers that may not fit an integer or a decimal, or are not numbers."""
    if kind in _DIGITS:
        return b"-?(?:[0-9]+[.eE]|[0-9]{%d}|[NI])" % int(_DIGITS[kind])
    whole, fraction = int(kind.precision - kind.scale), int(kind.scale)
    digits = rb"[0-9]{%d}|[0-9]*\.[0-9]{%d}" % (whole + 1, fraction + 1)
    return rb'"?(?:[^-+.0-9"n \t]|[-+]?(?:' + digits + rb"|[0-9.]+[eE]))"


def _member(field: pa.Field) -> bytes:
    return b'"' + re.escape(str(field.name).encode()) + rb'"[ \t]*:[ \t]*'
