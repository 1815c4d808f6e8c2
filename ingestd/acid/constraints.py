"""Finds decoded rows that a table cannot store.

Invariant: a row that passes has a value in every NOT NULL column, and as far as is known here, the metastore can create
its partition.
Source: Hive checks NOT NULL only in its own INSERT (`enforce_constraint`) and folds `IS NULL` of such a column to
false, so that no query could find a NULL with it. Partition columns cannot be NOT NULL. The parts of a partition's
name are directory names, and the metastore stores the whole name in PARTITIONS.PART_NAME, a varchar(767).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ingestd.acid.partitions import NAME_BYTES, partition_name, partition_value
from ingestd.acid.routing import Shape, partition_codes
from ingestd.schema import Column

_PATH_CHARACTERS = 767
_MAX_NUMBER_BYTES = 64  # in the escaped text of a decimal, a timestamp or the default partition
_TEXTS = ("string", "varchar", "char")

_Mask = npt.NDArray[np.bool_]

Refuse = Callable[[Sequence[tuple[str, ...]]], Mapping[tuple[str, ...], str]]
"""Returns which of some partitions the metastore refuses, and why.

A partition is given by the values of the partition columns without static values.
"""


def unfit_rows(batch: pa.RecordBatch, shape: Shape, refuse: Refuse | None = None) -> dict[int, tuple[str, str]]:
    """Return the column and the reason for each row that cannot be stored, by the row's index in the batch.

    `batch` contains the table's columns and the partition columns without static values. Columns are looked up by name.
    Rows are examined only if the table has NOT NULL columns, a partition column contains long texts, or the metastore
    may `refuse` partitions.
    """
    unfit: dict[int, tuple[str, str]] = {}
    violations = _violations(batch, shape)
    if refuse is not None:
        violations = chain(violations, _refused(batch, shape, refuse))
    for column, mask, reason in violations:
        for row in np.flatnonzero(mask).tolist():
            unfit.setdefault(row, (column, reason))
    return unfit


def _violations(batch: pa.RecordBatch, shape: Shape) -> Iterator[tuple[str, _Mask, str]]:
    given = set(batch.schema.names)
    for column in shape.columns if shape.not_null else ():
        array = batch.column(column.name)
        if column.name in shape.not_null and array.null_count:
            yield column.name, _mask(array.is_null()), "is NULL, but the column is NOT NULL"
    dynamic = [column for column in shape.partition_columns if column.name in given]
    most = [_most_bytes(column, batch.column(column.name)) for column in dynamic]
    for column, bytes_ in zip(dynamic, most, strict=True):
        if bytes_ > NAME_BYTES:
            long = _name_lengths(column, batch.column(column.name), _utf8_length) > NAME_BYTES
            yield column.name, long, f"makes the directory name of its partition longer than {NAME_BYTES} bytes"
    if sum(most) + len(most) > _PATH_CHARACTERS:
        lengths = [_name_lengths(column, batch.column(column.name), len) for column in dynamic]
        whole = np.sum(lengths, axis=0) + len(dynamic) - 1
        reason = f"makes the name of its partition longer than {_PATH_CHARACTERS} characters"
        yield dynamic[-1].name, whole > _PATH_CHARACTERS, reason


def _refused(batch: pa.RecordBatch, shape: Shape, refuse: Refuse) -> Iterator[tuple[str, _Mask, str]]:
    given = set(batch.schema.names)
    dynamic = [column for column in shape.partition_columns if column.name in given]
    if not dynamic or not batch.num_rows:
        return
    codes, partitions = partition_codes(batch, dynamic)
    reasons = refuse(partitions)
    for code, values in enumerate(partitions):
        if values in reasons:
            quoted = (column for column, value in zip(dynamic, values, strict=True) if repr(value) in reasons[values])
            column = next(quoted, dynamic[-1])
            yield column.name, np.broadcast_to(codes == code, batch.num_rows), reasons[values]


def _mask(array: pa.Array) -> _Mask:
    return np.asarray(array.to_numpy(zero_copy_only=False), np.bool_)


def _most_bytes(column: Column, array: pa.Array) -> int:
    """Return an upper bound for the length of `key=value` in bytes; escaping a character turns one byte into three."""
    key = len(partition_name([column.name], ["-"]).encode()) - 1
    if column.type.kind not in _TEXTS:
        return key + _MAX_NUMBER_BYTES
    longest = pc.max(pc.binary_length(array)).as_py() or 0
    padding = column.type.length if column.type.kind == "char" else 0
    return key + max(_MAX_NUMBER_BYTES, 3 * longest + padding)


def _utf8_length(text: str) -> int:
    return len(text.encode())


def _name_lengths(column: Column, array: pa.Array, measure: Callable[[str], int]) -> npt.NDArray[np.int64]:
    """Return the length of each row's `key=value`, which `measure` computes once per distinct value."""
    encoded = pc.dictionary_encode(array, null_encoding="encode")
    names = [partition_name([column.name], [partition_value(column, scalar)]) for scalar in encoded.dictionary]
    lengths = np.array([measure(name) for name in names], np.int64)
    codes: npt.NDArray[np.int32] = encoded.indices.to_numpy(zero_copy_only=False)
    return lengths[codes]
