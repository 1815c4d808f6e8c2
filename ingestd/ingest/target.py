"""The table that a mapping writes, and the static partition of its rows.

Invariant: a mapping can write to every table that `load_target` returns.
"""

from __future__ import annotations

from ingestd.acid.partitions import static_partition_value
from ingestd.errors import InvalidTable
from ingestd.hive.client import Metastore
from ingestd.hive.tables import Table, load_acid_table
from ingestd.ingest.options import MappingOptions


def load_target(metastore: Metastore, options: MappingOptions) -> Table:
    """Read and check the mapping's table. Raises InvalidTable for the first property that a mapping cannot handle."""
    table = load_acid_table(metastore, options.table)
    if table.bucketing:
        raise InvalidTable(
            "the table is bucketed",
            where=f"table {table.name}",
            hint="mappings do not write bucketed tables: create the table without CLUSTERED BY",
        )
    static_values(table, options)
    return table


def static_values(table: Table, options: MappingOptions) -> tuple[str, ...]:
    """Return the static partition values in normal form and in column order, or () if the mapping defines none.

    Raises InvalidTable if their names are not those of the partition columns, or if a value does not fit its type.
    """
    keys = [c.name for c in table.partition_columns]
    given = {k.lower(): v for k, v in options.partition.items()}
    where = f"mapping {options.name}, table {table.name}"
    if given and set(given) != set(keys):
        raise InvalidTable(
            f"`partition` names the columns {sorted(given)}, but the table is partitioned by {keys}",
            where=where,
            hint="set a value for every partition column, or for none",
        )
    try:
        return tuple(static_partition_value(c, given[c.name]) for c in table.partition_columns) if given else ()
    except InvalidTable as error:
        raise InvalidTable(error.what, where=f"{where}, {error.where}", hint=error.hint) from error
