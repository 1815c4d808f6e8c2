"""Joins many JSON records into one buffer of lines that pyarrow's JSON reader reads correctly.

Invariant: a buffer that `frame` returns has one `{…}` line per record, is UTF-8, and contains nothing that crashes
pyarrow's JSON reader (a `null` at the root, unlimited nesting). Records that would are not in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from ingestd.formats.decoder import NEWLINE, Lines, is_utf8, join_lines
from ingestd.formats.json.record import MARK, MAX_DEPTH

Mask = npt.NDArray[np.bool_]

_BLANKS = b" \t\r\n"
_EMPTY = b"{}"
_OPEN, _CLOSE = 0x7B, 0x7D
_PART_BYTES = 1 << 17
_CONSTANT = re.compile(rb"[:,\[][ \t\r]*-?(?:NaN|Inf)")
_TINY_HINTS = (  # each begins with a literal, which makes the search fast
    re.compile(rb'e-(?<=[0-9.]e-)[0-9]{2,}"?[ \t\r]*[,}]'),
    re.compile(rb'E-(?<=[0-9.]E-)[0-9]{2,}"?[ \t\r]*[,}]'),
    re.compile(rb"\.[0-9]{29}"),
)
# Each digit can be matched in one way only: otherwise the time of a search grows with the square of their number.
_TINY = re.compile(
    rb'[:,\[][ \t\r]*"?[+-]?[0-9]*(?:\.[0-9]*)?[eE]-[0-9]{2,}"?[ \t\r]*[,}]|[:,\[][ \t\r]*"?[+-]?[0-9]*\.[0-9]{29}'
)
_EXPONENT_HINTS = (re.compile(rb"e(?<=[0-9.]e)\+?[0-9]"), re.compile(rb"E(?<=[0-9.]E)\+?[0-9]"))
_EXPONENT = re.compile(rb'[:,\[][ \t\r]*"?[+-]?([0-9]*)(?:\.[0-9]*)?[eE]\+?([0-9]+)"?[ \t\r]*[,}]')
_MAX_DIGITS = 38
_SECOND_ROOT = re.compile(rb"null[ \t\r]*\{")


def frame(values: Sequence[bytes]) -> tuple[bytes, Mask, Mask]:
    """Return the values as lines, and which of them are replaced by `{}`, because Arrow could misread them.

    Also returns which others are replaced, because they are certainly no objects of JSON.
    """
    text, originals = join_lines(values), values
    replaced, refused = np.zeros((2, len(values)), np.bool_)
    if _count(text, NEWLINE) >= len(values):
        values = [value.strip(_BLANKS).replace(b"\n", b"\t") for value in values]
        text = join_lines(values)
    faulty = _faulty_lines(text, values)
    if len(faulty):
        lines = list(values)
        for index in faulty.tolist():
            line = originals[index].removeprefix(MARK).strip(_BLANKS).replace(b"\n", b"\t")
            refused[index] = not (line[:1] == b"{" and line[-1:] == b"}" and is_utf8(line))
            replaced[index] = not refused[index] and (_has_second_root(line) or _may_nest(line))
            lines[index] = _EMPTY if refused[index] or replaced[index] else line
        text = join_lines(lines)
    return text, replaced, refused


def constants(text: bytes) -> list[int]:
    """Return where NaN or Inf may occur as a value. Arrow's reader accepts them, although they are not JSON."""
    return places_of(_CONSTANT, text) if b"NaN" in text or b"Inf" in text else []


def places_of(pattern: re.Pattern[bytes], text: bytes) -> list[int]:
    """Return where a pattern matches in a text."""
    return [match.start() for match in pattern.finditer(text)]


def unsafe_lines(text: bytes, scale: int) -> npt.NDArray[np.intp]:
    """Return the lines with numbers, or text like them, that Arrow may misread in columns of decimals.

    These are numbers with more than 38 decimal places, either written out or due to an exponent: for them Arrow reads
    past the end of its table of powers of ten, and may convert 1e-39 to 0 in a decimal(10,0) column. Others are those
    that may need more than 38 digits when written with `scale` decimal places: Arrow truncates them to the lowest 128
    bits without an error (seen in Arrow 26).
    """
    breaks = np.flatnonzero(np.frombuffer(text, np.uint8) == NEWLINE)
    ends = np.append(breaks, len(text)).tolist()

    def lines_with(hints: Iterable[re.Pattern[bytes]], is_unsafe: Callable[[bytes], bool]) -> list[int]:
        places = [place for hint in hints for place in places_of(hint, text)]
        lines = np.unique(np.searchsorted(breaks, places)).tolist()
        return [line for line in lines if is_unsafe(text[ends[line - 1] if line else 0 : ends[line]])]

    lines = lines_with(_TINY_HINTS, lambda line: _TINY.search(line) is not None)
    lines += lines_with(_EXPONENT_HINTS, lambda line: _has_large_exponent(line, scale))
    digits = max(1, _MAX_DIGITS + 1 - scale)
    if _has_digits(text, digits):
        lines += lines_with([re.compile(rb"[0-9]{%d}" % digits)], bool)
    return np.unique(np.array(lines, np.intp))


def _has_large_exponent(text: bytes, scale: int) -> bool:
    return any(len(m[1]) + int(m[2][:4]) + scale > _MAX_DIGITS for m in _EXPONENT.finditer(text))


def _has_digits(text: bytes, count: int) -> bool:
    """Return whether the text contains `count` consecutive digits.

    Tests every (count / 2)th byte first, because `count` consecutive digits include two adjacent tested bytes.
    """
    if count <= 1:
        return True
    letters = np.frombuffer(text, np.uint8)
    step = count // 2
    digits = letters[::step] - 0x30 < 10  # unsigned: bytes below '0' wrap to large numbers
    starts = np.flatnonzero(digits[1:] & digits[:-1]) * step
    if not len(starts):
        return False
    between = letters[starts[:, None] + np.arange(step)] - 0x30 < 10
    return bool(between.all(axis=1).any()) and re.search(rb"[0-9]{%d}" % count, text) is not None


def _faulty_lines(text: bytes, values: Sequence[bytes]) -> npt.NDArray[np.intp]:
    """Return the lines of the joined values that Arrow may not read as one record each.

    Every value must start with `{`, end with `}`, and contain nothing that crashes Arrow. A JSON string cannot contain
    a raw newline, so `}` newline `{` is always between two root objects.
    """
    letters = np.frombuffer(text, np.uint8)
    starts, ends = _bounds(text, values)
    last = max(len(text) - 1, 0)
    faulty: Mask = ends - starts < len(_EMPTY)
    if len(text):
        faulty |= (letters[np.minimum(starts, last)] != _OPEN) | (letters[ends - 1] != _CLOSE)
    if not is_utf8(text):
        faulty |= [not is_utf8(value) for value in values]
    if _count(text, _OPEN) > len(values) or b"[" in text:
        if _has_second_root(text):
            faulty |= list(map(_has_second_root, values))
        if (ends - starts).max() > 2 * MAX_DEPTH:  # each level takes two bytes
            faulty |= list(map(_may_nest, values))
    return np.flatnonzero(faulty)


def _count(text: bytes, letter: int) -> int:
    """Return how often a byte occurs, part by part: memory for all comparisons at once would cost more than they do."""
    letters = np.frombuffer(text, np.uint8)
    parts = (letters[start : start + _PART_BYTES] for start in range(0, len(text), _PART_BYTES))
    return sum(int(np.count_nonzero(part == letter)) for part in parts)


def _bounds(text: bytes, values: Sequence[bytes]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Return where each of the joined values, which contain no newline, begins and ends in their text."""
    if isinstance(values, Lines):  # their sizes would split the text
        breaks = np.flatnonzero(np.frombuffer(text, np.uint8) == NEWLINE)
        return np.append(0, breaks + 1), np.append(breaks, len(text))
    sizes = np.fromiter(map(len, values), np.intp, len(values))
    ends = np.cumsum(sizes + 1) - 1
    return ends - sizes, ends


def _has_second_root(text: bytes) -> bool:
    """Return whether there may be `null{`.

    Outside strings, it can only occur between two objects of one line, which crashes Arrow (seen in Arrow 26).
    """
    return b"null" in text and _SECOND_ROOT.search(text) is not None


def _may_nest(value: bytes) -> bool:
    """Return whether a value may nest deeper than MAX_DEPTH."""
    return len(value) > 2 * MAX_DEPTH and value.count(b"[") + value.count(b"{") > MAX_DEPTH
