"""Unwraps the envelopes in which Debezium and Kafka Connect store records.

Invariant: a record of an envelope becomes a row only if it says that the row was inserted or read in a snapshot, unless
the configuration accepts other operations.

| Envelope | Record | The row |
|---|---|---|
| connect | `{"schema": …, "payload": row}` | `payload` |
| debezium | `{"before": …, "after": row, "op": "c"}`, also as the `payload` of an object | `after` (`op` c, r, u) |
| debezium | `{"before": row, "after": null, "op": "d"}`, also as a `payload` | `before` (`op` d) |

If the record contains its schema, decimals that the schema describes are numbers: Kafka Connect writes their unscaled
values in Base64 and the scale into the schema, and Debezium writes those of columns without a scale as objects. Numbers
that it describes as dates or points in time are such values in columns of the types date and timestamp. The zone of
a text that it describes as a date is ignored in columns of the type date.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Mapping
from decimal import Decimal
from typing import Literal

from ingestd.formats.decoder import RejectError
from ingestd.formats.json.times import zoned_date
from ingestd.formats.json.types import Instant, Number, shown
from ingestd.formats.row_batches import NANOS_PER_DAY
from ingestd.formats.unmatched import change_event

Envelope = Literal["none", "connect", "debezium"]

SCHEMA, PAYLOAD, OPERATION, AFTER, BEFORE = "schema", "payload", "op", "after", "before"
INSERTS = ("c", "r")  # created, read in a snapshot
UPDATE, DELETE = "u", "d"
# The names of the types of decimals in schemas: with a scale in the schema, and with one in each value.
DECIMAL, SCALED_DECIMAL = "org.apache.kafka.connect.data.Decimal", "io.debezium.data.VariableScaleDecimal"
# The name of the type of texts of dates, which have a zone.
ISO_DATE = "io.debezium.time.IsoDate"
# The number of nanoseconds that 1 means, by the name of the type. A day belongs to a date.
_DAY, _MILLI, _MICRO = NANOS_PER_DAY, 1_000_000, 1_000
INSTANTS = {
    "org.apache.kafka.connect.data.Date": _DAY,
    "org.apache.kafka.connect.data.Timestamp": _MILLI,
    "io.debezium.time.Date": _DAY,
    "io.debezium.time.Timestamp": _MILLI,
    "io.debezium.time.MicroTimestamp": _MICRO,
    "io.debezium.time.NanoTimestamp": 1,
}
_MARKS = (b"org.apache.kafka.connect.data.", b"io.debezium.time.", SCALED_DECIMAL.encode())
_WHOLE = re.compile("-?[0-9]{1,19}")
# Far more than the 38 digits of Hive's decimals.
_MAX_DECIMAL_BYTES, _MAX_SCALE = 64, 1_000
_OPERATIONS = {UPDATE: "an update", DELETE: "a delete", "t": "a truncation", "m": "a message of the source database"}


def has_logical_types(value: bytes) -> bool:
    """Return whether a record may contain decimals, dates or points in time that its schema describes."""
    return any(mark in value for mark in _MARKS)


def event_of(
    record: dict[str, object], envelope: Envelope, operations: Collection[str], *, with_types: bool
) -> tuple[dict[str, object], str]:
    """Return the object to which the paths of columns refer, and the name of its member that is the row of Debezium.

    The object is the record itself, or its payload. `operations` are the operations of Debezium that have a row.
    `with_types` is the result of `has_logical_types`. Raises RejectError.
    """
    if envelope == "none":
        return record, AFTER
    members = {name.lower(): item for name, item in record.items()}
    if envelope == "connect" or PAYLOAD in members:
        event = members.get(PAYLOAD)
        if with_types:
            event = _with_types(members.get(SCHEMA), event, "")
        if not isinstance(event, dict):
            raise RejectError("", f"the payload of the {envelope} envelope is {_kind(event)}, not an object")
    else:
        event = record
    return event, _row_of(event, operations) if envelope == "debezium" else AFTER


def _row_of(event: dict[str, object], operations: Collection[str]) -> str:
    """Return the member that is the row of an event of Debezium. Raises RejectError if it has none."""
    members = {name.lower(): item for name, item in event.items()}
    operation = members.get(OPERATION)
    if type(operation) is not str:
        raise RejectError("", "the record has no field op, so it is not a change event of Debezium")
    meaning = _OPERATIONS.get(operation, "an insert" if operation in INSERTS else "an unknown operation")
    if operation not in operations:
        rows = ", ".join(sorted(operations))
        raise RejectError("", f"the record is {meaning} (op {shown(operation)}); only the operations {rows} are rows")
    row = BEFORE if operation == DELETE else AFTER
    if not isinstance(members.get(row), dict):
        raise RejectError("", f"the field {row} of {meaning} is {_kind(members.get(row))}, not an object")
    return row


def envelope_of(record: Mapping[str, object]) -> Envelope:
    """Return the envelope in which the row of a record seems to be, by the names of its fields."""
    if change_event(record):
        return "debezium"
    members = {name.lower(): item for name, item in record.items()}
    if not {SCHEMA, PAYLOAD} <= members.keys():
        return "none"
    payload = members[PAYLOAD]
    return "debezium" if isinstance(payload, dict) and change_event(payload) else "connect"


def envelope_in(record: Mapping[str, object]) -> str:
    """Return what the envelope of a record seems to be, and the option that unwraps it, for a reason; '' if none.

    `record` is an object none of whose fields is a column.
    """
    envelope, event = envelope_of(record), change_event(record)
    if envelope == "none":
        return ""
    what = event or f"in the envelope of Kafka Connect ({SCHEMA}, {PAYLOAD})"
    if envelope == "debezium" and not event:
        what = f"a change event of Debezium {what}"
    return f"it is {what}; set format.envelope: {envelope}"


def _with_types(schema: object, value: object, field: str) -> object:
    """Return the value of a field with the logical types of its schema: Instants, ZonedDates, and numbers for decimals.

    Raises RejectError.
    """
    if not isinstance(schema, dict) or value is None:
        return value
    kind, name = schema.get("type"), schema.get("name")
    if isinstance(value, Number):
        unit = unit_of(schema)
        return Instant.of(value, unit, is_date=unit == _DAY) if unit and _WHOLE.fullmatch(value) else value
    if name == DECIMAL:
        return _decimal(value, scale_of(schema), field)
    if name == ISO_DATE and isinstance(value, str):
        return zoned_date(value)
    if name == SCALED_DECIMAL and isinstance(value, dict):
        return _decimal(value.get("value"), _scale(value.get("scale")), field)
    if kind == "struct" and isinstance(value, dict):
        schemas = fields_of(schema)
        value = {key: _with_types(schemas.get(key), item, key) for key, item in value.items()}
    elif kind == "map" and isinstance(value, dict):
        value = {key: _with_types(schema.get("values"), item, field) for key, item in value.items()}
    elif kind == "array" and isinstance(value, list):
        value = [_with_types(schema.get("items"), item, field) for item in value]
    return value


def fields_of(schema: Mapping[str, object]) -> dict[str, dict[str, object]]:
    """Return the schemas of the fields of a struct, by their names."""
    fields = schema.get("fields")
    known = [inner for inner in fields if isinstance(inner, dict)] if isinstance(fields, list) else []
    return {str(inner.get("field")): inner for inner in known}


def unit_of(schema: Mapping[str, object]) -> int:
    """Return the number of nanoseconds that 1 means, by the schema of a date or a point in time; 0 for others."""
    name = schema.get("name")
    return INSTANTS.get(name, 0) if isinstance(name, str) else 0


def scale_of(schema: Mapping[str, object]) -> int | None:
    """Return the scale in the schema of a decimal, None if it has no valid one."""
    parameters = schema.get("parameters")
    return _scale(parameters.get("scale") if isinstance(parameters, dict) else None)


def _scale(text: object) -> int | None:
    try:
        scale = int(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return None if scale is None or abs(scale) > _MAX_SCALE else scale


def _decimal(unscaled: object, scale: int | None, field: str) -> Number:
    """Return the number with this unscaled value, which is the Base64 of two's complement bytes. Raises RejectError."""
    try:
        if type(unscaled) is not str or scale is None:
            raise ValueError
        content = base64.b64decode(unscaled, validate=True)
        if not 0 < len(content) <= _MAX_DECIMAL_BYTES:
            raise ValueError
    except ValueError:
        what = f"{shown(unscaled)} in the field {shown(field)} is not a decimal in Base64 with a scale in its schema"
        raise RejectError("", what) from None
    number = int.from_bytes(content, "big", signed=True)
    return Number(f"{Decimal((number < 0, tuple(map(int, str(abs(number)))), -scale)):f}")


def _kind(value: object) -> str:
    return "missing or null" if value is None else shown(value)
