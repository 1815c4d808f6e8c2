r"""Delimited text becomes Arrow batches, as Hive's LazySimpleSerDe (StrictDelimitedInputWriter) reads it.

Invariant: the result does not depend on how records fall into blocks, only on each record.

A record is the table's columns and then its partition columns, in order. There are no quotes: a `"` is data.

| Column | Takes | Becomes NULL | Differs from Hive 4.0.1 |
|---|---|---|---|
| the record | fields between delimiters; fields too many are dropped | fields too few | `bad_counts="reject"` |
| a field | its bytes; escapes count only if `escape` is set, and are resolved in text only | the NULL text `\N` | |
| tinyint … bigint | sign, digits, a fraction that is cut off: +5, 007, 5.7, .5 | out of range; all else: " 5", 1e3 | |
| float, double | Java's text: 1., .5, 5d, 1e400 (infinite), NaN; blanks around | all else: inf | 0x1p3: NULL |
| decimal(p,s) | digits, fraction, exponent of two digits; half up, at first to 38 digits | too big; all else | |
| boolean | true, false in any case | all else: 1, 0, t, "true " | no extended literals |
| string | any text, also the empty one | | bad UTF-8 is a reject |
| varchar(n), char(n) | text, cut to n characters; char drops trailing blanks | | bad UTF-8 is a reject |
| binary | base64, padded or not, if valid, else the bytes: `abcd` is base64 | | Hive 3 takes line ends in base64 |
| date | y-M-d of 8 bytes at least; blanks around, a rest that is no digit | all else | years not 0001 … 9999: NULL |
| timestamp | y-M-d H:m:s[.f], yyyy-MM-ddTHH:mm[:ss[.f]]; blanks around | all else: a date, a zone | years; see below |
| array | elements between collection delimiters; no byte at all: the empty array | | |
| map | entries, keys and values; the first of equal keys wins | an entry without key delimiter: its value | |
| struct | fields between collection delimiters, as those of the record | fields too few | |

An empty field is NULL in all columns but string, varchar, char, binary and complex ones; that is never a reject.
A timestamp with digits below the microsecond is a reject if the record has a timestamp outside the years 1678 to 2261:
the columns of a batch share one unit. Hive keeps both.
With `bad_values="reject"` what is malformed ("all else", "out of range") makes the record a reject; Hive has no such
option. Elements of complex columns follow the lines of their types; deeper levels are delimited by \x04, \x05 … \x08.
Map entries whose key is NULL are dropped, as Hive does; with `bad_values="reject"` a malformed key is a reject.
A delimiter may be written as its byte code ("44", as in Hive); of a longer text Hive takes the first character, here
and for bytes above 127 it is a ConfigError, and so are two equal delimiters.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import combinations
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from ingestd.errors import ConfigError
from ingestd.formats.decoder import NEWLINE, DecodeResult, Reject, RejectError, join_lines
from ingestd.formats.lazysimple.columns import Cells, Faults
from ingestd.formats.lazysimple.values import Style, split
from ingestd.formats.text import check_choice, decode_block
from ingestd.schema import Column, HiveType

_DEEPER = bytes(range(4, 9))  # LazySerDeParameters: eight separators, the first three may be chosen
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_CODE = re.compile(r"[+-]?[0-9]+")


@dataclass(frozen=True, slots=True)
class DelimitedFormat:
    r"""How records are written; delimiters and escape are one ASCII character or its code as a decimal number.

    `null_text` is the field that means NULL (`serialization.null.format`). `bad_values` says what a malformed field is:
    NULL, as in Hive, or a reject; `bad_counts` whether records with more or fewer fields than columns are fitted, as in
    Hive, or rejected.
    """

    field_delimiter: str = "\x01"
    collection_delimiter: str = "\x02"
    map_key_delimiter: str = "\x03"
    null_text: str = r"\N"
    escape: str | None = None
    bad_values: Literal["null", "reject"] = "null"
    bad_counts: Literal["fit", "reject"] = "fit"

    def __post_init__(self) -> None:
        """Raises ConfigError for what is not of the form above."""
        check_choice("bad_values", self.bad_values, ("null", "reject"))
        check_choice("bad_counts", self.bad_counts, ("fit", "reject"))
        if not isinstance(self.null_text, str):
            raise ConfigError(f"null_text must be text, not {type(self.null_text).__name__}")
        self._refuse_twins(self.style())

    def _refuse_twins(self, style: Style) -> None:
        """A delimiter that is left at its default may be the field delimiter of a table without complex columns."""
        names = ("field_delimiter", "collection_delimiter", "map_key_delimiter")
        by_name = dict(zip(names, style.separators, strict=False))
        defaults = {one.name: one.default for one in fields(self)}
        chosen = {name: byte for name, byte in by_name.items() if getattr(self, name) != defaults[name]}
        pairs = [*combinations(chosen, 2), *(("escape", name) for name in names if by_name[name] == style.escape)]
        for one, other in pairs:
            if one == "escape" or chosen[one] == chosen[other]:
                raise ConfigError(
                    f"{one} and {other} are both {chr(by_name[other])!r}", hint="give each a character of its own"
                )

    def style(self) -> Style:
        """The same in bytes."""
        firsts = [
            _byte("field_delimiter", self.field_delimiter),
            _byte("collection_delimiter", self.collection_delimiter),
            _byte("map_key_delimiter", self.map_key_delimiter),
        ]
        escape = None if self.escape is None else _byte("escape", self.escape)
        return Style(bytes(firsts) + _DEEPER, self.null_text.encode(), escape, self.bad_values)


def _byte(name: str, text: str) -> int:
    """The byte that LazyUtils.getByte makes of the text: a code, else the character."""
    if not isinstance(text, str):
        raise ConfigError(f"{name} must be text, not {type(text).__name__}", hint="give the character, such as ','")
    code = int(text) if _CODE.fullmatch(text) else ord(text) if len(text) == 1 else -1
    if 0 <= code < 128:
        return code
    raise ConfigError(f"{name} {text!r} is not one ASCII character", hint="give the character, or its code such as 44")


def _refuse_ambiguous(columns: Sequence[Column], style: Style) -> None:
    """Raise ConfigError when two levels of delimiters that these columns need are the same."""
    for column in columns:
        needed = style.separators[: 1 + _levels(column.type)]
        if len(set(needed)) < len(needed):
            raise ConfigError(
                f"type {column.type} needs {len(needed)} different delimiters, but they are {needed!r}",
                where=f"column {column.name}",
                hint="give field_delimiter, collection_delimiter and map_key_delimiter each a character of its own",
            )


def _levels(kind: HiveType) -> int:
    """Levels of delimiters inside a value."""
    own = {"array": 1, "struct": 1, "map": 2}.get(kind.kind, 0)
    return own + max(map(_levels, kind.children), default=0)


# All that is refused where nothing is strict: what is not UTF-8, and digits below the microsecond, now and then.
_BELOW_MICROS = re.compile(rb"\.[0-9]{7}").search


class DelimitedDecoder:
    """Decodes delimited records into the given columns, in that order. Raises ConfigError for types nested too deep."""

    def __init__(self, columns: Sequence[Column], format: DelimitedFormat) -> None:  # noqa: A002 – the word of the API
        style = format.style()
        _refuse_ambiguous(columns, style)
        self._width = len(columns)
        self._cells = Cells(columns, style)
        self._separator, self._escape, self._null = style.separators[0], style.escape, style.null
        self._null_text = format.null_text
        self._missing = [None] * self._width
        self._strict = format.bad_counts == "reject"
        self._lenient = not self._strict and format.bad_values == "null"
        ends = b"\r\n" if self._escape is None else b"\r\n" + bytes((self._escape,))
        self._odd = re.compile(b"[" + re.escape(ends) + b"]|\\A" + _BYTE_ORDER_MARK).search

    def decode(self, values: Sequence[bytes | None]) -> DecodeResult:
        """Decode a block, best of 20,000 to 100,000 records; never raises for what records hold."""
        return decode_block(values, self._decode)

    def check(self, value: bytes) -> Reject | None:
        """Why this record would be a reject, if it would; its row is 0. Much faster than to decode a block of one."""
        if self._lenient and value.isascii() and not _BELOW_MICROS(value):
            return None
        try:
            self._cells.check([None if field == self._null else field for field in self._split(value)])
        except RejectError as error:
            return Reject.of(0, value, error.column, error.reason)
        return None

    def _decode(self, values: Sequence[bytes], faults: Faults) -> list[pa.RecordBatch]:
        return self._cells.decode(self._fields(values, faults), faults)

    def _fields(self, values: Sequence[bytes], faults: Faults) -> list[pa.Array]:
        """The fields of all records by column: split by Arrow, but for odd records."""
        whole = self._by_arrow(values)
        if whole is not None:
            return whole
        plain: list[int] = []
        odd: list[int] = []
        for place, value in enumerate(values):
            (odd if self._is_odd(value) else plain).append(place)
        even = self._by_arrow([values[place] for place in plain]) if plain else None
        if even is None:
            return self._by_hand(values, range(len(values)), faults)
        others = self._by_hand([values[place] for place in odd], odd, faults)
        order = pa.array(np.argsort([*plain, *odd]))
        return [pa.concat_arrays(parts).take(order) for parts in zip(even, others, strict=True)]

    def _is_odd(self, value: bytes) -> bool:
        return value.count(self._separator) != self._width - 1 or self._odd(value) is not None

    def _by_arrow(self, values: Sequence[bytes]) -> list[pa.Array] | None:
        """The fields of all records by column; None if Arrow would not split them as Hive does."""
        text = join_lines(values) + b"\n"
        lines = np.count_nonzero(np.frombuffer(text, np.uint8) == NEWLINE)
        if lines != len(values) or b"\r" in text or text.startswith(_BYTE_ORDER_MARK):
            return None
        if self._separator in b"\0\n\r" or (self._escape is not None and self._escape in text):
            return None
        width = text.count(self._separator, 0, text.index(b"\n")) + 1
        has_empty = text.startswith(b"\n") or b"\n\n" in text
        if (self._strict and width != self._width) or (width > 1 and has_empty):
            return None  # Arrow takes an empty line for as many empty fields as there are columns
        try:
            table = self._read(text, [str(place) for place in range(width)])
        except pa.ArrowInvalid:  # the records have not all the same number of fields
            return None
        if table.num_rows != len(values):
            return None
        missing = [pa.nulls(len(values), pa.binary())] * (self._width - width)
        return [column.combine_chunks() for column in table.columns] + missing

    def _read(self, text: bytes, names: list[str]) -> pa.Table:
        return pa.csv.read_csv(
            pa.BufferReader(text),
            read_options=pa.csv.ReadOptions(use_threads=False, block_size=len(text) + 1, column_names=names),
            parse_options=pa.csv.ParseOptions(
                delimiter=chr(self._separator), quote_char=False, escape_char=False, ignore_empty_lines=False
            ),
            convert_options=pa.csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.binary()),
                include_columns=names[: self._width],
                null_values=[self._null_text],
                strings_can_be_null=True,
            ),
        )

    def _by_hand(self, values: Sequence[bytes], places: Sequence[int], faults: Faults) -> list[pa.Array]:
        """The same by Python; `places` are the rows that faults are of."""
        rows = [self._split_or_fault(place, value, faults) for place, value in zip(places, values, strict=True)]
        return [self._with_nulls(pa.array(column, pa.binary())) for column in zip(*rows, strict=True)]

    def _split_or_fault(self, place: int, value: bytes, faults: Faults) -> Sequence[bytes | None]:
        try:
            return self._split(value)
        except RejectError as error:
            faults[place] = ("", error.reason)
            return self._missing

    def _split(self, value: bytes) -> Sequence[bytes | None]:
        """One field for each column, None where the record has none. Raises RejectError for a count that is refused."""
        fields = split(value, self._separator, self._escape)
        if len(fields) == self._width:
            return fields
        if self._strict:
            raise RejectError("", f"record has {len(fields)} fields, the table has {self._width} columns")
        return [*fields[: self._width], *self._missing[len(fields) :]]

    def _with_nulls(self, fields: pa.Array) -> pa.Array:
        return pc.if_else(pc.equal(fields, pa.scalar(self._null, pa.binary())), pa.scalar(None, pa.binary()), fields)
