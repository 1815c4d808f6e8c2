"""Checks of arguments.

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

# The values of a partition: by column name, ignoring case, or in the order of the partition columns.
PartitionValues = Mapping[str, str] | Sequence[str]

Kind = type[StreamingException]


def check_text(name: str, value: object, *, kind: Kind = InvalidConnection) -> None:
    """Require a str of valid Unicode."""
    if not isinstance(value, str):
        raise _wrong(name, value, "text (str)", kind)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise kind(f"{value!r} is not valid Unicode: {error.reason}", where=name) from error


def check_whole(
    name: str, value: object, least: int, most: int | None = None, *, kind: Kind = InvalidConnection
) -> None:
    """Require an integer from `least` to `most`."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise _wrong(name, value, "an integer", kind)
    value = int(value)
    if value < least or (most is not None and value > most):
        limits = f"{least} or more" if most is None else f"{least} to {most}"
        raise kind(f"{name} must be {limits}, not {value}", where=name)


def check_seconds(name: str, value: object) -> None:
    """Require a positive, finite number."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise _wrong(name, value, "a number of seconds", InvalidConnection)
    if not 0 < float(value) < math.inf:
        raise InvalidConnection(f"{name} must be a positive, finite number of seconds, not {value}", where=name)


def check_flag(name: str, value: object, *, kind: Kind = InvalidConnection) -> None:
    """Require True or False; the text "false" would otherwise count as true."""
    if not isinstance(value, bool):
        raise _wrong(name, value, "True or False", kind)


def check_list(name: str, value: object, hint: str) -> None:
    """Require a list or a tuple; a str would otherwise pass as a sequence of characters."""
    if not isinstance(value, (list, tuple)):
        raise StreamingException(f"{name} must be a list, not {_described(value)}", where=name, hint=hint)


def check_values(name: str, values: object) -> None:
    """Require partition values: a mapping by name, or a list or tuple in the order of the columns."""
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
    """The values in the order of the partition columns. Raises InvalidConnection when they do not fit the columns."""
    check_values(name, values)
    keys = [column.name for column in columns]
    if not isinstance(values, Mapping):
        if len(values) != len(keys):
            raise InvalidConnection(
                f"{len(values)} {name.replace('_', ' ')}, but the table is partitioned by {keys}",
                where=name,
                hint="pass one value per partition column",
            )
        return list(values)
    given = {column.lower(): value for column, value in values.items()}
    if set(given) != set(keys) or len(given) < len(values):
        raise InvalidConnection(
            f"{name} name the columns {list(values)}, but the table is partitioned by {keys}",
            where=name,
            hint="name each partition column once; case is ignored",
        )
    return [given[key] for key in keys]


def _check_value(name: str, value: object) -> None:
    if not isinstance(value, str):
        text = str(value).lower() if isinstance(value, bool) else str(value)
        raise InvalidConnection(
            f"a partition value must be text (str), not {_described(value)}",
            where=name,
            hint='pass "" for NULL, the default partition' if value is None else f'pass "{text}"',
        )
    check_text(name, value)


def _wrong(name: str, value: object, wanted: str, kind: Kind) -> StreamingException:
    return kind(f"{name} must be {wanted}, not {_described(value)}", where=name)


def _described(value: Any) -> str:
    """A value for an error message: its type, and its text when that is short."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    shown = repr(value) if isinstance(value, (int, float, str, bytes, type(None))) else ""
    return f"{type(value).__name__} {shown}".strip() if len(shown) <= 40 else type(value).__name__
