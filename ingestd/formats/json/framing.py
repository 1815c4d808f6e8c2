"""Joins many JSON records into one buffer of lines that pyarrow's JSON reader reads correctly.

Invariant: a buffer that `frame` returns has one `{…}` line per record, is UTF-8, and contains nothing that crashes
pyarrow's JSON reader (a `null` at the root, unlimited nesting).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from ingestd.formats.decoder import NEWLINE, join_lines
from ingestd.formats.json.record import MAX_DEPTH
from ingestd.formats.record_decoder import NotColumnar

_BLANKS = b" \t\r\n"
_OPEN, _CLOSE = 0x7B, 0x7D
_CONSTANT = re.compile(rb"[:,\[][ \t\r]*-?(?:NaN|Inf)")
_TINY_HINTS = (  # each begins with a literal, which makes the search fast
    re.compile(rb'e-(?<=[0-9.]e-)[0-9]{2,}"?[ \t\r]*[,}]'),
    re.compile(rb'E-(?<=[0-9.]E-)[0-9]{2,}"?[ \t\r]*[,}]'),
    re.compile(rb"\.[0-9]{29}"),
)
_TINY = re.compile(
    rb'[:,\[][ \t\r]*"?[+-]?[0-9]*\.?[0-9]*[eE]-[0-9]{2,}"?[ \t\r]*[,}]|[:,\[][ \t\r]*"?[+-]?[0-9]*\.[0-9]{29}'
)
_EXPONENT_HINTS = (re.compile(rb"e(?<=[0-9.]e)\+?[0-9]"), re.compile(rb"E(?<=[0-9.]E)\+?[0-9]"))
_EXPONENT = re.compile(rb'[:,\[][ \t\r]*"?[+-]?([0-9]*)\.?[0-9]*[eE]\+?([0-9]+)"?[ \t\r]*[,}]')
_MAX_DIGITS = 38
_SECOND_ROOT = re.compile(rb"null[ \t\r]*\{")


def frame(values: Sequence[bytes]) -> bytes:
    """Return the values as lines. Raises NotColumnar if Arrow could misread them."""
    text = _lines(values)
    if text is None:
        text = _lines([value.strip(_BLANKS).replace(b"\n", b"\t") for value in values])
    if text is None or not _is_utf8(text):
        raise NotColumnar
    return text


def has_constant(text: bytes) -> bool:
    """Return whether NaN or Inf may occur as a value. Arrow's reader accepts them, although they are not JSON."""
    return (b"NaN" in text or b"Inf" in text) and _CONSTANT.search(text) is not None


def has_tiny_number(text: bytes) -> bool:
    """Return whether a number may have more than 38 decimal places, either written out or due to its exponent.

    For such numbers Arrow reads past the end of its table of powers of ten. For example, it may convert 1e-39 to 0 in a
    decimal(10,0) column.
    """
    return any(hint.search(text) for hint in _TINY_HINTS) and _TINY.search(text) is not None


def has_large_number(text: bytes, scale: int) -> bool:
    """Return whether a number may need more than 38 digits when written with `scale` decimal places.

    Arrow truncates such numbers to the lowest 128 bits without an error (seen in Arrow 26).
    """
    if _has_digits(text, _MAX_DIGITS + 1 - scale):
        return True
    if not any(hint.search(text) for hint in _EXPONENT_HINTS):
        return False
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


def _lines(values: Sequence[bytes]) -> bytes | None:
    """Return the values joined by newlines; None if Arrow could misread them.

    Every value must start with `{`, end with `}`, and contain neither a newline nor anything that crashes Arrow. A JSON
    string cannot contain a raw newline, so `}` newline `{` is always between two root objects.
    """
    text = join_lines(values)
    if not text.startswith(b"{") or not text.endswith(b"}"):
        return None
    letters = np.frombuffer(text, np.uint8)
    breaks = np.flatnonzero(letters == NEWLINE)
    if len(breaks) != len(values) - 1:
        return None
    if (letters[breaks - 1] != _CLOSE).any() or (letters[breaks + 1] != _OPEN).any():
        return None
    if np.count_nonzero(letters == _OPEN) == len(values) and b"[" not in text:
        return text  # no nesting
    # Outside strings, `null{` can only occur between two objects of one line, which crashes Arrow (seen in Arrow 26).
    if b"null" in text and _SECOND_ROOT.search(text):
        return None
    return None if _may_nest(values, int(np.diff(breaks, prepend=-1, append=len(text)).max())) else text


def _is_utf8(text: bytes) -> bool:
    try:
        return text.isascii() or bool(text.decode())
    except UnicodeDecodeError:
        return False


def _may_nest(values: Sequence[bytes], longest: int) -> bool:
    """Return whether a value may nest deeper than MAX_DEPTH; `longest` is the length of the longest value."""
    if longest <= 2 * MAX_DEPTH:  # each level takes two bytes
        return False
    return any(len(value) > 2 * MAX_DEPTH and value.count(b"[") + value.count(b"{") > MAX_DEPTH for value in values)
