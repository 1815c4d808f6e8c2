"""Changes the columns of a table, although other clients may alter it at the same time.

Invariant: a change reverts no DDL and no row count. HiveServer2 locks a table exclusively while it alters it, so the
table is read and written back under a shared lock. Processes of ingestd take turns by a lease, and hold the counting
lease while they write the table.

The table is written under a write id. Without one, the metastore rejects changes of a table that has statistics of
columns: "Cannot change stats state" (HiveAlterHandler.deleteTableColumnStats, ObjectStore.verifyStatsChangeCtx).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hive_metastore import ttypes

from ingestd.errors import MetastoreUnavailable, TableChanged
from ingestd.hive import transactions
from ingestd.hive.client import Metastore
from ingestd.hive.parameters import DDL_TIME, WriterView, write_table_back
from ingestd.hive.tables import Table, TableName, load_acid_table, require_writable_database
from ingestd.hive.transaction_leases import PATIENCE_SECONDS, counting_lease
from ingestd.hive.transactions import LockTimeout, Transaction, Wait
from ingestd.hive.write_ids import read_snapshot
from ingestd.schema import Column, quoted

_TRIES = 5

Plan = Callable[[Table], Sequence[Column]]
"""Returns the columns that a table shall have: all existing ones in the same order, then new ones."""


def change_columns(
    metastore: Metastore, name: TableName, plan: Plan, *, lease: TableName, agent: str, wait: Wait
) -> list[str]:
    """Change the columns of a table as planned, and return the statements that describe it; none if it fits already.

    `lease` is a name that all processes use for this table. Raises TableChanged if other clients alter the table
    without a lock, LockTimeout, TransactionAborted, InvalidTable, MetastoreRefusal if the metastore rejects a type, or
    MetastoreUnavailable.
    """
    txn = transactions.begin(metastore, agent)
    try:
        transactions.take_lease(metastore, txn, lease, wait)
        # First the table, then the counting lease: a change that waits for DDL must not delay commits.
        transactions.lock_reading(metastore, txn, name, wait)
        counting = Wait(wait.deadline.capped(PATIENCE_SECONDS), wait.stop)
        with counting_lease(name).taken(metastore, txn, counting) as has_lease:
            if not has_lease:
                raise LockTimeout("another writer holds the counting lease", where=f"table {name}")
            return _change(metastore, txn, name, plan)
    finally:
        transactions.abort(metastore, txn.id)  # does nothing if it has committed


def _change(metastore: Metastore, txn: Transaction, name: TableName, plan: Plan) -> list[str]:
    view: WriterView | None = None
    for _ in range(_TRIES):
        table = load_acid_table(metastore, name)
        columns = plan(table)
        statements = describe(table, columns)
        if not statements:
            return []
        if view is None:
            require_writable_database(metastore, name)
            snapshot = read_snapshot(metastore, name)
            view = WriterView(transactions.allocate(metastore, txn, name), snapshot)
        try:
            is_written = _write(metastore, table, columns, view)
        except MetastoreUnavailable:
            # If only the answer was lost, the table has the columns: no one else changes it under these locks.
            if describe(load_acid_table(metastore, name), columns):
                raise
            is_written = True
        if is_written:
            transactions.commit(metastore, txn)
            return statements
    raise TableChanged(f"other clients altered the table {_TRIES} times in a row", where=f"table {name}")


def describe(table: Table, columns: Sequence[Column]) -> list[str]:
    """Return the statements of HiveQL that give a table these columns."""
    place = f"ALTER TABLE `{table.name.database}`.`{table.name.table}`"
    pairs = list(zip(table.columns, columns, strict=False))
    changed = [f"{place} CHANGE COLUMN {quoted(new.name)} {new.definition}" for old, new in pairs if old != new]
    added = ", ".join(column.definition for column in columns[len(table.columns) :])
    return changed + ([f"{place} ADD COLUMNS ({added})"] if added else [])


def _write(metastore: Metastore, table: Table, columns: Sequence[Column], view: WriterView) -> bool:
    """Write the table back, as `write_table_back`.

    Its partitions keep their columns: Hive reads ORC rows by the columns of the table.
    """
    raw = table.raw
    changed_at = (raw.parameters or {}).get(DDL_TIME, "0")
    for field, old, new in zip(raw.sd.cols, table.columns, columns, strict=False):
        if new != old:
            field.type = str(new.type)
    for column in columns[len(table.columns) :]:
        raw.sd.cols.append(ttypes.FieldSchema(name=column.name, type=str(column.type), comment=None))
    return write_table_back(metastore, raw, changed_at, view)
