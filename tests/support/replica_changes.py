"""Changes of a source database, and what readers of a target see of them, for tests of incremental replication."""

from __future__ import annotations

from collections.abc import Callable

from hive_metastore import ttypes

from ingestd.hive.attachments import ColumnStatistics
from ingestd.hive.objects import (
    TableObject,
    alter_table,
    drop_partitions,
    drop_table,
)
from ingestd.hive.tables import TableName
from ingestd.hive.transactions import abort, begin_writing, commit
from ingestd.hive.truncation import truncate_in_transaction
from ingestd.hive.write_ids import read_snapshots, read_transactions
from ingestd.storage.local import local_path
from tests.support.replica import Side
from tests.support.replica_following import (
    Following,
    write,
)
from tests.support.replica_rows import insert, table_of
from tests.support.replica_tables import ACID, INSERT_ONLY, make_table

INSERT, DELETE, OVERWRITE = "delta_{w}_{w}_0000", "delete_delta_{w}_{w}_0000", "base_{w}"


def assert_same(following: Following) -> None:
    """Assert that readers of both sides see the same."""
    source, target = following.states()
    different = {
        table: (source.get(table), target.get(table))
        for table in source.keys() | target.keys()
        if source.get(table) != target.get(table)
    }
    assert not different, different


def truncate(following: Following, name: TableName, *partitions: str) -> None:
    """Truncate a table of the source, or some of its partitions, in a transaction, as HiveServer2 does."""
    metastore = following.replica.source.metastore
    txn, write_id = begin_writing(metastore, name, "tests/truncate")
    truncate_in_transaction(metastore, name, partitions, write_id)
    commit(metastore, txn)


def alter(
    following: Following, name: TableName, change: Callable[[TableObject], None], *, cascade: bool = False
) -> None:
    """Change the definition of a table of the source, and with `cascade` the columns of its partitions."""
    table = table_of(following.replica.source.metastore, name)
    change(table)
    alter_table(following.replica.source.metastore, name, table, cascade=cascade)


def renamed(to: str) -> Callable[[TableObject], None]:
    """Return a change that renames a table."""
    return lambda table: setattr(table.raw, "tableName", to)


def with_column(table: TableObject) -> None:
    """Add a column."""
    table.raw.sd.cols.append(ttypes.FieldSchema(name=f"c{len(table.raw.sd.cols)}", type="int"))


def column_statistics(partition: str) -> ColumnStatistics:
    """Return statistics of the column `id` of an external table, or of its partition if that is not empty."""
    values = ttypes.ColumnStatisticsData(longStats=ttypes.LongColumnStatsData(numNulls=0, numDVs=1))
    column = ttypes.ColumnStatisticsObj(colName="id", colType="bigint", statsData=values)
    place = ttypes.ColumnStatisticsDesc(isTblLevel=not partition, partName=partition or None)
    return ColumnStatistics(ttypes.ColumnStatistics(statsDesc=place, statsObj=[column]), write_id=0)


def do_everything(following: Following) -> None:
    """Do everything that a source may do, in two tables that exist and in tables that come and go."""
    side, metastore = following.replica.source, following.replica.source.metastore
    plain, parted, only = (following.name(name) for name in ("plain", "parted", "only"))
    for name in (plain, parted, only):
        make_table(
            metastore,
            name,
            partitioned=name == parted,
            parameters=INSERT_ONLY if name == only else ACID,
        )
    write(side, plain, INSERT)
    write(side, plain, INSERT, then=lambda txn: abort(metastore, txn.id))
    write(side, plain, INSERT, DELETE)  # an UPDATE or MERGE
    write(side, only, INSERT)
    insert(side, parted, [(1, "a"), (2, "b:c")], [(3, "a"), (4, "d")])
    write(side, parted, DELETE, partition="day=a")
    alter(following, plain, with_column)
    write(side, plain, OVERWRITE)
    write(side, plain, INSERT)
    drop_partitions(metastore, parted, ["day=d"], delete_data=True)
    truncate(following, parted, "day=a")
    insert(side, parted, [(5, "a"), (6, "d")])
    truncate(following, only)
    write(side, only, OVERWRITE)
    alter(following, plain, renamed("renamed"))
    make_table(metastore, plain)
    write(side, plain, INSERT)
    write(side, following.name("renamed"), INSERT)
    drop_table(metastore, only, delete_data=True)
    make_table(metastore, only)
    write(side, only, INSERT)


def visible_write_ids(side: Side, names: list[TableName]) -> list[frozenset[int]]:
    """Return the write ids of each table whose rows a query that begins now can read, and whose files exist."""
    snapshots = read_snapshots(side.metastore, names, read_transactions(side.metastore).text)
    found = []
    for name in names:
        place = local_path(table_of(side.metastore, name).location)
        ids = [number for number in range(1, 30) if snapshots[name].is_valid(number)]
        # Ids without a file belong to transactions that were aborted on the source before the target knew them.
        found.append(
            frozenset(
                identity
                for identity in ids
                if (place / f"delta_{identity:07d}_{identity:07d}_0000" / "bucket_00000").exists()
            )
        )
    return found
