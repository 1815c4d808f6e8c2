r"""Decodes records into Arrow batches with a regular expression, as Hive's RegexSerDe (StrictRegexWriter) does.

Invariant: the result depends on each record alone, never on how records are batched.

Each group of the pattern is one column: first the table's columns, then the partition columns. The columns must have
primitive types.

| What | Here | Hive 4 RegexSerDe |
|---|---|---|
| the pattern | Python's `re`, the whole record, `.` matches line ends, \d \w \s: ASCII | Java's, otherwise the same |
| a record that does not match | a reject; with `unmatched="null"` a row of NULLs | a row of NULLs |
| a record that is not UTF-8 | a reject | invalid bytes become U+FFFD |
| a group that did not participate in the match | NULL | NULL, but false for boolean |
| the value of a group | read as in `delimited`, but there is no NULL text | Java's valueOf: no fractions, false for 1 |
| an invalid value | NULL; with `bad_values="reject"` a reject | NULL |
| the number of groups differs from the number of columns | ConfigError | an error at the first record |
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import pyarrow as pa

from ingestd.errors import ConfigError
from ingestd.formats.decoder import RejectError
from ingestd.formats.lazysimple.columns import FieldConverter
from ingestd.formats.lazysimple.values import FieldSyntax, check_choice
from ingestd.formats.record_decoder import RecordDecoder, RejectReasons
from ingestd.formats.row_batches import Row
from ingestd.schema import Column


class RegexDecoder(RecordDecoder):
    """Decodes records into the given columns, one for each group of `pattern`.

    `ignore_case` is Hive's `input.regex.case.insensitive`. `bad_values` determines whether an invalid value becomes
    NULL or makes its record a reject. `unmatched` determines whether a record that does not match the pattern as a
    whole becomes a row of NULLs or a reject. Raises ConfigError for any other value of these two options, for complex
    columns, and for a pattern that is not a regular expression or does not have one group for each column.
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
        super().__init__(columns)
        check_choice("bad_values", bad_values, ("null", "reject"))
        check_choice("unmatched", unmatched, ("null", "reject"))
        _check_columns(columns)
        self._match = _compiled(pattern, len(columns), ignore_case=ignore_case).fullmatch
        self._converter = FieldConverter(columns, FieldSyntax(b"", bad_values=bad_values))
        self._nulls = (None,) * len(columns)
        self._rejects_unmatched = unmatched == "reject"

    def decode_record(self, value: bytes) -> Row:
        """See `RecordDecoder`."""
        return self._converter.row([None if group is None else group.encode() for group in self._groups(value)])

    def decode_batch(self, values: Sequence[bytes]) -> tuple[pa.RecordBatch, RejectReasons]:
        """See `RecordDecoder`."""
        groups: list[Sequence[str | None]] = []
        unmatched: dict[int, tuple[str, str]] = {}
        for row, value in enumerate(values):
            try:
                groups.append(self._groups(value))
            except RejectError as error:  # noqa: PERF203
                unmatched[row] = (error.column, error.reason)
                groups.append(self._nulls)
        arrays = [pa.array(column, pa.string()).view(pa.binary()) for column in zip(*groups, strict=True)]
        batch, bad_values = self._converter.batch(arrays)
        return batch, {**bad_values, **unmatched}

    def _groups(self, value: bytes) -> Sequence[str | None]:
        """Return the text of each group, None if the group did not participate in the match. Raises RejectError."""
        try:
            match = self._match(value.decode())
        except UnicodeDecodeError as error:
            raise RejectError("", f"record is not UTF-8 (byte {error.start})") from None
        if match is None and self._rejects_unmatched:
            raise RejectError("", "record does not match the regular expression")
        return match.groups() if match else self._nulls


def _check_columns(columns: Sequence[Column]) -> None:
    for column in columns:
        if column.type.is_complex:
            raise ConfigError(
                f"a regular expression cannot be used for a column of type {column.type}",
                where=f"column {column.name}",
                hint="use a delimited or JSON writer for this table",
            )


def _compiled(pattern: str, columns: int, *, ignore_case: bool) -> re.Pattern[str]:
    flags = re.DOTALL | re.ASCII
    try:
        compiled = re.compile(pattern, flags | re.IGNORECASE if ignore_case else flags)
    except (re.error, ValueError, OverflowError, RecursionError) as error:
        raise ConfigError(f"{pattern!r} is not a valid Python regular expression: {error}") from None
    if compiled.groups != columns:
        raise ConfigError(
            f"the number of groups is {compiled.groups}, but the number of columns is {columns}",
            hint="write one group for each column, partition columns last, and (?:…) for groups that are not columns",
        )
    return compiled
