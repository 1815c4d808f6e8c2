"""Decodes many JSON records into one Arrow batch with pyarrow's JSON reader.

Invariant: a row that is not undecided equals the result of `RecordReader`. What the reader learns about the spelling
of a topic's records affects only the speed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from ingestd.formats.json.framing import frame, has_constant, unsafe_lines
from ingestd.formats.json.nested import primitive
from ingestd.formats.json.suspects import TYPE_CHANGED, suspects, without_lines
from ingestd.formats.json.times import timestamp_columns
from ingestd.formats.json.types import PrimitiveType, where
from ingestd.formats.record_decoder import MixedTimestamps, NotColumnar
from ingestd.formats.row_batches import batch_of
from ingestd.schema import Column

Mask = npt.NDArray[np.bool_]

# The records that may be undecided: this number, or this part of a batch. The tape reader is faster for more. If half
# of a batch seems to be faulty, there is something to learn.
_FEW, _PART = 8, 16
_UNEXPECTED = "unexpected field"
# What pyarrow does with fields that are not columns. Each level checks less than the one before it.
_REJECT, _INFER, _IGNORE = "error", "infer", "ignore"
_ESCAPED_NAME = re.compile(rb'\\u[0-9a-fA-F]{4}(?:[^"\\]|\\.)*"[ \t\r]*:')
_KELVIN_SIGN = "\u212a".encode()  # the only non-ASCII character whose lower case is ASCII


class ArrowReader:
    """Reads batches of records, and learns how field names are spelled and which columns have quoted values.

    pyarrow needs to know both in advance. The reader first expects the column names and unquoted values, and learns
    from pyarrow's errors.
    """

    def __init__(self, columns: Sequence[Column], *, rejects_unmatched: bool = False) -> None:
        self._columns = tuple(columns)
        self._rejects_unmatched = rejects_unmatched
        self._has_complex = any(column.type.is_complex for column in columns)
        self._types: list[PrimitiveType] = [] if self._has_complex else [primitive(column.type) for column in columns]
        self._spelling = [column.name for column in columns]
        self._quoted = [False] * len(columns)
        self._scales = [column.type.scale for column in columns if column.type.kind == "decimal"]
        self._timestamps = [index for index, column in enumerate(columns) if column.type.kind == "timestamp"]
        self._other_fields = _REJECT
        self._compile_names()

    def read(self, values: Sequence[bytes]) -> tuple[pa.RecordBatch, Mask]:
        """Decode the values into one batch, and return which rows are undecided, so that their values are undefined.

        Raises NotColumnar if too many are, and always for complex columns, and MixedTimestamps.
        """
        if self._has_complex:
            raise NotColumnar
        limit = min(max(_FEW, len(values) // _PART), len(values) // 2)
        text, undecided = frame(values, limit)
        if self._scales:
            lines = unsafe_lines(text, max(self._scales))
            if np.count_nonzero(undecided) + len(lines) > limit:
                raise NotColumnar
            if len(lines):
                text = without_lines(text, lines)
                undecided[lines] = True
        table, text = self._read(text, undecided, limit, values)
        batch = self._convert(table, text, undecided)
        if self._rejects_unmatched and self._other_fields != _REJECT:  # else each field of the batch is a column
            undecided[self._maybe_unmatched(batch, values)] = True
        if np.count_nonzero(undecided) > limit:
            raise NotColumnar
        return batch, undecided

    def _read(self, text: bytes, undecided: Mask, limit: int, values: Sequence[bytes]) -> tuple[pa.Table, bytes]:
        """Read the lines that pyarrow can read, and add the others to `undecided`."""
        before = self._other_fields
        learned: set[int] = set()
        # Each failed attempt teaches one thing: the type of a column, a spelling, that there are other fields, or which
        # records have a fault.
        for _ in range(2 * len(self._columns) + 4):
            try:
                return self._parse(text), text
            except pa.ArrowInvalid as error:  # noqa: PERF203
                lines = suspects(str(error), text, self._schema(), limit)
                if lines is not None and not undecided[lines].all():
                    text = without_lines(text, lines)
                    undecided[lines] = True
                elif not self._learn(str(error), values[int(np.argmin(undecided))], learned):
                    break
        if self._other_fields == _IGNORE:
            self._other_fields = before  # it did not help: the records are invalid, not their other fields
        raise NotColumnar

    def _parse(self, text: bytes) -> pa.Table:
        return pj.read_json(
            pa.BufferReader(text),
            read_options=pj.ReadOptions(use_threads=False, block_size=len(text) + 1),
            parse_options=pj.ParseOptions(
                explicit_schema=self._schema(),
                newlines_in_values=False,
                unexpected_field_behavior=self._other_fields,
            ),
        )

    def _schema(self) -> pa.Schema:
        return pa.schema([pa.field(name, self._read_type(index)) for index, name in enumerate(self._spelling)])

    def _read_type(self, index: int) -> pa.DataType:
        """Return the type that is requested from pyarrow."""
        as_text = self._types[index].read_as_text or self._quoted[index]
        return pa.string() if as_text else self._columns[index].type.arrow

    def _maybe_unmatched(self, batch: pa.RecordBatch, values: Sequence[bytes]) -> npt.NDArray[np.intp]:
        """Return the rows of NULLs, except those whose records certainly have a field of a column, or no fields."""
        if any(not array.null_count for array in batch.columns):
            return np.array([], np.intp)
        are_null = np.logical_and.reduce([array.is_null().to_numpy(zero_copy_only=False) for array in batch.columns])
        rows = np.flatnonzero(are_null)
        if not len(rows):
            return rows
        texts = pa.array([values[row] for row in rows.tolist()], pa.binary())
        # What looks like a name and is not inside an inner object is one, because quotes in strings are escaped.
        has_name = pc.match_substring_regex(texts, self._any_name)
        is_flat = pc.equal(pc.count_substring(texts, b"{"), 1)
        unmatched: npt.NDArray[np.intp] = rows[~pc.and_(has_name, is_flat).to_numpy(zero_copy_only=False)]
        return unmatched

    def _convert(self, table: pa.Table, text: bytes, undecided: Mask) -> pa.RecordBatch:
        """Convert what pyarrow has read, and add the rows with values that are not converted to `undecided`."""
        if table.num_rows != len(undecided):
            raise NotColumnar
        if self._other_fields != _REJECT and (has_constant(text) or self._has_other_spelling(table, text)):
            raise NotColumnar
        # Inferred columns follow the requested ones.
        arrays = [chunked.combine_chunks() for chunked in table.columns[: len(self._columns)]]
        converted = {
            index: self._column(index, arrays[index], undecided)
            for index in range(len(arrays))
            if index not in self._timestamps
        }
        timestamps = self._timestamp_columns([arrays[index] for index in self._timestamps], undecided)
        converted.update(zip(self._timestamps, timestamps, strict=True))
        return batch_of(self._columns, [converted[index] for index in range(len(arrays))])

    def _column(self, index: int, array: pa.Array, undecided: Mask) -> pa.Array:
        conversions = self._types[index]
        try:
            return conversions.column(array)
        except (NotColumnar, pa.ArrowInvalid):
            if pa.types.is_string(array.type):
                found = conversions.decided(array, "ns")
            elif pa.types.is_floating(array.type):
                found = where(pc.is_finite(array), array)
            else:
                raise NotColumnar from None
        _add_undecided(undecided, array, found)
        return found

    def _timestamp_columns(self, arrays: Sequence[pa.Array], undecided: Mask) -> list[pa.Array]:
        try:
            return timestamp_columns(arrays)
        except MixedTimestamps:
            raise
        except (NotColumnar, pa.ArrowInvalid):
            types = [self._types[index] for index in self._timestamps]
            found = [conversions.decided(array, "ns") for conversions, array in zip(types, arrays, strict=True)]
        for array, stamps in zip(arrays, found, strict=True):
            _add_undecided(undecided, array, stamps)
        return found

    def _learn(self, error: str, value: bytes, learned: set[int]) -> bool:
        """Change the request to pyarrow after an error, once per column; return False if there is nothing to change.

        `value` is one of the records.
        """
        if _UNEXPECTED in error:
            if not self._learn_spelling(value):
                self._other_fields = _INFER
            return True
        changed = TYPE_CHANGED.search(error)
        if changed and changed[1] in self._spelling:
            index = self._spelling.index(changed[1])
            if index in learned or not self._learn_quotes(index, found=changed[3]):
                return False
            learned.add(index)
            return True
        if self._other_fields != _INFER:
            return False
        self._other_fields = _IGNORE  # a field that is not a column may have several types
        return True

    def _learn_quotes(self, index: int, found: str) -> bool:
        """Switch the column between text and its own type; return False if that does not help."""
        quoted = found == "string"
        if quoted == self._quoted[index] or self._types[index].read_as_text:
            return False
        self._quoted[index] = quoted
        return True

    def _learn_spelling(self, value: bytes) -> bool:
        """Adopt a record's spelling of the field names; return True if it differs from the current one."""
        try:
            names = json.loads(value)
        except (ValueError, RecursionError):
            return False
        spelled = {name.lower(): name for name in names} if isinstance(names, dict) else {}
        spelling = [spelled.get(column.name, used) for column, used in zip(self._columns, self._spelling, strict=True)]
        changed = spelling != self._spelling
        self._spelling = spelling
        self._compile_names()
        return changed

    def _compile_names(self) -> None:
        """Compile a pattern for field names that differ from the current spelling only in case.

        The lookahead for the first letter makes the search fast.
        """
        names = [name.encode() for name in self._spelling]
        ours = b"|".join(map(re.escape, names))
        self._any_name = rb"^\s*\{\s*\}\s*$|" + rb'[^\\]"(?:' + ours + rb')"\s*:'
        letters = re.escape(bytes({name[0] for name in (*map(bytes.lower, names), *map(bytes.upper, names))}))
        self._other_case = re.compile(b'"(?=[' + letters + b"])(?!(?:" + ours + b')")(?i:' + ours + rb')"[ \t\r]*:')

    def _has_other_spelling(self, table: pa.Table, text: bytes) -> bool:
        """Return whether a column's name may occur in a spelling that pyarrow did not recognize."""
        if self._other_fields == _INFER:
            names = {column.name for column in self._columns}
            return any(name.lower() in names for name in table.schema.names[len(names) :])
        if b"\\u" in text and _ESCAPED_NAME.search(text):
            return True
        if not text.isascii() and (_KELVIN_SIGN in text or not all(name.isascii() for name in self._spelling)):
            return True
        return self._other_case.search(text) is not None


def _add_undecided(undecided: Mask, array: pa.Array, converted: pa.Array) -> None:
    """Add the rows in which the converted array has no value, although the array has one."""
    undecided |= (array.is_valid().to_numpy(zero_copy_only=False)) & converted.is_null().to_numpy(zero_copy_only=False)
