"""Makes Hive ignore row counts that this user may not change, so that `count(*)` reads the rows.

Hive answers `count(*)` from numRows if COLUMN_STATS_ACCURATE says so. Only who may alter the table can remove this
flag, and a writer may not be allowed to. But a writer may store statistics of columns: the metastore checks no
permission for that, and removes the flag if the caller does not know the write id of the numbers that it has
(ObjectStore.updateTableColumnStatistics, updatePartitionColumnStatistics).

Invariant: no statistics of columns that Hive has computed are changed, and no call makes Hive trust a number. Two
writers may therefore do this at the same time, and a call whose answer is lost may be sent again. The call that stores
the statistics of many partitions at once (`set_aggr_stats_for`) is not used, because it sets the flag in partitions
that another writer has just removed it from.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from hive_metastore import ttypes

from ingestd.errors import InvalidTable
from ingestd.hive.answers import MetastoreRefusal
from ingestd.hive.client import Metastore
from ingestd.hive.parameters import read_parameters
from ingestd.hive.partitions import by_call
from ingestd.hive.tables import WHOLE_TABLE, Table

# Valid write ids of a caller that knows none.
_NONE_KNOWN = "-1:9223372036854775807::"
_ENGINE = "hive"
_ACCURATE, _TRUSTED = "COLUMN_STATS_ACCURATE", "BASIC_STATS"


def distrust_counts(metastore: Metastore, table: Table, names: Sequence[str], write_id: int) -> None:
    """Remove COLUMN_STATS_ACCURATE from partitions, or from a table without partitions, under the caller's write id.

    Each partition that Hive trusts costs a call. A compaction or ANALYZE may set the flag again later. Partitions that
    do not exist are ignored. Raises InvalidTable if the table does not exist, MetastoreUnavailable, or MetastoreRefusal
    if the metastore does not remove the flag.
    """
    for some in by_call(_trusted(metastore, table, names)):
        if table.partition_columns:
            existing = _existing(metastore, table, some)
            for name in some:
                statistics = _statistics(table, name, existing.get(name) or [_unknown(table)])
                with suppress(InvalidTable):  # the partition has just been dropped
                    _store(metastore, "update_partition_column_statistics_req", table, statistics, write_id)
        else:
            # The metastore accepts a request without columns for a table, but not for a partition.
            _store(metastore, "update_table_column_statistics_req", table, _statistics(table, None, []), write_id)
        if left := _trusted(metastore, table, some):
            raise MetastoreRefusal(
                "the metastore keeps the row count although it is wrong, so count(*) may be wrong",
                where=f"table {table.name}, {left[0]}".removesuffix(f", {WHOLE_TABLE}"),
                hint=f"let {metastore.user} alter the table",
            )


def _trusted(metastore: Metastore, table: Table, names: Sequence[str]) -> list[str]:
    """Return the partitions, or WHOLE_TABLE, whose row counts Hive trusts."""
    return [
        parameter.name
        for parameter in read_parameters(metastore, table, names)
        if _TRUSTED in parameter.values.get(_ACCURATE, "")
    ]


def _existing(metastore: Metastore, table: Table, names: Sequence[str]) -> dict[str, list[Any]]:
    """Return the statistics of the first column by partition, to store the same again."""
    request = ttypes.PartitionsStatsRequest(
        dbName=table.name.database,
        tblName=table.name.table,
        colNames=[table.columns[0].name],
        partNames=list(names),
        engine=_ENGINE,
    )
    return dict(metastore.call("get_partitions_statistics_req", request).partStats)


def _unknown(table: Table) -> Any:
    """Return statistics of the first column that say nothing. Without the flag, Hive does not rely on them."""
    nothing = ttypes.BinaryColumnStatsData(maxColLen=0, avgColLen=0.0, numNulls=0)
    return ttypes.ColumnStatisticsObj(
        colName=table.columns[0].name,
        colType="binary",
        statsData=ttypes.ColumnStatisticsData(binaryStats=nothing),
    )


def _statistics(table: Table, partition: str | None, columns: list[Any]) -> Any:
    place = ttypes.ColumnStatisticsDesc(
        isTblLevel=partition is None,
        dbName=table.name.database,
        tableName=table.name.table,
        partName=partition,
        catName="hive",
    )
    return ttypes.ColumnStatistics(statsDesc=place, statsObj=columns, isStatsCompliant=False, engine=_ENGINE)


def _store(metastore: Metastore, method: str, table: Table, statistics: Any, write_id: int) -> None:
    request = ttypes.SetPartitionsStatsRequest(
        colStats=[statistics],
        needMerge=False,
        writeId=write_id,
        validWriteIdList=f"{table.name}:{_NONE_KNOWN}",
        engine=_ENGINE,
    )
    metastore.call(method, request)
