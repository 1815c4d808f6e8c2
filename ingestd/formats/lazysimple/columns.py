"""Decodes the fields of many records to rows, column by column.

Invariant: every value equals the result of the column's `values.reader` for the same field.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ingestd.formats.decoder import RejectError
from ingestd.formats.lazysimple.nested import column_reader
from ingestd.formats.lazysimple.primitives import far_rows, in_micros, nulls
from ingestd.formats.lazysimple.values import FieldSyntax, InvalidField, NotUtf8, reader
from ingestd.formats.record_decoder import MixedTimestamps, NotColumnar, RejectReasons
from ingestd.formats.row_batches import Row, batch_of, has_timestamp
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
        self._timestamps = [index for index, column in enumerate(columns) if column.type.kind == "timestamp"]
        self._nests_timestamps = any(
            source is not None and column.type.is_complex and has_timestamp(column.type)
            for column, source in zip(columns, self._sources, strict=True)
        )

    def row(self, fields: Sequence[bytes | None]) -> Row:
        """Convert the fields of one record to a row; this is the reference for `batch`. Raises RejectError."""
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

        Raises NotColumnar or MixedTimestamps if the rows need different timestamp units.
        """
        converted: list[pa.Array] = []
        rejects: dict[int, tuple[str, str]] = {}
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

    def _mixed(self, converted: Sequence[pa.Array]) -> MixedTimestamps:
        return MixedTimestamps(np.any([far_rows(converted[index]) for index in self._timestamps], axis=0))
