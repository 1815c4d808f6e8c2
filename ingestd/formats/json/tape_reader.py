"""Decodes many JSON records into one Arrow batch, column by column, from their tokens.

Invariant: a row that `TapeReader.read` does not list as undecided equals the result of `RecordReader`, and
`RecordReader` rejects the records that it lists as rejected.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ingestd.formats.json.connect_schemas import (
    DATE_TEXT,
    MAX_SCALE,
    OTHER,
    UNCHANGED,
    WITH_SCALE,
    Logical,
    Schemas,
    Unit,
    numbers,
)
from ingestd.formats.json.envelope import AFTER, BEFORE, DELETE, OPERATION, PAYLOAD, SCHEMA, has_logical_types
from ingestd.formats.json.inference import Rows
from ingestd.formats.json.layout import PLAIN, Layout, Place
from ingestd.formats.json.nested import POSITION, primitive
from ingestd.formats.json.tape import (
    KEY,
    OPEN_ARRAY,
    OPEN_OBJECT,
    SCALAR,
    STRING,
    Ints,
    Mask,
    Places,
    Tape,
    is_encodable,
)
from ingestd.formats.json.times import dates_of_schema, instants
from ingestd.formats.json.types import InvalidValue, Number, PrimitiveType
from ingestd.formats.row_batches import (
    FIRST_NANO,
    LAST_NANO,
    NANOS_PER_DAY,
    NANOS_PER_MICRO,
    Value,
    array_of,
    arrow_of,
    batch_of,
)
from ingestd.formats.values import offsets_of, width_of
from ingestd.formats.values import spread as spread_all
from ingestd.schema import Column, HiveType

_PIECE_BYTES = 1 << 20
_MISSING = -1  # in place of a token
_BOOLEANS = {"true": True, "false": False}
# A number that `lenient` may write in another way, or text like it, and a control character.
_UNLIKE_LENIENT = r"[0-9][.eE]|-0|\\u"


class TapeReader:
    """Reads batches of records with columns of any type."""

    def __init__(self, columns: Sequence[Column], layout: Layout = PLAIN) -> None:
        self._columns = tuple(columns)
        self._layout = layout
        self._place = layout.tree(columns)
        self._deleted = layout.tree(columns, BEFORE)
        self._matching = layout.matching(columns)
        self._has_schemas = layout.envelope != "none"
        self._schemas = Schemas() if self._has_schemas and not layout.lenient else None

    def read(self, values: Sequence[bytes], unit: str) -> tuple[pa.RecordBatch, Mask, Mask]:
        """Decode the values into a batch whose timestamps have the given unit, ns or us.

        Also returns which rows are undecided, and which of the others are rejected. Their values are undefined.
        """
        read = [self._read(values[start:end], unit) for start, end in pieces(values)]
        undecided, rejected = (
            np.concatenate([getattr(columns, name) for columns in read]) for name in ("undecided", "rejected")
        )
        return pa.concat_batches([columns.batch for columns in read]), undecided, rejected & ~undecided

    def absent(self, values: Sequence[bytes]) -> set[int]:
        """Return the indexes of the columns for which no record has a value, not even null."""
        absent = set(range(len(self._columns)))
        for start, end in pieces(values) if values else ():
            by_column = self._find(_Columns(Tape(values[start:end]), "ns", self._layout))
            absent -= {index for index, (tokens, _) in by_column.items() if (tokens != _MISSING).any()}
        return absent

    def count(self, values: Sequence[bytes]) -> int:
        """Return the number of values in the arrays and maps of records, also in equal keys of a map."""
        total = 0
        for start, end in pieces(values) if values else ():
            columns = _Columns(Tape(values[start:end]), "ns", self._layout)
            for index, place in self._find(columns).items():
                total += columns.count(self._columns[index].type, *place)
        return total

    def rows(self, values: Sequence[bytes]) -> Iterator[Rows]:
        """Yield the objects that are rows, of pieces of the records. Records without a row are left out."""
        for start, end in pieces(values) if values else ():
            tape = Tape(values[start:end])
            yield _Columns(tape, "ns", self._layout).rows()

    def _find(self, columns: _Columns) -> dict[int, tuple[Ints, int]]:
        """Return what `_Columns.find` yields for all records."""
        events, depth, deletes = columns.events()
        if deletes.any():
            return columns.find_in_parts((self._place, self._deleted), events, depth, deletes)
        return dict(columns.find(self._place, events, depth))

    def _read(self, values: Sequence[bytes], unit: str) -> _Columns:
        logical: list[Logical] = []
        if self._schemas:
            values, of_record, logical = self._schemas.take_out(values)
        tape = Tape(values)
        columns = _Columns(tape, unit, self._layout)
        # What follows a record may be ignored, and `take_out` expects well-formed records.
        if self._has_schemas or self._layout.lenient:
            columns.undecided |= tape.malformed
        else:
            columns.rejected |= tape.malformed
        if logical:
            columns.read_logical(logical, of_record)
        elif self._has_schemas:
            columns.undecided |= np.fromiter(map(has_logical_types, values), np.bool_, len(values))
        by_column = self._find(columns)
        is_certain = self._layout.is_flat and not self._layout.lenient and len(self._matching) == len(self._columns)
        unmatched = columns.unmatched([by_column[index][0] for index in self._matching])
        if is_certain:
            columns.rejected |= unmatched
        else:
            columns.undecided |= unmatched
        arrays = [columns.column(column, *by_column[index]) for index, column in enumerate(self._columns)]
        columns.batch = batch_of(self._columns, arrays)
        return columns


class _Columns:
    """Builds columns from a tape, which are then in `batch`.

    `undecided` are the records that have a value which was not converted. `rejected` are those that have a value which
    cannot be stored, and may also be undecided.
    """

    batch: pa.RecordBatch

    def __init__(self, tape: Tape, unit: str, layout: Layout) -> None:
        self.undecided: Mask = np.zeros(len(tape.malformed), np.bool_)
        self.rejected: Mask = np.zeros(len(tape.malformed), np.bool_)
        self._tape = tape
        self._unit = unit
        self._layout = layout
        self._lenient = layout.lenient
        self._primitive = partial(primitive, timestamp_formats=layout.timestamp_formats, lenient=layout.lenient)
        if layout.lenient:
            self.undecided |= tape.repeated_keys  # there, the last of equal keys does not always win
        self._rows = np.arange(len(tape.malformed), dtype=np.int32)
        self._decimals: list[tuple[Ints, pa.StringArray]] = []
        self._instants: dict[int, list[Ints]] = {}  # the tokens of instants, by their units in nanoseconds
        self._dates: list[Ints] = []  # the tokens of texts that are dates
        self._decimal_tokens: Ints = np.zeros(0, np.int32)
        self._decimal_texts = pa.array([], pa.string())

    def events(self) -> tuple[Ints, int, Mask]:
        """Return the tokens that open the objects of `envelope.event_of`, or _MISSING, and the depth of their items.

        Also returns which of them are deletes of Debezium.
        """
        envelope, roots = self._layout.envelope, self._tape.roots
        deletes: Mask = np.zeros(len(roots), np.bool_)
        if envelope == "none":
            return roots, 1, deletes
        (payloads,) = self._members((PAYLOAD,), roots, 1)
        events, depth = roots, 1
        if envelope == "connect" or (payloads != _MISSING).any():
            events, depth = self._opened(payloads, OPEN_OBJECT), 2
            self.undecided |= events == _MISSING
        if envelope == "debezium":
            operations, after, before = self._members((OPERATION, AFTER, BEFORE), events, depth)
            letters = self._operations(operations)
            deletes = letters == ord(DELETE)
            rows = np.where(deletes, before, after).astype(np.int32)
            accepted = np.isin(letters, [ord(name) for name in self._layout.operations])
            self.undecided |= ~accepted | (self._opened(rows, OPEN_OBJECT) == _MISSING)
        return events, depth, deletes

    def read_logical(self, logical: Sequence[Logical], of_record: Ints) -> None:
        """Find the decimals, instants and dates of records without schemas.

        The arguments are those of `Schemas.take_out`.
        """
        payloads, schemas = self._members((PAYLOAD, SCHEMA), self._tape.roots, 1)
        self.undecided |= (of_record != UNCHANGED) & (schemas != _MISSING)  # the last schema counts
        for index, inside in enumerate(logical):
            is_described = of_record == index
            if not isinstance(inside, Mapping):
                self.undecided |= is_described
            elif inside and is_described.any():
                self._find_logical(inside, np.where(is_described, payloads, _MISSING).astype(np.int32), 2)
        if self._decimals:
            tokens = np.concatenate([tokens for tokens, _ in self._decimals])
            order = np.argsort(tokens)
            self._decimal_tokens = tokens[order]
            self._decimal_texts = pa.concat_arrays([texts for _, texts in self._decimals]).take(pa.array(order))
            self._tape.kind[tokens] = SCALAR

    def _find_logical(self, logical: Mapping[str, Logical], tokens: Ints, depth: int) -> None:
        """Find the decimals, instants and dates inside of values. Records with others are undecided.

        The items of the values have this depth.
        """
        is_object = (tokens != _MISSING) & (self._tape.kind[tokens] == OPEN_OBJECT)
        objects = np.where(is_object, tokens, _MISSING).astype(np.int32)
        members = self._members([name.lower() for name in logical], objects, depth)
        for (name, inside), values in zip(logical.items(), members, strict=True):
            present = values[values != _MISSING]
            self._leave_other_case(present, name)  # a null, too, may follow a value of another case
            is_null = (self._tape.kind[present] == SCALAR) & (self._tape.letters_at(present) == ord("n"))
            present = present[~is_null]
            if isinstance(inside, Mapping):
                self._find_logical(inside, values, depth + 1)
            elif isinstance(inside, Unit):
                self._instants.setdefault(inside.nanos, []).append(present[self._is_number(present)])
            elif inside == OTHER:
                self._leave(present)
            elif inside == DATE_TEXT:
                self._dates.append(present[self._tape.kind[present] == STRING])
            elif inside == WITH_SCALE:
                self._decimals += self._with_scales(present[self._tape.kind[present] == OPEN_OBJECT], depth + 1)
            else:
                present = present[~self._is_number(present)]
                self._decimals.append(self._scaled(present, present, inside))

    def _is_number(self, tokens: Ints) -> Mask:
        """Return which of these tokens, none of which is null, are numbers."""
        is_number: Mask = (self._tape.kind[tokens] == SCALAR) & ~np.isin(self._tape.letters_at(tokens), list(b"tf"))
        return is_number

    def _with_scales(self, objects: Ints, depth: int) -> Iterator[tuple[Ints, pa.StringArray]]:
        """Yield the same for objects that contain the unscaled value of a decimal and its scale."""
        values, scales = self._members(("value", "scale"), objects, depth)
        is_whole = (values != _MISSING) & (scales != _MISSING) & (self._tape.kind[scales] == SCALAR)
        self._leave(objects[~is_whole])
        objects, values, scales = objects[is_whole], values[is_whole], scales[is_whole]
        self._leave_other_case(values, "value")
        self._leave_other_case(scales, "scale")
        texts = self._tape.texts(self._tape.start[scales], self._tape.end[scales]).dictionary_encode()
        for code, text in enumerate(texts.dictionary.to_pylist()):
            chosen = texts.indices.to_numpy() == code
            if text.isdecimal() and int(text[:3]) <= MAX_SCALE:
                yield self._scaled(objects[chosen], values[chosen], int(text))
            else:
                self._leave(objects[chosen])

    def _scaled(self, tokens: Ints, values: Ints, scale: int) -> tuple[Ints, pa.StringArray]:
        """Return those of the tokens whose unscaled values are texts, and their numbers with this scale."""
        is_text = self._tape.kind[values] == STRING
        self._leave(tokens[~is_text])
        tokens, values = tokens[is_text], values[is_text]
        texts = numbers(self._tape.texts(self._tape.start[values] + 1, self._tape.end[values] - 1), scale)
        valid = texts.is_valid().to_numpy(zero_copy_only=False)
        self._leave(tokens[~valid])
        return tokens[valid], texts.drop_null()

    def _leave_other_case(self, values: Ints, name: str) -> None:
        """Leave the records undecided in which the name of one of these values is not exactly this one."""
        has_other_case = pc.not_equal(self._key_texts(values - np.int32(2)), name)
        self._leave(values[has_other_case.to_numpy(zero_copy_only=False)])

    def rows(self) -> Rows:
        """Return the objects whose members are fields: the records, or what is in their envelopes."""
        tokens, depth, deletes = self.events()
        if self._layout.envelope == "debezium":
            after, before = self._members((AFTER, BEFORE), tokens, depth)
            tokens, depth = np.where(deletes, before, after).astype(np.int32), depth + 1
        return Rows(self._tape, tokens[~self.undecided & (tokens != _MISSING)], depth)

    def find(self, place: Place, tokens: Ints, depth: int) -> Iterator[tuple[int, tuple[Ints, int]]]:
        """Yield for each column its index, the tokens that begin its values, or _MISSING, and the depth of their items.

        `tokens` begin the values at the place, one per record, or are _MISSING.
        """
        for index in place.columns:
            yield index, (tokens, depth)
        if place.members:
            objects = self._opened(tokens, OPEN_OBJECT)
            members = self._members(tuple(place.members), objects, depth)
            for inner, values in zip(place.members.values(), members, strict=True):
                yield from self.find(inner, values, depth + 1)
        if place.elements:
            arrays = self._opened(tokens, OPEN_ARRAY)
            for index, inner in place.elements.items():
                yield from self.find(inner, self._elements(index, arrays, depth), depth + 1)

    def find_in_parts(
        self, places: tuple[Place, Place], tokens: Ints, depth: int, is_second: Mask
    ) -> dict[int, tuple[Ints, int]]:
        """Return what `find` yields, at the second place for some of the records."""
        parts = [
            dict(self.find(place, np.where(wanted, tokens, _MISSING).astype(np.int32), depth))
            for place, wanted in zip(places, (~is_second, is_second), strict=True)
        ]
        return {
            index: (np.where(is_second, parts[1][index][0], values).astype(np.int32), inner)
            for index, (values, inner) in parts[0].items()
        }

    def unmatched(self, columns: Sequence[Ints]) -> Mask:
        """Return the records with members in which all of these tokens, one array per column, are _MISSING."""
        unmatched: Mask = np.full(len(self._rows), bool(columns))
        for tokens in columns:
            unmatched &= tokens == _MISSING
            if not unmatched.any():
                return unmatched
        unmatched[unmatched] = self._tape.kind[self._tape.roots[unmatched] + np.int32(1)] == KEY
        return unmatched

    def column(self, column: Column, tokens: Ints, depth: int) -> pa.Array:
        """Return a column of one value per record, from what `find` yields."""
        return self._column(column.type, tokens, self._rows, depth)

    def count(self, kind: HiveType, tokens: Ints, depth: int) -> int:
        """Return the number of values in the arrays and maps that the tokens begin; the arguments are from `find`."""
        if not kind.is_complex:
            return 0
        wanted = OPEN_ARRAY if kind.kind == "array" else OPEN_OBJECT
        tokens = tokens[(tokens != _MISSING) & (self._tape.kind[tokens] == wanted)]
        if kind.kind == "struct":
            members = self._members(kind.names, tokens, depth)
            return sum(
                self.count(child, values, depth + 1) for child, values in zip(kind.children, members, strict=True)
            )
        _, items = self._tape.inside(tokens, depth)
        item = kind.children[-1]
        values = items if kind.kind == "array" else items + np.int32(2)  # behind their keys
        return len(items) * width_of(item) + self.count(item, values, depth + 1)

    def _opened(self, tokens: Ints, wanted: int) -> Ints:
        """Return the tokens of the wanted kind, and _MISSING for others; records with a value of another are undecided.

        There is one token per record.
        """
        kinds = self._tape.kind[tokens]
        is_wanted = (tokens != _MISSING) & (kinds == wanted)
        if is_wanted.all():
            return tokens
        is_null = (kinds == SCALAR) & (self._tape.letters_at(tokens) == ord("n"))
        self.undecided |= (tokens != _MISSING) & ~is_wanted & ~is_null
        return np.where(is_wanted, tokens, _MISSING).astype(np.int32)

    def _operations(self, tokens: Ints) -> npt.NDArray[np.uint8]:
        """Return the letters of strings that consist of one letter, and 0 for other values."""
        starts = self._tape.start[tokens]
        is_short = (tokens != _MISSING) & (self._tape.kind[tokens] == STRING)
        is_short &= self._tape.end[tokens] - starts == 3  # one letter between quotes
        letters: npt.NDArray[np.uint8] = np.zeros(len(tokens), np.uint8)
        letters[is_short] = self._tape.letters_at(tokens[is_short], 1)
        return letters

    def _members(self, names: Sequence[str], objects: Ints, depth: int) -> npt.NDArray[np.int32]:
        """Return the tokens that begin the values of the members with these names, or _MISSING, for each object.

        `objects` are tokens at this depth, or _MISSING.
        """
        present = np.flatnonzero(objects != _MISSING)
        owners, keys = self._tape.inside(objects[present], depth)
        fields = self._name_indexes(names, keys)
        known = fields >= 0
        values: Ints = np.full((len(names), len(objects)), _MISSING, np.int32)
        # Of several members with one name, the last wins, because its key follows.
        values[fields[known], present[owners[known]]] = keys[known] + 2
        return values

    def _elements(self, index: int, arrays: Ints, depth: int) -> Ints:
        """Return the tokens that begin the elements with this index, or _MISSING, of each array at this depth."""
        present = np.flatnonzero(arrays != _MISSING)
        owners, items = self._tape.inside(arrays[present], depth)
        chosen = np.arange(len(owners)) - np.searchsorted(owners, owners) == index
        values: Ints = np.full(len(arrays), _MISSING, np.int32)
        values[present[owners[chosen]]] = items[chosen]
        return values

    def _name_indexes(self, wanted: Sequence[str], keys: Ints) -> npt.NDArray[np.int32]:
        """Return which wanted name each key has, ignoring case; -1 if none."""
        names = self._key_texts(keys)
        if pc.all(pc.string_is_ascii(names), min_count=0).as_py():
            lower = pc.ascii_lower(names)
        else:
            encoded = names.dictionary_encode()
            spellings = pa.array([name.lower() for name in encoded.dictionary.to_pylist()], pa.string())
            lower = spellings.take(encoded.indices)
        if self._lenient:
            by_position = pc.match_substring_regex(names, f"^(?:{POSITION})$")
            self._leave(keys[by_position.to_numpy(zero_copy_only=False)])
        positions = pc.index_in(lower, pa.array(wanted, pa.string()))
        indexes: npt.NDArray[np.int32] = positions.fill_null(-1).to_numpy(zero_copy_only=False)
        return indexes

    def _key_texts(self, keys: Ints) -> pa.StringArray:
        starts, ends = self._tape.start[keys] + np.int32(1), self._tape.end[keys] - np.int32(1)
        texts, failed = self._unescaped(starts, ends)
        if failed.any():
            self._leave(keys[failed])
        return texts

    def _leave(self, tokens: Ints) -> None:
        """Leave the records of these tokens undecided."""
        self.undecided[np.searchsorted(self._tape.roots, tokens, side="right") - 1] = True

    def _column(self, kind: HiveType, tokens: Ints, rows: Ints, depth: int) -> pa.Array:
        """Return a column of the values that the tokens begin; `rows` are their records."""
        kinds = np.where(tokens == _MISSING, 0, self._tape.kind[tokens])
        is_null = (kinds == SCALAR) & (self._tape.letters_at(tokens) == ord("n"))
        tokens = np.where(is_null, _MISSING, tokens).astype(np.int32)
        kinds[is_null] = 0
        if kind.is_complex:
            wanted = OPEN_ARRAY if kind.kind == "array" else OPEN_OBJECT
            others = (kinds != wanted) & (kinds != 0)
            self.rejected[rows[others]] = True
            tokens = np.where(kinds == wanted, tokens, _MISSING).astype(np.int32)
            return self._complex(kind, tokens, rows, depth)
        leaf = self._primitive(kind)
        given = self._given_times(kind, tokens, rows)
        if given is not None:
            tokens = np.where(given.is_valid(), _MISSING, tokens).astype(np.int32)
            kinds[tokens == _MISSING] = 0
        accepted = (kinds == STRING) | ((kinds == SCALAR) & (not leaf.only_text))
        texts, surrogates = self._texts(np.where(accepted, tokens, _MISSING).astype(np.int32))
        refused = ~accepted & (kinds != 0)
        if self._lenient:
            misread = pc.indices_nonzero(leaf.misread(texts)).to_numpy()
            self.undecided[rows[misread[kinds[misread] == SCALAR]]] = True
        if leaf.stores_json and refused.any():
            texts = self._with_containers(texts, tokens, refused)
            refused[:] = False
        array = leaf.decided(texts, self._unit)
        array = array if given is None else pc.coalesce(array, given)
        failed = texts.is_valid().to_numpy(zero_copy_only=False) & ~array.is_valid().to_numpy(zero_copy_only=False)
        failed |= surrogates
        if self._lenient:
            self.undecided[rows[refused & (kinds != STRING) & (kinds != SCALAR)]] = True
            failed |= refused
        else:
            self.rejected[rows[refused | (surrogates & (kind.kind != "timestamp"))]] = True
            self.rejected[rows[pc.indices_nonzero(leaf.refused(texts)).to_numpy()]] = True
        again = np.flatnonzero(failed & ~self.undecided[rows] & ~self.rejected[rows])
        if kind.kind == "timestamp" and len(again):
            others = leaf.decided(texts.take(pa.array(again)), "us" if self._unit == "ns" else "ns")
            needs_other_unit = others.is_valid().to_numpy(zero_copy_only=False)
            self.undecided[rows[again[needs_other_unit]]] = True
            again = again[~needs_other_unit]
        return self._with_values(leaf, array, tokens, rows, again) if len(again) else array

    def _given_times(self, kind: HiveType, tokens: Ints, rows: Ints) -> pa.Array | None:
        """Return the values of a column that a schema describes as dates or points in time; null for others.

        Returns None if there are none. Records with those that do not fit are undecided.
        """
        if kind.kind not in ("date", "timestamp"):
            return None
        is_date, arrow = kind.kind == "date", arrow_of(kind, self._unit)
        given: list[tuple[list[Ints], int, Callable[[pa.StringArray], pa.Array]]] = [
            (parts, 0, partial(instants, nanos_per_unit=nanos, kind=arrow))
            for nanos, parts in self._instants.items()
            if nanos == NANOS_PER_DAY or not is_date
        ]
        if is_date and self._dates:
            given.append((self._dates, len('"'), dates_of_schema))
        arrays, places = [], []
        for parts, quote, convert in given:
            chosen = np.flatnonzero(np.isin(tokens, np.concatenate(parts)))
            used, quotes = tokens[chosen], np.int32(quote)
            stamps = convert(self._tape.texts(self._tape.start[used] + quotes, self._tape.end[used] - quotes))
            fits = stamps.is_valid().to_numpy(zero_copy_only=False)
            self.undecided[rows[chosen[~fits]]] = True
            arrays.append(stamps.drop_null())
            places.append(chosen[fits])
        return spread_all(arrays, places, len(tokens)) if arrays else None

    def _with_values(
        self, leaf: PrimitiveType, array: pa.Array, tokens: Ints, rows: Ints, again: npt.NDArray[np.intp]
    ) -> pa.Array:
        """Convert some of the values one by one. The row of one that cannot be stored is a reject."""
        values: list[Value] = []
        places: list[int] = []
        for place, row, given in zip(again.tolist(), rows[again].tolist(), self._values(tokens[again]), strict=True):
            try:
                value = leaf.value(given)
            except InvalidValue:
                self.rejected[row] = True
                continue
            if leaf.kind.kind == "timestamp" and not _fits(value, self._unit):
                self.undecided[row] = True
                continue
            values.append(value)
            places.append(place)
        if not values:
            return array
        order = np.arange(len(array))
        order[places] = len(array) + np.arange(len(values))
        return pa.concat_arrays([array, array_of(leaf.kind, values, self._unit)]).take(pa.array(order))

    def _complex(self, kind: HiveType, tokens: Ints, rows: Ints, depth: int) -> pa.Array:
        nulls = tokens == _MISSING
        mask = pa.array(nulls) if nulls.any() else None
        arrow = arrow_of(kind, self._unit)
        if kind.kind == "struct":
            members = zip(kind.children, self._members(kind.names, tokens, depth), strict=True)
            fields = [self._column(child, values, rows, depth + 1) for child, values in members]
            return pa.StructArray.from_arrays(fields, fields=list(arrow), mask=mask)
        present = np.flatnonzero(~nulls)
        owners, items = self._tape.inside(tokens[present], depth)
        if kind.kind == "array":
            others = self._others(kind.children[0], items, rows[present[owners]])
            owners, items = owners[~others], items[~others]
            values = self._column(kind.children[0], items, rows[present[owners]], depth + 1)
            return pa.ListArray.from_arrays(offsets_of(present[owners], len(tokens)), values, type=arrow, mask=mask)
        key_type, item_type = kind.children
        keys = self._primitive(key_type).decided(self._key_texts(items), self._unit)
        valid = keys.is_valid().to_numpy(zero_copy_only=False)
        self.undecided[rows[present[owners[~valid]]]] = True
        keys, owners, items = keys.filter(pa.array(valid)), owners[valid], items[valid]
        again = replaced_entries(owners, keys)
        if len(again) and key_type.kind == "string":  # other keys can be equal although their texts differ
            kept = np.delete(np.arange(len(owners)), again)
            keys, owners, items = keys.take(kept), owners[kept], items[kept]
        else:
            self.undecided[rows[present[owners[again]]]] = True
        others = self._others(item_type, items + np.int32(2), rows[present[owners]])
        if others.any():
            keys, owners, items = keys.filter(pa.array(~others)), owners[~others], items[~others]
        values = self._column(item_type, items + np.int32(2), rows[present[owners]], depth + 1)
        offsets = offsets_of(present[owners], len(tokens))
        return pa.MapArray.from_arrays(offsets, keys, values, type=arrow, mask=mask)

    def _others(self, kind: HiveType, tokens: Ints, rows: Ints) -> Mask:
        """Return which items of a type are neither structs, if they must be, nor null, and reject their records.

        They are not read, because each would need the memory of a struct (`RecordReader.most_values`).
        """
        if kind.kind != "struct":
            return np.zeros(len(tokens), np.bool_)
        kinds = self._tape.kind[tokens]
        others: Mask = (kinds != OPEN_OBJECT) & ((kinds != SCALAR) | (self._tape.letters_at(tokens) != ord("n")))
        self.rejected[rows[others]] = True
        return others

    def _texts(self, tokens: Ints) -> tuple[pa.StringArray, Mask]:
        """Return the texts of strings, without quotes, and of scalars; null for _MISSING.

        Also returns which of them have an unpaired surrogate, and are empty here.
        """
        present = np.flatnonzero(tokens != _MISSING)
        used = tokens[present]
        quote = (self._tape.kind[used] == STRING).astype(np.int32)
        texts, invalid = self._unescaped(self._tape.start[used] + quote, self._tape.end[used] - quote)
        failed: Mask = np.zeros(len(tokens), np.bool_)
        failed[present[invalid]] = True
        if len(self._decimal_tokens):
            places = np.searchsorted(self._decimal_tokens, used)
            places[places == len(self._decimal_tokens)] = 0
            is_decimal = self._decimal_tokens[places] == used
            decimals = self._decimal_texts.take(pa.array(places[is_decimal]))
            texts = pc.replace_with_mask(texts, pa.array(is_decimal), decimals)
        return spread(texts, present, len(tokens)), failed

    def _values(self, tokens: Ints) -> Iterator[object]:
        """Yield the JSON values of strings and scalars, which are neither null nor _MISSING."""
        is_string = (self._tape.kind[tokens] == STRING).tolist()
        for text, quoted in zip(self._python_texts(tokens), is_string, strict=True):
            yield text if quoted else _scalar(text)

    def _python_texts(self, tokens: Ints) -> list[str]:
        """Return what `_texts` does for tokens other than _MISSING, with unpaired surrogates."""
        array, failed = self._texts(tokens)
        texts: list[str] = array.to_pylist()
        places = np.flatnonzero(failed)
        used = tokens[places]
        raw = self._tape.texts(self._tape.start[used], self._tape.end[used]).to_pylist()
        for place, text in zip(places.tolist(), json.loads(f"[{','.join(raw)}]"), strict=True):
            texts[place] = text
        return texts

    def _unescaped(self, starts: Ints, ends: Ints) -> tuple[pa.StringArray, Mask]:
        """Return parts of the text with escape sequences replaced, and which parts have an unpaired surrogate."""
        texts = self._tape.texts(starts, ends)
        escaped = self._tape.has_escape(starts, ends)
        failed: Mask = np.zeros(len(starts), np.bool_)
        if escaped.any():
            raw = texts.filter(pa.array(escaped)).to_pylist()
            plain = json.loads('["' + '","'.join(raw) + '"]')
            if not is_encodable("".join(plain)):
                encodable = [is_encodable(text) for text in plain]
                failed[np.flatnonzero(escaped)] = np.logical_not(encodable)
                plain = [text if fits else "" for text, fits in zip(plain, encodable, strict=True)]
            texts = pc.replace_with_mask(texts, pa.array(escaped), pa.array(plain, pa.string()))
        return texts, failed

    def _with_containers(self, texts: pa.StringArray, tokens: Ints, refused: Mask) -> pa.StringArray:
        """Add the objects and arrays of a text column, as compact JSON."""
        places = np.flatnonzero(refused)
        parts, undecided = self._tape.compact(tokens[places])
        if self._lenient:
            undecided = undecided | np.asarray(pc.match_substring_regex(parts, _UNLIKE_LENIENT))
        self._leave(tokens[places[undecided]])
        for tokens_inside in (self._decimal_tokens, self._tape.with_repeated_keys):
            self._leave(tokens[places[self._tape.contain(tokens[places], tokens_inside)]])
        return pc.replace_with_mask(texts, pa.array(refused), parts)


def pieces(values: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    """Divide the values into pieces of about _PIECE_BYTES, whose tokens fit into the caches of a processor."""
    sizes = np.cumsum(np.fromiter(map(len, values), np.int64, len(values)))
    cuts = np.flatnonzero(np.diff(sizes // _PIECE_BYTES)) + 1
    return pairwise([0, *cuts.tolist(), len(values)])


def _scalar(text: str) -> object:
    """Return the JSON value of a number, true or false."""
    return _BOOLEANS.get(text) if text in _BOOLEANS else Number(text)


def _fits(nanos: Any, unit: str) -> bool:
    """Return whether a timestamp of nanoseconds, or None, can be stored in the unit."""
    if nanos is None:
        return True
    return bool(FIRST_NANO <= nanos <= LAST_NANO if unit == "ns" else nanos % NANOS_PER_MICRO == 0)


def spread(array: pa.Array, places: npt.NDArray[np.intp], count: int) -> pa.Array:
    """Return `count` values: those of the array at the given places, which ascend, and null elsewhere."""
    return array if len(places) == count else spread_all([array], [places], count)


def replaced_entries(owners: Places, keys: pa.Array) -> npt.NDArray[np.intp]:
    """Return the entries whose key occurs again in the same map; `owners` are the maps of the entries, in order."""
    if pa.types.is_floating(keys.type):
        keys = pc.add(keys, 0.0)  # 0.0 equals -0.0
    codes = keys.dictionary_encode()
    pairs = owners.astype(np.int64) * len(codes.dictionary) + codes.indices.to_numpy()
    if np.diff(np.sort(pairs)).all():
        return np.array([], np.intp)
    order = np.argsort(pairs, kind="stable")
    again: npt.NDArray[np.intp] = order[:-1][np.diff(pairs[order]) == 0]
    return again
