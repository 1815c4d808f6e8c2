"""pyarrow's CSV reader, which splits the records of a whole batch into fields.

Invariant: fields are returned as bytes; nothing is trimmed, skipped or converted except the NULL text.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.csv

BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # the reader removes it from the beginning of the text


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
