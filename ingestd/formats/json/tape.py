"""Finds the tokens of many JSON records at once.

The records are the lines of one buffer. Every step treats all lines together with numpy, so its cost per record is
small and does not depend on what the records contain.

Invariant: a line whose tokens are kept is one JSON object by RFC 8259, or one array if the records are arrays, nested
at most MAX_DEPTH levels. Every other line is in `malformed`, and has the tokens of `{}` or `[]`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import methodcaller
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ingestd.formats.decoder import NEWLINE, is_utf8
from ingestd.formats.json.record import MARK, MAX_DEPTH

Ints = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]
Places = npt.NDArray[np.signedinteger[Any]]

OPEN_OBJECT, CLOSE_OBJECT, OPEN_ARRAY, CLOSE_ARRAY, COLON, COMMA, END, STRING, KEY, SCALAR = range(1, 11)
_BACKSLASH, _CONTROL = 11, 12
_SCALAR = r"^(?:-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null)$"


def _table(pairs: Mapping[int, int]) -> bytes:
    """Return a table for `_mapped`: the value of each byte, 0 if it is not among the pairs."""
    return bytes(pairs.get(byte, 0) for byte in range(256))


_CLASSES = _table(
    dict.fromkeys(set(range(32)) - set(b"\t\r"), _CONTROL)
    | dict(zip(b'{}[]:,\n"\\', (*range(OPEN_OBJECT, STRING + 1), _BACKSLASH), strict=True))
)
_IS_BLANK = _table(dict.fromkeys(b" \t\r", 1))
_IS_ESCAPE = _table(dict.fromkeys(b'"\\/bfnrtu', 1))
_IS_HEX = _table(dict.fromkeys(b"0123456789abcdefABCDEF", 1))
_IS_OPEN = _table({OPEN_OBJECT: 1, OPEN_ARRAY: 1})
_IS_CLOSE = _table({CLOSE_OBJECT: 1, CLOSE_ARRAY: 1})
_DIVIDES = _table(dict.fromkeys((OPEN_OBJECT, OPEN_ARRAY, CLOSE_OBJECT, CLOSE_ARRAY, COMMA), 1))
_STEP = _table({OPEN_OBJECT: 1, OPEN_ARRAY: 1, CLOSE_OBJECT: 255, CLOSE_ARRAY: 255})  # as int8: 1 and -1
_VALUES = (OPEN_OBJECT, OPEN_ARRAY, STRING, SCALAR)
# The kinds of token that may follow each kind. `_check_containers` does what depends on the container.
_FOLLOWERS = {
    END: (OPEN_OBJECT, OPEN_ARRAY),
    OPEN_OBJECT: (KEY, CLOSE_OBJECT),
    OPEN_ARRAY: (*_VALUES, CLOSE_ARRAY),
    KEY: (COLON,),
    COLON: _VALUES,
    COMMA: (KEY, *_VALUES),
    **dict.fromkeys((STRING, SCALAR), (COMMA, CLOSE_OBJECT, CLOSE_ARRAY)),
    **dict.fromkeys((CLOSE_OBJECT, CLOSE_ARRAY), (COMMA, CLOSE_OBJECT, CLOSE_ARRAY, END)),
}
_MAY_FOLLOW = _table({before << 4 | kind: 1 for before, kinds in _FOLLOWERS.items() for kind in kinds})

_WITHOUT_MARK = methodcaller("removeprefix", MARK)
_FEW_BLANKS = 4  # this many are removed one by one, which is faster


class _MalformedError(Exception):
    """Raised when lines are malformed; `lines` contains some of them, at least one, perhaps repeatedly."""

    def __init__(self, lines: npt.NDArray[np.intp]) -> None:
        super().__init__()
        self.lines = lines


@dataclass(frozen=True, slots=True)
class _Compact:
    """The compact text of the records, and its places: those of the bytes of the original text, None if all are equal.

    After that, a place moves by `shifts[n]` if it is behind n of the strings that have another length; they end at
    `ends`. `others` are the original places of strings that are not compact.
    """

    text: bytes
    places: Ints | None
    others: Ints
    ends: Ints | None = None
    shifts: Ints | None = None

    def places_of(self, originals: Ints) -> Ints:
        places = originals if self.places is None else self.places[originals]
        if self.ends is None or self.shifts is None:
            return places
        return places + self.shifts[np.searchsorted(self.ends, places, side="right")]


class Tape:
    """The tokens of records. Token t has a kind and occupies the bytes `start[t]` to `end[t]` of `text`.

    The item of an object is a key; its value is two tokens later. The item of an array is a value. `roots` are the
    tokens that open the records, in the order of the records.
    """

    def __init__(self, values: Sequence[bytes], root: int = OPEN_OBJECT) -> None:
        """Find the tokens of the values, each of which is one record: an object, or an array (`root` is OPEN_ARRAY)."""
        self._root = root
        self.malformed: Mask = np.zeros(len(values), np.bool_)
        unmarked = map(_WITHOUT_MARK, values)
        lines = [value.replace(b"\n", b"\t") if b"\n" in value else value for value in unmarked]
        while True:
            self.text = b"\n".join([*lines, b""])
            try:
                self._scan()
            except _MalformedError as error:
                for line in set(error.lines.tolist()):
                    self.malformed[line] = True
                    lines[line] = b"{}" if root == OPEN_OBJECT else b"[]"
            else:
                return

    def texts(self, starts: Ints, ends: Ints) -> pa.StringArray:
        """Return parts of the text, which must be in ascending order and not overlap."""
        return parts(self.text, starts, ends)

    def letters_at(self, tokens: Ints, place: int = 0) -> npt.NDArray[np.uint8]:
        """Return one byte of each token, by default the first."""
        letters: npt.NDArray[np.uint8] = self._letters[self.start[tokens] + np.int32(place)]
        return letters

    def inside(self, containers: Ints, depth: int) -> tuple[Ints, Ints]:
        """Return the items of containers: for each the index of its container, and its token. Both ascend.

        The containers are tokens that open objects or arrays at this depth, in ascending order; that of a record is 1.
        """
        parents, tokens = self._levels(depth)
        self._index[containers] = np.arange(len(containers), dtype=np.int32)
        owners = self._index[parents]
        if len(containers) == 0:
            return owners[:0], tokens[:0]
        are_inside = containers[np.minimum(owners, len(containers) - 1)] == parents
        return owners[are_inside], tokens[are_inside]

    def has_escape(self, starts: Ints, ends: Ints) -> Mask:
        """Return which parts of the text contain a backslash."""
        if not len(self._backslashes):
            return np.zeros(len(starts), np.bool_)
        have_escape: Mask = np.searchsorted(self._backslashes, ends) > np.searchsorted(self._backslashes, starts)
        return have_escape

    def compact(self, tokens: Ints) -> tuple[pa.StringArray, Mask]:
        """Return the compact text (`types.text_of`) of objects and arrays, given by the tokens that open them.

        Also returns which texts are not compact, because they have an escape sequence in a name, or for a surrogate.
        """
        starts, ends = self.start[tokens], self._close_ends[tokens]
        compact = self._compact
        others = np.searchsorted(compact.others, ends) > np.searchsorted(compact.others, starts)
        return parts(compact.text, compact.places_of(starts), compact.places_of(ends)), others

    def lines(self, tokens: Ints) -> bytes:
        """Return the text of objects and arrays as lines; `tokens` open them, in ascending order and not nested."""
        starts, ends = self.start[tokens], self._close_ends[tokens]
        letters = self._letters.copy()
        letters[ends] = NEWLINE
        change = np.zeros(len(letters) + 1, np.int8)
        change[starts] = 1
        change[ends + 1] -= 1  # the next object may begin there
        kept = np.cumsum(change[:-1], dtype=np.int8).view(np.bool_)
        text: bytes = letters[kept].tobytes()
        return text[:-1]

    def contain(self, containers: Ints, tokens: Ints) -> Mask:
        """Return which objects and arrays, given by the tokens that open them, contain any of the other tokens.

        Both ascend.
        """
        places = self.start[tokens]
        before, after = self.start[containers], self._close_ends[containers]
        have_any: Mask = np.searchsorted(places, after) > np.searchsorted(places, before)
        return have_any

    @property
    def repeated_keys(self) -> Mask:
        """The records that have an object, at any depth, with two equal keys."""
        repeated: Mask = np.zeros(len(self.malformed), np.bool_)
        repeated[self._lines_of(self.start[self.with_repeated_keys])] = True
        return repeated

    @cached_property
    def with_repeated_keys(self) -> Ints:
        """The tokens, ascending, that open objects with two equal keys."""
        is_key = np.flatnonzero(self.kind[self._items] == KEY)
        is_key = is_key[np.argsort(self._items[is_key], kind="stable")]
        parents, tokens = self._parents[is_key], self._items[is_key]
        keys = self.texts(self.start[tokens] + 1, self.end[tokens] - 1).dictionary_encode()
        pairs = parents.astype(np.int64) * len(keys.dictionary) + keys.indices.to_numpy()
        order = np.argsort(pairs, kind="stable")
        return np.unique(parents[order[1:]][np.diff(pairs[order]) == 0])

    def _scan(self) -> None:
        self._letters = np.frombuffer(self.text, np.uint8)
        self._faults: list[npt.NDArray[np.intp]] = []
        self._check_utf8()
        classes = np.frombuffer(self.text.translate(_CLASSES), np.uint8)
        places = np.flatnonzero(classes != 0).astype(np.int32)
        kinds = classes[places]
        is_end = kinds == END
        self._breaks = places[is_end]
        self._exclude(places[kinds == _CONTROL])
        is_quote = kinds == STRING
        self._backslashes = places[kinds == _BACKSLASH]
        self._escapes = self._backslashes
        if len(self._backslashes):
            self._escapes = self._escaped()
            is_quote[is_quote] = ~np.isin(places[is_quote], self._escapes)
        # From the opening quote to the character before the closing one.
        in_string = np.bitwise_xor.accumulate(is_quote.view(np.uint8)).view(np.bool_)
        self._require_lines(np.diff(in_string[is_end], prepend=False))
        self._require(self._backslashes[~in_string[kinds == _BACKSLASH]])
        is_token = (in_string == is_quote) & (kinds != _BACKSLASH)
        # Most malformed records are cut: they are found before the tokens that depend on each other.
        depth = np.cumsum(_mapped(np.where(is_token, kinds, 0), _STEP).view(np.int8), dtype=np.int32)
        self._require_lines(np.diff(depth[is_end], prepend=0) != 0)
        ends = places + np.int32(1)
        string_starts, string_ends = places[is_quote][0::2], places[is_quote][1::2]
        self._check_blanks(string_starts, string_ends)
        starts, kinds = places[is_token], kinds[is_token]
        ends = ends[is_token]
        ends[kinds == STRING] = string_ends + 1
        self._add_scalars(kinds, starts, ends)
        self._check_order()
        self._find_containers()

    def _check_utf8(self) -> None:
        if self.text.isascii():
            return
        if not is_utf8(self.text):
            lines = self.text.split(b"\n")
            raise _MalformedError(np.flatnonzero([not is_utf8(line) for line in lines]))

    def _escaped(self) -> Ints:
        """Return the places of the characters after a backslash that begins an escape sequence, without backslashes."""
        slashes = self._backslashes
        last = np.flatnonzero(np.diff(slashes, append=-1) != 1)  # of each run of backslashes
        lengths = np.diff(last, prepend=-1)
        escaped: Ints = slashes[last[lengths & 1 == 1]] + np.int32(1)
        letters = self._letters[escaped]
        self._exclude(escaped[~_mapped(letters, _IS_ESCAPE)])
        unicode = escaped[letters == ord("u")]
        digits = unicode[:, None] + np.arange(1, 5)
        digits = np.minimum(digits, len(self._letters) - 1)
        self._exclude(unicode[~_mapped(self._letters[digits], _IS_HEX).all(axis=1)])
        return escaped

    def _check_blanks(self, starts: Ints, ends: Ints) -> None:
        """Exclude lines with a tab or a carriage return in a string."""
        if b"\t" in self.text or b"\r" in self.text:
            blanks = np.flatnonzero((self._letters == 0x09) | (self._letters == 0x0D))
            self._exclude(blanks[np.searchsorted(starts, blanks) > np.searchsorted(ends, blanks)])
        self._strings = starts, ends

    def _add_scalars(self, kinds: npt.NDArray[np.uint8], starts: Ints, ends: Ints) -> None:
        """Add the numbers and literals, which are between the other tokens."""
        if not _mapped(self._letters[: starts[0]], _IS_BLANK).all():
            raise _MalformedError(np.zeros(1, np.intp))
        before = np.flatnonzero(starts[1:] > ends[:-1])
        first, last = ends[before].copy(), starts[before + 1].copy()
        first, last = self._without_outer_blanks(first, last)
        filled = first < last
        before, first, last = before[filled], first[filled], last[filled]
        is_valid = pc.match_substring_regex(parts(self.text, first, last), _SCALAR)
        self._exclude(first[~is_valid.to_numpy(zero_copy_only=False)])
        count = len(kinds) + len(before)
        added = before + 1 + np.arange(len(before))
        others: Mask = np.ones(count, np.bool_)
        others[added] = False
        self.kind: npt.NDArray[np.uint8] = np.full(count, SCALAR, np.uint8)
        self.kind[others] = kinds
        self.start: Ints = np.empty(count, np.int32)
        self.start[added], self.start[others] = first, starts
        self.end: Ints = np.empty(count, np.int32)
        self.end[added], self.end[others] = last, ends

    def _without_outer_blanks(self, first: Ints, last: Ints) -> tuple[Ints, Ints]:
        """Return the bounds of parts of the text without the blanks at both of their ends."""
        self._has_blanks = False
        for _ in range(_FEW_BLANKS):
            before = (first < last) & _mapped(self._letters[first], _IS_BLANK)
            first = first + before
            after = (first < last) & _mapped(self._letters[last - 1], _IS_BLANK)
            last = last - after
            if not (before | after).any():
                return first, last
            self._has_blanks = True
        others = np.flatnonzero(~_mapped(self._letters, _IS_BLANK)).astype(np.int32)
        others = np.append(others, np.int32(len(self._letters)))
        first = np.minimum(others[np.searchsorted(others, first)], last)
        last = np.maximum(others[np.searchsorted(others, last) - 1] + np.int32(1), first)
        return first, last

    def _check_order(self) -> None:
        kind = self.kind
        is_key = (kind[:-1] == STRING) & (kind[1:] == COLON)
        kind[:-1][is_key] = KEY
        pairs = kind.copy()
        pairs[0] |= END << 4
        pairs[1:] |= kind[:-1] << np.uint8(4)
        self._require(self.start[~_mapped(pairs, _MAY_FOLLOW)])

    def _find_containers(self) -> None:
        kind = self.kind
        depth = np.cumsum(_mapped(kind, _STEP).view(np.int8), dtype=np.int32)
        self._require(self.start[(depth < 0) | (depth > MAX_DEPTH)])
        # In the order of depth, the brackets and commas of a container are neighbors. The depth is that of its items.
        tokens = np.flatnonzero(_mapped(kind, _DIVIDES)).astype(np.int32)
        levels = (depth[tokens] + _mapped(kind[tokens], _IS_CLOSE)).astype(np.uint8)
        order = np.argsort(levels, kind="stable")
        tokens, levels = tokens[order], levels[order]
        self._require(self.start[tokens[levels == 0]])  # commas between two records of one line
        kinds = kind[tokens]
        is_open, is_close = _mapped(kinds, _IS_OPEN), _mapped(kinds, _IS_CLOSE)
        parents = tokens[np.maximum.accumulate(np.where(is_open, np.arange(len(tokens)), 0))]
        self._check_containers(tokens, parents, is_close)
        self._closes = parents[is_close], tokens[is_close]
        has_item = ~is_close & ~_mapped(kind[np.minimum(tokens + 1, len(kind) - 1)], _IS_CLOSE)
        self._parents: Ints = parents[has_item]
        self._items: Ints = tokens[has_item] + np.int32(1)
        self._bounds = np.searchsorted(levels[has_item], np.arange(MAX_DEPTH + 2))
        self._index: Ints = np.zeros(len(kind), np.int32)
        self.roots: Ints = tokens[is_open & (levels == 1)]
        self._require(self.start[self.roots[kind[self.roots] != self._root]])

    def _check_containers(self, tokens: Ints, parents: Ints, is_close: Mask) -> None:
        """Require that brackets match, and that exactly the items of objects are keys."""
        kind = self.kind
        in_object = kind[parents] == OPEN_OBJECT
        self._require(self.start[tokens[is_close & (in_object != (kind[tokens] == CLOSE_OBJECT))]])
        commas = kind[tokens] == COMMA
        is_key = kind[tokens[commas] + 1] == KEY
        self._require(self.start[tokens[commas][is_key != in_object[commas]]])

    def _levels(self, depth: int) -> tuple[Ints, Ints]:
        begin, end = self._bounds[depth : depth + 2]
        return self._parents[begin:end], self._items[begin:end]

    @cached_property
    def _close_ends(self) -> Ints:
        """The end of the object or array that each token opens."""
        ends: Ints = np.zeros(len(self.kind), np.int32)
        opens, closes = self._closes
        ends[opens] = self.end[closes]
        return ends

    @cached_property
    def _without_blanks(self) -> tuple[bytes, Ints | None]:
        """The text without blanks between tokens, and the new place of each byte; None if there are no such blanks."""
        if not self._has_blanks:
            return self.text, None
        starts, ends = self._strings
        change = np.zeros(len(self._letters) + 1, np.int8)
        change[starts], change[ends] = 1, -1
        kept = ~(_mapped(self._letters, _IS_BLANK) & (np.cumsum(change[:-1], dtype=np.int8) == 0))
        places = np.concatenate(([0], np.cumsum(kept))).astype(np.int32)
        return self._letters[kept].tobytes(), places

    @cached_property
    def _compact(self) -> _Compact:
        """The text from which `compact` takes parts: without blanks, and with the strings written as `text_of` does."""
        text, places = self._without_blanks
        escapes = self._escapes[np.isin(self._letters[self._escapes], list(b"u/"))]  # `text_of` writes the others, too
        strings = np.unique(np.searchsorted(self._strings[0], escapes) - 1)
        starts, ends = self._strings[0][strings], self._strings[1][strings]
        raw = parts(self.text, starts + 1, ends).to_pylist()
        texts = json.loads('["' + '","'.join(raw) + '"]') if raw else raw
        is_other = np.isin(starts, self.start[self.kind == KEY])
        if not is_encodable("".join(texts)):
            is_other |= [not is_encodable(text) for text in texts]
        written = np.flatnonzero(~is_other)
        if not len(written):
            return _Compact(text, places, starts[is_other])
        # Strings contain no raw newline.
        new = json.dumps([texts[index] for index in written.tolist()], ensure_ascii=False, separators=("\n", ":"))
        quoted = pa.array(new[1:-1].split("\n"), pa.string())
        before, after = starts[written], ends[written] + np.int32(1)
        if places is not None:
            before, after = places[before], places[after]
        gaps = parts(text, np.append(0, after), np.append(before, len(text)))
        order = np.empty(len(gaps) + len(quoted), np.int64)
        order[0::2], order[1::2] = np.arange(len(gaps)), len(gaps) + np.arange(len(quoted))
        lengths = pc.binary_length(quoted).to_numpy() - (after - before)
        size = len(text) + int(lengths.sum())
        text = pa.concat_arrays([gaps, quoted]).take(pa.array(order)).buffers()[2].to_pybytes()[:size]
        shifts = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
        return _Compact(text, places, starts[is_other], after, shifts)

    def _exclude(self, places: Places) -> None:
        """Note that the lines of these places are malformed. The next `_require` that fails excludes them as well."""
        if len(places):
            self._faults.append(self._lines_of(places))

    def _require(self, places: Places) -> None:
        """Raise _MalformedError for the lines of these places, and for those that have been excluded."""
        self._exclude(places)
        if self._faults:
            raise _MalformedError(np.concatenate(self._faults))

    def _require_lines(self, malformed: Mask) -> None:
        if malformed.any():
            raise _MalformedError(np.concatenate([np.flatnonzero(malformed), *self._faults]))

    def _lines_of(self, places: Places) -> npt.NDArray[np.intp]:
        return np.searchsorted(self._breaks, places)


def is_encodable(text: str) -> bool:
    """Return whether a text has no unpaired surrogate."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def _mapped(letters: npt.NDArray[np.uint8], table: bytes) -> Mask:
    """Return what a table contains for each byte, as booleans. This is faster than to index an array."""
    return np.frombuffer(letters.tobytes().translate(table), np.bool_).reshape(letters.shape)


def parts(text: bytes, starts: Places, ends: Places) -> pa.StringArray:
    """Return parts of a text. An array of alternating parts and gaps needs no copy; `take` then copies the parts."""
    count = len(starts)
    if not count:
        return pa.array([], pa.string())
    offsets = np.empty(2 * count, np.int32)
    offsets[0::2], offsets[1::2] = starts, ends
    array = pa.StringArray.from_buffers(2 * count - 1, pa.py_buffer(offsets), pa.py_buffer(text))
    return array.take(pa.array(np.arange(0, 2 * count - 1, 2, dtype=np.int32)))
