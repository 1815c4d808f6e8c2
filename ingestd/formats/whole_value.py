"""The formats `text` and `binary`: the whole value of a record is stored in one column, and all others are NULL.

Invariant: the value is stored unchanged, except for the trailing spaces of a char, or the record is a reject.

| Format | Column | Rejects |
|---|---|---|
| text | string | invalid UTF-8 |
| text | varchar(n), char(n); char drops trailing spaces | the same, and more than n characters |
| binary | binary | |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ingestd.errors import ConfigError
from ingestd.formats.decoder import RejectError
from ingestd.formats.record_decoder import RecordDecoder, RejectReasons, Tombstones, TombstonesKey
from ingestd.formats.row_batches import Row, batch_of
from ingestd.keys import Check, Doc
from ingestd.schema import Column

_NAME = Check(str.lower, {})  # Hive stores names in lower case
_TEXT_TYPES, _BINARY_TYPES = ("string", "varchar", "char"), ("binary",)


@dataclass(frozen=True, slots=True)
class TextOptions:
    """A record is text in UTF-8, which is stored in `column`: by default the only column of the records."""

    type: Annotated[Literal["text"], Doc("Each record is text, which is stored in one column.")] = "text"
    tombstones: TombstonesKey = "stop"
    column: Annotated[str, _NAME, Doc("The column that stores the value; by default the only column.")] = ""

    def decoder(self, columns: Sequence[Column]) -> TextDecoder:
        """Return a decoder of records into these columns. Raises ConfigError if none of them can store the text."""
        return TextDecoder(columns, _position(columns, self.column, _TEXT_TYPES), tombstones=self.tombstones)


@dataclass(frozen=True, slots=True)
class BinaryOptions:
    """The bytes of a record are stored in `column`: by default the only column of the records."""

    type: Annotated[Literal["binary"], Doc("The bytes of each record are stored in one column.")] = "binary"
    tombstones: TombstonesKey = "stop"
    column: Annotated[str, _NAME, Doc("The column that stores the value; by default the only column.")] = ""

    def decoder(self, columns: Sequence[Column]) -> BinaryDecoder:
        """Return a decoder of records into these columns. Raises ConfigError if none of them can store the bytes."""
        return BinaryDecoder(columns, _position(columns, self.column, _BINARY_TYPES), tombstones=self.tombstones)


def _position(columns: Sequence[Column], name: str, kinds: Sequence[str]) -> int:
    """Return the index of the column that stores the whole value. Raises ConfigError."""
    names = [column.name for column in columns]
    if not name and len(columns) != 1:
        raise ConfigError(
            f"the whole value is stored in one column, but the records have {len(columns)} columns: {', '.join(names)}",
            where="format.column",
            hint="set format.column to the column that stores the value",
        )
    if name and name not in names:
        raise ConfigError(
            f"{name} is not a column of the records: {', '.join(names)}",
            where="format.column",
            hint="name a column of the table, but not a partition column with another source (partition)",
        )
    position = names.index(name) if name else 0
    if columns[position].type.kind not in kinds:
        raise ConfigError(
            f"column {names[position]} has the type {columns[position].type}, which cannot store the whole value",
            where="format.column",
            hint=f"name a column of the type {' or '.join(kinds)}",
        )
    return position


class _WholeValueDecoder(RecordDecoder):
    """Stores whole values in the column at `position`; the other columns are NULL."""

    def __init__(self, columns: Sequence[Column], position: int, *, tombstones: Tombstones = "stop") -> None:
        super().__init__(columns, tombstones=tombstones)
        self.column = columns[position]
        self._position = position

    def absent_columns(self, values: Sequence[bytes]) -> frozenset[str]:
        """See `RecordDecoder`."""
        return frozenset(column.name for column in self.columns if column.name != self.column.name)

    def row(self, value: bytes | str) -> Row:
        """Return the row that contains the value."""
        return [value if index == self._position else None for index in range(len(self.columns))]

    def batch(self, values: pa.Array) -> pa.RecordBatch:
        """Return the rows that contain the values."""
        arrays = [
            values if index == self._position else pa.nulls(len(values), column.type.arrow)
            for index, column in enumerate(self.columns)
        ]
        return batch_of(self.columns, arrays)


class BinaryDecoder(_WholeValueDecoder):
    """Stores the bytes of each record in the column at `position`, which has the type binary."""

    def decode_record(self, value: bytes) -> Row:
        """See `RecordDecoder`."""
        return self.row(value)

    def decode_batch(self, values: Sequence[bytes]) -> tuple[pa.RecordBatch, RejectReasons]:
        """See `RecordDecoder`."""
        return self.batch(pa.array(values, pa.binary())), {}


class TextDecoder(_WholeValueDecoder):
    """Stores the text of each record in the column at `position`, which has the type string, varchar or char."""

    def decode_record(self, value: bytes) -> Row:
        """See `RecordDecoder`."""
        text = _text(value)
        kind = self.column.type
        if kind.kind == "char":
            text = text.rstrip(" ")
        if kind.length and len(text) > kind.length:
            raise RejectError(self.column.name, f"text of {len(text)} characters is longer than {kind}")
        return self.row(text)

    def decode_batch(self, values: Sequence[bytes]) -> tuple[pa.RecordBatch, RejectReasons]:
        """See `RecordDecoder`."""
        texts, rejects = _texts(values)
        kind = self.column.type
        if kind.kind == "char":
            texts = pc.utf8_rtrim(texts, characters=" ")
        if kind.length:
            lengths = pc.utf8_length(texts)
            for row in np.flatnonzero(pc.greater(lengths, kind.length)).tolist():
                rejects[row] = self.column.name, f"text of {lengths[row]} characters is longer than {kind}"
        return self.batch(texts), rejects


def _text(value: bytes) -> str:
    """Return the text of a record. Raises RejectError."""
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise RejectError("", f"record is not UTF-8 (byte {error.start})") from None


def _texts(values: Sequence[bytes]) -> tuple[pa.StringArray, dict[int, tuple[str, str]]]:
    """Return the texts of all records, and the rejects, which have an empty text."""
    rejects: dict[int, tuple[str, str]] = {}
    try:
        return pa.array(values, pa.binary()).cast(pa.string()), rejects
    except pa.ArrowInvalid:  # a record is not UTF-8
        texts = ["" for _ in values]
    for row, value in enumerate(values):
        try:
            texts[row] = _text(value)
        except RejectError as error:  # noqa: PERF203
            rejects[row] = error.column, error.reason
    return pa.array(texts, pa.string()), rejects
