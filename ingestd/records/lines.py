"""Many JSON lines become one Arrow batch through pyarrow's JSON reader, or nothing when the slow path must judge.

Invariant: a batch returned equals, row by row, what `single.SingleDecoder` gives; what was learnt of a topic's spelling
changes the speed only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.json as pj

from ingestd.records.frame import frame
from ingestd.records.vector import Doubtful, convert, read_type
from ingestd.schema import Column

_CHANGED = re.compile(r"Column\(/(.*)\) changed from (\w+) to (\w+)", re.DOTALL)
_UNEXPECTED = "unexpected field"
_ESCAPED_NAME = re.compile(rb'\\u[0-9a-fA-F]{4}(?:[^"\\]|\\.)*"[ \t\r]*:')
_KELVIN = "\u212a".encode()  # the only non-ASCII character whose lower case is ASCII


class LineDecoder:
    """Decodes blocks of records; learns the spelling of field names and which columns come quoted."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = tuple(columns)
        self._spelling = [column.name for column in columns]
        self._quoted = [False] * len(columns)
        self._extra_fields = False

    def decode(self, values: Sequence[bytes]) -> pa.RecordBatch | None:
        """One batch of all values, or None."""
        joined = frame(values)
        if joined is None:
            return None
        for _ in range(len(self._columns) + 3):  # each failed try teaches one thing: a column, a spelling, more fields
            try:
                table = self._read(joined)
            except pa.ArrowInvalid as error:
                if not self._learn(str(error), values):
                    return None
                continue
            return self._finish(table, joined, len(values))
        return None

    def _read(self, joined: bytes) -> pa.Table:
        fields = [
            pa.field(name, read_type(column.type, quoted=quoted))
            for column, name, quoted in zip(self._columns, self._spelling, self._quoted, strict=True)
        ]
        return pj.read_json(
            pa.BufferReader(joined),
            read_options=pj.ReadOptions(use_threads=False, block_size=len(joined) + 1),
            parse_options=pj.ParseOptions(
                explicit_schema=pa.schema(fields),
                newlines_in_values=False,
                unexpected_field_behavior="ignore" if self._extra_fields else "error",
            ),
        )

    def _finish(self, table: pa.Table, joined: bytes, rows: int) -> pa.RecordBatch | None:
        if table.num_rows != rows or (self._extra_fields and self._other_spelling(joined)):
            return None
        try:
            return convert(self._columns, [chunked.combine_chunks() for chunked in table.columns])
        except (Doubtful, pa.ArrowInvalid):
            return None

    def _learn(self, error: str, values: Sequence[bytes]) -> bool:
        """Change the reading after an error; False when the error teaches nothing."""
        if _UNEXPECTED in error:
            if not self._learn_spelling(values[0]):
                self._extra_fields = True
            return True
        changed = _CHANGED.search(error)
        if changed is None or changed[1] not in self._spelling:
            return False
        place = self._spelling.index(changed[1])
        quoted = changed[3] == "string"
        if quoted == self._quoted[place] or read_type(self._columns[place].type, quoted=False) == pa.string():
            return False
        self._quoted[place] = quoted
        return True

    def _learn_spelling(self, value: bytes) -> bool:
        """Take the first record's spelling of the field names; True when it differs from the one in use."""
        try:
            keys = json.loads(value)
        except (ValueError, RecursionError):
            return False
        spelled = {key.lower(): key for key in keys} if isinstance(keys, dict) else {}
        spelling = [spelled.get(column.name, used) for column, used in zip(self._columns, self._spelling, strict=True)]
        changed = spelling != self._spelling
        self._spelling = spelling
        return changed

    def _other_spelling(self, joined: bytes) -> bool:
        """Whether a field name may occur in a spelling that the reader would ignore without a word."""
        if b"\\u" in joined and _ESCAPED_NAME.search(joined):
            return True
        if not joined.isascii() and (_KELVIN in joined or not all(name.isascii() for name in self._spelling)):
            return True
        lower = joined.lower()
        return any(self._spelled_otherwise(name.encode(), joined, lower) for name in self._spelling)

    @staticmethod
    def _spelled_otherwise(name: bytes, joined: bytes, lower: bytes) -> bool:
        """Count quoted names in any case against the spelling in use; look closer only if they differ."""
        if lower.count(b'"' + name.lower() + b'"') == joined.count(b'"' + name + b'"'):
            return False
        found = re.finditer(rb'"(' + re.escape(name) + rb')"[ \t\r]*:', joined, re.IGNORECASE)
        return any(match[1] != name for match in found)
