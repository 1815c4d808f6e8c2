"""Creates objects of the metastore, although other clients may create the same ones at the same time.

Invariant: a created table has its directory. Two clients that create the same table at once could leave it without one:
the metastore removes the directory of the creation that fails (HMSHandler.create_table_core). Therefore processes of
ingestd create a table one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hive_metastore import ttypes

from ingestd.clock import pause
from ingestd.errors import InvalidTable, MetastoreUnavailable
from ingestd.hive.answers import MetastoreRefusal
from ingestd.hive.client import CAPABILITIES, Metastore
from ingestd.hive.held_lease import HeldLease
from ingestd.hive.tables import (
    ORC_INPUT,
    ORC_OUTPUT,
    ORC_SERDE,
    Table,
    TableName,
    as_acid_table,
    read_table,
    require_writable_database,
)
from ingestd.retry import Backoff
from ingestd.schema import Column

_ATTEMPTS = 6  # 1.5 s in all
_ACID = {"transactional": "true", "transactional_properties": "default", "bucketing_version": "2"}
# As HiveServer2 describes a new table, so that Hive answers `count(*)` from numRows, which each commit increases.
_EMPTY = {
    "COLUMN_STATS_ACCURATE": '{"BASIC_STATS":"true"}',
    **dict.fromkeys(("numFiles", "numRows", "rawDataSize", "totalSize"), "0"),
}
# Properties, in lower case, that `NewTable.properties` must not contain: the kind of the table, and its statistics.
FIXED_PROPERTIES = frozenset(map(str.lower, (*_ACID, *_EMPTY, "EXTERNAL")))


@dataclass(frozen=True, slots=True)
class NewTable:
    """A full ACID ORC table that does not exist yet.

    `properties` are additional table properties, none of them in FIXED_PROPERTIES.
    """

    name: TableName
    columns: tuple[Column, ...]
    partition_columns: tuple[Column, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def statement(self) -> str:
        """The statement of HiveQL that creates the table."""
        by = f"\nPARTITIONED BY (\n{_listed(self.partition_columns)}\n)" if self.partition_columns else ""
        properties = {"transactional": "true", **self.properties}
        texts = ", ".join(f"'{_escaped(key)}'='{_escaped(value)}'" for key, value in properties.items())
        place = f"`{self.name.database}`.`{self.name.table}`"
        columns = _listed(self.columns)
        separator = "\n" if by else " "
        return f"CREATE TABLE {place} (\n{columns}\n){by}{separator}STORED AS ORC TBLPROPERTIES ({texts})"

    def checked(self) -> Table:
        """Return the table as it will be, without an id and a location. Raises InvalidTable for invalid columns."""
        names = [column.name for column in (*self.columns, *self.partition_columns)]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice or not self.columns:
            what = f"has two columns {twice[0]}" if twice else "has no columns"
            raise InvalidTable(f"the new table {what}", where=f"table {self.name}")
        raw = self.raw("")
        raw.sd.location = ""
        return as_acid_table(raw, frozenset())

    def raw(self, owner: str) -> Any:
        """Return the Thrift table; the metastore chooses its location."""
        storage = ttypes.StorageDescriptor(
            cols=_fields(self.columns),
            inputFormat=ORC_INPUT,
            outputFormat=ORC_OUTPUT,
            compressed=False,
            numBuckets=-1,
            serdeInfo=ttypes.SerDeInfo(serializationLib=ORC_SERDE, parameters={"serialization.format": "1"}),
            bucketCols=[],
            sortCols=[],
            parameters={},
            storedAsSubDirectories=False,
        )
        return ttypes.Table(
            tableName=self.name.table,
            dbName=self.name.database,
            owner=owner,
            ownerType=ttypes.PrincipalType.USER,
            sd=storage,
            partitionKeys=_fields(self.partition_columns),
            parameters={**self.properties, **_ACID, **({} if self.partition_columns else _EMPTY)},
            tableType="MANAGED_TABLE",
        )


def create_table(metastore: Metastore, table: NewTable, lease: TableName) -> bool:
    """Create a table unless it exists, and return whether this call created it.

    `lease` is a name that all processes use for this table. Raises OwnershipLost while another process creates it,
    InvalidTable if the database does not exist or must not be written, or if the columns are not valid,
    MetastoreRefusal, or MetastoreUnavailable.
    """
    table.checked()
    require_writable_database(metastore, table.name)
    with HeldLease(metastore, lease, f"create the table {table.name}"):
        if exists(lambda: read_table(metastore, table.name)):
            return False
        ensure(lambda: read_table(metastore, table.name), lambda: _request(metastore, table))
        return True


def _request(metastore: Metastore, table: NewTable) -> None:
    request = ttypes.CreateTableRequest(
        table=table.raw(metastore.user), processorCapabilities=CAPABILITIES, processorIdentifier="ingestd"
    )
    metastore.call("create_table_req", request)


def ensure(find: Callable[[], object], create: Callable[[], object]) -> None:
    """Create an object unless `find` finds it.

    When two clients create the same object, the metastore returns an error of its database to one of them (a violated
    unique constraint in a MetaException), and may have deleted the directory that it created for the other. After a
    failure, `find` therefore checks whether the object exists; if not, the creation is retried a few times.
    """
    backoff = Backoff(first_seconds=0.05, cap_seconds=0.5)
    for attempt in range(1, _ATTEMPTS + 1):
        if exists(find):
            return
        try:
            create()
        except MetastoreRefusal as error:
            if not isinstance(error.__cause__, ttypes.AlreadyExistsException):
                raise
        except MetastoreUnavailable:
            if not exists(find):
                if attempt == _ATTEMPTS:
                    raise
                pause(backoff.seconds())


def exists(find: Callable[[], object]) -> bool:
    """Return whether `find` finds an object."""
    try:
        find()
    except InvalidTable:
        return False
    return True


def _fields(columns: Sequence[Column]) -> list[Any]:
    return [ttypes.FieldSchema(name=column.name, type=str(column.type), comment=None) for column in columns]


def _listed(columns: Sequence[Column]) -> str:
    return ",\n".join(f"  {column.definition}" for column in columns)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
