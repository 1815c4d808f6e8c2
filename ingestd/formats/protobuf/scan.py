"""Finds the fields of many Protobuf messages at once.

The fields of a message can be in any order, and each begins with a tag: its number and its wire type. A step reads one
field of every message, and the next step reads the one that follows it. All messages share the cost of a step; the last
few are read one by one.

Invariant: the bytes of each field that is found are inside its message. A message that is malformed makes its record
fail. The cost is bounded by the size of the messages.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ingestd.formats.values import MAX_VARINT, Bits, Ints, Mask, Path, Records, Values

# Wire types. The bytes of a group are those between its tags.
VARINT, FIXED64, BYTES, GROUP, END_GROUP, FIXED32 = range(6)
MAX_DEPTH = 100  # of groups, as in Google's parsers
_FEW = 64  # messages are read one by one if there are fewer: a step of numpy costs as much as that many of Python
_HELD = 10_000  # fields that are Python objects at a time: these need several times the memory of arrays
_MAX_TAG_BYTES = 5
_MAX_BYTES = np.uint64(2**31 - 1)
_MAX_TAG = np.uint64(2**32 - 1)
_TAG_BITS = np.uint64(7)
_NUMBER_SHIFT = np.uint64(3)
_FIXED_SIZES = {FIXED64: 8, FIXED32: 4}

_ENDS = "the message ends"
_BAD_TAG = "a tag is invalid"
_LONG_INTEGER = "an integer has more than 10 bytes"
_BAD_LENGTH = "a length is invalid"


_Failure = tuple[int, int, str]  # the position of the field, the index of the message, and the reason
_Row = tuple[int, int, int, int, int]  # an occurrence: the values of the attributes of `Tokens`, in their order


class Malformed(ValueError):
    """A single message is not valid; the text is the reason."""


class Place(Values):
    """Values of fields of Protobuf messages."""

    schema_kind = "Protobuf"

    @classmethod
    def of_records(cls, records: Records, record: Ints) -> Place:
        """Return whole records."""
        return cls(records, record, "", lambda _index: "")

    def field(self, name: str) -> Place:
        """Return the field of a name in these messages."""
        return Place(self.records, self.record, *self.path_of_field(name))

    def only(self, indexes: Ints) -> Place:
        """Return some of the values."""
        path: Path = self.path
        return Place(self.records, self.record[indexes], self.column, lambda index: path(int(indexes[index])))

    def items(self, owners: Ints) -> Place:
        """Return the items of these values; `owners` are the indexes of the values that contain them, in order."""
        return Place(self.records, self.record[owners], self.column, self.path_of_items(owners))


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages, each of which consists of any number of parts: several parts are merged.

    Part i is a part of message `owners[i]` and extends from `starts[i]` to `ends[i]`. Parts are in their order.
    """

    place: Place
    starts: Ints
    ends: Ints
    owners: Ints


@dataclass(frozen=True, slots=True)
class Tokens:
    """The occurrences of a field, in their order: the index of the message, the wire type and the bytes.

    `bits` is the integer of an occurrence of the wire type VARINT.
    """

    owners: Ints
    wires: Ints
    bits: Bits
    starts: Ints
    ends: Ints

    def __len__(self) -> int:
        return len(self.owners)

    def only(self, which: Ints | Mask) -> Tokens:
        """Return some of the occurrences."""
        return Tokens(self.owners[which], self.wires[which], self.bits[which], self.starts[which], self.ends[which])

    def of_wires(self, *wires: int) -> Tokens:
        """Return the occurrences with one of these wire types. Parsers skip others as if they were unknown fields."""
        fits: Mask = np.isin(self.wires, wires) if len(wires) > 1 else self.wires == wires[0]
        return self if fits.all() else self.only(fits)

    def last(self) -> Tokens:
        """Return the last occurrence in each message."""
        keep = np.ones(len(self), np.bool_)
        np.not_equal(self.owners[1:], self.owners[:-1], out=keep[:-1])
        return self if keep.all() else self.only(keep)


def joined(parts: Collection[Tokens]) -> Tokens:
    """Return all occurrences in their order. In a record, they are in the order of their positions."""
    if len(parts) == 1:
        return next(iter(parts))
    arrays = [(part.owners, part.wires, part.bits, part.starts, part.ends) for part in parts]
    if not arrays:
        none = np.zeros(0, np.int64)
        return Tokens(none, none, none.view(np.uint64), none, none)
    occurrences = Tokens(*(np.concatenate(column) for column in zip(*arrays, strict=True)))
    return occurrences.only(np.argsort(occurrences.starts, kind="stable"))


def scan(messages: Messages, wanted: Collection[int]) -> dict[int, Tokens]:
    """Return the occurrences of each wanted field, by its number."""
    occurrences: dict[int, list[Tokens]] = {number: [] for number in wanted}
    at, ends, owners = messages.starts, messages.ends, messages.owners
    live = np.flatnonzero(at < ends)
    at, ends, owners = at[live], ends[live], owners[live]
    alone: list[tuple[int, int, int]] = []
    failures: list[_Failure] = []
    while len(at) >= _FEW:
        step = _Step(messages.place.records, at, ends, owners, failures)
        for number, tokens in step.tokens():
            if number in occurrences:
                occurrences[number].append(tokens)
        alone += step.groups()
        live = np.flatnonzero(step.remains)
        if len(live) == len(at):
            at = step.ends
        else:
            at, ends, owners = step.ends[live], ends[live], owners[live]
    alone += zip(at.tolist(), ends.tolist(), owners.tolist(), strict=True)
    alone.sort()  # each step has appended its own, but the callers need occurrences in the order of their positions
    for number, tokens in _scan_each(messages.place.records.text, alone, occurrences, failures):
        occurrences[number].append(tokens)
    # In the order of their positions, so that the first cause does not depend on other records.
    for _, owner, reason in sorted(failures):
        messages.place.malformed_at(owner, reason)
    return {number: joined(parts) for number, parts in occurrences.items()}


class _Step:
    """Reads one field of each message. `remains` says which messages have more fields, from `ends` on."""

    def __init__(self, records: Records, at: Ints, limits: Ints, owners: Ints, failures: list[_Failure]) -> None:
        self._records, self._failures = records, failures
        self._at, self._limits, self._owners = at, limits, owners
        self._ok: Mask = np.ones(len(at), np.bool_)
        everywhere = np.arange(len(at))
        tags, sizes, self.starts = self._integers(at, everywhere)
        self._numbers = (tags >> _NUMBER_SHIFT).view(np.int64)
        self._wires = (tags & _TAG_BITS).view(np.int64)
        self._fail((sizes > _MAX_TAG_BYTES) | (tags > _MAX_TAG) | (self._numbers == 0), _BAD_TAG, everywhere)
        self._bits: Bits = np.zeros(len(at), np.uint64)
        self.ends = self.starts.copy()
        first = int(self._wires[0])
        if (self._wires == first).all():
            self._read(first, everywhere)
        else:
            for wire in np.unique(self._wires).tolist():
                self._read(wire, np.flatnonzero(self._wires == wire))
        self._fail(self.ends > limits, _ENDS, everywhere)
        self.remains: Mask = self._ok & (self._wires != GROUP) & (self.ends < limits)

    def _integers(self, at: Ints, which: Ints) -> tuple[Bits, Ints, Ints]:
        """Read integers of variable length; return their lowest 64 bits, their sizes and their ends."""
        bits, sizes = self._records.varints(at)
        left = self._limits[which] - at
        short = sizes > left
        if short.any():
            self._fail(short & (left >= MAX_VARINT), _LONG_INTEGER, which)
            self._fail(short, _ENDS, which)
        self._fail(sizes > MAX_VARINT, _LONG_INTEGER, which)
        return bits, sizes, at + np.minimum(sizes, left)

    def _read(self, wire: int, which: Ints) -> None:
        """Find the starts and the ends of the values with this wire type."""
        starts = self.starts[which]
        if wire in _FIXED_SIZES:
            self.ends[which] = starts + _FIXED_SIZES[wire]
        elif wire == VARINT:
            self._bits[which], _, self.ends[which] = self._integers(starts, which)
        elif wire == BYTES:
            lengths, sizes, starts = self._integers(starts, which)
            self._fail((sizes > _MAX_TAG_BYTES) | (lengths > _MAX_BYTES), _BAD_LENGTH, which)
            self.starts[which] = starts
            self.ends[which] = starts + np.minimum(lengths, _MAX_BYTES).view(np.int64)
        elif wire != GROUP:
            self._fail(np.ones(len(which), np.bool_), _BAD_TAG, which)

    def _fail(self, bad: Mask, reason: str, which: Ints) -> None:
        """Let the records of messages fail; `which` are the indexes of the messages that `bad` describes."""
        if not bad.any():
            return
        indexes = which[bad]
        indexes = indexes[self._ok[indexes]]
        self._ok[indexes] = False
        self._failures += (
            (at, owner, reason)
            for at, owner in zip(self._at[indexes].tolist(), self._owners[indexes].tolist(), strict=True)
        )

    def tokens(self) -> Iterator[tuple[int, Tokens]]:
        """Yield the number of each field, and its occurrences."""
        tokens = Tokens(self._owners, self._wires, self._bits, self.starts, self.ends)
        numbers = self._numbers
        usable = self._ok & (self._wires != GROUP)
        if not usable.all():
            tokens, numbers = tokens.only(usable), numbers[usable]
        if not len(numbers):
            return
        if (numbers == numbers[0]).all():
            yield int(numbers[0]), tokens
            return
        order = np.argsort(numbers, kind="stable")
        tokens, numbers = tokens.only(order), numbers[order]
        bounds = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), len(numbers)]
        for first, end in pairwise(bounds):
            yield int(numbers[first]), tokens.only(np.arange(first, end))

    def groups(self) -> list[tuple[int, int, int]]:
        """Return the position, the end and the index of messages that continue with a group."""
        which = self._ok & (self._wires == GROUP)
        if not which.any():
            return []
        columns = (self._at[which].tolist(), self._limits[which].tolist(), self._owners[which].tolist())
        return list(zip(*columns, strict=True))


def _scan_each(
    data: bytes, messages: list[tuple[int, int, int]], wanted: Collection[int], failures: list[_Failure]
) -> Iterator[tuple[int, Tokens]]:
    """Yield the occurrences of the wanted fields of messages, given as position, end and index."""
    rows: dict[int, list[_Row]] = {}
    held = 0
    for at, end, owner in messages:
        try:
            for number, wire, bits, start, stop in _fields(data, at, end):
                if number in wanted:
                    rows.setdefault(number, []).append((owner, wire, bits, start, stop))
                    held += 1
                    if held == _HELD:
                        yield from _tokens(rows)
                        rows, held = {}, 0
        except Malformed as error:  # noqa: PERF203
            failures.append((at, owner, str(error)))
    yield from _tokens(rows)


def _tokens(rows: Mapping[int, Sequence[_Row]]) -> Iterator[tuple[int, Tokens]]:
    """Convert the occurrences of each field to arrays."""
    for number, occurrences in rows.items():
        columns = list(zip(*occurrences, strict=True))
        numbers, places = np.array(columns[2], np.uint64), [np.array(columns[index]) for index in (0, 1, 3, 4)]
        yield number, Tokens(places[0], places[1], numbers, places[2], places[3])


def _fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield the number, the wire type, the integer, the start and the end of each field of one message."""
    while at < end:
        number, wire, at = _tag(data, at, end)
        start, bits = at, 0
        if wire == GROUP:
            stop, at = _end_of_group(data, at, end, number)
        else:
            bits, start, at = _value(data, at, end, wire)
            stop = at
        yield number, wire, bits, start, stop


def _end_of_group(data: bytes, at: int, end: int, number: int) -> tuple[int, int]:
    """Return the end of the fields of a group, and the end of its last tag."""
    open_groups = [number]
    while True:
        if len(open_groups) > MAX_DEPTH:
            raise Malformed(f"groups nest deeper than {MAX_DEPTH} levels")
        stop = at
        number, wire, at = _tag(data, at, end)
        if wire == GROUP:
            open_groups.append(number)
        elif wire != END_GROUP:
            _, _, at = _value(data, at, end, wire)
        elif open_groups.pop() != number:
            raise Malformed(_BAD_TAG)
        elif not open_groups:
            return stop, at


def _tag(data: bytes, at: int, end: int) -> tuple[int, int, int]:
    """Read a tag; return the number, the wire type and its end."""
    tag, stop = _integer(data, at, end)
    if stop - at > _MAX_TAG_BYTES or tag >> 32 or not tag >> 3:
        raise Malformed(_BAD_TAG)
    return tag >> 3, tag & 7, stop


def _value(data: bytes, at: int, end: int, wire: int) -> tuple[int, int, int]:
    """Read a value that is not a group; return its integer, its start and its end."""
    start, bits = at, 0
    if wire == VARINT:
        bits, stop = _integer(data, at, end)
    elif wire == BYTES:
        size, start = _integer(data, at, end)
        if start - at > _MAX_TAG_BYTES or size > int(_MAX_BYTES):
            raise Malformed(_BAD_LENGTH)
        stop = start + size
    elif wire in _FIXED_SIZES:
        stop = at + _FIXED_SIZES[wire]
    else:
        raise Malformed(_BAD_TAG)
    if stop > end:
        raise Malformed(_ENDS)
    return bits, start, stop


def _integer(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Read one integer of variable length; return its lowest 64 bits and its end."""
    bits = shift = 0
    while at < end:
        byte = data[at]
        bits |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return bits & 0xFFFFFFFFFFFFFFFF, at
        if shift == 7 * MAX_VARINT:
            raise Malformed(_LONG_INTEGER)
    raise Malformed(_ENDS)
