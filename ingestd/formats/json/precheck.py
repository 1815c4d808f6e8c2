"""A quick look at one JSON record that says "certainly good", or nothing.

Invariant: a record that passes is never refused by `single.SingleDecoder`; one that does not pass may be good too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import date, datetime
from math import isfinite
from typing import NoReturn

from ingestd.formats.json.record import MAX_DEPTH
from ingestd.schema import INTEGER_BITS, Column, HiveType

Judge = Callable[[object], bool]
_FLOAT_MAX = 3e38


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_parse = json.JSONDecoder(parse_constant=_refuse).decode


class Glance:
    """Judges records for these columns."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._judges = {column.name: _judge(column.type) for column in columns}

    def passes(self, value: bytes) -> bool:
        """Whether the record is certainly good."""
        if len(value) > 2 * MAX_DEPTH and value.count(b"[") + value.count(b"{") > MAX_DEPTH:
            return False
        try:
            record = _parse(value.decode())
        except (ValueError, RecursionError):
            return False
        if type(record) is not dict:
            return False
        judges = self._judges
        for key, field in record.items():
            if key in judges:
                if field is not None and not judges[key](field):
                    return False
            elif key.lower() in judges:
                return False
        return True


def _judge(kind: HiveType) -> Judge:
    if kind.kind in INTEGER_BITS:
        limit = 1 << (INTEGER_BITS[kind.kind] - 1)
        return lambda value: type(value) is int and -limit <= value < limit
    if kind.kind in ("float", "double"):
        most = _FLOAT_MAX if kind.kind == "float" else float("inf")
        return lambda value: type(value) in (float, int) and _fits(value, most)
    if kind.kind in ("char", "varchar"):
        return lambda value: type(value) is str and value.isascii() and len(value) <= kind.length
    return _PLAIN.get(kind.kind, _never)


def _fits(value: object, most: float) -> bool:
    try:
        number = abs(float(value))  # type: ignore[arg-type]
    except OverflowError:
        return False
    return isfinite(number) and number <= most


def _text(value: object) -> bool:
    return type(value) is str and value.isascii()


def _date(value: object) -> bool:
    if type(value) is not str or len(value) != 10 or value[4] != "-" or value[7] != "-" or not value.isascii():
        return False
    try:
        date.fromisoformat(value)
    except ValueError:
        return False
    return True


def _timestamp(value: object) -> bool:
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


def _never(_value: object) -> bool:
    return False


_PLAIN: dict[str, Judge] = {
    "boolean": lambda value: type(value) is bool,
    "string": _text,
    "date": _date,
    "timestamp": _timestamp,
}
