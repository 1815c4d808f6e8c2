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
import pyarrow as pa

from ingestd.formats.decoder import (
    NEWLINE,
    VALUES_OF_PART,
    DecodeResult,
    LazyRejects,
    Lines,
    Reject,
    RejectError,
    TooManyValues,
    decode_in_parts,
    rejected_rows,
    without_tombstones,
)
from ingestd.formats.json.decoder import JsonDecoder
from ingestd.formats.json.header import Framing, no_header, texts_of
from ingestd.formats.json.layout import PLAIN, Layout
from ingestd.formats.json.record import array_fault
from ingestd.formats.json.tape import OPEN_ARRAY, OPEN_OBJECT, Tape
from ingestd.formats.json.tape_reader import pieces
from ingestd.formats.record_decoder import Tombstones
from ingestd.formats.values import values_allowed
from ingestd.schema import Column

Several = Literal["array", "lines"]
Indexes = npt.NDArray[np.int64]
# Why a record is a reject: rejects of objects, the place of its first one among them, and the objects before these.
_Cause = RejectError | tuple[Sequence[Reject], int, int]

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
        framing: Framing = "none",
        tombstones: Tombstones = "stop",
    ) -> None:
        super().__init__(columns, layout, tombstones=tombstones)  # of objects, which have no header
        self._has_header = framing != "none"
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
        text = self._split(self._contents(values)[0]).text if values else b""
        return Lines(text) if text else []

    def decode(self, values: Sequence[bytes | None]) -> DecodeResult:
        """See `Decoder`. The reason of a reject names its first object that does not fit."""
        records = without_tombstones(values)
        if len(records) < len(values):
            return self._with_tombstones(values, records)
        if not records:
            return DecodeResult([], [], 0)
        contents, others = self._contents(records)
        objects = self._split(contents)
        objects.rejects.update((record, no_header()) for record in others)
        excess = self._excess(objects, contents)
        if excess is not None:
            return DecodeResult([], [Reject.of(0, records[0], excess.column, excess.reason)], 0, np.zeros(0, np.int64))
        batches: list[pa.RecordBatch] = []
        owners = [np.zeros(0, np.int64)]
        causes: dict[int, _Cause] = dict(objects.rejects)
        lines = Lines(objects.text) if len(objects.records) else []
        for start, part, decoded in decode_in_parts(super().decode, lines) if lines else ():
            of_objects = objects.records[start : start + len(part)]
            batches += decoded.batches
            owners.append(of_objects[decoded.records_of_rows(part)])
            refused, firsts = np.unique(of_objects[rejected_rows(decoded.rejects)], return_index=True)
            for record, first in zip(refused.tolist(), firsts.tolist(), strict=True):
                causes.setdefault(record, (decoded.rejects, first, start))
        place, positions = self._place, objects.positions

        def create(row: int) -> Reject:
            cause = causes[row]
            if isinstance(cause, RejectError):
                return Reject.of(row, records[row], cause.column, cause.reason)
            rejects, first, start = cause
            reject = rejects[first]
            where = place.format(positions[start + reject.row])
            return Reject.of(row, records[row], reject.column, f"{where}: {reject.reason}")

        rejects = LazyRejects(np.sort(np.fromiter(causes, np.int64, len(causes))), create)
        return DecodeResult(batches, [], 0, np.concatenate(owners)).with_rejects(rejects, records)

    def _contents(self, values: Sequence[bytes]) -> tuple[Sequence[bytes], Sequence[int]]:
        """Return the texts of records, and the indexes of those without the header of the framing."""
        return texts_of(values) if self._has_header else (values, ())

    def _excess(self, objects: Objects, records: Sequence[bytes]) -> RejectError | None:
        """Return the reject of a record whose objects have too many values as rows; None if it has not.

        Raises TooManyValues if several records have too many together.
        """
        rows = np.bincount(objects.records, minlength=len(records))
        most, inside = rows * self._row_width, self._records.most_values(records)
        most += 0 if inside is None else inside
        if most.sum() <= VALUES_OF_PART:
            return None
        if len(records) > 1:
            raise TooManyValues(most)
        allowed = values_allowed(len(records[0]))
        if most[0] <= allowed or rows[0] * self._row_width + self._tape.count(Lines(objects.text)) <= allowed:
            return None
        return RejectError("", f"the {rows[0]:,} objects of the record have too many values as rows")


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
