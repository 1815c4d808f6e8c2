"""Decodes the fields of many records to rows, column by column.

Invariant: every value equals the result of the column's `values.reader` for the same field.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ingestd.formats.decoder import VALUES_OF_PART, RejectError, TooManyValues
from ingestd.formats.lazysimple.limits import FieldLimit
from ingestd.formats.lazysimple.nested import column_reader
from ingestd.formats.lazysimple.primitives import far_rows, in_micros, nulls
from ingestd.formats.lazysimple.values import FieldSyntax, InvalidField, NotUtf8, reader
from ingestd.formats.record_decoder import MixedTimestamps, NotColumnar, RejectReasons
from ingestd.formats.row_batches import Row, batch_of, has_timestamp
from ingestd.formats.values import MAX_VALUES, TOO_MANY_VALUES, values_allowed
from ingestd.schema import Column


class FieldConverter:
    """Converts the fields of records to rows. A field is bytes, or None if it is missing or is the NULL text.

    `positions` contains the index of the field of each column, or None for a column that has no field and is NULL; by
    default, the fields are the columns in their order.
    """

    def __init__(
        self, columns: Sequence[Column], syntax: FieldSyntax, positions: Sequence[int | None] | None = None
    ) -> None:
        self._columns = tuple(columns)
        indexes = range(len(columns)) if positions is None else positions
        self._sources = [
            None if index is None else (index, reader(column.type, syntax), column_reader(column.type, syntax))
            for column, index in zip(columns, indexes, strict=True)
        ]
        self._limits = [
            (column.name, source[0], limit)
            for column, source in zip(columns, self._sources, strict=True)
            if source is not None and (limit := FieldLimit.of(column.type, syntax)) is not None
        ]
        self._timestamps = [index for index, column in enumerate(columns) if column.type.kind == "timestamp"]
        self._nests_timestamps = any(
            source is not None and column.type.is_complex and has_timestamp(column.type)
            for column, source in zip(columns, self._sources, strict=True)
        )

    def row(self, fields: Sequence[bytes | None]) -> Row:
        """Convert the fields of one record to a row; this is the reference for `batch`. Raises RejectError."""
        self._require_few(fields)
        values: list[Any] = []
        try:
            for source in self._sources:
                field = None if source is None else fields[source[0]]
                values.append(None if source is None or field is None else source[1](field))
        except (InvalidField, NotUtf8) as error:
            raise RejectError(self._columns[len(values)].name, str(error)) from None
        return values

    def absent(self, width: int) -> frozenset[str]:
        """Return the names of the columns without a field in records of `width` fields."""
        pairs = zip(self._columns, self._sources, strict=True)
        return frozenset(column.name for column, source in pairs if source is None or source[0] >= width)

    def batch(self, arrays: Sequence[pa.Array]) -> tuple[pa.RecordBatch, RejectReasons]:
        """Convert the fields of many records, one binary array per field, to a batch of rows and the rejects.

        Raises NotColumnar or MixedTimestamps if the rows need different timestamp units, and TooManyValues.
        """
        converted: list[pa.Array] = []
        arrays, rejects = self._without_excesses(arrays)
        for column, source in zip(self._columns, self._sources, strict=True):
            if source is None:
                converted.append(nulls(column.type, arrays[0]))
                continue
            index, _, read_column = source
            values, reasons = read_column(arrays[index])
            for row, reason in reasons.items():
                rejects.setdefault(row, (column.name, reason))
            converted.append(values)
        units = {converted[index].type.unit for index in self._timestamps}
        if "us" in units and self._nests_timestamps:  # those inside complex columns are in nanoseconds
            raise self._mixed(converted)
        if len(units) > 1:
            try:
                converted = [
                    in_micros(column) if i in self._timestamps else column for i, column in enumerate(converted)
                ]
            except NotColumnar:
                raise self._mixed(converted) from None
        return batch_of(self._columns, converted), rejects

    def may_exceed(self, size: int) -> bool:
        """Return whether a record of this size may have too many values in its arrays and maps."""
        return sum(limit.of_size(size) for _, _, limit in self._limits) > MAX_VALUES

    def _require_few(self, fields: Sequence[bytes | None]) -> None:
        """Raise RejectError if arrays and maps of a record have too many values."""
        size = sum(map(len, filter(None, fields))) if self._limits else 0
        count = 0
        for name, index, limit in self._limits if self.may_exceed(size) else ():
            count += limit.of_field(fields[index])
            if count > values_allowed(size):
                raise RejectError(name, TOO_MANY_VALUES)

    def _without_excesses(self, arrays: Sequence[pa.Array]) -> tuple[list[pa.Array], dict[int, tuple[str, str]]]:
        """Return the fields, which are NULL in records that have too many values, and the rejects of these."""
        arrays, rejects = list(arrays), dict[int, tuple[str, str]]()
        count = len(arrays[0])
        most = sum(limit.of_size(arrays[index].nbytes) + count * limit.of_size(0) for _, index, limit in self._limits)
        if most <= VALUES_OF_PART:
            return arrays, rejects
        values, sizes = np.zeros(count, np.int64), np.zeros(count, np.int64)
        for array in arrays:
            sizes += pc.binary_length(array).fill_null(0).to_numpy()
        allowed = values_allowed(sizes)
        for name, index, limit in self._limits:
            values += limit.of_fields(arrays[index])
            for row in np.flatnonzero(values > allowed).tolist():
                rejects.setdefault(row, (name, TOO_MANY_VALUES))
        values[list(rejects)] = 0
        if count > 1 and values.sum() > VALUES_OF_PART:
            raise TooManyValues(values)
        if rejects:
            keep = np.ones(count, np.bool_)
            keep[list(rejects)] = False
            arrays = [pc.if_else(pa.array(keep), array, pa.scalar(None, array.type)) for array in arrays]
        return arrays, rejects

    def _mixed(self, converted: Sequence[pa.Array]) -> MixedTimestamps:
        return MixedTimestamps(np.any([far_rows(converted[index]) for index in self._timestamps], axis=0))
