"""Decodes JSON record values into Arrow batches.

Invariant: the result depends on each record alone, never on how records are batched.

| Column | Accepts | Rejects | Hive 4 JsonSerDe |
|---|---|---|---|
| the record | one JSON object | text after it, invalid UTF-8, over 200 levels | ignores text after it |
| a field | name (case-insensitive), the last wins; missing or null: NULL; unknown: ignored | | same |
| tinyint … bigint | whole numbers in range: 5, 5.0, 1e3, "5" | fraction, out of range, all else | wraps, truncates, 0 |
| float, double | a number, its text (nearest value), "NaN", "Infinity", "-Infinity" | overflow | text is 0 |
| decimal(p,s) | a number or its text, if exact: 12.50 fits (10,1) | too many digits | NULL |
| boolean | true, false, or these as text, ignoring case | all else | all else is true |
| string | text; numbers and booleans as written; all else as compact JSON | an unpaired surrogate | same |
| varchar(n), char(n) | the same, up to n characters; char drops trailing spaces | longer text | truncates |
| binary | text: base64 if valid, else its UTF-8 bytes | numbers, objects … | same |
| date | "yyyy-MM-dd", years 0001 to 9999 | all else | lenient |
| timestamp | date, or date[ T]HH[:mm[:ss[.f]]] with Z, +hh, +hhmm, +hh:mm (converted to UTC) | see below | NULL |
| array | an array; null elements are kept | all else | error |
| map | an object; keys as text of their type, the last of equal keys wins; null values are kept | all else | error |
| struct | an object, its fields as those of the record | all else | error |

A timestamp column rejects JSON numbers, more than 9 fractional digits, and digits below the microsecond if the record
has a timestamp outside the years 1678 to 2261, because all timestamps of a batch, even inside complex values, share one
unit. The elements of an array, a map or a struct follow the rules of their own type in the table above. If an element
does not fit, the record is a reject whose reason contains the path to the element, such as `tags[3].name`. Tables with
complex columns are decoded one record at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pyarrow as pa

from ingestd.formats.decoder import Reject
from ingestd.formats.json.arrow_reader import ArrowReader
from ingestd.formats.json.record import Precheck, RecordReader
from ingestd.formats.record_decoder import RecordDecoder, RejectReasons
from ingestd.formats.row_batches import Row
from ingestd.schema import Column


class JsonDecoder(RecordDecoder):
    """Decodes JSON objects into the given columns, in that order; see `RecordDecoder` for `tombstones`."""

    def __init__(self, columns: Sequence[Column], *, tombstones: Literal["stop", "skip"] = "stop") -> None:
        super().__init__(columns, tombstones=tombstones)
        self._arrow = ArrowReader(columns)
        self._records = RecordReader(columns)
        self._precheck = Precheck(columns)

    def decode_batch(self, values: Sequence[bytes]) -> tuple[pa.RecordBatch, RejectReasons]:
        """See `RecordDecoder`. Returns no rejects, because it raises NotColumnar if a record is invalid."""
        return self._arrow.read(values), {}

    def decode_record(self, value: bytes) -> Row:
        """See `RecordDecoder`."""
        return self._records.row(value)

    def check(self, value: bytes) -> Reject | None:
        """See `RecordDecoder`."""
        return None if self._precheck.accepts(value) else super().check(value)
