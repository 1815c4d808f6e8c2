"""Reads messages that have a meaning of their own: timestamps, dates, decimals, and those with a JSON text.

Invariant: a JSON text is the one that Google's library writes, on one line and without spaces between its parts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import pyarrow as pa
from google.protobuf import duration_pb2, field_mask_pb2, json_format, struct_pb2, timestamp_pb2
from google.protobuf.message import DecodeError, Message

from ingestd.formats.conversions import sized, to_decimals, to_timestamps
from ingestd.formats.protobuf.scan import BYTES, VARINT, Messages, Tokens, scan
from ingestd.formats.values import Ints
from ingestd.schema import HiveType

TIMESTAMP = timestamp_pb2.Timestamp.DESCRIPTOR.full_name
# The messages that are stored in text columns.
TEXT_MESSAGES: Mapping[str, type[Message]] = MappingProxyType(
    {
        kind.DESCRIPTOR.full_name: kind
        for kind in (
            *(struct_pb2.Struct, struct_pb2.Value, struct_pb2.ListValue),
            *(timestamp_pb2.Timestamp, duration_pb2.Duration, field_mask_pb2.FieldMask),
        )
    }
)
# Of Google's common types, and of Kafka Connect's ProtobufConverter.
DATE, DECIMAL = "google.type.Date", "confluent.type.Decimal"
# The numbers of fields.
_SECONDS, _NANOS = 1, 2
_YEAR, _MONTH, _DAY = 1, 2, 3
_UNSCALED, _SCALE = 1, 3
_LAST_YEAR = 9999


def read_timestamps(messages: Messages) -> pa.Array:
    """Return one timestamp per google.protobuf.Timestamp."""
    tokens = scan(messages, (_SECONDS, _NANOS))
    seconds, nanos = (_integers(tokens[number], len(messages.place)) for number in (_SECONDS, _NANOS))
    return to_timestamps(seconds, _as_int32(nanos), messages.place)


def read_dates(messages: Messages) -> pa.Array:
    """Return one date per google.type.Date. One without a year, a month or a day is a reject."""
    place = messages.place
    tokens = scan(messages, (_YEAR, _MONTH, _DAY))
    year, month, day = (_as_int32(_integers(tokens[number], len(place))) for number in (_YEAR, _MONTH, _DAY))
    bad = (year < 1) | (year > _LAST_YEAR) | (month < 1) | (month > 12) | (day < 1) | (day > 31)
    months = np.where(bad, 0, (year - 1970) * 12 + month - 1).astype("M8[M]")
    days = months.astype("M8[D]") + np.where(bad, 0, day - 1)
    bad |= days.astype("M8[M]") != months  # the month is shorter
    if bad.any():
        place.reject(
            bad,
            lambda index: (
                f"year {year[index]}, month {month[index]}, day {day[index]} is not a date in the years 0001 to 9999"
            ),
        )
    return pa.array(days)


def read_decimals(messages: Messages, hive: HiveType) -> pa.Array:
    """Return one decimal per confluent.type.Decimal, which has a scale of its own. One without digits is 0."""
    place = messages.place
    tokens = scan(messages, (_UNSCALED, _SCALE))
    digits = tokens[_UNSCALED].of_wires(BYTES).last()
    digits = digits.only(digits.starts < digits.ends)
    values = place.records.slices(digits.starts, digits.ends)
    if len(digits) < len(place):
        sources = np.full(len(place), len(digits))
        sources[digits.owners] = np.arange(len(digits))
        values = pa.concat_arrays([values, pa.array([b"\0"], pa.binary())]).take(pa.array(sources))
    return to_decimals(_as_int32(_integers(tokens[_SCALE], len(place))), values, hive, place)


def _integers(tokens: Tokens, count: int) -> Ints:
    """Return the integer of a field in each of `count` messages, 0 if it is absent."""
    last = tokens.of_wires(VARINT).last()
    values = np.zeros(count, np.int64)
    values[last.owners] = last.bits.view(np.int64)
    return values


def read_text(messages: Messages, name: str, hive: HiveType) -> pa.Array:
    """Return the JSON text of each message, one of TEXT_MESSAGES; of one that is a JSON string, its content."""
    kind, place = TEXT_MESSAGES[name], messages.place
    parts: list[list[bytes]] = [[] for _ in range(len(place))]
    for start, end, owner in zip(
        messages.starts.tolist(), messages.ends.tolist(), messages.owners.tolist(), strict=True
    ):
        parts[owner].append(place.records.text[start:end])
    texts: list[str] = []
    for index, data in enumerate(parts):
        text = ""
        try:
            text = _json(kind.FromString(b"".join(data)))
        except DecodeError:
            place.malformed_at(index, f"it is not a {name}")
        except (json_format.Error, ValueError) as error:
            place.reject_at(index, f"a {name} has no JSON text: {error}")
        texts.append(text)
    return sized(hive)(pa.array(texts, pa.string()), place)


def check_text(messages: Messages, name: str) -> None:
    """Let the records fail in which messages, each of one part, are no messages of TEXT_MESSAGES with this name."""
    kind, place = TEXT_MESSAGES[name], messages.place
    for index, (start, end) in enumerate(zip(messages.starts.tolist(), messages.ends.tolist(), strict=True)):
        try:
            kind.FromString(place.records.text[start:end])
        except DecodeError:  # noqa: PERF203
            place.malformed_at(index, f"it is not a {name}")


def _json(message: Message) -> str:
    value = json_format.MessageToDict(message)
    if isinstance(value, str) and not isinstance(message, struct_pb2.Value):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _as_int32(numbers: Ints) -> Ints:
    return numbers.astype(np.int32).astype(np.int64)
