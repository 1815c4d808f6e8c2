"""Decodes records that contain several JSON objects, each of which is a row.

Invariant: a record becomes the rows of all its objects, or one reject. A record whose array is empty has no rows.

The objects of all records are written to one buffer of lines, and decoded as if each were a record (`decoder`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from ingestd.formats.decoder import (
    NEWLINE,
    DecodeResult,
    Lines,
    Reject,
    RejectError,
    rejected_rows,
    without_tombstones,
)
from ingestd.formats.json.decoder import JsonDecoder
from ingestd.formats.json.layout import PLAIN, Layout
from ingestd.formats.json.record import array_fault
from ingestd.formats.json.tape import OPEN_ARRAY, OPEN_OBJECT, Tape
from ingestd.formats.json.tape_reader import pieces
from ingestd.formats.record_decoder import Tombstones
from ingestd.formats.values import MAX_VALUES, values_allowed, width_of
from ingestd.schema import Column

Several = Literal["array", "lines"]
Indexes = npt.NDArray[np.int64]

_BLANKS = b" \t\r"
_PLACES: dict[Several, str] = {"array": "element [{}]", "lines": "line {}"}


@dataclass(frozen=True, slots=True)
class Objects:
    """The objects in records: their texts as lines, the record of each and its position there, and rejects by record.

    Elements of arrays are counted from 0, lines from 1. A reject may still have objects.
    """

    text: bytes
    records: Indexes
    positions: Indexes
    rejects: dict[int, RejectError]


class SeveralDecoder(JsonDecoder):
    """Decodes records of several JSON objects: the elements of an array, or the lines of the record."""

    def __init__(
        self,
        columns: Sequence[Column],
        several: Several,
        layout: Layout = PLAIN,
        *,
        tombstones: Tombstones = "stop",
    ) -> None:
        super().__init__(columns, layout, tombstones=tombstones)
        self._split: Callable[[Sequence[bytes]], Objects] = _elements if several == "array" else _lines
        self._place = _PLACES[several]

    def check(self, value: bytes) -> Reject | None:
        """See `RecordDecoder`."""
        rejects = self.decode([value]).rejects
        return rejects[0] if rejects else None

    def absent_columns(self, values: Sequence[bytes]) -> frozenset[str]:
        """See `RecordDecoder`."""
        return super().absent_columns(self._objects(values))

    def needed_columns(self, values: Sequence[bytes], others: Collection[str]) -> tuple[Column, ...]:
        """See `Evolving`."""
        return super().needed_columns(self._objects(values), others)

    def unstored_fields(self, values: Sequence[bytes], others: Collection[str]) -> tuple[str, ...]:
        """See `RecordDecoder`."""
        return super().unstored_fields(self._objects(values), others)

    def _objects(self, values: Sequence[bytes]) -> Sequence[bytes]:
        text = self._split(values).text if values else b""
        return Lines(text) if text else []

    def decode(self, values: Sequence[bytes | None]) -> DecodeResult:
        """See `Decoder`. The reason of a reject names its first object that does not fit."""
        records = without_tombstones(values)
        if len(records) < len(values):
            return self._with_tombstones(values, records)
        if not records:
            return DecodeResult([], [], 0)
        objects = self._split(records)
        excesses = self._excesses(objects, records)
        if excesses:  # rows of these records are removed with their rejects
            objects = self._split([b"{}" if row in excesses else value for row, value in enumerate(records)])
        causes = {**objects.rejects, **excesses}
        decoded, owners = DecodeResult([], [], 0), objects.records
        if len(owners):
            lines = Lines(objects.text)
            decoded = super().decode(lines)
            owners = owners[decoded.records_of_rows(lines)]
        refused, firsts = np.unique(objects.records[rejected_rows(decoded.rejects)], return_index=True)
        for record, first in zip(refused.tolist(), firsts.tolist(), strict=True):
            if record not in causes:
                reject = decoded.rejects[first]
                place = self._place.format(objects.positions[reject.row])
                causes[record] = RejectError(reject.column, f"{place}: {reject.reason}")
        rejects = [Reject.of(index, records[index], cause.column, cause.reason) for index, cause in causes.items()]
        return DecodeResult(decoded.batches, [], 0, owners).without(rejects, records)

    def _excesses(self, objects: Objects, records: Sequence[bytes]) -> dict[int, RejectError]:
        """Return the rejects of records with so many objects that their rows would have too many values."""
        rows = np.bincount(objects.records, minlength=len(records))
        width = sum(width_of(column.type) for column in self.columns)
        return {
            record: RejectError("", f"the {rows[record]:,} objects of the record have too many values as rows")
            for record in np.flatnonzero(rows * width > MAX_VALUES).tolist()
            if rows[record] * width > values_allowed(len(records[record]))
        }


def _lines(values: Sequence[bytes]) -> Objects:
    """Return the lines of the records. Lines without text are ignored."""
    text = b"\n".join([*values, b""])
    if b"\r" in text:
        values = [value.replace(b"\r\n", b"\n").removesuffix(b"\r") for value in values]
        text = b"\n".join([*values, b""])
    letters = np.frombuffer(text, np.uint8)
    ends = np.flatnonzero(letters == NEWLINE)
    lengths = np.diff(ends, prepend=-1)  # with the newline
    starts = ends + 1 - lengths
    kept = lengths > 1
    for line in np.flatnonzero(kept & np.isin(letters[starts], list(_BLANKS))).tolist():
        kept[line] = bool(text[starts[line] : ends[line]].strip(_BLANKS))
    record_ends = np.cumsum(np.fromiter(map(len, values), np.int64, len(values)) + 1) - 1
    records = np.searchsorted(record_ends, ends[kept])
    first_lines = np.searchsorted(ends, record_ends - np.diff(record_ends, prepend=-1) + 1)
    positions = np.flatnonzero(kept) - first_lines[records] + 1
    empty = np.bincount(records, minlength=len(values)) == 0
    rejects = {record: RejectError("", "record has no JSON object") for record in np.flatnonzero(empty).tolist()}
    if not kept.all():
        text = letters[np.repeat(kept, lengths)].tobytes()
    return Objects(text[:-1], records, positions, rejects)


def _elements(values: Sequence[bytes]) -> Objects:
    """Return the elements of the records, which are arrays."""
    texts: list[bytes] = []
    records: list[Indexes] = []
    rejects: dict[int, RejectError] = {}
    for start, end in pieces(values):
        tape = Tape(values[start:end], OPEN_ARRAY)
        for record in (np.flatnonzero(tape.malformed) + start).tolist():
            rejects[record] = array_fault(values[record])
        owners, items = tape.inside(tape.roots, 1)
        is_object = tape.kind[items] == OPEN_OBJECT
        if not is_object.all():
            others = np.flatnonzero(~is_object)
            refused, first = np.unique(owners[others], return_index=True)
            positions = others[first] - np.searchsorted(owners, refused)
            for record, position in zip((refused + start).tolist(), positions.tolist(), strict=True):
                rejects[record] = RejectError("", f"element [{position}] is not an object")
            kept = ~np.isin(owners, refused)
            owners, items = owners[kept], items[kept]
        if len(items):
            texts.append(tape.lines(items))
        records.append(owners.astype(np.int64) + start)
    owner = np.concatenate(records)
    return Objects(b"\n".join(texts), owner, np.arange(len(owner)) - np.searchsorted(owner, owner), rejects)
