r"""Decodes CSV records (RFC 4180) into Arrow batches: delimited text whose fields may be in double quotes.

Invariant: the result depends on each record alone, never on how records are batched.

| What | Becomes | Rejects |
|---|---|---|
| the record | fields between delimiters; a line end after the last field is dropped | a second line |
| a field without quotes | its text; NULL if it is the NULL text | a `"`; CR or LF, except at the end of the record |
| a field in quotes | the text between them, even if it is the NULL text; `""` is one quote | text outside the quotes |
| missing fields | NULL | |
| surplus fields | dropped | with `surplus="reject"` |
| the value of a field | read as in `delimited`; see the table there | invalid values, unless `bad_values` is "null" |

The columns have primitive types.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ingestd.errors import ConfigError
from ingestd.formats.arrow_csv import BYTE_ORDER_MARK, read_fields
from ingestd.formats.decoder import RejectError, join_lines
from ingestd.formats.fields import CHARACTER, BadValuesKey, FieldsKey, SurplusKey, byte_of, check_primitive, positions
from ingestd.formats.lazysimple.columns import FieldConverter
from ingestd.formats.lazysimple.values import FieldSyntax
from ingestd.formats.record_decoder import RecordDecoder, RejectReasons, TombstonesKey
from ingestd.formats.row_batches import Row
from ingestd.formats.unmatched import UnmatchedKey, one_field
from ingestd.keys import Doc
from ingestd.schema import Column

_LINE_END = re.compile(rb"\r?\n\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvOptions:
    """A record is one CSV record, without a header. Raises ConfigError for a delimiter that has another meaning."""

    type: Annotated[Literal["csv"], Doc("Each record is one CSV record, whose fields may be in double quotes.")] = "csv"
    tombstones: TombstonesKey = "stop"
    fields: FieldsKey
    field_delimiter: Annotated[str, CHARACTER, Doc("The character between fields, or its code.")] = ","
    null_text: Annotated[str, Doc("A field with this text and without quotes is NULL.")] = ""
    surplus: SurplusKey = "drop"
    bad_values: BadValuesKey = "reject"
    unmatched: UnmatchedKey = "reject"

    def __post_init__(self) -> None:
        """Check that the delimiter has no other meaning."""
        if self.delimiter in b'"\r\n\0':
            raise ConfigError(
                "cannot be a quote, a line end or NUL", where=".field_delimiter", hint="use another character"
            )

    @property
    def delimiter(self) -> int:
        """The byte between fields."""
        return byte_of(self.field_delimiter) or 0

    def decoder(self, columns: Sequence[Column]) -> CsvDecoder:
        """Return a decoder of records into these columns.

        Raises ConfigError if a field is stored in a column that is complex or does not exist.
        """
        return CsvDecoder(columns, self)


class CsvDecoder(RecordDecoder):
    """Decodes CSV records into the given columns; see `CsvOptions.decoder`. Columns without a field are NULL."""

    def __init__(self, columns: Sequence[Column], options: CsvOptions) -> None:
        super().__init__(columns, tombstones=options.tombstones)
        check_primitive(columns, options.fields)
        self._converter = FieldConverter(
            columns, FieldSyntax(b"", bad_values=options.bad_values), positions(options.fields, columns)
        )
        self._names, self._width = options.fields, len(options.fields)
        self._rejects_one = options.unmatched == "reject" and self._width > 1
        self._separator = options.delimiter
        self._null_text, self._null = options.null_text, options.null_text.encode()
        self._rejects_surplus = options.surplus == "reject"
        separator = f"\\x{self._separator:02x}"
        plain, quoted = f'[^"\\r\\n{separator}]*', '"[^"]*(?:""[^"]*)*"'
        self._field = re.compile(f"({quoted})|({plain})".encode())
        self._well_formed = f"^(?:{quoted}|{plain})(?:{separator}(?:{quoted}|{plain}))*$"
        self._quoted = quoted

    def decode_record(self, value: bytes) -> Row:
        """See `RecordDecoder`."""
        return self._converter.row(self._split(value))

    def absent_columns(self, values: Sequence[bytes]) -> frozenset[str]:
        """See `RecordDecoder`."""
        return self._converter.absent(max(map(self._fields_of, values), default=0))

    def _fields_of(self, value: bytes) -> int:
        """Return the number of fields of a record, 0 if it is not well-formed."""
        try:
            return len(self._parts(value))
        except RejectError:
            return 0

    def decode_batch(self, values: Sequence[bytes]) -> tuple[pa.RecordBatch, RejectReasons]:
        """See `RecordDecoder`."""
        fields, malformed = self._fields(values)
        batch, bad_values = self._converter.batch(fields)
        return batch, {**bad_values, **malformed}

    def _fields(self, values: Sequence[bytes]) -> tuple[list[pa.Array], RejectReasons]:
        """Return the fields of all records by position, and the rejects. Arrow splits the records that it can."""
        records = _without_line_ends(values)
        for is_regular in self._regular(records):
            regular, others = np.flatnonzero(is_regular).tolist(), np.flatnonzero(~is_regular).tolist()
            by_arrow = self._split_by_arrow([records[index] for index in regular] if others else records)
            if by_arrow is not None and not others:
                return by_arrow, {}
            if by_arrow is not None:
                one_by_one, rejects = self._split_each([values[index] for index in others], others)
                order = pa.array(np.argsort([*regular, *others]))
                return [pa.concat_arrays(two).take(order) for two in zip(by_arrow, one_by_one, strict=True)], rejects
        return self._split_each(values, range(len(values)))

    def _regular(self, values: Sequence[bytes]) -> Iterator[NDArray[np.bool_]]:
        """Yield which records are well-formed, and then which of these also have one field per entry of `fields`."""
        text = join_lines(values)
        array = pa.array(values, pa.binary())
        if b'"' in text or b"\r" in text or text.count(b"\n") >= len(values):
            well_formed = np.asarray(pc.match_substring_regex(array, self._well_formed))
        else:
            well_formed = np.ones(len(values), np.bool_)
        yield well_formed
        separators = pc.count_substring(pc.replace_substring_regex(array, self._quoted, ""), chr(self._separator))
        starts_with_mark = np.asarray(pc.starts_with(array, BYTE_ORDER_MARK))
        yield well_formed & np.asarray(pc.equal(separators, self._width - 1)) & ~starts_with_mark

    def _split_by_arrow(self, values: Sequence[bytes]) -> list[pa.Array] | None:
        """Return the fields of well-formed records by position; None if Arrow does not split them as `_parts` does."""
        text = join_lines(values) + b"\n"
        if not len(values) or text.startswith(BYTE_ORDER_MARK):
            return None
        width = len(self._parts(values[0]))
        if (self._rejects_surplus and width > self._width) or (self._rejects_one and width == 1):
            return None
        if width > 1 and not all(values):
            return None  # Arrow reads an empty record as one empty field per column
        try:
            read = read_fields(
                text,
                delimiter=self._separator,
                is_quoted=b'"' in text,
                null_text=self._null_text,
                width=width,
                wanted=self._width,
            )
        except pa.ArrowInvalid:  # the records have different numbers of fields
            return None
        if len(read[0]) != len(values):
            return None
        return [*read, *[pa.nulls(len(values), pa.binary())] * (self._width - width)]

    def _split_each(self, values: Sequence[bytes], rows: Sequence[int]) -> tuple[list[pa.Array], RejectReasons]:
        """Split records one by one; return their fields by position, and the rejects, by row number."""
        fields: list[Sequence[bytes | None]] = []
        rejects: dict[int, tuple[str, str]] = {}
        for row, value in zip(rows, values, strict=True):
            try:
                fields.append(self._split(value))
            except RejectError as error:  # noqa: PERF203
                rejects[row] = error.column, error.reason
                fields.append((None,) * self._width)
        columns = list(zip(*fields, strict=True)) or [()] * self._width
        return [pa.array(column, pa.binary()) for column in columns], rejects

    def _split(self, value: bytes) -> Sequence[bytes | None]:
        """Return one field per entry of `fields`, None if it is NULL or missing. Raises RejectError."""
        parts = self._parts(value)
        if self._rejects_surplus and len(parts) > self._width:
            raise RejectError("", f"the number of fields is {len(parts)}, but the number of columns is {self._width}")
        if self._rejects_one and len(parts) == 1 and _LINE_END.sub(b"", value):
            raise RejectError("", one_field(self._separator, self._names))
        return [*parts[: self._width], *[None] * (self._width - len(parts))]

    def _parts(self, value: bytes) -> list[bytes | None]:
        """Return the fields of one record, None if a field is NULL. Raises RejectError if it is not well-formed."""
        record = _LINE_END.sub(b"", value)
        parts: list[bytes | None] = []
        position = 0
        while True:
            match: re.Match[bytes] = self._field.match(record, position)  # type: ignore[assignment]  # plain text may be empty
            quoted, plain = match.groups()
            position = match.end()
            if position < len(record) and record[position] != self._separator:
                raise RejectError("", f"field {len(parts) + 1} is not well-formed: {_fault(record, position)}")
            if quoted is not None:
                parts.append(quoted[1:-1].replace(b'""', b'"'))
            else:
                parts.append(None if plain == self._null else plain)
            if position == len(record):
                return parts
            position += 1


def _without_line_ends(values: Sequence[bytes]) -> Sequence[bytes]:
    """Return the records without the line end after the last field."""
    text = join_lines(values)
    if b"\n\n" not in text and not text.endswith(b"\n"):
        return values
    return [value[:-2] if value.endswith(b"\r\n") else value.removesuffix(b"\n") for value in values]


def _fault(record: bytes, position: int) -> str:
    """Return why the field that was read up to `position` does not end there."""
    if record[position] in b"\r\n":
        return "a line end must be in quotes"
    if record.startswith(b'"', position):
        return "a field with a quote must be in quotes, and the quote must be doubled"
    return "text follows the closing quote"
