"""Rejects dates and timestamps before 1582-10-15 in transaction batches.

The intermediate footers of a file that is still being written do not name a calendar, and Hive then reads values
before 1582-10-15 as Julian dates. The final footer names one, so Hive reads the file of a single transaction correctly.

Invariant: no such value is written to a shared file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import date

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ingestd.formats.decoder import Decoder, DecodeResult, Reject, without_violations

REASON = "dates and timestamps before 1582-10-15 require transaction_batch_size=1"
_FIRST_DAY = (date(1582, 10, 15) - date(1970, 1, 1)).days
_PER_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}


def old_rows(batch: pa.RecordBatch) -> npt.NDArray[np.bool_] | None:
    """Return a mask of the rows with a date or timestamp before 1582-10-15 at any depth, or None if there are none."""
    old = [array for array in batch.columns if _is_old(array)]
    if not old:
        return None
    mask = np.zeros(batch.num_rows, np.bool_)
    for array in old:
        mask |= np.fromiter((_is_old(array.slice(row, 1)) for row in range(len(array))), np.bool_, len(array))
    return mask


def _is_old(array: pa.Array) -> bool:
    """Return whether any value is a date or timestamp before 1582-10-15."""
    kind = array.type
    if pa.types.is_struct(kind):
        return any(_is_old(child) for child in array.flatten())
    if pa.types.is_list(kind):
        return _is_old(array.flatten())
    if pa.types.is_map(kind):
        return _is_old(pa.ListArray.from_arrays(array.offsets, array.keys).flatten()) or _is_old(
            pa.ListArray.from_arrays(array.offsets, array.items).flatten()
        )
    if pa.types.is_date32(kind):
        least, first = pc.min(array.view(pa.int32())).as_py(), _FIRST_DAY
    elif pa.types.is_timestamp(kind):
        least, first = pc.min(array.view(pa.int64())).as_py(), _FIRST_DAY * _PER_DAY[kind.unit]
    else:
        return False
    return least is not None and least < first


# A year before 1583 in text of any format. The check decodes only records that match.
_MAY_BE_OLD = re.compile(rb"(?<![0-9])(?:0[0-9]{3}|1[0-4][0-9]{2}|15[0-7][0-9]|158[0-2])-").search


def modern_check(decoder: ModernDecoder, check: Callable[[bytes], Reject | None]) -> Callable[[bytes], Reject | None]:
    """Extend `check` to reject records that contain a day before 1582-10-15."""

    def checked(record: bytes) -> Reject | None:
        reject = check(record)
        if reject is None and _MAY_BE_OLD(record):
            return next(iter(decoder.decode([record]).rejects), None)
        return reject

    return checked


class ModernDecoder:
    """A decoder that also rejects records that contain a day before 1582-10-15."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def decode(self, values: Sequence[bytes | None]) -> DecodeResult:
        """Decode a batch of records (see `Decoder`)."""
        return without_violations(self._decoder.decode(values), values, _violations)


def _violations(batch: pa.RecordBatch) -> dict[int, tuple[str, str]]:
    mask = old_rows(batch)
    return {} if mask is None else dict.fromkeys(np.flatnonzero(mask).tolist(), ("", REASON))
