"""Converts JSON text to dates and timestamps, value by value and as whole columns.

Invariant: the same as in `types`. All timestamp columns of one batch have the same unit.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import date, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ingestd.formats.iso_dates import DATE, HOUR, MINUTE, SECOND, ZONE
from ingestd.formats.json.types import (
    Instant,
    InvalidValue,
    PrimitiveType,
    ZonedDate,
    is_text,
    matching,
    shown,
    unlike,
    where,
)
from ingestd.formats.record_decoder import MixedTimestamps, NotColumnar
from ingestd.formats.row_batches import (
    EPOCH,
    FIRST_DAY,
    FIRST_NANO,
    FIRST_SECOND,
    LAST_DAY,
    LAST_NANO,
    LAST_SECOND,
    NANOS_PER_DAY,
    NANOS_PER_MICRO,
    NANOS_PER_SECOND,
)

_DATE = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
TIMESTAMP = (
    _DATE.pattern + r"(?:[ T]([0-9]{2})(?::([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,9}))?)?)?"
    r"(?:Z|([+-])([0-9]{2})(?::?([0-9]{2}))?)?)?"
)
_match_timestamp = re.compile(TIMESTAMP).fullmatch
_ZONED = "[T ][^Z+-]*[Z+-]"
_PLAIN_TIME = rf"[ T]{HOUR}:{MINUTE}(?::{SECOND}(?:\.[0-9]{{%s}})?)?{ZONE}?"
# By unit: what `decided` converts, and the years that the unit can represent in every time zone.
_PLAIN_TIMESTAMP = {"ns": f"{DATE}(?:{_PLAIN_TIME % '1,9'})?", "us": f"{DATE}(?:{_PLAIN_TIME % '1,6'})?"}
# The texts that `timestamp_nanos` accepts, and some of the years 0001 and 9999 that a zone puts outside of them.
_ANY_TIMESTAMP = rf"{DATE}(?:[ T]{HOUR}(?::{MINUTE}(?::{SECOND}(?:\.[0-9]{{1,9}})?)?)?{ZONE}?)?"
_ZONED_DATE = f"{DATE}{ZONE}"
_match_zoned_date = re.compile(_ZONED_DATE).fullmatch
_DATE_LETTERS = len("yyyy-MM-dd")
# The first and the last timestamp by unit, in that unit.
TIMESTAMP_LIMITS = {
    "ns": (FIRST_NANO, LAST_NANO),
    "us": (FIRST_SECOND * 1_000_000, LAST_SECOND * 1_000_000 + 999_999),
}
_YEARS = {"ns": ("1678", "2261"), "us": ("0002", "9998")}


class DateType(PrimitiveType):
    """Type date: accepts text of the form yyyy-MM-dd in the years 0001 to 9999.

    It also accepts days, and dates with a zone, that a schema describes (`Instant`, `ZonedDate`).
    """

    read_as_text = True
    only_text = True

    def value(self, value: object) -> int:
        if isinstance(value, Instant) and value.is_date:
            if FIRST_DAY <= (days := value.nanos // NANOS_PER_DAY) <= LAST_DAY:
                return days
            raise not_in_range(value, "date")
        if isinstance(value, ZonedDate):
            return date.fromisoformat(value[:_DATE_LETTERS]).toordinal() - EPOCH
        if type(value) is not str:
            raise InvalidValue(f"{shown(value)} is not a string; a date must have the form 'yyyy-MM-dd'")
        match = _DATE.fullmatch(value)
        try:
            if match:
                return date(*map(int, match.groups())).toordinal() - EPOCH
        except ValueError:
            pass
        raise not_in_range(value, "date")

    def column(self, array: pa.Array) -> pa.Array:
        days = pc.cast(array, self.kind.arrow)
        _require_range(days.view(pa.int32()), FIRST_DAY, LAST_DAY)
        return days

    def decided(self, texts: pa.StringArray, _unit: str) -> pa.Array:
        return pc.cast(matching(texts, DATE), self.kind.arrow)

    def refused(self, texts: pa.StringArray) -> pa.BooleanArray:
        return unlike(texts, DATE)

    def is_plain(self, value: object) -> bool:
        if type(value) is not str or len(value) != 10 or value[4] != "-" or value[7] != "-" or not value.isascii():
            return False
        try:
            date.fromisoformat(value)
        except ValueError:
            return False
        return True


class TimestampType(PrimitiveType):
    """Type timestamp: accepts a date, or a date and a time with an optional zone, in the years 0001 to 9999.

    It also accepts numbers that a schema describes (`Instant`).

    A time with a zone is converted to UTC. `timestamp_columns` converts columns, because all timestamp columns of a
    batch have the same unit.
    """

    read_as_text = True
    only_text = True

    def value(self, value: object) -> int:
        if isinstance(value, Instant):
            return instant_nanos(value)
        if not is_text(value):
            raise InvalidValue(
                f"{shown(value)} is not a string; a timestamp must have the form 'yyyy-MM-dd HH:mm:ss[.fraction][zone]'"
            )
        return timestamp_nanos(value)

    def decided(self, texts: pa.StringArray, unit: str) -> pa.Array:
        return timestamp_column(texts, unit)

    def refused(self, texts: pa.StringArray) -> pa.BooleanArray:
        return unlike(texts, _ANY_TIMESTAMP)

    def is_plain(self, value: object) -> bool:
        if type(value) is not str or len(value) not in (19, 23, 26) or value[4:11:3] not in ("-- ", "--T"):
            return False
        if value[13:17:3] != "::" or not value.isascii() or not (len(value) == 19 or value[19:26:7] == "."):
            return False
        if len(value) > 19 and not value[20:].isdigit():
            return False
        try:
            datetime.fromisoformat(value)
        except ValueError:
            return False
        return True


def timestamp_nanos(text: str) -> int:
    """Convert the text of a timestamp to nanoseconds since 1970. Raises InvalidValue."""
    match = _match_timestamp(text)
    if not match:
        raise not_in_range(text, "timestamp")
    year, month, day, hour, minute, second, fraction, sign, east, east_minutes = match.groups(default="0")
    try:
        moment = datetime(int(year), int(month), int(day), int(hour), int(minute), int(second))
    except ValueError:
        raise not_in_range(text, "timestamp") from None
    if int(east) > 23 or int(east_minutes) > 59:
        raise not_in_range(text, "timestamp")
    offset = (int(east) * 3600 + int(east_minutes) * 60) * (-1 if sign == "-" else 1)
    clock = moment.hour * 3600 + moment.minute * 60 + moment.second
    seconds = (moment.toordinal() - EPOCH) * 86_400 + clock - offset
    if not FIRST_SECOND <= seconds <= LAST_SECOND:
        raise not_in_range(text, "timestamp")
    return seconds * NANOS_PER_SECOND + int(fraction.ljust(9, "0"))


def instant_nanos(instant: Instant) -> int:
    """Return the nanoseconds since 1970. Raises InvalidValue."""
    if FIRST_SECOND <= instant.nanos // NANOS_PER_SECOND <= LAST_SECOND:
        return instant.nanos
    raise not_in_range(instant, "timestamp")


def instants(numbers: pa.StringArray, nanos_per_unit: int, kind: pa.DataType) -> pa.Array:
    """Convert whole numbers of units since 1970 to date32, or to timestamp in nanoseconds or microseconds.

    The result is null for what is not in a common notation or out of range.
    """
    numbers = pc.cast(matching(numbers, "-?[0-9]{1,18}"), pa.int64())
    valid = numbers.is_valid().to_numpy(zero_copy_only=False)
    units = numbers.fill_null(0).to_numpy()
    first, last = (FIRST_DAY, LAST_DAY) if pa.types.is_date(kind) else TIMESTAMP_LIMITS[kind.unit]
    step = NANOS_PER_DAY if pa.types.is_date(kind) else NANOS_PER_MICRO if kind.unit == "us" else 1
    if nanos_per_unit >= step:
        factor = nanos_per_unit // step
        valid &= (units >= -(-first // factor)) & (units <= last // factor)
        values = np.where(valid, units, 0) * factor
    else:
        divisor = step // nanos_per_unit
        values = units // divisor
        valid &= (units % divisor == 0) & (values >= first) & (values <= last)
    return pa.array(values.astype(f"i{kind.bit_width // 8}"), mask=~valid).view(kind)


def zoned_date(text: str) -> str:
    """Return a text that a schema describes as a date, as a ZonedDate if it is a date in the calendar with a zone."""
    return ZonedDate(text) if _match_zoned_date(text) else text


def dates_of_schema(texts: pa.StringArray) -> pa.Array:
    """Convert texts that a schema describes as dates, which may have a zone. The result is null for other texts."""
    return pc.cast(pc.utf8_slice_codeunits(matching(texts, f"{DATE}{ZONE}?"), 0, _DATE_LETTERS), pa.date32())


def timestamp_column(texts: pa.StringArray, unit: str) -> pa.Array:
    """Convert the texts of timestamps as `PrimitiveType.decided` does."""
    texts = matching(texts, _PLAIN_TIMESTAMP[unit])
    first, last = _YEARS[unit]
    years = pc.utf8_slice_codeunits(texts, 0, 4)
    is_within = pc.and_(pc.greater_equal(years, first), pc.less_equal(years, last))
    if unit == "us" and not pc.all(is_within, min_count=0).as_py():  # without a zone, no year is too early or too late
        is_within = pc.or_(is_within, pc.invert(pc.match_substring_regex(texts, _ZONED)))
    return _instants(where(is_within, texts), unit)


def timestamp_columns(columns: Sequence[pa.Array]) -> list[pa.Array]:
    """Convert the timestamp columns of a batch from text: to nanoseconds if all values fit, else to microseconds.

    Raises NotColumnar or pa.ArrowInvalid, as `PrimitiveType.column` does, and MixedTimestamps.
    """
    if all(map(_fits_nanoseconds, columns)):
        return [_instants(column, "ns") for column in columns]
    try:
        micros = [_instants(column, "us") for column in columns]
    except pa.ArrowInvalid:  # some of them may be in nanoseconds
        raise _mixed(columns) from None
    for column in micros:
        _require_range(column.view(pa.int64()), *TIMESTAMP_LIMITS["us"])
    return micros


def _fits_nanoseconds(texts: pa.Array) -> bool:
    """Return whether all years are well inside the range of timestamp[ns]; Arrow 18 wraps values outside it."""
    ends = pc.min_max(texts).as_py()
    return ends["min"] is None or (ends["min"] >= "1678" and ends["max"] < "2262")


def _mixed(columns: Sequence[pa.Array]) -> NotColumnar:
    """Return the error for texts that microseconds do not fit: NotColumnar if some in other years are no timestamps."""
    far = np.zeros(len(columns[0]), np.bool_)
    for column in columns:
        is_near = pc.and_(pc.greater_equal(column, "1678"), pc.less(column, "2262"))
        far |= ~is_near.fill_null(pa.scalar(value=True)).to_numpy(zero_copy_only=False)
    others = (unlike(column.filter(pa.array(far)), _ANY_TIMESTAMP) for column in columns)
    return NotColumnar() if far.all() or any(pc.any(other).as_py() for other in others) else MixedTimestamps(far)


def _instants(texts: pa.Array, unit: str) -> pa.Array:
    """Convert text to wall times, in UTC if the text has a zone. A column may contain text with and without a zone."""
    local, utc = pa.timestamp(unit), pa.timestamp(unit, "UTC")
    for target in (local, utc):
        with suppress(pa.ArrowInvalid):
            return pc.cast(texts, target).view(local)
    zoned = pc.match_substring_regex(texts, _ZONED)
    null = pa.scalar(None, pa.string())
    return pc.coalesce(
        pc.cast(pc.if_else(zoned, null, texts), local),
        pc.cast(pc.if_else(zoned, texts, null), utc).view(local),
    )


def _require_range(numbers: pa.Array, first: int, last: int) -> None:
    ends = pc.min_max(numbers).as_py()
    if ends["min"] is not None and (ends["min"] < first or ends["max"] > last):
        raise NotColumnar


def not_in_range(value: str, kind: str) -> InvalidValue:
    """Return the error of a text that is no value of the type in its range of years."""
    return InvalidValue(f"{shown(value)} is not a {kind} in the years 0001 to 9999")
