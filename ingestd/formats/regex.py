r"""Decodes records into Arrow batches with a regular expression, as Hive's RegexSerDe (StrictRegexWriter) does.

Invariant: the result depends on each record alone, never on how records are batched.
Mappings name the column of each group (`fields`). What follows describes the default, the columns in their order.

Each group of the pattern is one column: first the table's columns, then the partition columns. The columns must have
primitive types.

| What | Here | Hive 4 RegexSerDe |
|---|---|---|
| the pattern | Python's `re`, the whole record, `.` matches line ends, \d \w \s: ASCII | Java's, otherwise the same |
| a record that does not match | a reject; with `unmatched="null"` a row of NULLs | a row of NULLs |
| a match in which no group participated, unless the record is empty | the same | a row of NULLs |
| a record that is not UTF-8 | a reject | invalid bytes become U+FFFD |
| a group that did not participate in the match | NULL | NULL, but false for boolean |
| the value of a group | read as in `delimited`, but there is no NULL text | Java's valueOf: no fractions, false for 1 |
| an invalid value | NULL; with `bad_values="reject"` a reject | NULL |
| the number of groups differs from the number of columns | ConfigError | an error at the first record |
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import pyarrow as pa

from ingestd.errors import ConfigError
from ingestd.formats.decoder import RejectError
from ingestd.formats.fields import BadValuesKey, FieldsKey, check_primitive, positions
from ingestd.formats.lazysimple.columns import FieldConverter
from ingestd.formats.lazysimple.values import FieldSyntax, check_choice
from ingestd.formats.record_decoder import RecordDecoder, RejectReasons, Tombstones, TombstonesKey
from ingestd.formats.row_batches import Row
from ingestd.formats.unmatched import Unmatched, UnmatchedKey
from ingestd.keys import Check, Doc
from ingestd.schema import Column

_FLAGS = re.DOTALL | re.ASCII


def _python_pattern(text: str) -> str:
    try:
        re.compile(text, _FLAGS)
    except (re.error, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"must be a regular expression of Python's re ({error})") from None
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class RegexOptions:
    """A record is text whose parts are found by a regular expression. `fields` has one entry for each group.

    A record that the pattern does not match as a whole is a reject, unless `unmatched` is "null", as is one with an
    invalid value, unless `bad_values` is "null". Raises ConfigError if `fields` does not have one entry for each group.
    """

    type: Annotated[Literal["regex"], Doc("Each record is text that matches a regular expression.")] = "regex"
    tombstones: TombstonesKey = "stop"
    pattern: Annotated[
        str, Check(_python_pattern, {}), Doc("A regular expression (Python's re) that matches the whole record.")
    ]
    fields: FieldsKey
    bad_values: BadValuesKey = "reject"
    unmatched: UnmatchedKey = "reject"

    def __post_init__(self) -> None:
        """Compare the numbers of groups and fields."""
        groups = re.compile(self.pattern, _FLAGS).groups
        if groups != len(self.fields):
            raise ConfigError(
                f"the number of entries is {len(self.fields)}, but the number of groups in the pattern is {groups}",
                where=".fields",
                hint="name one column for each group, or write (?:…) for groups that are not columns",
            )

    def decoder(self, columns: Sequence[Column]) -> RegexDecoder:
        """Return a decoder of records into these columns. Raises ConfigError as `RegexDecoder` does."""
        return RegexDecoder(
            columns,
            self.pattern,
            fields=self.fields,
            bad_values=self.bad_values,
            unmatched=self.unmatched,
            tombstones=self.tombstones,
        )


class RegexDecoder(RecordDecoder):
    """Decodes records into the given columns.

    `fields` contains the column of each group of `pattern`, by default the columns in their order (see `positions`).
    Columns without a group are NULL.
    `ignore_case` is Hive's `input.regex.case.insensitive`. `bad_values` determines whether an invalid value becomes
    NULL or makes its record a reject. `unmatched` determines whether a record that does not match the pattern as a
    whole becomes a row of NULLs or a reject. Raises ConfigError for any other value of these two options, for groups
    stored in complex columns, and for a pattern that is not a regular expression or does not have one group for each
    field.
    """

    def __init__(  # noqa: PLR0913 - the options of a format, by name only
        self,
        columns: Sequence[Column],
        pattern: str,
        *,
        fields: Sequence[str] | None = None,
        ignore_case: bool = False,
        bad_values: Literal["null", "reject"] = "null",
        unmatched: Unmatched = "reject",
        tombstones: Tombstones = "stop",
    ) -> None:
        super().__init__(columns, tombstones=tombstones)
        check_choice("bad_values", bad_values, ("null", "reject"))
        check_choice("unmatched", unmatched, ("null", "reject"))
        names = [column.name for column in columns] if fields is None else fields
        check_primitive(columns, names)
        self._match = _compiled(pattern, len(names), ignore_case=ignore_case).fullmatch
        self._converter = FieldConverter(columns, FieldSyntax(b"", bad_values=bad_values), positions(names, columns))
        self._nulls = (None,) * len(names)
        self._rejects_unmatched = unmatched == "reject"

    def absent_columns(self, values: Sequence[bytes]) -> frozenset[str]:
        """See `RecordDecoder`."""
        return self._converter.absent(len(self._nulls))

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
        groups = match.groups() if match else self._nulls
        if not self._rejects_unmatched:
            return groups
        if match is None:
            raise RejectError("", "record does not match the regular expression")
        if value and groups == self._nulls:
            raise RejectError("", "no group of the regular expression has matched a part of the record")
        return groups


def _compiled(pattern: str, columns: int, *, ignore_case: bool) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern, _FLAGS | re.IGNORECASE if ignore_case else _FLAGS)
    except (re.error, ValueError, OverflowError, RecursionError) as error:
        raise ConfigError(f"{pattern!r} is not a valid Python regular expression: {error}") from None
    if compiled.groups != columns:
        raise ConfigError(
            f"the number of groups is {compiled.groups}, but the number of columns is {columns}",
            hint="write one group for each column, partition columns last, and (?:…) for groups that are not columns",
        )
    return compiled
