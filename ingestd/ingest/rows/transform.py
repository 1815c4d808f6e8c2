"""`where` and `transform`: the query between the rows of the records and the rows of the table.

Invariant: the result of the query is stored exactly or not at all. A column of the result has a type that the column of
the table holds, and a row that the table cannot store stops the mapping.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from ingestd.acid.constraints import unfit_rows
from ingestd.acid.routing import Shape
from ingestd.errors import ConfigError, RecordError
from ingestd.formats.decoder import DecodeResult
from ingestd.formats.options import FormatOptions
from ingestd.formats.registry import Registry
from ingestd.formats.row_batches import FIRST_DAY, LAST_DAY, arrow_of
from ingestd.ingest.options import MappingOptions
from ingestd.ingest.rows.decoding import NONE_REFUSED, KafkaColumns, Refused, RowDecoder, refuse_known
from ingestd.ingest.rows.partitioning import Partitioning
from ingestd.schema import INTEGER_BITS, Column, HiveType
from ingestd.spark.query import Query

_NUMBERS = (*INTEGER_BITS, "float", "double", "decimal")
_SIZED = ("varchar", "char")
_LIMITED = (*_SIZED, "date", "timestamp")
_MICROS_PER_DAY = 86_400_000_000
_NO_PARTITIONING = Partitioning((), ())


@dataclass(frozen=True, slots=True)
class Decoding:
    """What the records of a mapping are decoded into: the rows of its table or, with `transform`, those of the view.

    `query` is None if the decoded rows are those of the table, and `has_select` says that the query computes them.
    Rows in `refused` partitions are rejects (`RefusedPartitions.reasons`).
    """

    columns: KafkaColumns
    partitioning: Partitioning
    shape: Shape
    query: Query | None = None
    has_select: bool = False
    refused: Refused = field(default_factory=dict)

    def decoder(self, options: FormatOptions, registry: Registry | None) -> RowDecoder:
        """Return a decoder of records of this format. Raises ConfigError for the columns or the format."""
        return RowDecoder(options, self.columns, self.partitioning, self.shape, registry, refused=self.refused)

    @classmethod
    def of(
        cls, shape: Shape, partitioning: Partitioning, options: MappingOptions, refused: Refused = NONE_REFUSED
    ) -> Decoding:
        """Return the decoding of a mapping whose table has this shape and partitioning.

        Raises ConfigError if `columns` of the mapping, or `transform`, do not fit the table.
        """
        given = partitioning.record_columns(shape)
        if options.transform is None:
            columns = KafkaColumns.of(given, {**options.columns, **partitioning.kafka_fields})
            query = Query(_dynamic(shape, partitioning), options.where) if options.where else None
            return cls(columns, partitioning, shape, query, refused=refused)
        if partitioning.kafka_fields:
            raise ConfigError(
                "an expression with kafka.timestamp or header is not possible with transform",
                where="partition",
                hint="name a column for it in `columns`, and compute the partition column in the SELECT",
            )
        if options.transform.columns:
            types = options.transform.columns.items()
            given = tuple(Column(name, HiveType.parse(text)) for name, text in types)
        query = Query(given, options.where, options.transform.select)
        records = Shape(given, (), None, shape.encoding)
        columns = KafkaColumns.of(given, options.columns)
        return cls(columns, _NO_PARTITIONING, records, query, has_select=True, refused=refused)


def check_result(result: Sequence[Column], shape: Shape, partitioning: Partitioning) -> None:
    """Raise ConfigError if the columns of the result of `transform` are not columns of the table."""
    wanted = {column.name: column.type for column in partitioning.record_columns(shape)}
    names = [column.name for column in result]
    for column in result:
        kind, where = wanted.get(column.name), f"transform.select, column {column.name}"
        if kind is None:
            hint = f"the result may have the columns {', '.join(wanted)}"
            raise ConfigError("the table has no such column that the SELECT may compute", where=where, hint=hint)
        if names.count(column.name) > 1:
            raise ConfigError("the result has several columns of this name", where=where, hint="name each once")
        if not _fits(kind, column.type):
            what = f"the result has the type {column.type}, but the column of the table has the type {kind}"
            raise ConfigError(what, where=where, hint=_remedy(kind))
    for column in shape.partition_columns:
        if column.name in wanted and column.name not in names:
            hint = "add it to the SELECT, or to `partition`"
            raise ConfigError("the result lacks the partition column", where=f"column {column.name}", hint=hint)
    for column, expression in partitioning.expressions:
        if expression.column not in names:
            what = f"the result lacks the column {expression.column}, from which `partition` computes {column.name}"
            raise ConfigError(what, where="transform.select", hint="add the column to the SELECT")


def table_rows(
    batch: pa.RecordBatch, shape: Shape, partitioning: Partitioning, refused: Refused = NONE_REFUSED
) -> pa.RecordBatch:
    """Return the result of a query as rows of the table. Columns and fields that the result lacks are NULL.

    `refused` are the `RefusedPartitions.reasons`. Raises RecordError for a row that the table cannot store.
    """
    arrays = {name.lower(): array for name, array in zip(batch.schema.names, batch.columns, strict=True)}
    columns = [c for c in _dynamic(shape, partitioning) if c.name in arrays or c in shape.columns]
    made = []
    for column in columns:
        kind, array = arrow_of(column.type, "us"), arrays.get(column.name)
        made.append(pa.nulls(batch.num_rows, kind) if array is None else _stored(column, array.cast(kind)))
    rows = pa.RecordBatch.from_arrays(made, names=[column.name for column in columns])
    computed = [expression for expression in partitioning.expressions if expression[0].name not in arrays]
    if computed:
        [rows] = Partitioning(partitioning.static, tuple(computed)).fill(DecodeResult([rows], [], 0)).batches
    if unfit := unfit_rows(rows, shape, refuse_known(refused)):
        column_name, reason = next(iter(unfit.values()))
        raise _unfit(column_name, reason)
    return rows


def _dynamic(shape: Shape, partitioning: Partitioning) -> tuple[Column, ...]:
    """Return the columns of the rows: all but partition columns with a static value."""
    pairs = zip(shape.partition_columns, partitioning.static, strict=True)
    return (*shape.columns, *(column for column, value in pairs if value is None))


def _fits(kind: HiveType, result: HiveType) -> bool:
    """Return whether a column stores a result exactly. Fields that the structs of the result lack are NULL."""
    if kind == result or (result.kind == "string" and kind.kind in _SIZED):
        return True
    if kind.kind == result.kind == "struct":
        fields = dict(zip(kind.names, kind.children, strict=True))
        if list(result.names) != [name for name in kind.names if name in result.names]:
            return False
        return all(_fits(fields[name], other) for name, other in zip(result.names, result.children, strict=True))
    if kind.is_complex and kind.kind == result.kind:
        return all(_fits(type_, other) for type_, other in zip(kind.children, result.children, strict=True))
    return kind.kind in _NUMBERS and result.kind in _NUMBERS and kind.holds(result)


def _remedy(kind: HiveType) -> str:
    if "struct<" in str(kind):  # CAST would give fields of other names the values of those at the same position
        return "use named_struct with fields of these names and types, in this order; fields that it lacks are NULL"
    return f"use CAST(... AS {'string' if kind.kind in _SIZED else kind}) or try_cast"


def _stored(column: Column, array: pa.Array) -> pa.Array:
    """Return a char column without padding, and all other columns as they are.

    Raises RecordError for a long text, and for a time in other years than 0001 to 9999, which SQL can compute.
    """
    if column.type.kind == "char":
        array = pc.utf8_rtrim(array, characters=" ")
    for kind, values in _limited_values(column.type, array):
        if kind.kind in _SIZED:
            longest = pc.max(pc.utf8_length(values)).as_py() or 0
            if longest > kind.length:
                raise _unfit(column.name, f"a text of {longest} characters is longer than {kind}")
        elif not _is_within_years(kind, values):
            raise _unfit(column.name, f"a {kind} is not in the years 0001 to 9999")
    return array


def _is_within_years(kind: HiveType, values: pa.Array) -> bool:
    parts, integers = (1, pa.int32()) if kind.kind == "date" else (_MICROS_PER_DAY, pa.int64())
    first, last = pc.min_max(values.view(integers)).as_py().values()
    return first is None or (first >= FIRST_DAY * parts and last < (LAST_DAY + 1) * parts)


def _limited_values(kind: HiveType, array: pa.Array) -> Iterator[tuple[HiveType, pa.Array]]:
    """Yield the values of types that cannot store all of them, also those inside of complex values.

    Those are texts of a varchar or char, which are without padding, dates, and timestamps in microseconds.
    """
    if kind.kind == "struct":
        parts = array.flatten()
    elif kind.kind == "map":
        parts = [array.keys, array.items]
    elif kind.kind == "array":
        parts = [array.flatten()]
    else:
        if kind.kind in _LIMITED:
            yield kind, pc.utf8_rtrim(array, characters=" ") if kind.kind == "char" else array
        return
    for child, part in zip(kind.children, parts, strict=True):
        yield from _limited_values(child, part)


def _unfit(column: str, reason: str) -> RecordError:
    return RecordError(
        f"a row of the result cannot be stored: {reason}",
        where=f"transform.select, column {column}",
        hint="correct the SELECT, for example with substr, coalesce or a WHERE; no record was lost",
    )
