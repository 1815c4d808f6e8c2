"""Records none of whose fields is a column of the table, which would be rows of NULLs.

Invariant: only records that have fields are unmatched. A record without fields, such as `{}` or an empty text, says
that all of its columns are missing, and is a row of NULLs.

A field that is null counts like any other: its name shows that the record belongs to the table. The fields which
describe an envelope, such as `op`, do not: if they are all that is stored of a record in an envelope, its row is lost.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import Annotated, Literal

from ingestd.keys import Doc, Reads

Unmatched = Literal["null", "reject"]

_PLAIN = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
# The fields of envelopes of Debezium and Kafka Connect that contain a row, and those that describe it.
_ROWS = frozenset({"before", "after", "payload"})
_OF_ENVELOPE = frozenset({"op", "source", "ts_ms", "ts_us", "ts_ns", "transaction", "schema"})
_MAX_FIELDS, _MAX_COLUMNS, _MAX_LETTERS = 5, 10, 40  # of reasons


def reject_or_null(value: object) -> Unmatched:
    """Read the value of a key that is `reject` or `null`. Raises ValueError."""
    if value is None or value == "null":  # YAML reads an unquoted null as no value
        return "null"
    if value == "reject":
        return "reject"
    raise ValueError("must be reject or null")


UnmatchedKey = Annotated[
    Unmatched,
    Reads(reject_or_null, {"enum": ["reject", "null", None]}),
    Doc("Whether a record with fields, none of which is a column of the table, is a reject, or a row of NULLs."),
]


def no_column(fields: Iterable[str], columns: Sequence[str], what: str = "record") -> str:
    """Return the reason of a reject whose fields have these names; the decoded columns have those of `columns`."""
    return (
        f"no field of the {what} is a column (fields: {_listed(fields, _MAX_FIELDS)};"
        f" columns: {_listed(columns, _MAX_COLUMNS)})"
    )


def no_column_of_schema(fields: Sequence[str], columns: Sequence[str]) -> str:
    """Return the reason of a reject whose fields, by its schema, have these names. No option unwraps its envelope."""
    event = change_event(fields)
    if not event:
        return no_column(fields, columns)
    return (
        f"no field of the record is a column: it is {event}; unwrap it in Kafka Connect, with Debezium's transform"
        " ExtractNewRecordState"
    )


def no_field_of_type(name: str) -> str:
    """Return the reason of a reject whose fields are all unknown to the Protobuf type of this name."""
    return f"all fields of the record are unknown to the type {name}, so the record probably has another type"


def own_columns(columns: Sequence[str]) -> list[str]:
    """Return the columns of these names whose fields show that a record belongs to the table.

    They are all columns if one stores the row in an envelope, or if there are only columns that describe an envelope.
    """
    own = [name for name in columns if name not in _OF_ENVELOPE]
    return list(columns) if not own or not _ROWS.isdisjoint(columns) else own


def is_envelope_field(name: str) -> bool:
    """Return whether this name, in lower case, is that of a field of an envelope."""
    return name in _OF_ENVELOPE or name in _ROWS


def is_envelope(fields: Collection[str]) -> bool:
    """Return whether a record with these fields is an envelope of Debezium or Kafka Connect with nothing beside it."""
    names = {name.lower() for name in fields}
    if not all(map(is_envelope_field, names)):
        return False
    return bool(change_event(names)) or {"schema", "payload"} <= names


def is_unmatched(fields: Collection[str], columns: Sequence[str], absent: Collection[str]) -> bool:
    """Return whether records with these fields, by their schema, do not belong to the table.

    `absent` are the names of the columns without a field.
    """
    return bool(fields) and set(absent).issuperset(own_columns(columns) if is_envelope(fields) else columns)


def change_event(fields: Iterable[str]) -> str:
    """Return what a record with these fields is if it seems to be a change event of Debezium, for a reason; else ''."""
    names = {name.lower() for name in fields}
    if "op" not in names or names.isdisjoint(("before", "after")):
        return ""
    return f"a change event of Debezium ({', '.join(name for name in ('before', 'after', 'op') if name in names)})"


def one_field(delimiter: int, fields: Sequence[str]) -> str:
    """Return the reason of a text without this delimiter; `fields` are the names of its fields."""
    return (
        f"record has only one field, because it has no field_delimiter {chr(delimiter)!r}"
        f" (columns: {_listed(filter(None, fields), _MAX_COLUMNS)})"
    )


def _listed(names: Iterable[str], limit: int) -> str:
    shown = [_shown(name) for name in islice(names, limit + 1)]
    return ", ".join(shown) if len(shown) <= limit else ", ".join([*shown[:limit], "..."])


def _shown(name: str) -> str:
    text = name if _PLAIN.fullmatch(name) else repr(name)
    return text if len(text) <= _MAX_LETTERS else text[: _MAX_LETTERS - 3] + "..."
