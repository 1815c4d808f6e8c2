"""Rows are sorted into Hive partitions by their values, column-wise.

Invariant: names and values are Hive's own texts (FileUtils.makePartName, Streaming's getPartitionValues), and each row
goes to exactly one partition, in its old order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ingestd.errors import InvalidTable
from ingestd.schema import Column

DEFAULT_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED = {
    code: f"%{code:02X}" for code in (*range(0x20), 0x7F, *map(ord, "\"#%'*/:=?\\{[]^"))
}  # FileUtils.charToEscape
_FEW = 1 << 16


def partition_name(keys: Sequence[str], values: Sequence[str]) -> str:
    """`key=value/key=value`, escaped; an empty value is the default partition (FileUtils.makePartName)."""
    pairs = zip(keys, values, strict=True)
    return "/".join(f"{_escape(key.lower())}={_escape(value or DEFAULT_PARTITION)}" for key, value in pairs)


def _escape(text: str) -> str:
    return text.translate(_ESCAPED)


def partition_value(column: Column, scalar: pa.Scalar) -> str:
    """The text that Hive keeps for a partition value (Writable.toString); NULL and '' are the default partition.

    Raises InvalidTable for binary columns, which have no such text.
    """
    if not scalar.is_valid:
        return DEFAULT_PARTITION
    kind = column.type.kind
    if kind == "binary":
        raise InvalidTable("a binary column cannot be a partition column", where=f"column {column.name}")
    if kind == "timestamp":
        return _timestamp(scalar)
    value = scalar.as_py()
    if kind == "boolean":
        return "true" if value else "false"
    if kind == "decimal":
        return _decimal(value)
    if kind in ("float", "double"):
        return _java_double(str(np.float32(value)) if kind == "float" else repr(value))
    if kind == "char":
        value = value.ljust(column.type.length)  # HiveCharWritable.toString pads
    return str(value) or DEFAULT_PARTITION


def _decimal(value: Decimal) -> str:
    """Plain digits without trailing zeros (HiveDecimal.toString)."""
    text = f"{value:f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text in ("-0", "") else text


def _timestamp(scalar: pa.Scalar) -> str:
    """`yyyy-MM-dd HH:mm:ss`, with the fraction only if there is one (Timestamp.toString)."""
    units = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}[scalar.type.unit]
    seconds, rest = divmod(scalar.value, units)
    day = np.datetime64(0, "s") + np.timedelta64(seconds, "s")
    fraction = str(rest * (1_000_000_000 // units)).zfill(9).rstrip("0")
    return str(day).replace("T", " ") + (f".{fraction}" if fraction else "")


def _java_double(text: str) -> str:
    """Shortest digits in Java's notation (Double.toString): plain from 1e-3 to 1e7, else `d.dE±n`."""
    number = Decimal(text) if text not in ("nan", "inf", "-inf") else None
    if number is None:
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[text]
    sign = "-" if number.is_signed() else ""
    if not number:
        return sign + "0.0"
    digits = "".join(map(str, number.as_tuple().digits)).rstrip("0")
    exponent = number.adjusted()
    if -3 <= exponent < 7:
        plain = f"{Decimal(digits).scaleb(exponent - len(digits) + 1):f}"
        return sign + (plain if "." in plain else plain + ".0")
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{exponent}"


@dataclass(frozen=True, slots=True)
class Routed:
    """The rows of one partition; `values` in the order of the partition columns, `rows` without those columns."""

    values: tuple[str, ...]
    rows: pa.RecordBatch


def route(batch: pa.RecordBatch, columns: Sequence[Column], partition_columns: Sequence[Column]) -> list[Routed]:
    """Split a batch by its partition columns; every column is found in the batch by name.

    `columns` are the table's columns without the partition columns and give the order of `Routed.rows`. Rows of one
    partition keep their order; a table without partition columns gives one `Routed` with no values.
    """
    rows = batch.select([column.name for column in columns])
    if batch.num_rows == 0:
        return []
    codes = np.zeros(1, np.int64)
    texts: list[tuple[str, ...]] = [()]
    for column in partition_columns:
        more, values = _codes(column, batch.column(column.name))
        codes, texts = _combine(codes, texts, more, values)
    if len(texts) == 1:
        return [Routed(texts[0], rows)]
    order = np.argsort(codes.astype(np.uint16) if len(texts) <= _FEW else codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    ends = [*starts[1:].tolist(), len(order)]
    rows = rows.take(pa.array(order))
    return [
        Routed(texts[codes[order[start]]], rows.slice(start, end - start))
        for start, end in zip(starts.tolist(), ends, strict=True)
    ]


def _codes(column: Column, array: pa.Array) -> tuple[npt.NDArray[np.int64], list[str]]:
    """A number per row and the text of each number; values with one text share their number."""
    encoded = pc.dictionary_encode(array, null_encoding="encode")
    texts = [partition_value(column, scalar) for scalar in encoded.dictionary]
    distinct = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    if len(distinct) == 1:
        return np.zeros(1, np.int64), list(distinct)
    renumber = np.fromiter((distinct[text] for text in texts), np.int64, len(texts))
    return renumber[encoded.indices.to_numpy(zero_copy_only=False)], list(distinct)


def _combine(
    codes: npt.NDArray[np.int64], texts: list[tuple[str, ...]], more: npt.NDArray[np.int64], values: list[str]
) -> tuple[npt.NDArray[np.int64], list[tuple[str, ...]]]:
    """Number the pairs that occur; an array of length 1 stands for the same number in every row."""
    if len(values) == 1:
        return codes, [(*text, values[0]) for text in texts]
    if len(texts) == 1:
        return more, [(*texts[0], value) for value in values]
    pairs, numbers = np.unique(codes * len(values) + more, return_inverse=True)
    combined = [(*texts[pair // len(values)], values[pair % len(values)]) for pair in pairs.tolist()]
    return numbers.astype(np.int64), combined
