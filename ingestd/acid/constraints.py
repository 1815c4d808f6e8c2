"""Which decoded rows a table cannot take.

Invariant: a row that passes has a value in every NOT NULL column, and the metastore can make its partition.
Source: Hive checks NOT NULL in its own INSERT only (`enforce_constraint`), and folds `IS NULL` of such a column to
false; it allows no such constraint on partition columns. Partition names are directory names, and lie in
PARTITIONS.PART_NAME, a varchar(767).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ingestd.acid.partitions import NAME_BYTES, partition_name, partition_value
from ingestd.acid.routing import Shape
from ingestd.schema import Column

_PATH_CHARACTERS = 767
_WIDEST_NUMBER = 64  # a decimal, a timestamp or the default partition's name, escaped
_TEXTS = ("string", "varchar", "char")

_Mask = npt.NDArray[np.bool_]


def unfit_rows(batch: pa.RecordBatch, shape: Shape) -> dict[int, tuple[str, str]]:
    """Column and reason of each row that cannot be stored, by the row's number in the batch.

    `batch` has the table's columns and, unless the partition values are static, the partition columns, by name. A table
    without constraints and without long texts in its partition columns costs next to nothing.
    """
    unfit: dict[int, tuple[str, str]] = {}
    for column, mask, reason in _faults(batch, shape):
        for row in np.flatnonzero(mask).tolist():
            unfit.setdefault(row, (column, reason))
    return unfit


def _faults(batch: pa.RecordBatch, shape: Shape) -> Iterator[tuple[str, _Mask, str]]:
    given = set(batch.schema.names)
    for column in shape.columns if shape.not_null else ():
        array = batch.column(column.name)
        if column.name in shape.not_null and array.null_count:
            yield column.name, _mask(array.is_null()), "is NULL, the column is NOT NULL"
    dynamic = [column for column in shape.partition_columns if column.name in given]
    most = [_most_bytes(column, batch.column(column.name)) for column in dynamic]
    for column, bytes_ in zip(dynamic, most, strict=True):
        if bytes_ > NAME_BYTES:
            long = _name_lengths(column, batch.column(column.name), in_bytes=True) > NAME_BYTES
            yield column.name, long, f"makes the name of its partition's directory longer than {NAME_BYTES} bytes"
    if sum(most) + len(most) > _PATH_CHARACTERS:
        lengths = [_name_lengths(column, batch.column(column.name), in_bytes=False) for column in dynamic]
        whole = np.sum(lengths, axis=0) + len(dynamic) - 1
        reason = f"makes the name of its partition longer than {_PATH_CHARACTERS} characters"
        yield dynamic[-1].name, whole > _PATH_CHARACTERS, reason


def _mask(array: pa.Array) -> _Mask:
    return np.asarray(array.to_numpy(zero_copy_only=False), np.bool_)


def _most_bytes(column: Column, array: pa.Array) -> int:
    """An upper bound of the bytes of `key=value`; an escaped character takes three for one."""
    key = len(partition_name([column.name], ["-"]).encode()) - 1
    if column.type.kind not in _TEXTS:
        return key + _WIDEST_NUMBER
    longest = pc.max(pc.binary_length(array)).as_py() or 0
    padding = column.type.length if column.type.kind == "char" else 0
    return key + max(_WIDEST_NUMBER, 3 * longest + padding)


def _name_lengths(column: Column, array: pa.Array, *, in_bytes: bool) -> npt.NDArray[np.int64]:
    """The length of `key=value` for each row; only distinct values are looked at."""
    encoded = pc.dictionary_encode(array, null_encoding="encode")
    names = [partition_name([column.name], [partition_value(column, scalar)]) for scalar in encoded.dictionary]
    lengths = np.array([len(name.encode()) if in_bytes else len(name) for name in names], np.int64)
    places: npt.NDArray[np.int32] = encoded.indices.to_numpy(zero_copy_only=False)
    return lengths[places]
