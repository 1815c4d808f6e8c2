"""A decoder that also refuses rows which decode but which the table cannot take.

Invariant: as every decoder's: each value of a block is a row of exactly one batch, or one reject, or one skipped
tombstone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from ingestd.formats.decoder import Decoded, Decoder, Reject

Find = Callable[[pa.RecordBatch], Mapping[int, tuple[str, str]]]


class CheckedDecoder:
    """Wraps a decoder; `find` names the unfit rows of a batch: column and reason by the row's number."""

    def __init__(self, decoder: Decoder, find: Find) -> None:
        self._decoder = decoder
        self._find = find

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        """Decode a block; raises nothing for what records hold."""
        decoded = self._decoder.decode(values)
        found = [self._find(batch) for batch in decoded.batches]
        if not any(found):
            return decoded
        places = _places(values, decoded)
        rejects, batches, start = list(decoded.rejects), [], 0
        for batch, unfit in zip(decoded.batches, found, strict=True):
            keep = np.ones(batch.num_rows, np.bool_)
            for row, (column, reason) in unfit.items():
                keep[row] = False
                place = places[start + row]
                rejects.append(Reject.of(place, values[place], column, reason))
            start += batch.num_rows
            batches.append(batch.filter(pa.array(keep)) if unfit else batch)
        return Decoded(batches, sorted(rejects, key=lambda reject: reject.row), decoded.skipped)


def _places(values: Sequence[bytes | None], decoded: Decoded) -> list[int]:
    """The index in the block of each row."""
    refused = {reject.row for reject in decoded.rejects}
    return [
        place for place, value in enumerate(values) if place not in refused and not (value is None and decoded.skipped)
    ]
