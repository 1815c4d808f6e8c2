r"""Records matched by a regular expression become Arrow batches, as Hive's RegexSerDe (StrictRegexWriter) reads them.

Invariant: the result does not depend on how records fall into blocks, only on each record.

Each group of the pattern is one column, the table's and then the partition columns; primitive types only.

| What | Here | Hive 4 RegexSerDe |
|---|---|---|
| the pattern | Python's `re`, the whole record, `.` takes line ends, \d \w \s are ASCII | Java's, otherwise the same |
| a record that does not match | a reject; with `unmatched="null"` a row of NULLs | a row of NULLs |
| a record that is not UTF-8 | a reject | bad bytes become U+FFFD |
| a group that took no part | NULL | NULL, but false for boolean |
| a group's value | read as in `delimited`, but there is no NULL text | Java's valueOf: no fractions, false for 1 |
| a value that is no value of its type | NULL; with `bad_values="reject"` a reject | NULL |
| the number of groups is not that of columns | ConfigError | an error at the first record |
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import pyarrow as pa

from ingestd.errors import ConfigError
from ingestd.formats.decoder import DecodeResult, Reject, RejectError
from ingestd.formats.lazysimple.columns import Cells, Faults
from ingestd.formats.lazysimple.values import Style
from ingestd.formats.text import check_choice, decode_block
from ingestd.schema import Column


class RegexDecoder:
    """Decodes records into the given columns, one for each group of `pattern`.

    `ignore_case` is Hive's `input.regex.case.insensitive`; `bad_values` says what a malformed group is, `unmatched`
    what a record is that the pattern does not match as a whole. Raises ConfigError for a pattern that is no regular
    expression or has not one group for each column, and for complex columns.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        pattern: str,
        *,
        ignore_case: bool = False,
        bad_values: Literal["null", "reject"] = "null",
        unmatched: Literal["null", "reject"] = "reject",
    ) -> None:
        check_choice("bad_values", bad_values, ("null", "reject"))
        check_choice("unmatched", unmatched, ("null", "reject"))
        _check_columns(columns)
        self._match = _compiled(pattern, len(columns), ignore_case=ignore_case).fullmatch
        self._cells = Cells(columns, Style(b"", bad=bad_values))
        self._no_groups = (None,) * len(columns)
        self._reject = unmatched == "reject"

    def decode(self, values: Sequence[bytes | None]) -> DecodeResult:
        """Decode a block, best of 20,000 to 100,000 records; never raises for what records hold."""
        return decode_block(values, self._decode)

    def check(self, value: bytes) -> Reject | None:
        """Why this record would be a reject, if it would; its row is 0. Much faster than to decode a block of one."""
        try:
            self._cells.check([None if group is None else group.encode() for group in self._groups(value)])
        except RejectError as error:
            return Reject.of(0, value, error.column, error.reason)
        return None

    def _decode(self, values: Sequence[bytes], faults: Faults) -> list[pa.RecordBatch]:
        rows = [self._groups_or_fault(row, value, faults) for row, value in enumerate(values)]
        arrays = [pa.array(column, pa.string()).view(pa.binary()) for column in zip(*rows, strict=True)]
        return self._cells.decode(arrays, faults)

    def _groups_or_fault(self, row: int, value: bytes, faults: Faults) -> Sequence[str | None]:
        try:
            return self._groups(value)
        except RejectError as error:
            faults[row] = ("", error.reason)
            return self._no_groups

    def _groups(self, value: bytes) -> Sequence[str | None]:
        try:
            match = self._match(value.decode())
        except UnicodeDecodeError as error:
            raise RejectError("", f"record is not UTF-8 (byte {error.start})") from None
        if match is None and self._reject:
            raise RejectError("", "record does not match the regular expression")
        return match.groups() if match else self._no_groups


def _check_columns(columns: Sequence[Column]) -> None:
    for column in columns:
        if column.type.is_complex:
            raise ConfigError(
                f"a regular expression cannot fill type {column.type}",
                where=f"column {column.name}",
                hint="use a delimited or JSON writer for this table",
            )


def _compiled(pattern: str, columns: int, *, ignore_case: bool) -> re.Pattern[str]:
    flags = re.DOTALL | re.ASCII
    try:
        compiled = re.compile(pattern, flags | re.IGNORECASE if ignore_case else flags)
    except (re.error, ValueError, OverflowError, RecursionError) as error:
        raise ConfigError(f"{pattern!r} is not a regular expression of Python: {error}") from None
    if compiled.groups != columns:
        raise ConfigError(
            f"the regular expression has {compiled.groups} groups, the table has {columns} columns",
            hint="write one group for each column, partition columns last, and (?:…) for groups that are none",
        )
    return compiled
