"""The table of a mapping, and where in it the mapping's rows belong.

Invariant: a table that leaves `load_target` can take every row of its mapping.
"""

from __future__ import annotations

from ingestd.acid.partitions import static_partition_value
from ingestd.errors import InvalidTable
from ingestd.hive.client import Metastore
from ingestd.hive.tables import Table, load_acid_table
from ingestd.ingest.options import MappingOptions


def load_target(metastore: Metastore, options: MappingOptions) -> Table:
    """Read and check the mapping's table. Raises InvalidTable naming the first thing that does not fit."""
    table = load_acid_table(metastore, options.table)
    if table.bucketing:
        raise InvalidTable(
            "the table is bucketed",
            where=f"table {table.name}",
            hint="mappings do not write bucketed tables yet: leave CLUSTERED BY out",
        )
    static_values(table, options)
    return table


def static_values(table: Table, options: MappingOptions) -> tuple[str, ...]:
    """The static partition values in the table's order and in normal form, () when there are none.

    Raises InvalidTable when they do not fit the table's partition columns or a column's type.
    """
    keys = [c.name for c in table.partition_columns]
    given = {k.lower(): v for k, v in options.partition.items()}
    where = f"mapping {options.name}, table {table.name}"
    if given and set(given) != set(keys):
        raise InvalidTable(
            f"partition names {sorted(given)}, but the table is partitioned by {keys}",
            where=where,
            hint="give a value for every partition column, or none",
        )
    try:
        return tuple(static_partition_value(c, given[c.name]) for c in table.partition_columns) if given else ()
    except InvalidTable as error:
        raise InvalidTable(error.what, where=f"{where}, {error.where}", hint=error.hint) from error
