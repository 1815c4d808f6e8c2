"""JSON record values become Arrow batches: whole blocks by Arrow, what Arrow cannot judge one by one.

Invariant: the result does not depend on how records fall into blocks, only on each record.

| Column | Takes | Refuses (a reject) | Hive 4 JsonSerDe |
|---|---|---|---|
| the record | one JSON object | a rest after it, bad UTF-8, over 200 levels | ignores a rest |
| a field | name in any case, last wins; missing, null: NULL; unknown: ignored | | same |
| tinyint … bigint | a whole number in range: 5, 5.0, 1e3, "5" | fraction, out of range, other text | wraps, cuts, 0 |
| float, double | a number, its text (nearest value), "NaN", "Infinity", "-Infinity" | overflow | text is 0 |
| decimal(p,s) | a number or its text, if exact: 12.50 fits (10,1) | digits too many | NULL |
| boolean | true, false, or these as text in any case | all else | all else is true |
| string | text; numbers, booleans as written; the rest as compact JSON | half a surrogate pair | same |
| varchar(n), char(n) | the same, to n characters; char drops trailing blanks | longer text | cuts |
| binary | text: base64 if valid, else its UTF-8 bytes | numbers, objects … | same |
| date | "yyyy-MM-dd", years 0001 to 9999 | all else | lenient |
| timestamp | date, or date[ T]HH[:mm[:ss[.f]]] with Z, +hh, +hhmm, +hh:mm (becomes UTC) | see below | NULL |
| array | an array; null elements stay | all else | error |
| map | an object; keys as text of their type, last of equal keys wins; null values stay | all else | error |
| struct | an object, its fields as those of the record | all else | error |

A timestamp refuses JSON numbers, more than 9 digits of fraction, and digits below the microsecond if the record has a
timestamp outside the years 1678 to 2261 (all timestamps of a batch, also inside complex values, share one unit).
What is inside an array, a map or a struct follows the line of its own type; one element that does not fit refuses the
record, and the reason says where it is: `tags[3].name`. Tables with such columns are decoded one record at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ingestd.formats.decoder import DecodeResult, Reject, RejectError, without_tombstones
from ingestd.formats.json.blocks import LineDecoder
from ingestd.formats.json.precheck import Glance
from ingestd.formats.json.record import SingleDecoder
from ingestd.formats.row_batches import RowBatches
from ingestd.schema import Column

SMALLEST_BLOCK = 256
HOPELESS = 4  # so many smallest blocks failed in a row: no more splitting, each try costs Arrow about 1 ms
PARTS = 16  # of a failed block: few levels of decoding again, whether one record is bad or all are


class JsonDecoder:
    """Decodes JSON objects into the given columns, in that order.

    `tombstones` says what a record without value is: "stop" makes it a reject, "skip" leaves it out.
    """

    def __init__(self, columns: Sequence[Column], *, tombstones: Literal["stop", "skip"] = "stop") -> None:
        self._columns = tuple(columns)
        self._skip = tombstones == "skip"
        self._lines = LineDecoder(columns)
        self._single = SingleDecoder(columns)
        self._glance = Glance(columns)

    def check(self, value: bytes) -> Reject | None:
        """What is wrong with one record, as `decode` would say it; None when it is good."""
        if self._glance.passes(value):
            return None
        try:
            self._single.decode(value)
        except RejectError as error:
            return Reject.of(0, value, error.column, error.reason)
        return None

    def decode(self, values: Sequence[bytes | None]) -> DecodeResult:
        """Decode a block, best of 20,000 to 100,000 records; never raises for what records hold."""
        rejects: list[Reject] = []
        live = without_tombstones(values)
        places: Sequence[int] = range(len(values))
        if len(live) < len(values):
            places = [place for place, value in enumerate(values) if value is not None]
            if not self._skip:
                rejects = [
                    Reject.of(place, None, "", "record has no value (tombstone)")
                    for place, value in enumerate(values)
                    if value is None
                ]
        block = _Block(self._columns)
        self._split(live, places, block)
        rejects = sorted(rejects + block.rejects, key=lambda reject: reject.row)
        return DecodeResult(block.close(), rejects, len(values) - len(live) if self._skip else 0)

    def _split(self, values: Sequence[bytes], places: Sequence[int], block: _Block) -> None:
        """Decode by Arrow, in parts where it fails, one by one where parts are small."""
        if not values:
            return
        batch = self._lines.decode(values)
        if batch is not None:
            block.add_batch(batch)
            block.failures = 0
        elif len(values) <= SMALLEST_BLOCK or block.failures >= HOPELESS:
            self._one_by_one(values, places, block)
            block.failures += 1
        else:
            size = max(SMALLEST_BLOCK, -(-len(values) // PARTS))
            for start in range(0, len(values), size):
                self._split(values[start : start + size], places[start : start + size], block)

    def _one_by_one(self, values: Sequence[bytes], places: Sequence[int], block: _Block) -> None:
        for place, value in zip(places, values, strict=True):
            self._one(place, value, block)

    def _one(self, place: int, value: bytes, block: _Block) -> None:
        try:
            block.add_row(self._single.decode(value))
        except RejectError as error:
            block.rejects.append(Reject.of(place, value, error.column, error.reason))


class _Block(RowBatches):
    """Batches and single rows in the order they come, and what was refused meanwhile."""

    def __init__(self, columns: Sequence[Column]) -> None:
        super().__init__(columns)
        self.rejects: list[Reject] = []
        self.failures = 0
