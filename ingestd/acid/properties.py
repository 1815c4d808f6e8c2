"""The ORC properties of a table, as far as our writers can follow them.

Invariant: a property that is not followed is named in a warning, never ignored silently; one whose neglect would store
what the table forbids (column encryption) makes the table unusable.
Source: OrcConf, OrcOutputFormat; Hive divides sizes by 8 for deltas (`hive.exec.orc.base.delta.ratio`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ingestd.acid.writer import Compression, Encoding
from ingestd.errors import InvalidTable
from ingestd.schema import Column

_COMPRESSIONS: dict[str, Compression] = {
    "zlib": "zlib", "snappy": "snappy", "none": "none", "zstd": "zstd", "lz4": "lz4",
}  # fmt: skip
_DELTA_RATIO = 8
_STRIPE_LIMITS = 64 << 10, 64 << 20  # sixteen files are open at once
_BLOCK_STEP = 64 << 10  # liborc compresses blocks of a multiple of this
_BLOCK_LIMITS = _BLOCK_STEP, 1 << 20
_LEAST_STRIDE, _WIDEST_STRIDE = 1000, 1_000_000
# Hive hashes their values as our writers do, whatever the type of the literal that they are compared with.
_BLOOM_KINDS = frozenset({"tinyint", "smallint", "int", "bigint", "string", "varchar", "date"})
# They change nothing that a reader of a delta could tell.
_WITHOUT_EFFECT = frozenset({"orc.block.padding", "orc.block.padding.tolerance", "orc.encoding.strategy"})
_FORBIDDING = ("orc.encrypt", "orc.mask")


@dataclass(frozen=True, slots=True)
class Properties:
    """What the table's properties make of the files, and one sentence for each that is not followed."""

    encoding: Encoding
    warnings: tuple[str, ...]


def orc_properties(parameters: Mapping[str, str], columns: Sequence[Column]) -> Properties:
    """Read the properties `orc.*` of a table with these columns.

    Raises InvalidTable for column encryption. A value that cannot be used gives a warning and the default.
    """
    chosen: dict[str, Any] = {}
    warnings: list[str] = []
    given = {key.lower(): value.strip() for key, value in sorted(parameters.items()) if key.lower().startswith("orc.")}
    for key in _FORBIDDING:
        if given.get(key):
            raise InvalidTable(
                f"the table asks for column encryption by {key}, which ingestd cannot write",
                hint="load an unencrypted table, or unset the property",
            )
    for key, value in given.items():
        if key in _WITHOUT_EFFECT or not value:
            continue
        reader = _READERS.get(key)
        if reader is None:
            warnings.append(f"{key} is not followed")
            continue
        try:
            field, parsed = reader(value)
        except ValueError as error:
            warnings.append(f"{key} = {value[:100]!r} is not followed: {error}")
        else:
            chosen[field] = parsed
    if not chosen.pop("has_index", True):
        chosen["index_stride"] = 0
    bloom = _bloom_columns(chosen.pop("bloom_names", ()), columns, chosen.get("index_stride", 10_000), warnings)
    return Properties(Encoding(**chosen, bloom_columns=bloom), tuple(warnings))


def _bloom_columns(
    names: Sequence[str], columns: Sequence[Column], stride: int, warnings: list[str]
) -> tuple[str, ...]:
    """Those of the names that get a bloom filter."""
    kinds = {column.name: column.type for column in columns}
    used, others = [], []
    for name in names:
        kind = kinds.get(name)
        if kind is None:
            others.append(f"{name} is not a column outside the partition columns")
        elif kind.kind not in _BLOOM_KINDS:
            others.append(f"{name} is {kind}, and bloom filters are written for integers, string, varchar and date")
        else:
            used.append(name)
    if used and not 0 < stride <= _WIDEST_STRIDE:
        others.append(f"filters need an index with at most {_WIDEST_STRIDE:,} rows an entry")
        used = []
    warnings += [f"orc.bloom.filter.columns is not followed: {why}" for why in others]
    return tuple(dict.fromkeys(used))


def _compression(value: str) -> tuple[str, Compression]:
    if value.lower() not in _COMPRESSIONS:
        raise ValueError(f"files are compressed by zstd; {', '.join(_COMPRESSIONS)} can be chosen")
    return "compression", _COMPRESSIONS[value.lower()]


def _size(field: str, limits: tuple[int, int], step: int = 1) -> Callable[[str], tuple[str, int]]:
    def read(value: str) -> tuple[str, int]:
        size = int(value)
        if size <= 0:
            raise ValueError("it must be a number of bytes over 0")
        return field, min(max(size // _DELTA_RATIO, limits[0]), limits[1]) // step * step

    return read


def _stride(value: str) -> tuple[str, int]:
    stride = int(value)
    if stride and not _LEAST_STRIDE <= stride < 1 << 31:
        raise ValueError(f"it must be 0 or at least {_LEAST_STRIDE}")
    return "index_stride", stride


def _flag(value: str) -> tuple[str, bool]:
    if value.lower() not in ("true", "false"):
        raise ValueError("it must be true or false")
    return "has_index", value.lower() == "true"


def _names(value: str) -> tuple[str, tuple[str, ...]]:
    return "bloom_names", tuple(name for part in value.split(",") if (name := part.strip().lower()))


def _fraction(value: str) -> tuple[str, float]:
    fraction = float(value)
    if not 0 < fraction < 1:
        raise ValueError("it must lie between 0 and 1")
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
