"""Takes the schemas out of records of Kafka Connect, and reads the logical types that they describe.

Such a schema is often larger than the row beside it, and most records of a batch have the same one. So it is parsed
once for all records that begin with the same text.

Invariant: a record without its schema has the same row and the same faults as `envelope.event_of` finds, if the
values of `Logical` are read as what they describe.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, repeat

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ingestd.formats.decoder import RejectError
from ingestd.formats.json.envelope import (
    DECIMAL,
    ISO_DATE,
    PAYLOAD,
    SCALED_DECIMAL,
    SCHEMA,
    fields_of,
    has_logical_types,
    scale_of,
    unit_of,
)
from ingestd.formats.json.record import parse_object
from ingestd.formats.json.types import where

Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Unit:
    """The unit of a number that is a date or a point in time."""

    nanos: int


Logical = int | Unit | Mapping[str, "Logical"]
"""The scale of a decimal, the unit of an instant, or those in the members of an object, by their exact names.
WITH_SCALE stands for objects that contain a decimal and its scale, DATE_TEXT for texts of dates, OTHER for types that
are not read as columns."""
OTHER, WITH_SCALE, DATE_TEXT = -1, -2, -3
UNCHANGED = -1
MAX_SCALE = 38

_BEFORE_PAYLOAD = re.compile(b'"%s"[ \t\r\n]*:[ \t\r\n]*' % PAYLOAD.encode())
_ONLY_PAYLOAD = b'{"%s":' % PAYLOAD.encode()
_MAX_PLACES = 4  # of the name of the payload in one record, which may also be a name in the schema
_MAX_NEW, _MAX_SCHEMAS = 16, 64  # in one batch, and remembered
_MAX_BYTES = 15  # of the decimals that are read here, because all of them fit into decimal(38)
_MAX_LETTERS = _MAX_BYTES // 3 * 4
_DECIMAL_BYTES = 16
_BASE64 = "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_SEXTETS = bytes.maketrans(_ALPHABET, bytes(range(64)))


class _AmbiguousError(Exception):
    """Raised for a schema with two fields whose names differ only in case."""


class Schemas:
    """Takes schemas out of records, and remembers them by the text of the record before its payload."""

    def __init__(self) -> None:
        self._known: dict[bytes, Logical] = {}

    def take_out(self, values: Sequence[bytes]) -> tuple[list[bytes], Numbers, list[Logical]]:
        """Return the records without schemas, the index of the logical types of each, and the logical types.

        A record whose schema cannot be taken out is returned as it is. Its types are OTHER if it may contain any;
        otherwise its index is UNCHANGED.
        """
        lines = list(values)
        logical_types: list[Logical] = [OTHER]
        of_record: Numbers = np.full(len(lines), UNCHANGED, np.int32)
        left: Mask = np.ones(len(lines), np.bool_)

        def take(start: bytes) -> None:
            begins = np.fromiter(map(bytes.startswith, lines, repeat(start)), np.bool_, len(lines))
            taken = np.flatnonzero(left & begins)
            if not len(taken):
                return
            left[taken] = False
            of_record[taken] = len(logical_types)
            logical_types.append(self._known.pop(start))
            self._known[start] = logical_types[-1]  # the last one that was used
            size = len(start)
            for index in taken.tolist():
                lines[index] = _ONLY_PAYLOAD + lines[index][size:]

        for start in reversed(list(self._known)):
            if left.any():
                take(start)
        without: Mask = ~left  # or the schema was not found
        for _ in range(_MAX_NEW):
            if without.all():
                break
            index = int(np.argmin(without))
            without[index] = True
            new = self._learn(lines[index])
            if new is not None:
                take(new)
                without |= ~left
        unknown = np.flatnonzero(left).tolist()
        of_record[[index for index in unknown if has_logical_types(lines[index])]] = 0
        return lines, of_record, logical_types

    def _learn(self, value: bytes) -> bytes | None:
        """Remember the logical types of a record's schema; return the text before its payload, None if not found."""
        for match in islice(_BEFORE_PAYLOAD.finditer(value), _MAX_PLACES):
            start = value[: match.end()]
            try:
                record = parse_object(start + b"{}}")
                if record.keys() != {SCHEMA, PAYLOAD} or record[PAYLOAD] != {}:
                    continue
                logical = _logical_of(record[SCHEMA])
            except (RejectError, _AmbiguousError):
                continue
            if logical is not None and not has_logical_types(start):
                return None  # their names are written with escape sequences, so that `event_of` may not find them
            while len(self._known) >= _MAX_SCHEMAS:
                del self._known[next(iter(self._known))]
            self._known[start] = {} if logical is None else logical
            return start
        return None


def _logical_of(schema: object) -> Logical | None:
    """Return the logical types in values of a schema, None if there are none. Raises _AmbiguousError."""
    if not isinstance(schema, dict):
        return None
    kind, name = schema.get("type"), schema.get("name")
    if name == DECIMAL:
        scale = scale_of(schema)
        return scale if scale is not None and 0 <= scale <= MAX_SCALE else OTHER
    if name in (SCALED_DECIMAL, ISO_DATE):
        return WITH_SCALE if name == SCALED_DECIMAL else DATE_TEXT
    if unit := unit_of(schema):
        return Unit(unit)
    if kind == "struct":
        fields = fields_of(schema)
        if len(set(map(str.lower, fields))) < len(fields):
            raise _AmbiguousError
        types = {name: _logical_of(inner) for name, inner in fields.items()}
        return {name: logical for name, logical in types.items() if logical is not None} or None
    items = schema.get({"map": "values", "array": "items"}.get(str(kind), ""))
    return None if _logical_of(items) is None else OTHER


def numbers(unscaled: pa.StringArray, scale: int) -> pa.StringArray:
    """Return the text of decimals whose unscaled values are the Base64 of two's complement bytes.

    `scale` is not negative. The text of a value that is not valid, or not in the usual notation, is null.
    """
    if not len(unscaled):
        return unscaled
    valid = pc.and_(
        pc.match_substring_regex(unscaled, _BASE64),
        pc.and_(pc.greater(pc.binary_length(unscaled), 0), pc.less_equal(pc.binary_length(unscaled), _MAX_LETTERS)),
    )
    letters = pc.if_else(valid, unscaled, "AA==")
    digits = pc.cast(_integers(letters), pa.string())
    if scale:
        sign = pc.if_else(pc.starts_with(digits, "-"), "-", "")
        digits = pc.utf8_lpad(pc.utf8_ltrim(digits, "-"), scale + 1, "0")
        whole, fraction = pc.utf8_slice_codeunits(digits, 0, -scale), pc.utf8_slice_codeunits(digits, -scale)
        digits = pc.binary_join_element_wise(sign, whole, ".", fraction, "")
    return where(valid, digits)


def _integers(encoded: pa.StringArray) -> pa.Array:
    """Return the integers, as decimals, whose two's complement bytes are encoded in Base64, at most _MAX_LETTERS."""
    count = len(encoded)
    used = pc.binary_length(pc.utf8_rtrim(encoded, "=")).to_numpy()
    padded = pc.utf8_rpad(pc.replace_substring(encoded, "=", "A"), _MAX_LETTERS, "A")
    offsets = np.frombuffer(padded.buffers()[1], np.int32)
    text = padded.buffers()[2].to_pybytes()[offsets[padded.offset] :][: count * _MAX_LETTERS]
    sextets = np.frombuffer(text.translate(_SEXTETS), np.uint8).reshape(count, _MAX_LETTERS // 4, 4).astype(np.uint32)
    words = sextets[..., 0] << 18 | sextets[..., 1] << 12 | sextets[..., 2] << 6 | sextets[..., 3]
    content = np.stack([words >> 16, words >> 8, words], axis=2).astype(np.uint8).reshape(count, _MAX_BYTES)
    # The last byte comes first in Arrow's decimals; the bytes before the first one repeat its sign.
    places = (used * 6 // 8)[:, None] - 1 - np.arange(_DECIMAL_BYTES)
    sign = (content[:, :1] >> 7) * np.uint8(255)
    ordered = np.where(places < 0, sign, np.take_along_axis(content, np.maximum(places, 0), axis=1))
    return pa.Array.from_buffers(pa.decimal128(38, 0), count, [None, pa.py_buffer(ordered.tobytes())])
