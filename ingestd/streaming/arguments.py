"""Checks the types and ranges of arguments.

Invariant: an argument of the wrong type or out of range raises a StreamingException that names the argument, its value
and the correct form, and never a TypeError or ValueError from inside the library.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from ingestd.schema import Column
from ingestd.streaming.errors import InvalidConnection, StreamingException

# The values of a partition, either by column name (case-insensitive) or in the order of the partition columns.
PartitionValues = Mapping[str, str] | Sequence[str]

Kind = type[StreamingException]


def check_text(name: str, value: object, *, kind: Kind = InvalidConnection) -> None:
    """Raise `kind` unless the value is a str of valid Unicode."""
    if not isinstance(value, str):
        raise _wrong(name, value, "text (str)", kind)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise kind(f"{value!r} is not valid Unicode: {error.reason}", where=name) from error


def check_whole(
    name: str, value: object, least: int, most: int | None = None, *, kind: Kind = InvalidConnection
) -> None:
    """Raise `kind` unless the value is an integer from `least` to `most` (None: no upper limit)."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise _wrong(name, value, "an integer", kind)
    value = int(value)
    if value < least or (most is not None and value > most):
        limits = f"{least} or more" if most is None else f"{least} to {most}"
        raise kind(f"{name} must be {limits}, not {value}", where=name)


def check_seconds(name: str, value: object) -> None:
    """Raise InvalidConnection unless the value is a positive, finite number."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise _wrong(name, value, "a number of seconds", InvalidConnection)
    if not 0 < float(value) < math.inf:
        raise InvalidConnection(f"{name} must be a positive, finite number of seconds, not {value}", where=name)


def check_flag(name: str, value: object, *, kind: Kind = InvalidConnection) -> None:
    """Raise `kind` unless the value is True or False. Otherwise the text "false" would count as true."""
    if not isinstance(value, bool):
        raise _wrong(name, value, "True or False", kind)


def check_list(name: str, value: object, hint: str) -> None:
    """Raise StreamingException unless the value is a list or tuple. A str would otherwise pass as a sequence."""
    if not isinstance(value, (list, tuple)):
        raise StreamingException(f"{name} must be a list, not {_described(value)}", where=name, hint=hint)


def check_values(name: str, values: object) -> None:
    """Raise InvalidConnection unless the values are a mapping by column name, or a list or tuple in column order."""
    if isinstance(values, Mapping):
        for column, value in values.items():
            check_text(f"{name}, column name", column)
            _check_value(f"{name}[{column!r}]", value)
    elif isinstance(values, (list, tuple)):
        for place, value in enumerate(values):
            _check_value(f"{name}[{place}]", value)
    else:
        raise InvalidConnection(
            f"{name} must be a list of values or a mapping by name, not {_described(values)}",
            where=name,
            hint='pass ["Asia", "India"] in the order of the partition columns, or {"continent": "Asia", …}',
        )


def in_order(values: PartitionValues, columns: Sequence[Column], name: str) -> list[str]:
    """Return the values in the order of the partition columns. Raises InvalidConnection if they do not fit."""
    check_values(name, values)
    keys = [column.name for column in columns]
    if not isinstance(values, Mapping):
        if len(values) != len(keys):
            raise InvalidConnection(
                f"{name} has length {len(values)}, but the partition columns of the table are {keys}",
                where=name,
                hint="pass one value per partition column",
            )
        return list(values)
    given = {column.lower(): value for column, value in values.items()}
    if set(given) != set(keys) or len(given) < len(values):
        raise InvalidConnection(
            f"{name} names the columns {list(values)}, but the partition columns of the table are {keys}",
            where=name,
            hint="name each partition column once (case-insensitive)",
        )
    return [given[key] for key in keys]


def _check_value(name: str, value: object) -> None:
    if not isinstance(value, str):
        text = str(value).lower() if isinstance(value, bool) else str(value)
        raise InvalidConnection(
            f"a partition value must be text (str), not {_described(value)}",
            where=name,
            hint='pass "" for NULL (the default partition)' if value is None else f'pass "{text}"',
        )
    check_text(name, value)


def _wrong(name: str, value: object, wanted: str, kind: Kind) -> StreamingException:
    return kind(f"{name} must be {wanted}, not {_described(value)}", where=name)


def _described(value: Any) -> str:
    """Return the type of a value, followed by its repr if that is short, for an error message."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    shown = repr(value) if isinstance(value, (int, float, str, bytes, type(None))) else ""
    return f"{type(value).__name__} {shown}".strip() if len(shown) <= 40 else type(value).__name__
