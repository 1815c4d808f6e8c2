r"""Decodes delimited text into Arrow batches as Hive's LazySimpleSerDe (StrictDelimitedInputWriter) does.

Invariant: the result depends on each record alone, never on how records are batched.
Mappings name the column of each field (`fields`). What follows describes the default, the columns in their order.

A record consists of the table's columns, followed by its partition columns. Quotes have no meaning: a `"` is data.

| Column | Accepts | Becomes NULL | Differs from Hive 4.0.1 |
|---|---|---|---|
| the record | fields between delimiters; surplus fields are dropped | missing fields | `bad_counts="reject"` |
| a field | its bytes; escapes count only if `escape` is set, and are resolved in text only | the NULL text `\N` | |
| tinyint … bigint | sign, digits, fraction (truncated): +5, 007, 5.7, .5 | out of range; all else: " 5", 1e3 | |
| float, double | Java's text: 1., .5, 5d, 1e400 (infinite), NaN; trimmed | all else: inf | 0x1p3: NULL |
| decimal(p,s) | digits, fraction, exponent of two digits; rounded half up, first to 38 digits | too large; all else | |
| boolean | true, false, ignoring case | all else: 1, 0, t, "true " | no extended literals |
| string | any text, even empty | | invalid UTF-8 is a reject |
| varchar(n), char(n) | text, truncated to n characters; char drops trailing spaces | | invalid UTF-8 is a reject |
| binary | base64, padded or not, if valid, else the bytes: `abcd` is base64 | | Hive 3 accepts line ends in base64 |
| date | y-M-d, 8+ bytes, trimmed; no digit may follow; other text is ignored | all else | years not 0001 … 9999: NULL |
| timestamp | y-M-d H:m:s[.f], yyyy-MM-ddTHH:mm[:ss[.f]]; trimmed | all else: a date, a zone | years; see below |
| array | elements between collection delimiters; an empty field is the empty array | | |
| map | entries, keys and values; the first of equal keys wins | an entry without key delimiter: its value | |
| struct | fields between collection delimiters, as those of the record | missing fields | |

An empty field is NULL, and never a reject, in all columns except string, varchar, char, binary and complex ones.
A timestamp with digits below the microsecond is a reject if the record has a timestamp outside the years 1678 to 2261,
because the timestamps of a batch share one unit. Hive stores both.
With `unmatched="reject"` a text that is not empty and has no delimiter is a reject, if there are several fields.
With `bad_values="reject"` an invalid field ("all else", "out of range", "too large") makes the record a reject; Hive
has no such option. The elements of complex columns follow the rules of their types in the table above. Deeper levels
are delimited by \x04, \x05 … \x08. Map entries whose key is NULL are dropped, as in Hive; with `bad_values="reject"` an
invalid key is a reject.
A delimiter may be written as its byte code ("44", as in Hive). Hive uses the first character of a longer text. ingestd
raises ConfigError for a longer text, for bytes above 127, and for two equal delimiters.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import combinations
from typing import Annotated, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ingestd.errors import ConfigError
from ingestd.formats.arrow_csv import BYTE_ORDER_MARK, RecordLines, read_fields
from ingestd.formats.decoder import NEWLINE, Reject, RejectError
from ingestd.formats.fields import CHARACTER, BadValuesKey, FieldsKey, SurplusKey, byte_of, positions
from ingestd.formats.lazysimple.columns import FieldConverter
from ingestd.formats.lazysimple.values import FieldSyntax, check_choice, split
from ingestd.formats.record_decoder import RecordDecoder, RejectReasons, Tombstones, TombstonesKey
from ingestd.formats.row_batches import Row
from ingestd.formats.unmatched import Unmatched, UnmatchedKey, one_field
from ingestd.keys import Doc
from ingestd.schema import Column, HiveType

_DEEPER_DELIMITERS = bytes(range(4, 9))  # LazySerDeParameters: eight separators, of which three can be chosen
_LINE_ENDS = frozenset("\r\n")
_BELOW_MICROS = re.compile(rb"\.[0-9]{7}").search


@dataclass(frozen=True, slots=True)
class DelimitedFormat:
    r"""The syntax of delimited records. Each delimiter, and `escape`, is one ASCII character or its decimal code.

    A field equal to `null_text` is NULL (`serialization.null.format`). `bad_values` determines whether an invalid field
    becomes NULL, as in Hive, or makes its record a reject. `bad_counts` determines whether a record with more or fewer
    fields than columns is fitted to the columns, as in Hive, or is a reject; with "fill" only surplus fields make it
    one. Raises ConfigError for any other value, and for equal delimiters.
    """

    field_delimiter: str = "\x01"
    collection_delimiter: str = "\x02"
    map_key_delimiter: str = "\x03"
    null_text: str = r"\N"
    escape: str | None = None
    bad_values: Literal["null", "reject"] = "null"
    bad_counts: Literal["fit", "fill", "reject"] = "fit"

    def __post_init__(self) -> None:
        """Validate the options."""
        check_choice("bad_values", self.bad_values, ("null", "reject"))
        check_choice("bad_counts", self.bad_counts, ("fit", "fill", "reject"))
        if not isinstance(self.null_text, str):
            raise ConfigError(f"null_text must be text, not {type(self.null_text).__name__}")
        self._check_distinct(self.syntax())

    def _check_distinct(self, syntax: FieldSyntax) -> None:
        """Raise ConfigError if two delimiters that were set are equal, or if a delimiter equals `escape`.

        A delimiter may equal the default of another one, because a table without complex columns does not use the
        other one. `_check_unambiguous` checks these for a given table.
        """
        names = ("field_delimiter", "collection_delimiter", "map_key_delimiter")
        by_name = dict(zip(names, syntax.separators, strict=False))
        defaults = {option.name: option.default for option in fields(self)}
        chosen = {name: byte for name, byte in by_name.items() if getattr(self, name) != defaults[name]}
        pairs = [*combinations(chosen, 2), *(("escape", name) for name in names if by_name[name] == syntax.escape)]
        for first, other in pairs:
            if first == "escape" or chosen[first] == chosen[other]:
                raise ConfigError(
                    f"{first} and {other} are both {chr(by_name[other])!r}", hint="use a different character for each"
                )

    def syntax(self) -> FieldSyntax:
        """Return the options as the field readers use them: bytes instead of text."""
        delimiters = [
            _byte("field_delimiter", self.field_delimiter),
            _byte("collection_delimiter", self.collection_delimiter),
            _byte("map_key_delimiter", self.map_key_delimiter),
        ]
        escape = None if self.escape is None else _byte("escape", self.escape)
        return FieldSyntax(bytes(delimiters) + _DEEPER_DELIMITERS, self.null_text.encode(), escape, self.bad_values)


def _byte(name: str, text: str) -> int:
    """Return the byte of a delimiter, written as its code or its character (LazyUtils.getByte).

    Raises ConfigError unless it is a single ASCII character.
    """
    if not isinstance(text, str):
        raise ConfigError(f"{name} must be text, not {type(text).__name__}", hint="write one character, such as ','")
    code = byte_of(text)
    if code is not None:
        return code
    hint = "write a single ASCII character, or its decimal code, such as 44"
    raise ConfigError(f"{name} {text!r} is not a single ASCII character", hint=hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class DelimitedOptions:
    r"""A record is delimited text as Hive's LazySimpleSerDe reads it, without quotes. Raises ConfigError.

    The delimiters and `escape` are those of `DelimitedFormat`. An invalid field makes its record a reject, unlike in
    Hive, unless `bad_values` is "null". Missing fields are NULL.
    """

    type: Annotated[Literal["delimited"], Doc("Each record is delimited text, as in Hive's LazySimpleSerDe.")] = (
        "delimited"
    )
    tombstones: TombstonesKey = "stop"
    fields: FieldsKey
    field_delimiter: Annotated[str, CHARACTER, Doc("The character between fields, or its code.")] = "\x01"
    collection_delimiter: Annotated[
        str, CHARACTER, Doc("The character between elements of arrays, maps and structs, or its code.")
    ] = "\x02"
    map_key_delimiter: Annotated[
        str, CHARACTER, Doc("The character between the key and the value of a map entry, or its code.")
    ] = "\x03"
    null_text: Annotated[str, Doc("A field with this text is NULL.")] = r"\N"
    escape: Annotated[
        str | None, CHARACTER, Doc("The character that makes the next one data, or its code; by default none.")
    ] = None
    bad_values: BadValuesKey = "reject"
    surplus: SurplusKey = "drop"
    unmatched: UnmatchedKey = "reject"

    def __post_init__(self) -> None:
        """Validate the combination of delimiters."""
        _ = self.format

    @property
    def format(self) -> DelimitedFormat:
        """The syntax of the records."""
        return DelimitedFormat(
            self.field_delimiter,
            self.collection_delimiter,
            self.map_key_delimiter,
            self.null_text,
            self.escape,
            self.bad_values,
            "fit" if self.surplus == "drop" else "fill",
        )

    def decoder(self, columns: Sequence[Column]) -> DelimitedDecoder:
        """Return a decoder of records into these columns. Raises ConfigError as `DelimitedDecoder` does."""
        return DelimitedDecoder(
            columns, self.format, fields=self.fields, unmatched=self.unmatched, tombstones=self.tombstones
        )


def _check_unambiguous(columns: Sequence[Column], syntax: FieldSyntax) -> None:
    """Raise ConfigError if two of the delimiters that these columns need are equal."""
    for column in columns:
        needed = syntax.separators[: 1 + _levels(column.type)]
        if len(set(needed)) < len(needed):
            raise ConfigError(
                f"type {column.type} needs {len(needed)} different delimiters, but two of {needed!r} are equal",
                where=f"column {column.name}",
                hint="use different characters for field_delimiter, collection_delimiter and map_key_delimiter",
            )


def _levels(kind: HiveType) -> int:
    """Return the number of delimiters that a value of the type needs."""
    own = {"array": 1, "struct": 1, "map": 2}.get(kind.kind, 0)
    return own + max(map(_levels, kind.children), default=0)


class DelimitedDecoder(RecordDecoder):
    """Decodes delimited records into the given columns.

    `fields` contains the column of each field, by default the columns in their order (see `positions`). Columns without
    a field are NULL. With `unmatched="reject"`, a text without the delimiter is a reject if there are several fields.
    Raises ConfigError for types that are nested too deeply, for delimiters that are ambiguous for these columns, for
    fields of other columns, and for another value of `unmatched`.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        format: DelimitedFormat,  # noqa: A002 – the name in the API
        *,
        fields: Sequence[str] | None = None,
        unmatched: Unmatched = "null",
        tombstones: Tombstones = "stop",
    ) -> None:
        super().__init__(columns, tombstones=tombstones)
        check_choice("unmatched", unmatched, ("null", "reject"))
        syntax = format.syntax()
        names = [column.name for column in columns] if fields is None else fields
        _check_unambiguous([column for column in columns if column.name in names], syntax)
        self._names, self._width = names, len(names)
        self._converter = FieldConverter(columns, syntax, positions(names, columns))
        self._separator, self._escape, self._null = syntax.separators[0], syntax.escape, syntax.null
        self._null_text = format.null_text
        self._nulls = [None] * self._width
        self._rejects_missing, self._rejects_surplus = format.bad_counts == "reject", format.bad_counts != "fit"
        self._rejects_values = format.bad_values == "reject"
        self._rejects_one = unmatched == "reject" and self._width > 1
        special = b"\n\r" if self._escape is None else b"\n\r" + bytes((self._escape,))
        self._find_special = re.compile(b"[" + re.escape(special) + b"]|\\A" + BYTE_ORDER_MARK).search

    def decode_record(self, value: bytes) -> Row:
        """See `RecordDecoder`."""
        return self._converter.row([None if field == self._null else field for field in self._split(value)])

    def decode_batch(self, values: Sequence[bytes]) -> tuple[pa.RecordBatch, RejectReasons]:
        """See `RecordDecoder`."""
        fields, bad_counts = self._fields(values)
        batch, bad_fields = self._converter.batch(fields)
        return batch, {**bad_fields, **bad_counts}

    def absent_columns(self, values: Sequence[bytes]) -> frozenset[str]:
        """See `RecordDecoder`."""
        widths = (len(split(value, self._separator, self._escape)) for value in values)
        return self._converter.absent(max(widths, default=0))

    def check(self, value: bytes) -> Reject | None:
        """See `RecordDecoder`."""
        lenient = not self._rejects_surplus and not self._rejects_values
        if self._rejects_one and (self._separator not in value or self._escape is not None):
            lenient = False
        if lenient and value.isascii() and not _BELOW_MICROS(value) and not self._converter.may_exceed(len(value)):
            return None  # only invalid UTF-8, digits below the microsecond or many values can make it a reject
        return super().check(value)

    def _fields(self, values: Sequence[bytes]) -> tuple[list[pa.Array], RejectReasons]:
        """Return the fields of all records by column, and the rejects. Arrow splits where it agrees with Hive."""
        whole = self._split_by_arrow(values)
        if whole is not None:
            return whole, {}
        is_regular = self._regular(values)
        regular, irregular = np.flatnonzero(is_regular).tolist(), np.flatnonzero(~is_regular).tolist()
        by_arrow = self._split_by_arrow([values[index] for index in regular]) if regular else None
        if by_arrow is None:
            return self._split_each(values, range(len(values)))
        others, rejects = self._split_each([values[index] for index in irregular], irregular)
        order = pa.array(np.argsort([*regular, *irregular]))
        return [pa.concat_arrays(parts).take(order) for parts in zip(by_arrow, others, strict=True)], rejects

    def _regular(self, values: Sequence[bytes]) -> NDArray[np.bool_]:
        """Return which records have one field per column and no bytes that Arrow and Hive treat differently."""
        lines = RecordLines.of(values)
        if lines is None or BYTE_ORDER_MARK in lines.text:
            return np.array([self._is_regular(value) for value in values])
        text = lines.text
        letters = np.frombuffer(text, np.uint8)
        breaks = np.flatnonzero(letters == NEWLINE)
        separators = np.flatnonzero(letters == self._separator)
        counts = np.diff(np.searchsorted(separators, breaks), prepend=0)
        is_regular: NDArray[np.bool_] = counts == self._width - 1
        if self._escape is not None and self._escape in text:  # faster than a comparison
            is_regular[np.searchsorted(breaks, np.flatnonzero(letters == self._escape))] = False
        return is_regular

    def _is_regular(self, value: bytes) -> bool:
        """Return whether `_regular` contains the record."""
        return value.count(self._separator) == self._width - 1 and self._find_special(value) is None

    def _lines(self, values: Sequence[bytes]) -> RecordLines | None:
        """Return the records as lines that Arrow splits as Hive does; None if it does not."""
        lines = RecordLines.of(values)
        if lines is None or lines.text.startswith(BYTE_ORDER_MARK) or self._separator in b"\0\n\r":
            return None
        is_null_replaced = lines.stand_ins and not _LINE_ENDS.isdisjoint(self._null_text)
        has_escape = self._escape is not None and self._escape in lines.text
        return None if is_null_replaced or has_escape else lines

    def _split_by_arrow(self, values: Sequence[bytes]) -> list[pa.Array] | None:
        """Return the fields of all records by column; None if Arrow does not split them as Hive does."""
        lines = self._lines(values)
        if lines is None:
            return None
        text = lines.text
        width = text.count(self._separator, 0, text.index(b"\n")) + 1
        # Arrow reads an empty line as one empty field per column.
        has_empty = width > 1 and (text.startswith(b"\n") or b"\n\n" in text)
        if not self._accepts(width) or (width == 1 and self._rejects_one) or has_empty:
            return None
        try:
            read = read_fields(
                text,
                delimiter=self._separator,
                is_quoted=False,
                null_text=self._null_text,
                width=width,
                wanted=self._width,
            )
        except pa.ArrowInvalid:  # the records have different numbers of fields
            return None
        if len(read[0]) != len(values):
            return None
        fields = map(lines.restore, read)
        return [*fields, *[pa.nulls(len(values), pa.binary())] * (self._width - width)]

    def _split_each(self, values: Sequence[bytes], rows: Sequence[int]) -> tuple[list[pa.Array], RejectReasons]:
        """Split records one by one; return their fields by column, and the rejects.

        `rows` are the row numbers of the records in the batch.
        """
        fields: list[Sequence[bytes | None]] = []
        rejects: dict[int, tuple[str, str]] = {}
        for row, value in zip(rows, values, strict=True):
            try:
                fields.append(self._split(value))
            except RejectError as error:  # noqa: PERF203
                rejects[row] = (error.column, error.reason)
                fields.append(self._nulls)
        columns = [pa.array(column, pa.binary()) for column in zip(*fields, strict=True)]
        return [self._without_null_text(column) for column in columns], rejects

    def _split(self, value: bytes) -> Sequence[bytes | None]:
        """Return one field per column, None if it is missing. Raises RejectError for the number of fields."""
        fields = split(value, self._separator, self._escape)
        if len(fields) == self._width:
            return fields
        if not self._accepts(len(fields)):
            raise RejectError("", f"the number of fields is {len(fields)}, but the number of columns is {self._width}")
        if self._rejects_one and len(fields) == 1 and value:
            raise RejectError("", one_field(self._separator, self._names))
        return [*fields[: self._width], *self._nulls[len(fields) :]]

    def _accepts(self, width: int) -> bool:
        """Return whether a record may have this number of fields."""
        return not (self._rejects_surplus if width > self._width else self._rejects_missing and width < self._width)

    def _without_null_text(self, fields: pa.Array) -> pa.Array:
        return pc.if_else(pc.equal(fields, pa.scalar(self._null, pa.binary())), pa.scalar(None, pa.binary()), fields)
