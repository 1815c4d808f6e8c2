"""Writes Arrow batches to an ORC file with pyarrow, column by column.

Invariant: no value passes through Python. Rows that `rows_for_pyorc` selects must not be passed to this writer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import orc

from ingestd.acid.complex import push_nulls
from ingestd.acid.encoding import DICTIONARY_THRESHOLD, Encoding
from ingestd.acid.footer import FileSize
from ingestd.acid.layout import FileLayout
from ingestd.acid.sink import OrcSink
from ingestd.acid.writer import AcidWriter
from ingestd.background import run_uninterrupted
from ingestd.schema import Column, HiveType

# pyarrow cannot omit indexes; with this stride a stripe has one entry.
_ONE_ENTRY = 1 << 30
# Rows per call of liborc. Many are faster for most columns, but pyarrow copies all elements of arrays and maps that the
# call contains so far for each further row, until their memory is large enough for a call.
_BATCH_ROWS, _FEW_BATCH_ROWS = 4096, 256


class PyArrowWriter(AcidWriter):
    """Writes a file column by column. char and varchar are written as ORC STRING, which Hive converts on reading.

    `rows_for_pyorc` must return None for each batch.
    """

    def close(self) -> FileSize:
        """See `AcidWriter`."""
        if not self._rows:  # without a batch pyarrow has no schema and writes no footer
            self._append(pa.RecordBatch.from_pylist([], schema=self._schema))
        return super().close()

    def _begin(self, columns: Sequence[Column], encoding: Encoding) -> None:
        self._schema = pa.schema([pa.field(column.name, column.type.arrow) for column in columns])
        self._orc = _orc_writer(self._file, columns, encoding)

    def _append(self, batch: pa.RecordBatch) -> None:
        self._orc.write(pa.Table.from_batches([self._stored(batch)]))

    def _end(self) -> None:
        # An exception from a signal handler inside this call would terminate the process.
        run_uninterrupted(self._orc.close)

    def _stored(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert the batch to the schema of the file. Only columns with null structs are copied."""
        arrays = [
            push_nulls(array if array.type == field.type else pc.cast(array, field.type))  # timestamp[us] to [ns]
            for array, field in zip(batch.columns, self._schema, strict=True)
        ]
        if self._layout is FileLayout.PLAIN:
            return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        return self._events(arrays, batch.num_rows)

    def _events(self, arrays: list[pa.Array], count: int) -> pa.RecordBatch:
        """Wrap columns of `count` rows as the `row` struct of insert events."""
        write_ids = pa.array(np.full(count, self._write_id, np.int64))
        return pa.RecordBatch.from_arrays(
            [
                pa.array(np.zeros(count, np.int32)),
                write_ids,
                pa.array(np.full(count, self._bucket, np.int32)),
                pa.array(np.arange(self._rows, self._rows + count, dtype=np.int64)),
                write_ids,
                pa.StructArray.from_arrays(arrays, fields=list(self._schema)),
            ],
            names=["operation", "originalTransaction", "bucket", "rowId", "currentTransaction", "row"],
        )


def _orc_writer(sink: OrcSink, columns: Sequence[Column], encoding: Encoding) -> orc.ORCWriter:
    return orc.ORCWriter(
        pa.PythonFile(sink, "w"),
        compression="uncompressed" if encoding.compression == "none" else encoding.compression,
        compression_block_size=encoding.block_bytes,
        compression_strategy=encoding.strategy,
        stripe_size=encoding.stripe_bytes,
        batch_size=_FEW_BATCH_ROWS if any(_has_elements(column.type) for column in columns) else _BATCH_ROWS,
        row_index_stride=encoding.index_stride or _ONE_ENTRY,
        dictionary_key_size_threshold=DICTIONARY_THRESHOLD if encoding.dictionaries else 0.0,
        bloom_filter_columns=encoding.bloom_ids(columns) or None,
        bloom_filter_fpp=encoding.bloom_fpp,
    )


def _has_elements(kind: HiveType) -> bool:
    return kind.kind in ("array", "map") or any(map(_has_elements, kind.children))
