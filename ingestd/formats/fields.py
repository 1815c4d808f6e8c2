"""The keys of formats whose records consist of fields without names: delimited, csv and regex.

Invariant: the column of a field never depends on the definition of the table, so a column that is added to the table
does not change where a field is stored.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Literal

from ingestd.errors import ConfigError
from ingestd.formats.lazysimple.values import BadValues
from ingestd.formats.unmatched import reject_or_null
from ingestd.keys import NOT_EMPTY, Check, Doc, Reads
from ingestd.schema import Column

_CODE = re.compile(r"[+-]?[0-9]+")


def byte_of(text: str) -> int | None:
    """Return the byte of an ASCII character, written as itself or as its decimal code; None for any other text.

    Source: Hive's LazyUtils.getByte.
    """
    code = int(text) if _CODE.fullmatch(text) else ord(text) if len(text) == 1 else -1
    return code if 0 <= code < 128 else None


def _character(text: str) -> str:
    if byte_of(text) is None:
        raise ValueError("must be one ASCII character, or its decimal code such as 44")
    return text


def _lower_and_distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    lower = tuple(name.strip().lower() for name in names)
    named = [name for name in lower if name]
    if len(set(named)) < len(named):
        raise ValueError("must name each column once")
    return lower


CHARACTER = Check(_character, {})
FieldsKey = Annotated[
    tuple[str, ...],
    NOT_EMPTY,
    Check(_lower_and_distinct, {}),
    Doc("The column of each field, in the order of the fields; '' for a field that is not stored."),
]
BadValuesKey = Annotated[
    BadValues,
    Reads(reject_or_null, {"enum": ["reject", "null", None]}),
    Doc("Whether a field that is not valid for its column's type makes the record a reject, or is NULL as in Hive."),
]
SurplusKey = Annotated[
    Literal["drop", "reject"],
    Doc("Whether the fields of a record after the last one of `fields` are dropped, or make the record a reject."),
]


def check_primitive(columns: Sequence[Column], fields: Sequence[str]) -> None:
    """Raise ConfigError if a field is stored in a complex column."""
    for column in columns:
        if column.type.is_complex and column.name in fields:
            raise ConfigError(
                f"a field of this format cannot be stored in a column of the type {column.type}",
                where=f"column {column.name}",
                hint="use the format delimited or json for this table",
            )


def positions(fields: Sequence[str], columns: Sequence[Column]) -> tuple[int | None, ...]:
    """Return, for each column, the index of its field, or None if no field is stored in it.

    Raises ConfigError if a field is stored in a column that does not exist.
    """
    names = [column.name for column in columns]
    unknown = [name for name in fields if name and name not in names]
    if unknown:
        raise ConfigError(
            f"there is no column {', '.join(unknown)}; the columns of the records are {', '.join(names)}",
            where="format.fields",
            hint="correct the name, or write '' for a field that is not stored; partition columns with another source"
            " (partition) are not columns of the records",
        )
    return tuple(fields.index(name) if name in fields else None for name in names)
