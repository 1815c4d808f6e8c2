"""Finds the records that make pyarrow's JSON reader fail, so that it can read the others.

The reader tells why it fails and where it stopped, but not which other records have the same fault. These are found by
a search for the same cause.

Invariant: a suspect may be a valid record, because it is decoded on its own. A cause that is not found is none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ingestd.formats.decoder import NEWLINE

Lines = npt.NDArray[np.intp]

TYPE_CHANGED = re.compile(r"Column\(/(.*)\) changed from (\w+) to (\w+)", re.DOTALL)
_NOT_CONVERTED = re.compile("Failed to convert JSON to |not a valid decimal")
_TOO_BIG = "Number too big"
_IN_STRING = re.compile("in string|escape|surrogate|Invalid encoding")
# Each pattern begins with a literal, which makes the search fast.
_TWICE = re.compile(r"Column\(/(.*)\) was specified twice", re.DOTALL)
_LARGE = tuple(re.compile(letter + rb"(?<=[0-9.]" + letter + rb")\+?[0-9]{3}") for letter in (b"e", b"E"))
_IN_STRUCTURE = re.compile("comma|colon|name for|document|Invalid value")
# A name that is not followed by a colon, or follows something else than a comma or a brace.
_WITHOUT_COLON = r'[,{][ \t\r]*"[^"\\]*"[ \t\r]*[^:,}\] \t\r]'
_WITHOUT_COMMA = r'[^,{ \t\r][ \t\r]*"[^"\\]*"[ \t\r]*:'
_ROW = re.compile("in row ([0-9]+)")
_BAD_ESCAPE = re.compile(rb'\\(?:[^"\\/bfnrtu]|u(?![0-9a-fA-F]{4})|u[dD][89a-fA-F])')
# Integers with this number of digits may be out of range.
_DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 19}
_BLANK, _EMPTY = 0x20, b"{}"


def suspects(error: str, text: bytes, schema: pa.Schema, limit: int) -> Lines | None:
    """Return the lines of the text that are suspected to cause an error of the reader.

    `schema` contains the fields that were requested. Returns None if more than `limit` values or lines are suspected.
    """
    letters = np.frombuffer(text, np.uint8)
    breaks = np.flatnonzero(letters == NEWLINE)
    places: list[int] = []
    for pattern in _causes(error, schema):
        places += (match.start() for match in islice(pattern.finditer(text), limit + 1))
    if _IN_STRING.search(error):
        places += np.flatnonzero((letters < _BLANK) & (letters != NEWLINE))[: limit + 1].tolist()
    if len(places) > limit:
        return None
    lines = np.unique(np.searchsorted(breaks, places))
    twice = _TWICE.search(error)
    field = _at(schema, twice[1]) if twice else None
    if field:
        members = [match.start() for match in re.finditer(_member(field), text)]
        named, counts = np.unique(np.searchsorted(breaks, members), return_counts=True)
        lines = named[counts > 1]
    if _IN_STRUCTURE.search(error):
        lines = np.union1d(lines, _unbalanced(letters, np.append(breaks, len(letters))))
        for cause, fault in (("colon", _WITHOUT_COLON), ("comma", _WITHOUT_COMMA)):
            if cause in error:
                has_cause = pc.match_substring_regex(split(text), fault)
                lines = np.union1d(lines, np.flatnonzero(has_cause.to_numpy(zero_copy_only=False)))
    return lines if len(lines) <= limit else None


def unfit_numbers(error: str, text: bytes, field: pa.Field, limit: int) -> bool | None:
    """Return whether most values that an error of the reader is about are quoted, if it is about more than `limit`.

    They are suspected values of `field`, an integer or a decimal. Returns None if there are not as many.
    """
    names = (str(field.type), str(field.type).partition("(")[0] + " number")
    if not _NOT_CONVERTED.search(error) or not any(name in error for name in names):
        return None
    pattern = re.compile(_member(field) + b"(?=" + _unfit(field.type) + b")")
    first = [text[match.end()] for match in pattern.finditer(text)]
    return 2 * first.count(ord('"')) > len(first) if len(first) > limit else None


def lines_at(text: bytes, places: Iterable[int]) -> Lines:
    """Return the lines of the text that contain these places."""
    breaks = np.flatnonzero(np.frombuffer(text, np.uint8) == NEWLINE)
    return np.unique(np.searchsorted(breaks, list(places)))


def split(text: bytes) -> pa.BinaryArray:
    """Return the lines of the text, each with its line end."""
    breaks = np.flatnonzero(np.frombuffer(text, np.uint8) == NEWLINE)
    offsets = np.concatenate(([0], breaks + 1, [len(text)])).astype(np.int32)
    return pa.BinaryArray.from_buffers(pa.binary(), len(breaks) + 1, [None, pa.py_buffer(offsets), pa.py_buffer(text)])


def row_of(error: str, count: int) -> Lines | None:
    """Return the line, of `count`, at which the reader stopped, if the error contains it.

    The reader counts the elements of arrays, and several values of a line, so the line may be another one, or none.
    """
    row = _ROW.search(error)
    return np.array([int(row[1])]) if row and int(row[1]) < count else None


def without_lines(text: bytes, lines: Lines) -> bytes:
    """Return the text with empty objects in place of these lines, which have at least two bytes."""
    if not len(lines):
        return text
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
        field = _at(schema, changed[1])
        return [_with_other_type(field)] if field else []
    if _NOT_CONVERTED.search(error):
        numbers = (field for field in _leaves(schema) if field.type in _DIGITS or pa.types.is_decimal(field.type))
        return [re.compile(_member(field) + _unfit(field.type)) for field in numbers]
    if _TOO_BIG in error:
        return _LARGE
    return [_BAD_ESCAPE] if _IN_STRING.search(error) else []


def _unbalanced(letters: npt.NDArray[np.uint8], ends: Lines) -> Lines:
    """Return the lines in which the numbers of opening and closing brackets differ."""
    differs = np.zeros(len(ends), np.bool_)
    for pair in (b"{}", b"[]"):
        opened, closed = (np.searchsorted(np.flatnonzero(letters == bracket), ends) for bracket in pair)
        differs |= np.diff(opened - closed, prepend=0) != 0
    return np.flatnonzero(differs)


def _at(fields: Iterable[pa.Field], path: str) -> pa.Field | None:
    """Return the field at a path such as `items/[]/count`; None if there is none, and for the elements of an array."""
    name, _, rest = path.removeprefix("[]/").partition("/")
    inner = next((field for field in fields if field.name == name), None)
    return _at(_inside(inner.type), rest) if inner and rest else inner


def _leaves(fields: Iterable[pa.Field]) -> Iterator[pa.Field]:
    """Return the fields without fields inside of them, at any depth."""
    for field in fields:
        inside = _inside(field.type)
        yield from _leaves(inside) if inside else [field]


def _inside(kind: pa.DataType) -> list[pa.Field]:
    """Return the fields of a struct, or of the structs in an array."""
    while pa.types.is_list(kind):
        kind = kind.value_type
    return list(kind) if pa.types.is_struct(kind) else []


def _with_other_type(field: pa.Field) -> re.Pattern[bytes]:
    """Return a pattern for values of a field that begin as no value of its type does."""
    if pa.types.is_nested(field.type):
        first = rb"\[n" if pa.types.is_list(field.type) else rb"{n"
    elif pa.types.is_string(field.type):
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
    return rb'(?:"[^-+.0-9]|[^-+.0-9"n \t]|"?[-+]?(?:' + digits + rb"|[0-9.]+[eE]))"


def _member(field: pa.Field) -> bytes:
    return b'"' + re.escape(str(field.name).encode()) + rb'"[ \t]*:[ \t]*'
