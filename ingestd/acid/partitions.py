"""Computes the names and values of Hive partitions.

Invariant: both are the strings that Hive itself writes (FileUtils.makePartName, HiveStreamingConnection).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, Inexact, InvalidOperation
from math import isinf

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ingestd.errors import InvalidTable
from ingestd.schema import INTEGER_BITS, Column, HiveType

DEFAULT_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED = {
    code: f"%{code:02X}" for code in (*range(0x20), 0x7F, *map(ord, "\"#%'*/:=?\\{[]^"))
}  # FileUtils.charToEscape
NAME_BYTES = 255  # limit of a directory name on Linux file systems and HDFS
_WHOLE = re.compile(r"[+-]?[0-9]{1,40}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_DATE = re.compile(r"([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})")
_TIMESTAMP = re.compile(
    _DATE.pattern + r"(?:[ T]([0-9]{1,2}):([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]{1,9}))?)?)?",
)
_EXACT = Context(prec=100, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[Inexact, InvalidOperation])


def partition_name(keys: Sequence[str], values: Sequence[str]) -> str:
    """Return `key=value/key=value`, escaped (FileUtils.makePartName); an empty value means the default partition."""
    pairs = zip(keys, values, strict=True)
    return "/".join(f"{_escape(key.lower())}={_escape(value or DEFAULT_PARTITION)}" for key, value in pairs)


def _escape(text: str) -> str:
    return text.translate(_ESCAPED)


def name_bytes(key: str, value: str) -> int:
    """Return the length of the escaped directory name `key=value` in bytes."""
    return len(partition_name([key], [value]).encode())


def static_partition_value(column: Column, text: str) -> str:
    """Normalise a partition value that a user wrote: `007` becomes `7` for an int, `1.50` becomes `1.5` for a decimal.

    Hive's own INSERT normalises `PARTITION (p='007')` in the same way, so its WHERE, DROP PARTITION and INSERT
    OVERWRITE find the partition. The empty string and `__HIVE_DEFAULT_PARTITION__` mean the default partition, as in
    Hive Streaming; Hive's INSERT rejects the empty string.

    Raises InvalidTable for a text that is not a value of the column's type, or whose directory name is too long. This
    includes texts that Hive changes silently: `300` for a tinyint (becomes 44), `yes` for a boolean (true), and digits
    or characters that do not fit the type (truncated).
    """
    if text in ("", DEFAULT_PARTITION):
        return DEFAULT_PARTITION
    try:
        value = partition_value(column, _scalar(column.type, text))
    except (ValueError, OverflowError, InvalidOperation, Inexact, pa.ArrowException) as error:
        shown = repr(text) if len(text) <= 40 else repr(text[:37]) + "..."
        raise InvalidTable(
            f"{shown} is not a value of type {column.type}",
            where=f"partition column {column.name}",
            hint=f"the column accepts {_EXAMPLES[column.type.kind]}",
        ) from error
    if name_bytes(column.name, value) > NAME_BYTES:
        raise InvalidTable(
            f"the directory name of the partition has more than {NAME_BYTES} bytes",
            where=f"partition column {column.name}",
            hint="use a shorter value; char values, unlike varchar values, are padded to the length of their column",
        )
    return value


def odd_partition_names(columns: Sequence[Column], names: Sequence[str]) -> list[str]:
    """Return the partition names (`k=v/k2=v2`, escaped) that contain a value which is not normalised.

    Hive compares such values as text in some places and by type in others: `WHERE p = 7` does not find `p=007`.
    """
    checked = [index for index, column in enumerate(columns) if column.type.kind not in ("string", "varchar")]
    return [name for name in names if checked and _is_odd(columns, checked, name)]


def _is_odd(columns: Sequence[Column], checked: Sequence[int], name: str) -> bool:
    parts = name.split("/")
    for index in checked if len(parts) == len(columns) else ():
        text = _CODE.sub(lambda match: chr(int(match[1], 16)), parts[index].partition("=")[2])
        try:
            if static_partition_value(columns[index], text) != text:
                return True
        except InvalidTable:
            return True
    return False


_CODE = re.compile(r"%([0-9A-Fa-f]{2})")  # FileUtils.unescapePathName


def _scalar(kind: HiveType, text: str) -> pa.Scalar:
    """Parse a value of a type. Raises ValueError, OverflowError, ArrowException, and the errors of `decimal`."""
    if kind.kind in INTEGER_BITS:
        return pa.scalar(int(_matched(_WHOLE, text)[0]), kind.arrow)
    return _SCALARS[kind.kind](kind, text)


def _matched(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    match = pattern.fullmatch(text)
    if match is None:
        raise ValueError(text)
    return match


def _boolean_scalar(kind: HiveType, text: str) -> pa.Scalar:
    return pa.scalar({"true": True, "false": False}[_matched(_FLAG, text)[0].lower()], kind.arrow)


_FLAG = re.compile("true|false", re.IGNORECASE | re.ASCII)


def _floating_scalar(kind: HiveType, text: str) -> pa.Scalar:
    if text in ("NaN", "Infinity", "-Infinity"):
        return pa.scalar(float(text), kind.arrow)
    _matched(_NUMBER, text)
    number = pc.cast(pa.scalar(text.removeprefix("+")), kind.arrow)  # rounds once, even to a float
    if isinf(number.as_py()):
        raise ValueError(text)
    return number


def _decimal_scalar(kind: HiveType, text: str) -> pa.Scalar:
    number = Decimal(_matched(_NUMBER, text)[0]).quantize(Decimal((0, (1,), -kind.scale)), context=_EXACT)
    return pa.scalar(number, kind.arrow)


def _text_scalar(kind: HiveType, text: str) -> pa.Scalar:
    text = text.rstrip(" ") if kind.kind == "char" else text
    if kind.length and len(text) > kind.length:
        raise ValueError(text)
    text.encode()  # raises for an unpaired surrogate, which UTF-8 cannot encode
    return pa.scalar(text, kind.arrow)


def _date_scalar(kind: HiveType, text: str) -> pa.Scalar:
    return pa.scalar(date(*map(int, _matched(_DATE, text).groups())), kind.arrow)


def _timestamp_scalar(_: HiveType, text: str) -> pa.Scalar:
    *parts, fraction = _matched(_TIMESTAMP, text).groups(default="0")
    moment = datetime(*map(int, parts))  # type: ignore[arg-type]
    seconds = int((np.datetime64(moment, "s") - np.datetime64(0, "s")).astype(int))
    nanos = seconds * 1_000_000_000 + int(fraction.ljust(9, "0"))
    if -(2**63) < nanos < 2**63:
        return pa.scalar(nanos, pa.timestamp("ns"))
    if nanos % 1000:
        raise ValueError(text)
    return pa.scalar(nanos // 1000, pa.timestamp("us"))


_SCALARS: dict[str, Callable[[HiveType, str], pa.Scalar]] = {
    "boolean": _boolean_scalar,
    "float": _floating_scalar,
    "double": _floating_scalar,
    "decimal": _decimal_scalar,
    "string": _text_scalar,
    "varchar": _text_scalar,
    "char": _text_scalar,
    "date": _date_scalar,
    "timestamp": _timestamp_scalar,
    "binary": lambda kind, text: pa.scalar(text.encode(), kind.arrow),  # which `partition_value` rejects
}
_EXAMPLES = {
    **{kind: f"whole numbers of {bits} bits, such as 7" for kind, bits in INTEGER_BITS.items()},
    **dict.fromkeys(("float", "double"), "numbers such as 1.5, NaN, Infinity and -Infinity"),
    "decimal": "numbers such as 1.5 that fit its precision and scale",
    **dict.fromkeys(("string", "varchar", "char"), "text that is not longer than the type allows"),
    "boolean": "true and false",
    "date": "dates such as 2026-11-21",
    "timestamp": "timestamps without a zone, such as 2026-11-21 10:00:00",
}


def partition_value(column: Column, scalar: pa.Scalar) -> str:
    """Return the text that Hive stores for a partition value (Writable.toString).

    For NULL and the empty string this is the name of the default partition. Raises InvalidTable for binary columns,
    which have no such text.
    """
    if not scalar.is_valid:
        return DEFAULT_PARTITION
    kind = column.type.kind
    if kind == "binary":
        raise InvalidTable(
            "a binary column cannot be a partition column",
            where=f"column {column.name}",
            hint="recreate the table with partition columns of another type, such as string",
        )
    if kind == "timestamp":
        return _timestamp(scalar)
    value = scalar.as_py()
    if kind == "boolean":
        return "true" if value else "false"
    if kind == "decimal":
        return _decimal(value)
    if kind in ("float", "double"):
        return _java_double(str(np.float32(value)) if kind == "float" else repr(value))
    if kind == "char":
        value = value.ljust(column.type.length)  # HiveCharWritable.toString pads
    return str(value) or DEFAULT_PARTITION


def _decimal(value: Decimal) -> str:
    """Return plain digits without trailing zeros (HiveDecimal.toString)."""
    text = f"{value:f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text in ("-0", "") else text


def _timestamp(scalar: pa.Scalar) -> str:
    """Return `yyyy-MM-dd HH:mm:ss`, with a fraction only if it is not 0 (Timestamp.toString)."""
    units = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}[scalar.type.unit]
    seconds, rest = divmod(scalar.value, units)
    day = np.datetime64(0, "s") + np.timedelta64(seconds, "s")
    fraction = str(rest * (1_000_000_000 // units)).zfill(9).rstrip("0")
    return str(day).replace("T", " ") + (f".{fraction}" if fraction else "")


def _java_double(text: str) -> str:
    """Return the shortest digits in Java's notation (Double.toString): plain from 1e-3 to 1e7, otherwise `d.dEn`."""
    number = Decimal(text) if text not in ("nan", "inf", "-inf") else None
    if number is None:
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[text]
    sign = "-" if number.is_signed() else ""
    if not number:
        return sign + "0.0"
    digits = "".join(map(str, number.as_tuple().digits)).rstrip("0")
    exponent = number.adjusted()
    if -3 <= exponent < 7:
        plain = f"{Decimal(digits).scaleb(exponent - len(digits) + 1):f}"
        return sign + (plain if "." in plain else plain + ".0")
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{exponent}"
