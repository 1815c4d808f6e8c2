"""The text with which HiveServer2 returns a value to its clients.

Invariant: the text of a value that this module returns is the one that a query of the stored value returns. The
exception is a binary value that is not UTF-8, whose other bytes are escaped (`\\xff`).
Source: ColumnBuffer of HiveServer2's result sets; SerDeUtils.buildJSONString for arrays, maps and structs.
"""

from __future__ import annotations

import json

import pyarrow as pa

from ingestd.acid.partitions import partition_value
from ingestd.schema import Column, HiveType

_TEXTS = ("string", "varchar", "char")


def hive_text(kind: HiveType, scalar: pa.Scalar) -> str | None:
    """Return the text of one decoded value of a column of this type; None for NULL."""
    if not scalar.is_valid:
        return None
    if kind.is_complex:
        return _json(kind, scalar)
    if kind.kind == "decimal":
        return f"{scalar.as_py():f}"  # with all digits of the scale (HiveDecimal.toFormatString), also zeros
    return _primitive(kind, scalar)


def _primitive(kind: HiveType, scalar: pa.Scalar) -> str:
    if kind.kind in _TEXTS:
        text: str = scalar.as_py()
        return text.ljust(kind.length) if kind.kind == "char" else text
    if kind.kind == "binary":
        return str(scalar.as_py(), "utf-8", "backslashreplace")
    return partition_value(Column("", kind), scalar)  # of other types, partition values have the same text


def _json(kind: HiveType, scalar: pa.Scalar) -> str:
    """Return a value inside an array, a map or a struct. Unlike in JSON, keys of maps may be numbers."""
    if not scalar.is_valid:
        return "null"
    if kind.kind == "array":
        return f"[{','.join(_json(kind.children[0], item) for item in scalar.values)}]"
    if kind.kind == "map":
        key, value = kind.children
        pairs = zip(scalar.values.field(0), scalar.values.field(1), strict=True)
        return f"{{{','.join(f'{_json(key, item)}:{_json(value, other)}' for item, other in pairs)}}}"
    if kind.kind == "struct":
        fields = zip(kind.names, kind.children, scalar.values(), strict=True)
        return f"{{{','.join(f'{_quoted(name)}:{_json(child, item)}' for name, child, item in fields)}}}"
    text = _primitive(kind, scalar)
    is_quoted = kind.kind in (*_TEXTS, "date", "timestamp")
    return _quoted(text) if is_quoted else text


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
