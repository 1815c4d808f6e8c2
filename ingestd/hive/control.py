"""The control table of a mapping: one table parameter that only commits write.

Invariant: the parameter is made with the table and never altered, because `alter_table` replaces the whole parameter
map with what its client read earlier and would put an old value back (ObjectStore.alterTable).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hive_metastore import ttypes

from ingestd.clock import pause
from ingestd.errors import InvalidTable, MetastoreUnavailable
from ingestd.hive.client import CAPABILITIES, Metastore, MetastoreRefusal
from ingestd.hive.tables import TableName, read_table
from ingestd.hive.transactions import KeyValue
from ingestd.retry import Backoff

# HMS demands the prefix _meta of every key that a commit may set (TxnStore.TXN_KEY_START).
_KEY = "_meta.ingestd.state"
_CREATE_ATTEMPTS = 6  # 1.5 s in all


@dataclass(frozen=True, slots=True)
class ControlTable:
    """Where a mapping's state lives; `id` is the table's number in the metastore."""

    name: TableName
    id: int

    def key_value(self, value: str) -> KeyValue:
        """What a commit must carry to store `value` (ASCII: MySQL keeps parameters in latin1)."""
        return KeyValue(self.id, _KEY, value)


def ensure_control_table(metastore: Metastore, name: TableName) -> ControlTable:
    """Find or create the control table and its database; several clients may do so at the same time.

    Raises InvalidTable when a table of this name is no control table, MetastoreUnavailable, MetastoreRefusal.
    """
    try:
        raw = read_table(metastore, name)
    except InvalidTable:
        database = name.database
        _ensure(lambda: metastore.call("get_database", database), lambda: _create_database(metastore, database))
        _ensure(lambda: read_table(metastore, name), lambda: _create_table(metastore, name))
        raw = read_table(metastore, name)
    if _KEY not in (raw.parameters or {}):
        raise InvalidTable(
            f"the parameter {_KEY} is missing", where=f"control table {name}", hint="was this table made by hand?"
        )
    return ControlTable(name, raw.id)


def read_state(metastore: Metastore, control: ControlTable) -> str:
    """The value of the last commit; '' when there was none. Raises InvalidTable when the table was made anew."""
    raw = read_table(metastore, control.name)
    if raw.id != control.id:
        raise InvalidTable("the control table was dropped and made anew", where=f"control table {control.name}")
    return str(raw.parameters[_KEY]).strip()


def _ensure(find: Callable[[], object], create: Callable[[], object]) -> None:
    """Create what `find` does not find.

    When two clients create the same object, the metastore answers one of them with the error of its database (a
    violated unique constraint inside a MetaException), and may have deleted the other's new directory. So after a
    failure `find` decides: the object is there, or the creation is repeated a few times.
    """
    backoff = Backoff(first_seconds=0.05, cap_seconds=0.5)
    for attempt in range(1, _CREATE_ATTEMPTS + 1):
        if _is_found(find):
            return
        try:
            create()
        except MetastoreRefusal as error:
            if not isinstance(error.__cause__, ttypes.AlreadyExistsException):
                raise
        except MetastoreUnavailable:
            if not _is_found(find):
                if attempt == _CREATE_ATTEMPTS:
                    raise
                pause(backoff.seconds())


def _is_found(find: Callable[[], object]) -> bool:
    try:
        find()
    except InvalidTable:
        return False
    return True


def _create_table(metastore: Metastore, name: TableName) -> None:
    storage = ttypes.StorageDescriptor(
        cols=[ttypes.FieldSchema(name="note", type="string", comment="the state is in the table parameters")],
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
        # A blank, not '': Oracle keeps '' as NULL, and the commit's UPDATE needs the row.
        parameters={_KEY: " ", "EXTERNAL": "TRUE", "comment": "state of an ingestd mapping: never alter it"},
        tableType="EXTERNAL_TABLE",
    )
    request = ttypes.CreateTableRequest(table=table, processorCapabilities=CAPABILITIES, processorIdentifier="ingestd")
    metastore.call("create_table_req", request)


def _create_database(metastore: Metastore, name: str) -> None:
    database = ttypes.Database(name=name, description="ingestd: state of its mappings", parameters={})
    metastore.call("create_database", database)
