"""The tables that a mapping writes, and the sources of the columns of their rows.

Invariant: a mapping can write to every table that passes `check_target`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from ingestd.errors import ConfigError, InvalidTable
from ingestd.formats.registry import Registry
from ingestd.hive.client import Metastore
from ingestd.hive.tables import Table, TableName, load_acid_table, require_writable_database
from ingestd.ingest.letters.table import load_letter_table
from ingestd.ingest.options import MappingOptions
from ingestd.ingest.rows.decoding import NONE_REFUSED, Refused, RowDecoder
from ingestd.ingest.rows.partitioning import Partitioning
from ingestd.ingest.rows.transform import Decoding, check_result
from ingestd.schema import Column
from ingestd.spark.query import Query


def load_target(metastore: Metastore, options: MappingOptions) -> Table:
    """Read and check the mapping's table. Raises InvalidTable for the first property that a mapping cannot handle.

    Each transaction calls this before it opens, because a database can become a target of replication at any time.
    """
    table = load_acid_table(metastore, options.table)
    require_writable_database(metastore, options.table)
    check_target(table, options)
    return table


def require_same(name: str, options: MappingOptions) -> None:
    """Raise InvalidTable if the stored state of a mapping belongs to another table, `name`."""
    if name != str(options.table):
        raise InvalidTable(
            f"the table of the mapping changed from {name} to {options.table}",
            where=f"mapping {options.name}",
            hint="a mapping cannot change its table: define a mapping with a new name for the new table",
        )


def letters_name(options: MappingOptions) -> str:
    """Return the name of the table of the mapping's dead letters, '' if it has none."""
    return str((options.dead_letter and options.dead_letter.table) or "")


def existing_tables(metastore: Metastore, names: Iterable[str]) -> list[Table]:
    """Return the tables of these names that exist, each once; '' is no name. Raises MetastoreUnavailable."""
    tables = []
    for name in dict.fromkeys(filter(None, names)):
        with suppress(InvalidTable):  # no transactional table has this name any more
            tables.append(load_acid_table(metastore, TableName.parse(name)))
    return tables


def check_target(table: Table, options: MappingOptions) -> None:
    """Raise InvalidTable for the first property of a table that the mapping cannot handle."""
    if table.bucketing:
        try:
            table.bucketing.check()
        except InvalidTable as error:
            where = f"table {table.name}, {error.where}".removesuffix(", ")
            raise InvalidTable(error.what, where=where, hint=error.hint) from error
    try:
        decoder_for(table, options)
    except ConfigError as error:
        where = f"mapping {options.name}, table {table.name}, {error.where}".removesuffix(", ")
        raise InvalidTable(error.what, where=where, hint=error.hint) from error


def load_letters(metastore: Metastore, options: MappingOptions) -> Table | None:
    """Read and check the table of the mapping's dead letters; None if it has none.

    Raises as `load_letter_table`, and InvalidTable if the table must not be written. `load_target` has checked the
    database that most mappings use for both tables.
    """
    name = options.dead_letter and options.dead_letter.table
    if not name:
        return None
    table = load_letter_table(metastore, name)
    if name.database != options.table.database:
        require_writable_database(metastore, name)
    return table


def decoding_of(table: Table, options: MappingOptions, refused: Refused = NONE_REFUSED) -> Decoding:
    """Return what the records of a mapping are decoded into. Raises ConfigError if it does not fit the table."""
    return Decoding.of(table.shape, partitioning_of(table, options), options, refused)


def decoder_for(table: Table, options: MappingOptions) -> RowDecoder:
    """Return the decoder of the records of a mapping. Raises ConfigError if the format or the columns do not fit."""
    return decoding_of(table, options).decoder(options.format, Registry.of(options.registry))


def check_query(table: Table, options: MappingOptions, examine: Callable[[Query], Sequence[Column]]) -> None:
    """Raise ConfigError for an invalid `where` or `transform`, and if the table cannot store the result.

    `examine` is `Engine.examine`, whose errors it raises.
    """
    decoding = decoding_of(table, options)
    if decoding.query is None:
        return
    try:
        result = examine(decoding.query)
        if decoding.has_select:
            check_result(result, table.shape, partitioning_of(table, options))
    except ConfigError as error:
        keys = " and ".join(key for key, given in (("where", options.where), ("transform", options.transform)) if given)
        where = f"mapping {options.name}, table {table.name}, {error.where or keys}"
        raise ConfigError(error.what, where=where, hint=error.hint) from error


def partitioning_of(table: Table, options: MappingOptions) -> Partitioning:
    """Return the sources of the partition columns. Raises InvalidTable if they do not fit the table."""
    try:
        return Partitioning.of(table.shape, options.partition)
    except InvalidTable as error:
        where = f"mapping {options.name}, table {table.name}, {error.where}".removesuffix(", ")
        raise InvalidTable(error.what, where=where, hint=error.hint) from error
