"""Changes the columns of a mapping's table so that they store all fields of its records (`schema_evolution`).

A stage compares the fields of its records, by their schemas or their values, with the columns. If a field has no
column, or if values of its type may not fit, its tasks read all their records, and end with ColumnsNeeded. The main
loop then alters the table once for all of them, and reads the records again. The number of schemas, and not of records,
limits how often this happens.

Invariant: no record is stored without one of its fields. Columns are added and widened, never removed or narrowed. If
one batch or task of a transaction needs a change, all of them together need one, which does not depend on their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ingestd.acid.routing import Shape
from ingestd.errors import IngestdError, InvalidTable, TransactionError
from ingestd.formats.options import Join
from ingestd.hive.tables import Table
from ingestd.ingest.options import Evolution, MappingOptions
from ingestd.ingest.rows.decoding import RowDecoder
from ingestd.ingest.table.columns import require_fit
from ingestd.kafka.reader import Batch
from ingestd.schema import Column, HiveType, require_queryable, require_visible


class ColumnsNeeded(TransactionError):
    """Records have fields that the table cannot store; it is altered, and they are read again.

    `columns` are the new columns, and those that change. Their types may be incomplete; see `HiveType.known`. `present`
    are all columns of the table for which the records were decoded.
    """

    def __init__(
        self,
        what: str,
        *,
        where: str = "",
        hint: str = "",
        columns: tuple[Column, ...] = (),
        present: tuple[Column, ...] = (),
    ) -> None:
        super().__init__(what, where=where, hint=hint)
        self.columns, self.present = columns, present

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (self.what, self.where, self.hint, self.columns, self.present)


def _rebuild(
    what: str, where: str, hint: str, columns: tuple[Column, ...], present: tuple[Column, ...]
) -> ColumnsNeeded:
    return ColumnsNeeded(what, where=where, hint=hint, columns=columns, present=present)


def require_columns(evolution: Evolution, decoder: RowDecoder, shape: Shape, batch: Batch) -> None:
    """Raise ColumnsNeeded if the columns cannot store all fields of the records of a batch, which was decoded.

    It contains the columns for all batches of the decoder so far. Raises InvalidTable for a field that no column can
    store.
    """
    if evolution == "none":
        return
    needed = decoder.needed_columns(batch)
    changed = [column for column in evolved_columns(evolution, shape, needed) if column not in shape.columns]
    if changed:
        names = {column.name for column in changed}
        raise ColumnsNeeded(
            f"the records need columns of the table: {', '.join(f'{column.name} {column.type}' for column in changed)}",
            columns=tuple(column for column in needed if column.name in names),
            present=tuple(shape.columns),
        )


def columns_for(
    evolution: Evolution, decoder: RowDecoder, shape: Shape, batches: Sequence[Batch]
) -> tuple[Column, ...]:
    """Return the columns that the table needs for batches, which were decoded, in the order of `evolved_columns`.

    Raises InvalidTable for a field that no column can store.
    """
    needed: tuple[Column, ...] = ()
    for batch in batches if evolution != "none" else ():
        needed = decoder.needed_columns(batch)
    return evolved_columns(evolution, shape, needed)


def evolved_columns(evolution: Evolution, shape: Shape, needed: Iterable[Column]) -> tuple[Column, ...]:
    """Return the columns of the table, with those that are `needed`, in the same order; new ones are last.

    A new column stores the fields of its name of all schemas. The columns that determine the partition and the bucket
    of a row do not change, because the hash of a value depends on its type. Raises InvalidTable for the name of a
    virtual column of Hive, for a new field whose types in several schemas no column can store, and for structs that are
    too deep or too large (`require_queryable`).
    """
    bucketed = shape.bucketing.columns if shape.bucketing else ()
    fixed = {column.name for column in (*shape.partition_columns, *bucketed)}
    row = _row(shape.columns)
    rows = [_row([column]) for column in needed if column.name not in fixed]
    evolved = row.widened(*rows) if evolution == "widen" else row.extended(*rows)
    columns = tuple(Column(name, kind.known) for name, kind in zip(evolved.names, evolved.children, strict=True))
    require_visible(columns)
    require_queryable(columns, shape.columns)
    return columns


def _row(columns: Sequence[Column]) -> HiveType:
    return HiveType("struct", children=tuple(c.type for c in columns), names=tuple(c.name for c in columns))


def plan_columns(
    options: MappingOptions, table: Table, needed: ColumnsNeeded, written: Mapping[str, str]
) -> tuple[Column, ...]:
    """Return the columns that the table of a mapping needs for its records.

    `written` contains the types of the columns at the last commit, by name. Raises InvalidTable if the table has lost
    one of them since, because the change could otherwise revert the DDL that removed or renamed it, and if there is
    nothing to change although the table is that for which the records were decoded: they would be read for ever.
    """
    require_fit(written, table, options.name)
    columns = evolved_columns(options.schema_evolution, table.shape, needed.columns)
    if columns == table.shape.columns == needed.present:
        wanted = ", ".join(f"{column.name} {column.type.known}" for column in needed.columns)
        raise InvalidTable(
            f"no change of the table stores all of its records, which need {wanted}",
            where=f"mapping {options.name}, table {table.name}",
            hint="give the columns types that store the fields, or set schema_evolution: none",
        )
    return columns


def merged(errors: Sequence[IngestdError], where: str, join: Join) -> IngestdError | None:
    """Return what to raise for the errors of all tasks of a stage; None if no task needs columns.

    That is one ColumnsNeeded with the columns of all tasks, unless other records need what no column can store: then
    the mapping stops before the table is altered. `join` joins columns with the same name (`join_of`).
    """
    needs = [error for error in errors if isinstance(error, ColumnsNeeded)]
    if not needs:
        return None
    refused = next((error for error in errors if isinstance(error, InvalidTable)), None)
    present = needs[0].present
    columns = join((column for error in needs for column in error.columns), present)
    return refused or ColumnsNeeded(needs[0].what, where=where, columns=columns, present=present)
