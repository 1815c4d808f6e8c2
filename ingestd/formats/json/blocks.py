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

from ingestd.formats.json.columns import Doubtful, convert, read_type
from ingestd.formats.json.framing import frame, has_constant, has_large_number, has_tiny_number
from ingestd.schema import Column

_CHANGED = re.compile(r"Column\(/(.*)\) changed from (\w+) to (\w+)", re.DOTALL)
_UNEXPECTED = "unexpected field"
# what the reader does with fields that are no columns; each level looks less closely than the one before
_REFUSE, _INFER, _IGNORE = "error", "infer", "ignore"
_ESCAPED_NAME = re.compile(rb'\\u[0-9a-fA-F]{4}(?:[^"\\]|\\.)*"[ \t\r]*:')
_KELVIN = "\u212a".encode()  # the only non-ASCII character whose lower case is ASCII


class LineDecoder:
    """Decodes blocks of records; learns the spelling of field names and which columns come quoted."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = tuple(columns)
        self._spelling = [column.name for column in columns]
        self._quoted = [False] * len(columns)
        self._scales = [column.type.scale for column in columns if column.type.kind == "decimal"]
        self._complex = any(column.type.is_complex for column in columns)
        self._others = _REFUSE
        self._name_pattern()

    def decode(self, values: Sequence[bytes]) -> pa.RecordBatch | None:
        """One batch of all values, or None; always None for tables with complex columns, which nothing here judges."""
        if self._complex:
            return None
        text = frame(values)
        if text is None or self._may_spoil_decimals(text):
            return None
        before = self._others
        taught: set[int] = set()
        for _ in range(len(self._columns) + 4):  # each failed try teaches one thing: a column, a spelling, other fields
            try:
                table = self._read(text)
            except pa.ArrowInvalid as error:
                if not self._learn(str(error), values, taught):
                    break
                continue
            return self._finish(table, text, len(values))
        if self._others == _IGNORE:
            self._others = before  # it did not help: the block is bad, not its other fields
        return None

    def _may_spoil_decimals(self, text: bytes) -> bool:
        return bool(self._scales) and (has_tiny_number(text) or has_large_number(text, max(self._scales)))

    def _read(self, text: bytes) -> pa.Table:
        fields = [
            pa.field(name, read_type(column.type, quoted=quoted))
            for column, name, quoted in zip(self._columns, self._spelling, self._quoted, strict=True)
        ]
        return pj.read_json(
            pa.BufferReader(text),
            read_options=pj.ReadOptions(use_threads=False, block_size=len(text) + 1),
            parse_options=pj.ParseOptions(
                explicit_schema=pa.schema(fields), newlines_in_values=False, unexpected_field_behavior=self._others
            ),
        )

    def _finish(self, table: pa.Table, text: bytes, rows: int) -> pa.RecordBatch | None:
        if table.num_rows != rows:
            return None
        if self._others != _REFUSE and (has_constant(text) or self._other_spelling(table, text)):
            return None
        try:
            columns = table.columns[: len(self._columns)]  # inferred ones come after those asked for
            return convert(self._columns, [chunked.combine_chunks() for chunked in columns])
        except (Doubtful, pa.ArrowInvalid):
            return None

    def _learn(self, error: str, values: Sequence[bytes], taught: set[int]) -> bool:
        """Change the reading after an error, each column once; False when the error teaches nothing."""
        if _UNEXPECTED in error:
            if not self._learn_spelling(values[0]):
                self._others = _INFER
            return True
        changed = _CHANGED.search(error)
        if changed and changed[1] in self._spelling:
            place = self._spelling.index(changed[1])
            if place in taught or not self._learn_quotes(place, changed[3]):
                return False
            taught.add(place)
            return True
        if self._others != _INFER:
            return False
        self._others = _IGNORE  # a field that is no column may have many types
        return True

    def _learn_quotes(self, place: int, found: str) -> bool:
        """Read the column as text from now on, or no longer; False when that is no remedy."""
        quoted = found == "string"
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
        self._name_pattern()
        return changed

    def _name_pattern(self) -> None:
        """Finds field names that are the columns' but for the case; the look at the first letter makes it fast."""
        names = [name.encode() for name in self._spelling]
        ours = b"|".join(map(re.escape, names))
        letters = re.escape(bytes({name[0] for name in (*map(bytes.lower, names), *map(bytes.upper, names))}))
        self._strange_name = re.compile(b'"(?=[' + letters + b"])(?!(?:" + ours + b')")(?i:' + ours + rb')"[ \t\r]*:')

    def _other_spelling(self, table: pa.Table, text: bytes) -> bool:
        """Whether a column's name may occur in a spelling that the reader did not take for the column."""
        if self._others == _INFER:
            names = {column.name for column in self._columns}
            return any(name.lower() in names for name in table.schema.names[len(names) :])
        if b"\\u" in text and _ESCAPED_NAME.search(text):
            return True
        if not text.isascii() and (_KELVIN in text or not all(name.isascii() for name in self._spelling)):
            return True
        return self._strange_name.search(text) is not None
