"""pyarrow's CSV reader, which splits the records of a whole batch into fields.

Invariant: fields are returned as bytes; nothing is trimmed, skipped or converted except the NULL text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.csv

from ingestd.formats.decoder import join_lines

BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # the reader removes it from the beginning of the text
_NOT_IN_UTF8 = bytes((0xC0, 0xC1, *range(0xF5, 0x100)))


@dataclass(frozen=True, slots=True)
class RecordLines:
    """Records without quotes as lines of one text: each is followed by a newline.

    Line ends inside of records are replaced by two bytes that no record contains, `stand_ins`, for LF and CR.
    """

    text: bytes
    stand_ins: bytes = b""

    @classmethod
    def of(cls, values: Sequence[bytes]) -> RecordLines | None:
        """Return the lines of records; None if they contain line ends, and no bytes are left to replace them."""
        text = join_lines(values) + b"\n"
        if b"\r" not in text and text.count(b"\n") == len(values):
            return cls(text)
        unused = bytes(byte for byte in _NOT_IN_UTF8 if bytes((byte,)) not in text)[:3]
        if len(unused) < 3:
            return None
        end = unused[2:]
        return cls(end.join([*values, b""]).translate(bytes.maketrans(b"\n\r" + end, unused[:2] + b"\n")), unused[:2])

    def restore(self, field: pa.BinaryArray) -> pa.BinaryArray:
        """Return a field of the records with its line ends; the array must not be a slice."""
        validity, offsets, data = field.buffers()
        if not self.stand_ins or data is None:
            return field
        original = pa.py_buffer(data.to_pybytes().translate(bytes.maketrans(self.stand_ins, b"\n\r")))
        return pa.BinaryArray.from_buffers(field.type, len(field), [validity, offsets, original], field.null_count)


def read_fields(
    text: bytes, *, delimiter: int, is_quoted: bool, null_text: str, width: int, wanted: int
) -> list[pa.Array]:
    """Return the first `wanted` fields of records of `width` fields each, one binary array per field.

    `text` consists of the records, each followed by a newline. With `is_quoted`, fields may be in double quotes, which
    are then removed; such a field is not compared with the NULL text. Raises pa.ArrowInvalid unless each record has
    `width` fields.
    """
    names = [str(index) for index in range(width)]
    table = pa.csv.read_csv(
        pa.BufferReader(text),
        read_options=pa.csv.ReadOptions(use_threads=False, block_size=len(text) + 1, column_names=names),
        parse_options=pa.csv.ParseOptions(
            delimiter=chr(delimiter),
            quote_char='"' if is_quoted else False,
            double_quote=is_quoted,
            escape_char=False,
            newlines_in_values=is_quoted,
            ignore_empty_lines=False,
        ),
        convert_options=pa.csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.binary()),
            include_columns=names[:wanted],
            null_values=[null_text],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    return [column.combine_chunks() for column in table.columns]
