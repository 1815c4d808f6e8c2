"""Cuts a column of maps out of the lines of a batch, and reads it on its own.

pyarrow's JSON reader has no maps. If the keys were requested or inferred as the fields of a struct, their number and
order and explicit nulls would get lost.

Invariant: a line without its map is an object of JSON, in which the map is `{}`, if and only if the whole line is one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ingestd.formats.decoder import NEWLINE
from ingestd.formats.json.layout import Layout
from ingestd.formats.json.suspects import without_lines
from ingestd.formats.json.tape import Mask, Places, parts
from ingestd.formats.json.tape_reader import TapeReader, spread
from ingestd.formats.row_batches import has_timestamp
from ingestd.schema import Column, HiveType

_COLON, _SPACE, _OPEN, _CLOSE, _NULL = b": {}n"


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
            texts = parts(text, starts, ends + 1).cast(pa.binary()).to_pylist()
            batch, undecided, _ = self._tape.read(texts, "ns")
            excluded[lines[undecided]] = True
            maps = batch.column(0)
        kept = ~excluded[lines]
        if not kept.all():
            starts, ends, lines, maps = starts[kept], ends[kept], lines[kept], maps.filter(pa.array(kept))
        rest = parts(text, np.append(0, ends), np.append(starts + 1, len(text))).buffers()[2].to_pybytes()
        rest = rest[: len(text) - int((ends - starts - 1).sum())]
        return Cut(without_lines(rest, np.flatnonzero(excluded)), spread(maps, lines, len(excluded)), excluded)


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
