"""The tables of a mapping that do not exist yet: their columns and their creation.

Invariant: a mapping that has committed does not create its table. A table that disappears later, for example between
two RENAMEs, is not replaced by an empty one. The table of dead letters is, because no reader expects earlier letters.
"""

from __future__ import annotations

from collections.abc import Mapping

from ingestd.errors import TableMissing
from ingestd.formats.options import schema_columns
from ingestd.formats.registry import Registry
from ingestd.hive.client import Metastore
from ingestd.hive.control import find_control_table, read_state
from ingestd.hive.creation import NewTable, create_table
from ingestd.hive.tables import Table, TableName, require_writable_database
from ingestd.ingest.letters.table import create_letter_table, definition
from ingestd.ingest.monitoring import events
from ingestd.ingest.options import MappingOptions
from ingestd.ingest.state import MappingState
from ingestd.ingest.table.columns import require_fit
from ingestd.ingest.table.target import check_target, load_letters, load_target, require_same
from ingestd.schema import Column, HiveType


def ensure_target(metastore: Metastore, options: MappingOptions) -> Table:
    """Read and check the mapping's table, after creating it if the configuration says so and nothing was committed.

    Raises the errors of `load_target`, ConfigError, OwnershipLost while another process creates the table, and the
    errors of the registry.
    """
    try:
        return load_target(metastore, options)
    except TableMissing:
        if options.create_table is None or _stored_state(metastore, options) is not None:
            raise
    new = plan_table(options)
    check_target(new.checked(), options)
    if create_table(metastore, new, _lease(options, new.name)):
        events.table_created(options.name, str(new.name), new.statement)
    return load_target(metastore, options)


def ensure_letters(metastore: Metastore, options: MappingOptions) -> Table | None:
    """Read and check the table of the mapping's dead letters, after creating it if it is missing; None if it has none.

    Raises the errors of `load_letters` and `create_letter_table`.
    """
    name = options.dead_letter and options.dead_letter.table
    if not name:
        return None
    try:
        return load_letters(metastore, options)
    except TableMissing:
        if create_letter_table(metastore, name, _lease(options, name)):
            events.table_created(options.name, str(name), definition(name))
    return load_letters(metastore, options)


def find_target(metastore: Metastore, options: MappingOptions) -> tuple[Table, str]:
    """Return the mapping's table and '', or the table that it will create and the statement that creates it.

    Changes nothing. Raises the errors of `ensure_target`, and as the first transaction does if the table no longer fits
    the stored state: those of `require_same` and `require_fit`.
    """
    state = _stored_state(metastore, options)
    try:
        table = load_target(metastore, options)
    except TableMissing:
        if options.create_table is None or state is not None:
            raise
    else:
        if state is not None:
            require_same(state.table, options)
            require_fit(state.columns, table, options.name)
        return table, ""
    require_writable_database(metastore, options.table)
    new = plan_table(options)
    table = new.checked()
    check_target(table, options)
    return table, new.statement


def find_letters(metastore: Metastore, options: MappingOptions) -> str:
    """Return the statement by which the mapping will create its table of dead letters; '' if it will not create one.

    Changes nothing. Raises the errors of `load_letters`.
    """
    name = options.dead_letter and options.dead_letter.table
    if not name:
        return ""
    try:
        load_letters(metastore, options)
    except TableMissing:
        require_writable_database(metastore, name)
        return definition(name)
    return ""


def plan_table(options: MappingOptions) -> NewTable:
    """Return the table of a mapping with `create_table`.

    Raises ConfigError if neither `create_table.columns` nor a schema defines its columns, and the errors of the
    registry.
    """
    wanted = options.create_table
    assert wanted is not None
    keys = _columns(wanted.partitioned_by)
    columns = _columns(wanted.columns)
    if not columns:
        names = {column.name for column in keys}
        described = schema_columns(options.format, Registry.of(options.registry), options.topics)
        columns = tuple(column for column in described if column.name not in names)
    return NewTable(options.table, columns, keys, wanted.properties)


def _lease(options: MappingOptions, table: TableName) -> TableName:
    """Return the name of the lease under which processes create a table."""
    return TableName(options.control_database, f"create_{table.database}_{table.table}")


def _columns(types: Mapping[str, str]) -> tuple[Column, ...]:
    return tuple(Column(name, HiveType.parse(text)) for name, text in types.items())


def _stored_state(metastore: Metastore, options: MappingOptions) -> MappingState | None:
    """Return the state that the last commit stored, None before the first. Raises InvalidTable."""
    control = find_control_table(metastore, options.control)
    return MappingState.parse(read_state(metastore, control)) if control else None
