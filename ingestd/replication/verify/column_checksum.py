"""Checksums of the columns of Arrow batches, which do not depend on the order of the rows or on their files.

Invariant: equal multisets of values have equal checksums. Different ones have equal checksums with a probability of
2⁻⁶⁴, unless somebody constructed them: the functions are not cryptographic. No value passes through Python.

The checksum of a column is the sum of a 64-bit hash of each value, modulo 2⁶⁴. The hash does not depend on the width of
an integer or a floating-point number, because Hive changes the types of a column without writing its files again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Hashes = npt.NDArray[np.uint64]

_MASK = 2**64 - 1
_NULL = np.uint64(0x9AE16A3B2F90404F)
_STEP = np.uint64(0x9E3779B97F4A7C15)
_BYTES_AT_ONCE = 128 << 10  # the arrays for them fit into the cache, which makes this three times as fast


@dataclass(frozen=True, slots=True)
class Checksums:
    """The number of rows, and a checksum for each column in their order."""

    rows: int
    columns: tuple[int, ...]

    def __add__(self, other: Checksums) -> Checksums:
        """Return the checksums of the rows of both."""
        pairs = zip(self.columns, other.columns, strict=True)
        return Checksums(self.rows + other.rows, tuple((pair + two) & _MASK for pair, two in pairs))

    @classmethod
    def none(cls, columns: int) -> Checksums:
        """Return the checksums of no rows."""
        return cls(0, (0,) * columns)


def checksums(batches: Iterable[pa.RecordBatch], columns: int) -> Checksums:
    """Return the checksums of the first `columns` columns; a column that a batch lacks has only nulls."""
    total = Checksums.none(columns)
    for batch in batches:
        sums = [_sum(batch.column(at) if at < batch.num_columns else pa.nulls(len(batch))) for at in range(columns)]
        total += Checksums(len(batch), tuple(sums))
    return total


def _sum(column: pa.Array) -> int:
    return int(_hashes(column).sum(dtype=np.uint64))


def _hashes(array: pa.Array) -> Hashes:
    """Return a hash for each value."""
    kind = array.type
    if pa.types.is_null(kind):
        return np.full(len(array), _NULL)
    if pa.types.is_dictionary(kind):
        return _hashes(array.dictionary_decode())
    hashes = _kernel(kind)(array)
    hashes[np.asarray(array.is_null())] = _NULL
    return hashes


def _kernel(kind: pa.DataType) -> Callable[[pa.Array], Hashes]:
    kernels: Sequence[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], Hashes]]] = (
        (pa.types.is_struct, _structs),
        (pa.types.is_map, _maps),
        (pa.types.is_list, _lists),
        (pa.types.is_decimal, _decimals),
        (pa.types.is_floating, _floats),
        (pa.types.is_integer, _integers),
        (pa.types.is_boolean, _integers),
        (pa.types.is_temporal, _integers),
    )
    return next((kernel for is_kind, kernel in kernels if is_kind(kind)), _texts)


def _mixed(values: Hashes) -> Hashes:
    """Return a hash of each number, so that every bit depends on all bits (the finalizer of SplitMix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    values ^= values >> np.uint64(31)
    return values


def _numbers(values: npt.NDArray[Any]) -> Hashes:
    """Return a hash of each number of 64 bits."""
    bits: Hashes = np.ascontiguousarray(values).view(np.uint64)
    return _mixed(bits + _STEP)


def _integers(array: pa.Array) -> Hashes:
    if pa.types.is_date32(array.type) or pa.types.is_time32(array.type):
        array = array.cast(pa.int32())
    return _numbers(array.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False))


def _floats(array: pa.Array) -> Hashes:
    values = array.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False) + 0.0  # -0.0 becomes 0.0
    return _numbers(np.where(np.isnan(values), np.nan, values))


def _decimals(array: pa.Array) -> Hashes:
    values = array.cast(pa.decimal128(38, array.type.scale))
    words = np.frombuffer(values.buffers()[1], np.uint64).reshape(-1, 2)[values.offset :][: len(values)]
    return _mixed(_mixed(words[:, 0] + _STEP) + words[:, 1])


def _texts(array: pa.Array) -> Hashes:
    """Hash strings and binaries."""
    values = array.cast(pa.large_binary())
    offsets, content = _offsets(values), np.frombuffer(values.buffers()[2] or b"", np.uint8)
    hashes = [_text_slice(offsets[first : last + 1], content) for first, last in _slices(offsets)]
    return np.concatenate(hashes or [np.zeros(0, np.uint64)])


def _slices(offsets: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield ranges of values that have few bytes, or are one value."""
    count, first = len(offsets) - 1, 0
    while first < count:
        last = int(np.searchsorted(offsets, offsets[first] + _BYTES_AT_ONCE, side="right")) - 1
        last = min(max(last, first + 1), count)
        yield first, last
        first = last


def _text_slice(offsets: npt.NDArray[np.int64], content: npt.NDArray[np.uint8]) -> Hashes:
    """Hash texts: a sum of their bytes, each multiplied by a number that depends on its position in the text."""
    lengths = np.diff(offsets)
    weights = _mixed(np.arange(1, lengths.max() + 1, dtype=np.uint64)) | np.uint64(1)
    hashes = weights[_positions(offsets)]
    hashes *= content[offsets[0] : offsets[-1]]
    return _numbers(_segment_sums(hashes, offsets - offsets[0]) ^ _numbers(lengths))


def _positions(offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the position of each part in its text or list."""
    return np.arange(offsets[0], offsets[-1]) - np.repeat(offsets[:-1], np.diff(offsets))


def _offsets(array: pa.Array) -> npt.NDArray[np.int64]:
    """Return where the values of an array of texts or lists begin and end in the array of their parts."""
    width = np.int64 if pa.types.is_large_binary(array.type) else np.int32
    buffer = array.buffers()[1]
    if buffer is None or not len(array):
        return np.zeros(1, np.int64)
    return np.frombuffer(buffer, width)[array.offset : array.offset + len(array) + 1].astype(np.int64)


def _segment_sums(hashes: Hashes, offsets: npt.NDArray[np.int64]) -> Hashes:
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(hashes, dtype=np.uint64)])
    segments: Hashes = sums[offsets[1:]] - sums[offsets[:-1]]  # modulo 2⁶⁴, as are the sums
    return segments


def _lists(array: pa.Array) -> Hashes:
    offsets = _offsets(array)
    parts = _hashes(array.values.slice(offsets[0], offsets[-1] - offsets[0]))
    hashes = _mixed(parts + _positions(offsets).astype(np.uint64) * _STEP)
    return _numbers(_segment_sums(hashes, offsets - offsets[0]) + np.diff(offsets).astype(np.uint64))


def _maps(array: pa.Array) -> Hashes:
    """Hash maps, whose entries have no order."""
    offsets = _offsets(array)
    first, count = offsets[0], offsets[-1] - offsets[0]
    entries = _combined([_hashes(array.keys.slice(first, count)), _hashes(array.items.slice(first, count))])
    return _numbers(_segment_sums(entries, offsets - first) + np.diff(offsets).astype(np.uint64))


def _structs(array: pa.Array) -> Hashes:
    if not array.type.num_fields:
        return np.zeros(len(array), np.uint64)
    return _combined([_hashes(pc.struct_field(array, at)) for at in range(array.type.num_fields)])


def _combined(fields: Sequence[Hashes]) -> Hashes:
    """Return a hash of each row, given those of its fields in their order."""
    hashes = np.zeros(len(fields[0]), np.uint64)
    for field in fields:
        hashes = _mixed(hashes * _STEP + field)
    return hashes
