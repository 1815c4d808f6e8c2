"""The control table of a mapping, which stores the mapping's state in one table parameter that only commits update.

Invariant: the parameter is created with the table and never changed by `alter_table`, which replaces all parameters
with those that its client read earlier and could therefore restore an old value (ObjectStore.alterTable). No table is
ever dropped, because `drop_table` has no condition: delayed, it would drop the state of a later owner.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hive_metastore import ttypes

from ingestd.errors import InvalidTable, TableMissing
from ingestd.hive.answers import MetastoreDeclined, MetastoreRefusal
from ingestd.hive.client import CAPABILITIES, Metastore
from ingestd.hive.creation import ensure
from ingestd.hive.tables import TableName, read_table, require_writable_database
from ingestd.hive.transactions import KeyValue

# HMS requires the prefix _meta for keys that a commit may set (TxnStore.TXN_KEY_START).
_KEY = "_meta.ingestd.state"
# A space: Oracle stores '' as NULL, and the commit's UPDATE needs an existing row.
_NO_STATE = " "


@dataclass(frozen=True, slots=True)
class ControlTable:
    """The table that stores a mapping's state; `id` is the id of the table in the metastore."""

    name: TableName
    id: int

    def key_value(self, value: str) -> KeyValue:
        """Return the parameter update that stores `value` during a commit; '' removes the state.

        `value` must be ASCII, because MySQL stores parameters as latin1.
        """
        return KeyValue(self.id, _KEY, value or _NO_STATE)


def ensure_control_table(metastore: Metastore, name: TableName) -> ControlTable:
    """Find or create the control table and its database; safe when several clients do so at the same time.

    Raises MetastoreUnavailable or MetastoreRefusal, or InvalidTable when a table of this name is not a control table,
    or when its database must not be written: replication would replace the state.
    """
    try:
        raw = read_table(metastore, name)
    except InvalidTable:
        raw = _created(metastore, name)
    require_writable_database(metastore, name)
    return _checked(name, raw)


def find_control_table(metastore: Metastore, name: TableName) -> ControlTable | None:
    """Find the control table; return None if it or its database does not exist. Raises the same errors."""
    try:
        raw = read_table(metastore, name)
    except InvalidTable:
        return None
    return _checked(name, raw)


def is_created(metastore: Metastore, name: TableName) -> bool:
    """Return whether the control table exists. Raises the errors of `ensure_control_table`, but creates nothing."""
    try:
        metastore.call("get_database", name.database)
    except InvalidTable:
        return False
    require_writable_database(metastore, name)
    return find_control_table(metastore, name) is not None


def read_state(metastore: Metastore, control: ControlTable) -> str:
    """Return the state stored by the last commit, '' if there is none. Raises InvalidTable if the table was dropped."""
    try:
        raw = read_table(metastore, control.name)
    except TableMissing:
        raw = None
    if raw is None or raw.id != control.id:
        raise state_removed(control.name)
    return str(raw.parameters[_KEY]).strip()


def state_removed(name: TableName) -> InvalidTable:
    """Return the error of a mapping that runs, and whose state another client has removed from control table `name`."""
    return InvalidTable(
        "the committed position was removed: the mapping was retired, or the control table was dropped",
        where=f"control table {name}",
        hint="`ingestd mappings resume` or a restart begins where the key `start` of the mapping says",
    )


def _checked(name: TableName, raw: Any) -> ControlTable:
    if _KEY not in (raw.parameters or {}):
        raise InvalidTable(
            f"the table parameter {_KEY} is missing",
            where=f"control table {name}",
            hint="ingestd did not create this table; drop or rename it, or set another control.database",
        )
    return ControlTable(name, raw.id)


def _created(metastore: Metastore, name: TableName) -> Any:
    """Create the control table and, if it does not exist, its database. Returns the Thrift table."""
    database = name.database
    try:
        ensure(lambda: metastore.call("get_database", database), lambda: _create_database(metastore, database))
        ensure(lambda: read_table(metastore, name), lambda: _create_table(metastore, name))
    except (MetastoreRefusal, MetastoreDeclined) as error:
        raise type(error)(
            f"the control table {name} cannot be created: {error.what}",
            where=f"control.database {database}, {error.where}",
            hint=f"create the database {database}, let {metastore.user} create tables in it, or set control.database to"
            " one in which this user may",
        ) from error
    return read_table(metastore, name)


def _create_table(metastore: Metastore, name: TableName) -> None:
    storage = ttypes.StorageDescriptor(
        cols=[ttypes.FieldSchema(name="note", type="string", comment="the state is a table parameter")],
        inputFormat="org.apache.hadoop.mapred.TextInputFormat",
        outputFormat="org.apache.hadoop.hive.ql.io.HiveIgnoreKeyTextOutputFormat",
        serdeInfo=ttypes.SerDeInfo(serializationLib="org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe"),
    )
    table = ttypes.Table(
        tableName=name.table,
        dbName=name.database,
        owner=metastore.user,
        sd=storage,
        partitionKeys=[],
        parameters={_KEY: _NO_STATE, "EXTERNAL": "TRUE", "comment": "state of ingestd; do not alter"},
        tableType="EXTERNAL_TABLE",
    )
    request = ttypes.CreateTableRequest(table=table, processorCapabilities=CAPABILITIES, processorIdentifier="ingestd")
    metastore.call("create_table_req", request)


def _create_database(metastore: Metastore, name: str) -> None:
    database = ttypes.Database(name=name, description="state of ingestd", parameters={})
    metastore.call("create_database", database)
