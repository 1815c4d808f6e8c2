"""Unwraps the envelopes in which Debezium and Kafka Connect store records.

Invariant: a record of an envelope becomes a row only if it says that the row was inserted or read in a snapshot, unless
the configuration accepts other operations.

| Envelope | Record | The row |
|---|---|---|
| connect | `{"schema": …, "payload": row}` | `payload` |
| debezium | `{"before": …, "after": row, "op": "c"}`, also as the `payload` of an object | `after` (`op` c, r, u) |
| debezium | `{"before": row, "after": null, "op": "d"}`, also as a `payload` | `before` (`op` d) |
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

from ingestd.formats.decoder import RejectError
from ingestd.formats.json.types import shown
from ingestd.formats.unmatched import change_event

Envelope = Literal["none", "connect", "debezium"]

SCHEMA, PAYLOAD, OPERATION, AFTER, BEFORE = "schema", "payload", "op", "after", "before"
INSERTS = ("c", "r")  # created, read in a snapshot
UPDATE, DELETE = "u", "d"
_OPERATIONS = {UPDATE: "an update", DELETE: "a delete", "t": "a truncation", "m": "a message of the source database"}


def event_of(
    record: dict[str, object], envelope: Envelope, operations: Collection[str]
) -> tuple[dict[str, object], str]:
    """Return the object to which the paths of columns refer, and the name of its member that is the row of Debezium.

    The object is the record itself, or its payload. `operations` are the operations of Debezium that have a row. Raises
    RejectError.
    """
    if envelope == "none":
        return record, AFTER
    members = {name.lower(): item for name, item in record.items()}
    if envelope == "connect" or PAYLOAD in members:
        event = members.get(PAYLOAD)
        if not isinstance(event, dict):
            raise RejectError("", f"the payload of the {envelope} envelope is {_kind(event)}, not an object")
    else:
        event = record
    return event, _row_of(event, operations) if envelope == "debezium" else AFTER


def row_in(record: dict[str, object], envelope: Envelope) -> dict[str, object]:
    """Return the row in the envelope of a record, whatever the operation of Debezium is. Raises RejectError."""
    event, row = event_of(record, envelope, (*INSERTS, UPDATE, DELETE))
    members = {name.lower(): item for name, item in event.items()}
    return members[row] if envelope == "debezium" else event  # type: ignore[return-value]  # an object, by `event_of`


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


def _kind(value: object) -> str:
    return "missing or null" if value is None else shown(value)
