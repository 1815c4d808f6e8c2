"""Decodes many JSON records into one Arrow batch with pyarrow's JSON reader.

Invariant: a row that is neither undecided nor rejected equals the result of `RecordReader`, and `RecordReader` rejects
the records that are rejected. What the reader learns about the spelling of a topic's records affects only the speed.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from ingestd.formats.json.arrow_fields import ArrowField, Converted
from ingestd.formats.json.framing import constants, frame, places_of, unsafe_lines
from ingestd.formats.json.map_texts import MapReader, can_cut
from ingestd.formats.json.suspects import (
    TYPE_CHANGED,
    lines_at,
    row_of,
    split,
    suspects,
    unfit_numbers,
    without_lines,
)
from ingestd.formats.json.tape import parts
from ingestd.formats.json.times import TimestampType, timestamp_columns
from ingestd.formats.record_decoder import MixedTimestamps, NotColumnar
from ingestd.formats.row_batches import arrow_of, batch_of
from ingestd.schema import Column, HiveType

Mask = npt.NDArray[np.bool_]

_MAX_SINGLE_ROWS = 4  # records that are excluded one at a time, because no pattern finds others with their fault
_UNEXPECTED = "unexpected field"
# What pyarrow does with fields that are not columns. It could also infer their types, but needs a time that grows with
# the square of their number, if they are names of members in a map.
_REJECT, _IGNORE = "error", "ignore"
_CHOSEN_TEXTS = 20
_MAX_PAUSE = 7  # batches
_SECOND_OBJECT = re.compile(rb"\}[ \t\r]*\{")  # outside strings, it is between two objects of one line
_NAME_WITH_CAPITAL = r'[A-Z][^"\\]*"[ \t\r]*:'
_ESCAPED_NAME = r'\\u[0-9a-fA-F]{4}(?:[^"\\]|\\.)*"[ \t\r]*:'
_QUOTE, _COLON, _BLANKS = 0x22, 0x3A, np.frombuffer(b" \t\r", np.uint8)
_KELVIN_SIGN = re.compile("\u212a".encode())  # the only non-ASCII character whose lower case is ASCII


class ArrowReader:
    """Reads batches of records, and learns how field names are spelled and which kinds of values they have.

    pyarrow needs to know both in advance. The reader first expects the names of the columns and unquoted values, and
    learns from pyarrow's errors. `matching` is the result of `Layout.matching`.
    """

    def __init__(self, columns: Sequence[Column], matching: Sequence[int] = ()) -> None:
        self._columns = tuple(columns)
        self._matching = matching
        self._record = ArrowField.of(columns)
        self._maps = {index: MapReader(column) for index, column in enumerate(columns) if can_cut(column.type)}
        self._can_read = all(index in self._maps or _has_no_map(c.type) for index, c in enumerate(columns))
        self._scales = [kind.scale for kind in self._record.leaves() if kind.kind == "decimal"]
        self._timestamps = [index for index, column in enumerate(columns) if column.type.kind == "timestamp"]
        self._other_fields = _REJECT
        self._odd_batches = self._pause = self._pause_of_floats = 0
        self._compile_names()

    def read(self, values: Sequence[bytes]) -> tuple[pa.RecordBatch, Mask, Mask]:
        """Decode the values into one batch, and return which rows are undecided, and which of the others are rejected.

        The values of these rows are undefined. Raises NotColumnar if too many are undecided, and always for columns
        with maps that cannot be cut, and MixedTimestamps.
        """
        if not self._can_read:
            raise NotColumnar
        self._other_fields = _IGNORE if self._pause else _REJECT
        self._pause = max(0, self._pause - 1)
        self._pause_of_floats = max(0, self._pause_of_floats - 1)
        text, undecided, rejected = frame(values)
        if rejected.all():
            nulls = [pa.nulls(len(values), arrow_of(column.type, "ns")) for column in self._columns]
            return batch_of(self._columns, nulls), undecided, rejected
        undecided |= rejected  # until the others are read
        if self._scales:
            lines = unsafe_lines(text, max(self._scales))
            text = without_lines(text, lines)
            undecided[lines] = True
        if undecided.all():
            raise NotColumnar
        # If half of the others seem to be faulty, there is something to learn.
        limit = int(len(values) - np.count_nonzero(undecided)) // 2
        batch, refused = self._batch(text, undecided, limit, values)
        rejected |= refused
        if self._other_fields == _REJECT:
            self._odd_batches = 0
        if self._matching and self._other_fields != _REJECT:  # else each field of the batch is a column
            undecided[self._maybe_unmatched(batch, values)] = True
        undecided &= ~rejected
        if np.count_nonzero(undecided) > limit:
            self._pause = 0  # there is something to learn, and pyarrow tells it if it rejects other fields
        if undecided.all():
            raise NotColumnar
        return batch, undecided, rejected

    def _batch(self, text: bytes, undecided: Mask, limit: int, values: Sequence[bytes]) -> tuple[pa.RecordBatch, Mask]:
        """Read and convert the lines, and add the other lines to `undecided`; see `_convert`."""
        before, requested = undecided.copy(), self._schema()
        batch, refused = self._convert(*self._read(text, undecided, limit, values), undecided)
        if np.count_nonzero(undecided & ~refused) > limit and self._record.drop_floats():  # most numbers fit
            self._pause_of_floats = _MAX_PAUSE
            if self._schema() != requested:
                undecided[:] = before
                batch, refused = self._convert(*self._read(text, undecided, limit, values), undecided)
        return batch, refused

    def _read(
        self, text: bytes, undecided: Mask, limit: int, values: Sequence[bytes]
    ) -> tuple[pa.Table, dict[int, pa.MapArray], bytes]:
        """Read the lines that pyarrow can read, without maps, and the maps; add the other lines to `undecided`."""
        whole, cut_by = text, None
        maps: dict[int, pa.MapArray] = {}
        learned: set[str] = set()
        single_rows = 0
        # Each failed attempt teaches one thing: the type of a field, a spelling, that there are other fields, or which
        # records have a fault.
        for _ in range(2 * len(self._record.spellings()) + 4):
            if self._maps and cut_by != self._record.spellings():
                text, maps = self._cut(whole, undecided, limit)
                cut_by = self._record.spellings()
            try:
                table = self._parse(text)
                has_more = table.num_rows > len(undecided)
                lines = lines_at(text, places_of(_SECOND_OBJECT, text)) if has_more else None
                if lines is None or not 0 < len(lines) <= limit or undecided[lines].all():
                    return table, maps, text
            except pa.ArrowInvalid as error:
                message = str(error)
                lines = suspects(message, text, self._schema(), limit)
                if lines is None or undecided[lines].all():
                    if self._learn(message, values[int(np.argmin(undecided))], text, limit, learned):
                        continue
                    if lines is None:
                        break
                    lines, single_rows = row_of(message, len(undecided)), single_rows + 1
                    if lines is None or single_rows > _MAX_SINGLE_ROWS or undecided[lines].all():
                        break
            text = without_lines(text, lines)
            undecided[lines] = True
        raise NotColumnar

    def _cut(self, text: bytes, undecided: Mask, limit: int) -> tuple[bytes, dict[int, pa.MapArray]]:
        """Return the lines without their maps, and the maps. Raises NotColumnar if too many lines are undecided."""
        text = without_lines(text, np.flatnonzero(undecided))
        maps = {}
        for index, reader in self._maps.items():
            cut = reader.cut(text, self._record.fields[index].spelling)
            text, maps[index] = cut.text, cut.maps
            if np.count_nonzero(cut.excluded) > limit:
                raise NotColumnar
            undecided |= cut.excluded
        return text, maps

    def _parse(self, text: bytes) -> pa.Table:
        return pj.read_json(
            pa.BufferReader(text),
            read_options=pj.ReadOptions(use_threads=False, block_size=len(text) + 1),
            parse_options=pj.ParseOptions(
                explicit_schema=self._schema(),
                newlines_in_values=False,
                unexpected_field_behavior=self._other_fields,
            ),
        )

    def _schema(self) -> pa.Schema:
        return pa.schema(list(self._record.arrow))

    def _maybe_unmatched(self, batch: pa.RecordBatch, values: Sequence[bytes]) -> npt.NDArray[np.intp]:
        """Return the rows whose `matching` columns are NULL, and whose records may have fields, but none for these.

        Records that certainly have a field for one of them, or no fields, are left out.
        """
        arrays = [batch.columns[index] for index in self._matching]
        if any(not array.null_count for array in arrays):
            return np.array([], np.intp)
        are_null = np.logical_and.reduce([array.is_null().to_numpy(zero_copy_only=False) for array in arrays])
        rows = np.flatnonzero(are_null)
        if not len(rows):
            return rows
        texts = pa.array([values[row] for row in rows.tolist()], pa.binary())
        # What looks like a name and is not inside an inner object is one, because quotes in strings are escaped.
        has_name = pc.match_substring_regex(texts, self._any_name)
        is_flat = pc.equal(pc.count_substring(texts, b"{"), 1)
        unmatched: npt.NDArray[np.intp] = rows[~pc.and_(has_name, is_flat).to_numpy(zero_copy_only=False)]
        return unmatched

    def _convert(
        self, table: pa.Table, maps: Mapping[int, pa.MapArray], text: bytes, undecided: Mask
    ) -> tuple[pa.RecordBatch, Mask]:
        """Convert what pyarrow has read, and add the rows with values that are not converted to `undecided`.

        Also returns which of the others have values that cannot be stored.
        """
        if table.num_rows != len(undecided):
            raise NotColumnar
        arrays = [column.chunk(0) if column.num_chunks == 1 else column.combine_chunks() for column in table.columns]
        if self._other_fields != _REJECT:
            undecided[lines_at(text, constants(text))] = True
            undecided[self._with_other_spellings(text, arrays)] = True
        if self._other_fields != _REJECT or maps:
            undecided[self._with_escaped_names(text)] = True
        timestamps = self._timestamp_columns([arrays[index] for index in self._timestamps])
        unit = timestamps[0].array.type.unit if timestamps else "ns"
        converted = dict(zip(self._timestamps, timestamps, strict=True))
        for index, array in enumerate(arrays):
            if index in maps:
                # A map that was cut out elsewhere in the record belongs to another field of this name.
                undecided |= _differs(maps[index].is_valid(), array.is_valid())
                converted[index] = Converted(maps[index], None, None)
            elif index not in converted:
                converted[index] = self._record.fields[index].convert(array, unit)
        columns = [converted[index] for index in range(len(arrays))]
        # What pyarrow has read of lines that are undecided already may be the value of another field.
        refused = _union([column.refused for column in columns], len(undecided)) & ~undecided
        undecided |= _union([column.lost for column in columns], len(undecided))
        return batch_of(self._columns, [column.array for column in columns]), refused

    def _timestamp_columns(self, arrays: Sequence[pa.Array]) -> list[Converted]:
        """Convert the timestamp columns, all in one unit. Raises MixedTimestamps."""
        if all(pa.types.is_string(array.type) and _may_be_timestamps(array) for array in arrays):
            try:
                return [Converted(array, None, None) for array in timestamp_columns(arrays)]
            except MixedTimestamps:
                raise
            except (NotColumnar, pa.ArrowInvalid):
                pass
        near = self._in_unit(arrays, "ns")
        lost = _union([column.lost for column in near], len(arrays[0]))
        if not lost.any():
            return near
        far = self._in_unit(arrays, "us")
        lost_far = _union([column.lost for column in far], len(lost))
        coarse = lost & ~lost_far
        if not coarse.any():
            return near
        refused = _union([column.refused for column in near], len(lost))
        if not (lost_far & ~refused).any():
            return far
        raise MixedTimestamps(coarse)

    def _in_unit(self, arrays: Sequence[pa.Array], unit: str) -> list[Converted]:
        fields = [self._record.fields[index] for index in self._timestamps]
        return [field.convert(array, unit) for field, array in zip(fields, arrays, strict=True)]

    def _learn(self, error: str, value: bytes, text: bytes, limit: int, learned: set[str]) -> bool:
        """Change the request to pyarrow after an error, once per field; return False if there is nothing to change.

        `value` is one of the records, and `text` contains the others, too.
        """
        if _UNEXPECTED in error:
            if not self._learn_spelling(value):
                self._ignore_other_fields()
            return True
        changed = TYPE_CHANGED.search(error)
        field = self._record.at(changed[1]) if changed else None
        if changed and field:
            if changed[1] in learned or not field.request(changed[3]):
                return False
            learned.add(changed[1])
            return True
        return self._learn_numbers(error, text, limit)

    def _learn_numbers(self, error: str, text: bytes, limit: int) -> bool:
        """Request numbers in another way if pyarrow cannot convert more than `limit` of them."""
        is_known = False
        for field in () if self._pause_of_floats else self._record.numbers():
            quoted = unfit_numbers(error, text, pa.field(field.spelling, field.arrow), limit)
            if quoted is not None:
                is_known = True
                if not (quoted and field.request("string")):
                    field.request_floats()
        return is_known

    def _ignore_other_fields(self) -> None:
        """Ignore the other fields of this batch, and of the next ones if others before it have had some, too.

        A batch without other fields is read faster if pyarrow rejects them. But if only its last record has one, the
        attempt costs as much as reading it. So the pause between attempts grows while they fail.
        """
        self._other_fields = _IGNORE
        self._pause = min(self._odd_batches, _MAX_PAUSE)
        self._odd_batches += 1

    def _learn_spelling(self, value: bytes) -> bool:
        """Adopt a record's spelling of the field names; return True if it differs from the current one."""
        try:
            record = json.loads(value)
        except (ValueError, RecursionError):
            return False
        before = self._record.spellings()
        self._record.spell(record)
        if before == self._record.spellings():
            return False
        self._compile_names()
        return True

    def _compile_names(self) -> None:
        """Compile patterns for field names that pyarrow may not recognize.

        Most of them differ only in case from all spellings. If a column and a field inside of another have one name in
        two spellings, each may occur in place of the other. The lookahead for the first letter makes the search fast.
        """
        matching = _alternatives(self._record.fields[index].spelling for index in self._matching)
        self._any_name = rb"^\s*\{\s*\}\s*$|" + rb'[^\\]"(?:' + matching + rb')"\s*:'
        spelled = sorted(set(self._record.spellings()))
        counts = Counter(map(str.lower, spelled))
        self._ambiguous = {name for name, count in counts.items() if count > 1}
        self._has_only_ascii = all(map(str.isascii, spelled))
        self._has_capital = not re.fullmatch(r'[^A-Z"\\]*', "".join(spelled))
        self._spelled = pa.array(spelled, pa.string())
        self._lower = pa.array(sorted(set(map(str.lower, spelled))), pa.string())
        self._any_case = _in_any_case(sorted(self._ambiguous)) if self._ambiguous else None

    def _with_other_spellings(self, text: bytes, arrays: Sequence[pa.Array]) -> npt.NDArray[np.intp]:
        """Return the lines in which a field's name may occur in a spelling that pyarrow did not recognize.

        Names with escape sequences are left out. `arrays` is what it has read. Raises NotColumnar if it has not
        recognized an ambiguous name everywhere, which it has if each has led to a value, and for other letters than
        ASCII in the names of columns.
        """
        lines = self._with_other_case(text)
        if not text.isascii():
            if not self._has_only_ascii:
                raise NotColumnar
            lines = np.union1d(lines, lines_at(text, places_of(_KELVIN_SIGN, text)))
        if self._any_case is not None:
            pairs = zip(self._record.fields, arrays, strict=True)
            read = sum(field.count(part, self._ambiguous) for field, part in pairs)
            if read != len(self._any_case.findall(text)):
                raise NotColumnar
        return lines

    def _with_other_case(self, text: bytes) -> npt.NDArray[np.intp]:
        """Return the lines in which a name may differ only in case from a spelling.

        If no spelling has a capital, such a name has one, and lines with a capital in a name are found faster.
        """
        if self._has_capital:
            return lines_at(text, self._in_other_case(text))
        lines = split(text)
        chosen = pc.match_substring_regex(lines, _NAME_WITH_CAPITAL)
        part = b"".join(lines.filter(chosen).to_pylist())
        places = lines_at(part, self._in_other_case(part))
        return np.flatnonzero(chosen.to_numpy(zero_copy_only=False))[places]

    def _in_other_case(self, text: bytes) -> npt.NDArray[np.intp]:
        """Return where a name begins that differs only in case from a spelling."""
        starts, ends = _names(text)
        names = parts(text, starts, ends)
        others = np.flatnonzero(~pc.is_in(names, self._spelled).to_numpy(zero_copy_only=False))
        lower = pc.ascii_lower(names.take(pa.array(others)))
        is_spelled = pc.is_in(lower, self._lower).to_numpy(zero_copy_only=False)
        places: npt.NDArray[np.intp] = starts[others[is_spelled]]
        return places

    def _with_escaped_names(self, text: bytes) -> npt.NDArray[np.intp]:
        """Return the lines in which a name may contain an escape sequence.

        `re` would search the rest of a text after each of its escape sequences; pyarrow needs linear time.
        """
        if b"\\" not in text or b"\\u" not in text:  # one letter is found faster
            return np.array([], np.intp)
        has_name = pc.match_substring_regex(split(text), _ESCAPED_NAME)
        return np.flatnonzero(has_name.to_numpy(zero_copy_only=False))


def _names(text: bytes) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Return where the names in lines that end with a brace begin and end, without quotes.

    What looks like a name in a string is one, too. Of a name with an escaped quote, only the part behind it is one.
    """
    letters = np.frombuffer(text, np.uint8)
    quotes = np.flatnonzero(letters == _QUOTE)
    after = letters[quotes + 1]
    blank, steps = np.flatnonzero(np.isin(after, _BLANKS)), 1
    while len(blank):
        steps += 1
        after[blank] = letters[quotes[blank] + steps]
        blank = blank[np.isin(after[blank], _BLANKS)]
    last = np.flatnonzero(after[1:] == _COLON)
    return quotes[last] + 1, quotes[last + 1]


def _in_any_case(names: Sequence[str]) -> re.Pattern[bytes]:
    """Return a pattern for fields that have one of the names in any case."""
    texts = [text for name in map(str.encode, names) for text in (name.lower(), name.upper())]
    letters = re.escape(bytes({text[0] for text in texts}))
    return re.compile(b'"(?=[' + letters + b"])(?i:" + _alternatives(names) + rb')"[ \t\r]*:')


def _alternatives(names: Iterable[str]) -> bytes:
    return b"|".join(re.escape(name.encode()) for name in names)


def _may_be_timestamps(texts: pa.StringArray) -> bool:
    """Return whether some of the texts all are timestamps. Arrow needs long to find that many are none."""
    chosen = range(0, len(texts), max(1, len(texts) // _CHOSEN_TEXTS))
    return not pc.any(TimestampType(HiveType("timestamp")).refused(texts.take(pa.array(chosen))), min_count=0).as_py()


def _union(masks: Iterable[Mask | None], count: int) -> Mask:
    union: Mask = np.zeros(count, np.bool_)
    for mask in masks:
        if mask is not None:
            union |= mask
    return union


def _has_no_map(kind: HiveType) -> bool:
    return kind.kind != "map" and all(map(_has_no_map, kind.children))


def _differs(left: pa.BooleanArray, right: pa.BooleanArray) -> Mask:
    differs: Mask = pc.not_equal(left, right).to_numpy(zero_copy_only=False)
    return differs
