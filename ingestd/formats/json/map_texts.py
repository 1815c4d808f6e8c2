"""Cuts a column of maps out of the lines of a batch, and reads it on its own.

pyarrow's JSON reader has no maps. If the keys were requested or inferred as the fields of a struct, their number and
order and explicit nulls would get lost.

Invariant: a line without its map is an object of JSON, in which the map is `{}`, if and only if the whole line is one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ingestd.formats.decoder import NEWLINE
from ingestd.formats.json.layout import Layout
from ingestd.formats.json.nested import primitive
from ingestd.formats.json.suspects import without_lines
from ingestd.formats.json.tape import Mask, Places, parts
from ingestd.formats.json.tape_reader import TapeReader, replaced_entries, spread
from ingestd.formats.json.types import PLAIN_NUMBER, PrimitiveType, where
from ingestd.formats.row_batches import has_timestamp
from ingestd.formats.values import offsets_of
from ingestd.formats.values import spread as spread_all
from ingestd.schema import Column, HiveType

_COLON, _SPACE, _OPEN, _CLOSE, _NULL, _QUOTE, _COMMA, _BACKSLASH = b': {}n",\\'
_SCALAR = f"^(?:{PLAIN_NUMBER}|true|false)$"


def can_cut(kind: HiveType) -> bool:
    """Return whether a type is a map that contains no other maps or structs, so that the first brace closes it.

    Timestamps are excluded, because those of a batch have one unit.
    """
    inner = kind.children[-1] if kind.kind == "map" else kind
    while inner.kind == "array":
        (inner,) = inner.children
    return kind.kind == "map" and not inner.is_complex and not has_timestamp(kind)


@dataclass(frozen=True, slots=True)
class Cut:
    """Lines from which the maps have been cut out, and the maps: one per line, null for a line without one.

    `excluded` are the lines that are `{}` instead, because their map was not found or cannot be read in this way.
    """

    text: bytes
    maps: pa.MapArray
    excluded: Mask


class MapReader:
    """Reads a column of maps for which `can_cut` is true."""

    def __init__(self, column: Column) -> None:
        self._column = column
        self._tape = TapeReader([column], Layout(paths={column.name: ()}))
        key, item = column.type.children
        self._key = primitive(key)
        self._item = None if item.is_complex else primitive(item)

    def cut(self, text: bytes, spelling: str) -> Cut:
        """Cut the maps out of lines, each of which begins and ends with a brace. `spelling` is the column's name there.

        A line that contains the name twice is excluded, because one of the two may be the name of something else.
        """
        letters = np.frombuffer(text, np.uint8)
        breaks = np.flatnonzero(letters == NEWLINE)
        starts, others = _values(text, spelling)
        lines = np.searchsorted(breaks, starts)
        names = np.bincount(lines, minlength=len(breaks) + 1)
        names[np.searchsorted(breaks, others)] = 2
        excluded: Mask = names > 1
        closes = np.flatnonzero(letters == _CLOSE)
        ends = closes[np.searchsorted(closes, starts)]
        maps = pa.nulls(0, self._column.type.arrow)
        if len(starts):
            # If a brace inside a string, not the one that closes the map, is the first, the text is malformed.
            maps, undecided = self._read(parts(text, starts, ends + 1))
            excluded[lines[undecided]] = True
        kept = ~excluded[lines]
        if not kept.all():
            starts, ends, lines, maps = starts[kept], ends[kept], lines[kept], maps.filter(pa.array(kept))
        size = len(text) - int((ends - starts - 1).sum())
        rest = parts(text, np.append(0, ends), np.append(starts + 1, len(text))).buffers()[2][:size].to_pybytes()
        return Cut(without_lines(rest, np.flatnonzero(excluded)), spread(maps, lines, len(excluded)), excluded)

    def _read(self, texts: pa.StringArray) -> tuple[pa.MapArray, Mask]:
        """Return the maps, and which are undecided."""
        undecided, plain = np.zeros((2, len(texts)), np.bool_)
        maps = pa.nulls(0, self._column.type.arrow)
        if self._item is not None:
            maps, plain = self._plain_maps(texts, self._item)
        others = np.flatnonzero(~plain)
        if not len(others):
            return maps, undecided
        values = texts.take(pa.array(others)).cast(pa.binary()).to_pylist()
        batch, left, rejected = self._tape.read(values, "ns")
        undecided[others] = left | rejected  # the rest of the record decides as well
        return spread_all([maps, batch.column(0)], [np.flatnonzero(plain), others], len(texts)), undecided

    def _plain_maps(self, texts: pa.StringArray, item: PrimitiveType) -> tuple[pa.MapArray, Mask]:
        """Return the maps whose texts are plain, and which texts are.

        Each text begins with an opening brace and ends with the first closing one. In a plain text, there are neither
        escape sequences nor equal keys, and no blanks but one space after a colon or a comma. Either all items are
        strings, or they are numbers, true and false, as the first item of all texts.
        """
        _, offsets, content = texts.buffers()
        bounds = np.frombuffer(offsets, np.int32)[: len(texts) + 1]
        letters = np.frombuffer(content, np.uint8)[: bounds[-1]]
        quotes = np.flatnonzero(letters == _QUOTE)
        has_strings = len(quotes) > 2 and letters[quotes[1] + 1 : quotes[2]].tobytes() in (b":", b": ")
        width = 4 if has_strings else 2  # the quotes of an entry
        counts = np.diff(np.searchsorted(quotes, bounds))
        plain: Mask = (counts % width == 0) & ((counts > 0) | (np.diff(bounds) == len(b"{}")))
        odd = np.flatnonzero((letters == _BACKSLASH) | (letters < _SPACE))
        plain[np.searchsorted(bounds, odd, side="right") - 1] = False

        entries = quotes[np.repeat(plain, counts)].reshape(-1, width)
        owners = np.repeat(np.arange(len(texts)), np.where(plain, counts // width, 0))
        begins, ends, fits = _items(letters, entries[:, 0], entries[:, 1], bounds[owners], bounds[owners + 1] - 1)
        if has_strings:
            fits &= (begins == entries[:, 2]) & (ends == entries[:, 3] + 1)
            begins, ends = begins + 1, ends - 1
        plain[owners[~fits]] = False
        fits = plain[owners]
        owners, entries, begins, ends = owners[fits], entries[fits], begins[fits], ends[fits]

        keys = self._key.decided(parts(content, entries[:, 0] + 1, entries[:, 1]), "ns")
        values = parts(content, begins, ends)
        if not has_strings:
            is_scalar = pc.match_substring_regex(values, _SCALAR)
            values = where(pc.and_(is_scalar, not item.only_text), values)
        items = item.decided(values, "ns")
        if keys.null_count or items.null_count:
            plain[owners[pc.or_(keys.is_null(), items.is_null()).to_numpy(zero_copy_only=False)]] = False
            keys, items, owners = _of(plain, keys, items, owners)
        again = replaced_entries(owners, keys)
        if len(again):
            plain[owners[again]] = False
            keys, items, owners = _of(plain, keys, items, owners)
        maps = pa.MapArray.from_arrays(offsets_of(owners, len(texts)), keys, items, type=self._column.type.arrow)
        return (maps if plain.all() else maps.filter(pa.array(plain))), plain


def _items(
    letters: npt.NDArray[np.uint8], keys: Places, key_ends: Places, opens: Places, closes: Places
) -> tuple[Places, Places, Mask]:
    """Return where the item of each entry begins and ends, and whether it is between the expected letters.

    The arguments are the places of the quotes of the keys, and of the braces of their maps.
    """
    is_first = np.diff(opens, prepend=-1) != 0
    is_last = np.append(is_first[1:], True)
    next_keys = np.append(keys[1:], 0)
    begins = key_ends + 2
    begins = begins + (letters[np.minimum(begins, closes)] == _SPACE)
    ends = np.where(is_last, closes, next_keys - 1 - (letters[next_keys - 1] == _SPACE))
    fits = (letters[key_ends + 1] == _COLON) & (begins <= ends)
    fits &= (is_last | (letters[ends] == _COMMA)) & (~is_first | (keys == opens + 1))
    return begins, ends, fits


def _of(plain: Mask, keys: pa.Array, items: pa.Array, owners: Places) -> tuple[pa.Array, pa.Array, Places]:
    """Return the entries of plain maps."""
    kept = plain[owners]
    return keys.filter(pa.array(kept)), items.filter(pa.array(kept)), owners[kept]


def _values(text: bytes, name: str) -> tuple[Places, Places]:
    """Return where the objects begin that follow this name, and the places of its occurrences before anything else.

    Null is neither.
    """
    quoted = json.dumps(name, ensure_ascii=False).encode()
    lengths = np.fromiter(map(len, text.split(quoted)), np.int64)
    after = np.cumsum(lengths[:-1] + len(quoted))
    letters, last = np.frombuffer(text, np.uint8), len(text) - 1
    starts = np.minimum(after + 1, last)
    starts = np.minimum(starts + (letters[starts] == _SPACE), last)
    is_member = letters[after] == _COLON
    is_object = is_member & (letters[starts] == _OPEN)
    return starts[is_object], after[~is_object & ~(is_member & (letters[starts] == _NULL))]
