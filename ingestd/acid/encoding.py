"""Derives the encoding of ORC files from a table's properties, mainly `orc.*`, as far as the writers can apply them.

Invariant: a property that is not applied is reported in a warning, never ignored silently. A property that the writers
cannot apply and that protects data (column encryption) makes the table unusable.
Source: OrcConf, OrcOutputFormat. Hive divides sizes by 8 for deltas (`hive.exec.orc.base.delta.ratio`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ingestd.acid.layout import FileLayout
from ingestd.errors import InvalidTable
from ingestd.schema import Column, HiveType

Compression = Literal["zstd", "zlib", "snappy", "lz4", "none"]
DICTIONARY_THRESHOLD = 0.8  # orc.dictionary.key.threshold
_COMPRESSIONS: dict[str, Compression] = {
    "zlib": "zlib", "snappy": "snappy", "none": "none", "zstd": "zstd", "lz4": "lz4",
}  # fmt: skip
_DELTA_RATIO = 8
_STRIPE_LIMITS = 64 << 10, 64 << 20  # bytes; each open file holds one stripe in memory
_BLOCK_STEP = 64 << 10  # liborc compresses blocks of a multiple of this size
_BLOCK_LIMITS = _BLOCK_STEP, 1 << 20
_MIN_STRIDE, _MAX_BLOOM_STRIDE = 1000, 1_000_000
# The ORC type id of the first table column: the root comes before it, in insert events also their columns and `row`.
_FIRST_FIELD = {FileLayout.EVENTS: 7, FileLayout.PLAIN: 1}
# For these types Hive hashes a literal of any type in the same way as the writers hash the column's value.
_BLOOM_KINDS = frozenset({"tinyint", "smallint", "int", "bigint", "string", "varchar", "date"})
# These have no effect that a reader of a delta could observe.
_WITHOUT_EFFECT = frozenset({"orc.block.padding", "orc.block.padding.tolerance", "orc.encoding.strategy"})
_ENCRYPTION = ("orc.encrypt", "orc.mask")


@dataclass(frozen=True, slots=True)
class Encoding:
    """The encoding of the ORC files of a delta.

    `index_stride` is the number of rows per index entry (0: no index). `dictionaries` enables dictionary encoding.
    `bloom_columns` are the top-level columns that have bloom filters, which require an index. `layout` is how the files
    store rows, which depends on `transactional_properties`.
    """

    compression: Compression = "zstd"
    index_stride: int = 10_000
    dictionaries: bool = False
    stripe_bytes: int = 16 << 20
    block_bytes: int = 64 << 10
    strategy: Literal["speed", "compression"] = "speed"
    bloom_columns: tuple[str, ...] = ()
    bloom_fpp: float = 0.01
    layout: FileLayout = FileLayout.EVENTS

    def bloom_ids(self, columns: Sequence[Column]) -> set[int]:
        """Return the ORC type ids of `bloom_columns`; ORC numbers the types of a schema depth first."""
        ids, number = set(), _FIRST_FIELD[self.layout]
        for column in columns:
            if column.name in self.bloom_columns:
                ids.add(number)
            number += _count_types(column.type)
        return ids


STANDARD = Encoding()


def _count_types(kind: HiveType) -> int:
    return 1 + sum(map(_count_types, kind.children))


@dataclass(frozen=True, slots=True)
class TableEncoding:
    """The encoding that a table's properties request, and a warning for each property that is not applied."""

    encoding: Encoding
    warnings: tuple[str, ...]


def table_encoding(parameters: Mapping[str, str], columns: Sequence[Column]) -> TableEncoding:
    """Return the encoding that the properties of a table with these columns request.

    A property that cannot be applied yields a warning, and its default is used. Raises InvalidTable for column
    encryption.
    """
    chosen: dict[str, Any] = {}
    warnings: list[str] = []
    given = {key.lower(): value.strip() for key, value in sorted(parameters.items()) if key.lower().startswith("orc.")}
    for key in _ENCRYPTION:
        if given.get(key):
            raise InvalidTable(
                f"the table property {key} requires column encryption, which ingestd does not support",
                hint="write to an unencrypted table, or unset the property",
            )
    for key, value in given.items():
        if key in _WITHOUT_EFFECT or not value:
            continue
        reader = _READERS.get(key)
        if reader is None:
            warnings.append(f"{key} is not supported and was ignored")
            continue
        try:
            field, parsed = reader(value)
        except ValueError as error:
            warnings.append(f"{key} = {value[:100]!r} was ignored: {error}")
        else:
            chosen[field] = parsed
    if not chosen.pop("has_index", True):
        chosen["index_stride"] = 0
    bloom = _bloom_columns(chosen.pop("bloom_names", ()), columns, chosen.get("index_stride", 10_000), warnings)
    is_insert_only = parameters.get("transactional_properties", "").lower() == "insert_only"
    layout = FileLayout.PLAIN if is_insert_only else FileLayout.EVENTS
    return TableEncoding(Encoding(**chosen, bloom_columns=bloom, layout=layout), tuple(warnings))


def _bloom_columns(
    names: Sequence[str], columns: Sequence[Column], stride: int, warnings: list[str]
) -> tuple[str, ...]:
    """Return the columns that get a bloom filter, and append a warning to `warnings` for each other name."""
    kinds = {column.name: column.type for column in columns}
    used, others = [], []
    for name in names:
        kind = kinds.get(name)
        if kind is None:
            others.append(f"{name} is not a column of the table, or is a partition column")
        elif kind.kind not in _BLOOM_KINDS:
            others.append(f"{name} has type {kind}; bloom filters need an integer, string, varchar or date column")
        else:
            used.append(name)
    if used and not 0 < stride <= _MAX_BLOOM_STRIDE:
        others.append(f"bloom filters need an index with at most {_MAX_BLOOM_STRIDE:,} rows per entry")
        used = []
    warnings += [f"orc.bloom.filter.columns was ignored: {reason}" for reason in others]
    return tuple(dict.fromkeys(used))


def _compression(value: str) -> tuple[str, Compression]:
    if value.lower() not in _COMPRESSIONS:
        raise ValueError(f"it must be one of {', '.join(_COMPRESSIONS)}; zstd is used")
    return "compression", _COMPRESSIONS[value.lower()]


def _whole_number(value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise ValueError("it must be a whole number") from None


def _size(field: str, limits: tuple[int, int], step: int = 1) -> Callable[[str], tuple[str, int]]:
    def read(value: str) -> tuple[str, int]:
        size = _whole_number(value)
        if size <= 0:
            raise ValueError("it must be a positive number of bytes")
        return field, min(max(size // _DELTA_RATIO, limits[0]), limits[1]) // step * step

    return read


def _stride(value: str) -> tuple[str, int]:
    stride = _whole_number(value)
    if stride and not _MIN_STRIDE <= stride < 1 << 31:
        raise ValueError(f"it must be 0 or at least {_MIN_STRIDE}")
    return "index_stride", stride


def _flag(value: str) -> tuple[str, bool]:
    if value.lower() not in ("true", "false"):
        raise ValueError("it must be true or false")
    return "has_index", value.lower() == "true"


def _names(value: str) -> tuple[str, tuple[str, ...]]:
    return "bloom_names", tuple(name for part in value.split(",") if (name := part.strip().lower()))


def _fraction(value: str) -> tuple[str, float]:
    try:
        fraction = float(value)
    except ValueError:
        raise ValueError("it must be a number between 0 and 1") from None
    if not 0 < fraction < 1:
        raise ValueError("it must be between 0 and 1")
    return "bloom_fpp", fraction


def _strategy(value: str) -> tuple[str, str]:
    if value.lower() not in ("speed", "compression"):
        raise ValueError("it must be SPEED or COMPRESSION")
    return "strategy", value.lower()


_READERS: dict[str, Callable[[str], tuple[str, Any]]] = {
    "orc.compress": _compression,
    "orc.compress.size": _size("block_bytes", _BLOCK_LIMITS, _BLOCK_STEP),
    "orc.stripe.size": _size("stripe_bytes", _STRIPE_LIMITS),
    "orc.row.index.stride": _stride,
    "orc.create.index": _flag,
    "orc.bloom.filter.columns": _names,
    "orc.bloom.filter.fpp": _fraction,
    "orc.compression.strategy": _strategy,
}
