"""What the decoders of text records have in common: records without value, blocks too big, faults that become rejects.

Invariant: every value of a block is a row or one reject, in the order of the block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from ingestd.errors import ConfigError
from ingestd.formats.decoder import MAX_BUFFER, DecodeResult, Reject, total_bytes, without_tombstones
from ingestd.formats.lazysimple.columns import Faults

NO_VALUE = "record has no value"

DecodeValues = Callable[[Sequence[bytes], Faults], list[pa.RecordBatch]]


def decode_block(values: Sequence[bytes | None], decode: DecodeValues) -> DecodeResult:
    """Decode what has a value by `decode`, which gets values and where to put faults by their index."""
    live = without_tombstones(values)
    places: Sequence[int] = range(len(values))
    rejects: list[Reject] = []
    if len(live) < len(values):
        places = [place for place, value in enumerate(values) if value is not None]
        rejects = [Reject.of(place, None, "", NO_VALUE) for place, value in enumerate(values) if value is None]
    batches: list[pa.RecordBatch] = []
    for start, part in _parts(live):
        faults: Faults = {}
        batches += decode(part, faults)
        for row, (column, reason) in faults.items():
            rejects.append(Reject.of(places[start + row], part[row], column, reason))
    return DecodeResult(batches, sorted(rejects, key=lambda reject: reject.row), 0)


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Raises ConfigError if the option is none of the choices."""
    if value not in choices:
        raise ConfigError(f"{name} is {value!r}", hint=f"use {' or '.join(choices)}")


def _parts(values: Sequence[bytes]) -> list[tuple[int, Sequence[bytes]]]:
    """The values in parts that fit a buffer, each with the index of its first."""
    if not values:
        return []
    if len(values) == 1 or total_bytes(values) + len(values) <= MAX_BUFFER:
        return [(0, values)]
    half = len(values) // 2
    return _parts(values[:half]) + [(half + start, part) for start, part in _parts(values[half:])]
