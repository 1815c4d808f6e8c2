"""Reads messages of google.protobuf that have a meaning of their own: timestamps, and those with a JSON text.

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

from ingestd.formats.conversions import sized, to_timestamps
from ingestd.formats.protobuf.scan import VARINT, Messages, scan
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
_SECONDS, _NANOS = 1, 2  # the numbers of fields


def read_timestamps(messages: Messages) -> pa.Array:
    """Return one timestamp per google.protobuf.Timestamp."""
    tokens = scan(messages, (_SECONDS, _NANOS))
    seconds, nanos = (np.zeros(len(messages.place), np.int64) for _ in range(2))
    for number, values in ((_SECONDS, seconds), (_NANOS, nanos)):
        last = tokens[number].of_wires(VARINT).last()
        values[last.owners] = last.bits.view(np.int64)
    return to_timestamps(seconds, _as_int32(nanos), messages.place)


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
