"""The base class of binary formats, which decode the values of all records of a batch column by column.

Invariant: the result depends on each record alone, never on how records are batched.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

import pyarrow as pa

from ingestd.errors import ConfigError, InvalidTable
from ingestd.formats.decoder import RejectError
from ingestd.formats.record_decoder import MixedTimestamps, RecordDecoder, RejectReasons, Tombstones
from ingestd.formats.registry import InvalidSchema, SchemaMissing
from ingestd.formats.row_batches import NANOS_PER_MICRO, Row, Value, arrow_of, batch_of
from ingestd.formats.values import Ints, Records, spread
from ingestd.schema import Column, HiveType, require_queryable

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
# Of the type of a row. Nobody reads columns with more.
_MAX_TYPES, _MAX_DEPTH = 10_000, 100
ReadRows = Callable[[Records, Ints, Ints], pa.StructArray]
"""Reads the records with these indexes, whose data begins at these positions, as one struct per record."""


def joined_columns(rows: Iterable[HiveType]) -> tuple[Column, ...]:
    """Return a column for each field of structs, one struct for each schema, in their order.

    The column of a field of several schemas can store the values of all. Raises InvalidSchema if there is none, or if
    its type is too deep or too large (`require_queryable`).
    """
    types: dict[str, list[HiveType]] = {}
    for row in rows:
        for name, kind in zip(row.names, row.children, strict=True):
            types.setdefault(name, []).append(kind)
    columns = tuple(Column(name, _common(name, kinds)) for name, kinds in types.items())
    try:
        require_queryable(columns)
    except InvalidTable as error:
        raise InvalidSchema(f"{error.where}: {error.what}") from None
    return columns


def _common(name: str, kinds: Sequence[HiveType]) -> HiveType:
    common = kinds[0].joined(*kinds[1:])
    if common is None:
        names = " and ".join(dict.fromkeys(map(str, kinds)))
        raise InvalidSchema(f"field {name} of several schemas: {names} have no common type")
    return common


def require_size(root: T, parts: Callable[[T], Iterable[T]]) -> None:
    """Raise InvalidSchema if the column type of a schema would be too large or nest too deeply.

    A schema can use a type that it has defined many times, so a short one can describe a type of any size. `parts`
    returns the types inside of a type, which are compared by identity.
    """
    sizes: dict[int, tuple[int, int]] = {}

    def measured(kind: T) -> tuple[int, int]:
        """Return the number of types that a type consists of, and their levels."""
        if id(kind) not in sizes:
            sizes[id(kind)] = 0, 0  # for a type that contains itself
            inside = [measured(part) for part in parts(kind)]
            sizes[id(kind)] = 1 + sum(size for size, _ in inside), 1 + max((depth for _, depth in inside), default=0)
        return sizes[id(kind)]

    try:
        size, depth = measured(root)
    except RecursionError:
        size, depth = 0, sys.maxsize
    if depth > _MAX_DEPTH:
        raise InvalidSchema("its types nest too deeply")
    if size > _MAX_TYPES:
        raise InvalidSchema(f"its fields, with those inside of them, are more than {_MAX_TYPES:,}")


def no_columns(error: InvalidSchema) -> ConfigError:
    """Return the error of a mapping that cannot derive the columns of its new table."""
    return ConfigError(
        f"the columns cannot be derived from a schema: {error}",
        where="create_table",
        hint="list the columns in create_table.columns",
    )


class ColumnarDecoder(RecordDecoder, Generic[K]):
    """Decodes records into the given columns, in that order; see `RecordDecoder` for `tombstones`.

    Each record has a schema, whose key is of the type K.
    """

    def __init__(self, columns: Sequence[Column], *, tombstones: Tombstones = "stop") -> None:
        super().__init__(columns, tombstones=tombstones)
        self.row = HiveType("struct", children=tuple(c.type for c in columns), names=tuple(c.name for c in columns))
        self._readers: dict[K, ReadRows | str] = {}

    @abstractmethod
    def groups(self, records: Records) -> Iterator[tuple[K, Ints, Ints]]:
        """Yield the key of each schema, the indexes of its records in order, and the positions of their data."""

    @abstractmethod
    def find_reader(self, key: K) -> ReadRows:
        """Return the reader of the records with a schema. Raises InvalidSchema, which rejects them."""

    @abstractmethod
    def absent_in(self, key: K) -> frozenset[str]:
        """Return the names of the columns without a field in a schema. Raises InvalidSchema."""

    def absent_columns(self, values: Sequence[bytes]) -> frozenset[str]:
        """See `RecordDecoder`."""
        absent = frozenset(column.name for column in self.columns)
        for key, _, _ in self.groups(Records(values)):
            with suppress(InvalidSchema):  # its records are rejects
                absent &= self.absent_in(key)
        return absent

    @abstractmethod
    def unstored_in(self, key: K) -> Sequence[str]:
        """Return the names of the fields of a schema that have no column. Raises InvalidSchema."""

    def unstored_fields(self, values: Sequence[bytes], others: Collection[str]) -> tuple[str, ...]:
        """See `RecordDecoder`."""
        names: dict[str, None] = {}
        for key, _, _ in self.groups(Records(values)):
            with suppress(InvalidSchema):  # its records are rejects
                names |= dict.fromkeys(name for name in self.unstored_in(key) if name.lower() not in others)
        return tuple(names)

    def _read_rows(self, records: Records) -> pa.StructArray:
        """Return one struct of the type `row` per record; that of a failed record is undefined."""
        arrays: list[pa.Array] = []
        places: list[Ints] = []
        for key, indexes, starts in self.groups(records):
            read = self._reader(key)
            if isinstance(read, str):
                for record in indexes.tolist():
                    records.fail(record, "", read)
                continue
            array = read(records, indexes, starts)
            if len(indexes) == len(records.ends):
                return array
            arrays.append(array)
            places.append(indexes)
        if not arrays:
            return pa.nulls(len(records.ends), arrow_of(self.row, records.unit))
        return spread(arrays, places, len(records.ends))

    def _reader(self, key: K) -> ReadRows | str:
        """Return the reader of the records with a schema, or the reason why they cannot be read.

        The registry remembers which schemas are missing, because it may have them later.
        """
        if key not in self._readers:
            try:
                self._readers[key] = self.find_reader(key)
            except SchemaMissing as error:
                return str(error)
            except InvalidSchema as error:
                self._readers[key] = str(error)
        return self._readers[key]

    def decode_batch(self, values: Sequence[bytes]) -> tuple[pa.RecordBatch, RejectReasons]:
        """See `RecordDecoder`. Raises only MixedTimestamps."""
        records = Records(values, self.row.names)
        rows = self._read_rows(records)
        if (records.coarse & ~records.failed).any():
            records = Records(values, self.row.names, records)
            rows = self._read_rows(records)
            if records.has_fine:
                raise MixedTimestamps(records.coarse)
        return batch_of(self.columns, rows.flatten()), records.failures

    def decode_record(self, value: bytes) -> Row:
        """See `RecordDecoder`."""
        batch, rejects = self.decode_batch([value])
        if (cause := rejects.get(0)) is not None:
            raise RejectError(*cause)
        return [_value(column[0], kind) for column, kind in zip(batch.columns, self.row.children, strict=True)]


def needed_of(schemas: Iterable[T], columns_of: Callable[[T], Iterable[Column]]) -> tuple[Column, ...]:
    """Return the columns of all schemas. Raises InvalidTable if `columns_of` raises InvalidSchema for one of them."""
    try:
        return tuple(column for schema in schemas for column in columns_of(schema))
    except InvalidSchema as error:
        raise InvalidTable(
            f"the schema of the records has a field without a column: {error}",
            hint="add a column for the field to the table, or set schema_evolution: none",
        ) from None


def _value(scalar: pa.Scalar, kind: HiveType) -> Value:
    """Convert an Arrow value to one of a row."""
    if not scalar.is_valid:
        return None
    if not kind.is_complex:
        return _primitive(scalar, kind)
    if kind.kind == "array":
        return [_value(item, kind.children[0]) for item in scalar.values]
    if kind.kind == "struct":
        fields = (scalar[index] for index in range(len(kind.children)))
        return tuple(_value(field, child) for field, child in zip(fields, kind.children, strict=True))
    return [tuple(_value(entry[part], kind.children[part]) for part in (0, 1)) for entry in scalar.values]


def _primitive(scalar: pa.Scalar, kind: HiveType) -> Value:
    if kind.kind == "timestamp":
        return int(scalar.value) * (1 if scalar.type.unit == "ns" else NANOS_PER_MICRO)
    if kind.kind == "date":
        return int(scalar.value)
    value: Any = scalar.as_py()
    return value  # type: ignore[no-any-return]
