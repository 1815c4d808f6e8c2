r"""Decodes records into Arrow batches with a regular expression, as Hive's RegexSerDe (StrictRegexWriter) does.

Invariant: the result depends on each record alone, never on how records are batched. Whatever the pattern, the time for
a record is proportional to its length: RE2, which Arrow contains, does not backtrack.
Mappings name the column of each group (`fields`). What follows describes the default, the columns in their order.

Each group of the pattern is one column: first the table's columns, then the partition columns. The columns must have
primitive types.

| What | Here | Hive 4 RegexSerDe |
|---|---|---|
| the pattern | RE2's, the whole record, `.` matches line ends, \d \w \s: ASCII | Java's, otherwise the same |
| `ignore_case` | also letters that are not ASCII | ASCII letters only |
| a record that does not match | a reject; with `unmatched="null"` a row of NULLs | a row of NULLs |
| a match in which no group participated, unless the record is empty | the same | a row of NULLs |
| a record that is not UTF-8 | a reject | invalid bytes become U+FFFD |
| a group that did not participate in the match | NULL | NULL, but false for boolean |
| the value of a group | read as in `delimited`, but there is no NULL text | Java's valueOf: no fractions, false for 1 |
| an invalid value | NULL; with `bad_values="reject"` a reject | NULL |
| the number of groups differs from the number of columns | ConfigError | an error at the first record |

RE2 has no look-around and no back references. About 8,000 records per second are matched one by one, as by `write`, and
100 times as many in lists.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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

# The parts of a pattern in which a parenthesis is no group, and the beginnings of groups.
_PARTS = re.compile(
    r"\\Q.*?(?:\\E|\Z)"  # a quotation
    r"|\\."
    r"|\[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\]"  # a class of characters
    r"|(?P<group>\((?!\?)|\(\?P?<[^>]+>)",
    re.DOTALL,
)
_UNMATCHED = "record does not match the regular expression"
_NO_GROUP = "no group of the regular expression has matched a part of the record"
_HINT = "see https://github.com/google/re2/wiki/Syntax: no look-around, back references, possessive repetitions"


class _Pattern:
    """A pattern of RE2 that matches whole texts. `groups` is the number of its groups. Raises ValueError."""

    def __init__(self, text: str, *, ignore_case: bool = False) -> None:
        self.groups = 0
        try:
            pc.match_substring_regex(pa.array([""]), text)
            # Arrow requires a name for each group.
            self._regex = f"(?s{'i' * ignore_case})\\A(?:{_PARTS.sub(self._name, text)})\\z"
            self.spans(pa.array([""]))
        except (pa.ArrowInvalid, UnicodeEncodeError) as error:
            reason = str(error).removeprefix("Invalid regular expression: ")
            raise ValueError(f"must be a regular expression of RE2 ({reason})") from None

    def _name(self, part: re.Match[str]) -> str:
        if not part["group"]:
            is_open = part[0].startswith(r"\Q") and not part[0].endswith(r"\E")
            return f"{part[0]}\\E" if is_open else part[0]
        self.groups += 1
        return f"(?P<g{self.groups}>"

    def spans(self, texts: pa.StringArray) -> pa.StructArray:
        """Return the start and length of each group in bytes, None for groups that do not participate in the match.

        A text that does not match, or is null, is null.
        """
        return pc.extract_regex_span(texts, self._regex)


def _re2_pattern(text: str) -> str:
    _Pattern(text)
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class RegexOptions:
    """A record is text whose parts are found by a regular expression. `fields` has one entry for each group.

    A record that the pattern does not match as a whole is a reject, unless `unmatched` is "null", as is one with an
    invalid value, unless `bad_values` is "null". Raises ConfigError if `fields` does not have one entry for each group.
    """

    type: Annotated[Literal["regex"], Doc("Each record is text that matches a regular expression.")] = "regex"
    tombstones: TombstonesKey = "stop"
    pattern: Annotated[str, Check(_re2_pattern, {}), Doc("A regular expression (RE2) that matches the whole record.")]
    fields: FieldsKey
    bad_values: BadValuesKey = "reject"
    unmatched: UnmatchedKey = "reject"

    def __post_init__(self) -> None:
        """Compare the numbers of groups and fields."""
        groups = _Pattern(self.pattern).groups
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
        self._pattern = _checked(pattern, len(names), ignore_case=ignore_case)
        self._converter = FieldConverter(columns, FieldSyntax(b"", bad_values=bad_values), positions(names, columns))
        self._rejects_unmatched = unmatched == "reject"

    def absent_columns(self, values: Sequence[bytes]) -> frozenset[str]:
        """See `RecordDecoder`."""
        return self._converter.absent(self._pattern.groups)

    def decode_record(self, value: bytes) -> Row:
        """See `RecordDecoder`."""
        if reason := _not_utf8(value):
            raise RejectError("", reason)
        match = self._pattern.spans(pa.array([value.decode()]))[0].as_py()
        spans = match.values() if match else [None] * self._pattern.groups
        groups = [None if span is None else value[span[0] : sum(span)] for span in spans]
        if self._rejects_unmatched and groups.count(None) == len(groups) and (match is None or value):
            raise RejectError("", _UNMATCHED if match is None else _NO_GROUP)
        return self._converter.row(groups)

    def decode_batch(self, values: Sequence[bytes]) -> tuple[pa.RecordBatch, RejectReasons]:
        """See `RecordDecoder`."""
        records = pa.array(values, pa.binary())
        rejects: dict[int, tuple[str, str]] = {}
        try:
            texts = records.cast(pa.string())
        except pa.ArrowInvalid:
            rejects = {row: ("", reason) for row, value in enumerate(values) if (reason := _not_utf8(value))}
            records = pa.array([None if row in rejects else value for row, value in enumerate(values)], pa.binary())
            texts = records.cast(pa.string())
        spans = self._pattern.spans(texts)
        groups = [_parts(records, span) for span in spans.flatten()]
        if self._rejects_unmatched:
            for row in np.flatnonzero(np.logical_and.reduce([group.is_null() for group in groups])).tolist():
                has_match = spans[row].is_valid
                if not has_match or values[row]:
                    rejects.setdefault(row, ("", _NO_GROUP if has_match else _UNMATCHED))
        batch, bad_values = self._converter.batch(groups)
        return batch, {**bad_values, **rejects}


def _not_utf8(value: bytes) -> str:
    """Return why a record is not a text; '' if it is one."""
    try:
        value.decode()
    except UnicodeDecodeError as error:
        return f"record is not UTF-8 (byte {error.start})"
    return ""


def _parts(records: pa.BinaryArray, spans: pa.FixedSizeListArray) -> pa.BinaryArray:
    """Return a part of each record, given as its start and length; NULL where the span is null."""
    _, offsets, data = records.buffers()
    starts = np.frombuffer(offsets, np.int32, len(records))
    has_part = np.asarray(spans.is_valid())
    firsts, lengths = np.where(has_part, np.asarray(spans.values).reshape(-1, 2).T, 0)
    # Parts and the gaps between them are the values of an array, of which each second one is a part.
    bounds = np.empty(2 * len(records), np.int32)
    bounds[::2] = starts + firsts
    bounds[1::2] = bounds[::2] + lengths
    array = pa.Array.from_buffers(pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), data])
    return array.take(pa.array(np.arange(0, len(bounds), 2), mask=~has_part))


def _checked(pattern: str, columns: int, *, ignore_case: bool) -> _Pattern:
    try:
        checked = _Pattern(pattern, ignore_case=ignore_case)
    except ValueError as error:
        raise ConfigError(f"{pattern!r} {error}", hint=_HINT) from None
    if checked.groups != columns:
        raise ConfigError(
            f"the number of groups is {checked.groups}, but the number of columns is {columns}",
            hint="write one group for each column, partition columns last, and (?:…) for groups that are not columns",
        )
    return checked
