"""Reads and creates partitions.

Invariant: a partition's own location is used; it is never assumed to be under the table's directory.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hive_metastore import ttypes

from ingestd.acid.partitions import odd_partition_names
from ingestd.hive.client import CAPABILITIES, PARTITIONS_PER_CALL, Metastore
from ingestd.hive.tables import Table

# A new partition starts with statistics of zero, which each commit increases. Without numRows Hive would start to count
# at its own first INSERT, and count(*) would stay wrong.
# ROWS_WRITTEN is the value of numRows after the last change by ingestd (publish/row_count_parameters.py).
ROWS_WRITTEN = "ingestd.rows"
_SURVEYED_PARTITIONS = 10_000
_NEW_PARAMETERS = {"numRows": "0", "numFiles": "0", "totalSize": "0", "rawDataSize": "0", ROWS_WRITTEN: "0"}


def read_partitions(metastore: Metastore, table: Table, names: Sequence[str]) -> list[Any]:
    """Return the Thrift partitions in `names` that exist. Names are escaped, as in `k=v/k2=v2`."""
    return [one for some in by_call(names) for one in _read(metastore, table, some)]


def by_call(names: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the names in chunks, each small enough for one call."""
    for start in range(0, len(names), PARTITIONS_PER_CALL):
        yield names[start : start + PARTITIONS_PER_CALL]


def _read(metastore: Metastore, table: Table, names: Sequence[str]) -> list[Any]:
    request = ttypes.GetPartitionsByNamesRequest(
        db_name=table.name.database,
        tbl_name=table.name.table,
        names=list(names),
        get_col_stats=False,
        processorCapabilities=CAPABILITIES,
        processorIdentifier="ingestd",
    )
    return list(metastore.call("get_partitions_by_names_req", request).partitions)


def partition_names(metastore: Metastore, table: Table, most: int = -1) -> list[str]:
    """Return the escaped names of all partitions, or of at most `most` partitions (≤ 32767)."""
    return list(metastore.call("get_partition_names", table.name.database, table.name.table, most))


def odd_partitions(metastore: Metastore, table: Table) -> list[str]:
    """Return the names of partitions whose values are not in Hive's normal form, such as `p=007` for an int.

    Checks the first 10,000 partitions. Calls the metastore only if a partition column is not a string or varchar.
    """
    columns = table.partition_columns
    if all(column.type.kind in ("string", "varchar") for column in columns):
        return []
    return odd_partition_names(columns, partition_names(metastore, table, _SURVEYED_PARTITIONS))


def describe_odd(names: Sequence[str]) -> str:
    """Return a log text of bounded length that lists odd partitions and says how to correct them."""
    shown = ", ".join(name if len(name) <= 100 else name[:97] + "..." for name in names[:5])
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return (
        f"{shown}{more}: these partition values are not in Hive's normal form; WHERE, INSERT OVERWRITE and DROP"
        " PARTITION may not find the partitions; copy their rows to partitions with normal values, then drop them"
    )


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """A partition: its escaped name, the URI of its directory, and whether it existed before it was requested."""

    name: str
    location: str
    existed: bool


def ensure_partitions(
    metastore: Metastore, table: Table, values: Mapping[str, Sequence[str]]
) -> dict[str, PartitionInfo]:
    """Create the partitions in `values` that do not exist, and return all of them by name.

    `values` maps each name to its partition values, one per partition column. Several clients may safely create the
    same partition. Raises MetastoreRefusal if the metastore cannot create a partition.
    """
    found = _infos(table, read_partitions(metastore, table, list(values)), existed=True)
    missing = [name for name in values if name not in found]
    for some in by_call(missing):
        found |= _infos(table, _add(metastore, table, {name: list(values[name]) for name in some}), existed=False)
    others = [name for name in missing if name not in found]
    return found | _infos(table, read_partitions(metastore, table, others), existed=True)


def _infos(table: Table, partitions: Sequence[Any], *, existed: bool) -> dict[str, PartitionInfo]:
    infos = {}
    for partition in partitions:
        name = table.partition_name(partition.values)
        infos[name] = PartitionInfo(name, partition.sd.location.rstrip("/"), existed)
    return infos


def _add(metastore: Metastore, table: Table, values: Mapping[str, list[str]]) -> Sequence[Any]:
    """Create partitions and return those that did not exist."""
    parts = [_new_partition(table, name, v) for name, v in values.items()]
    request = ttypes.AddPartitionsRequest(
        dbName=table.name.database,
        tblName=table.name.table,
        parts=parts,
        ifNotExists=True,
        needResult=True,
    )
    return metastore.call("add_partitions_req", request).partitions or ()


def _new_partition(table: Table, name: str, values: list[str]) -> Any:
    storage = copy.deepcopy(table.raw.sd)
    storage.location = f"{table.location}/{name}"
    return ttypes.Partition(
        values=values,
        dbName=table.name.database,
        tableName=table.name.table,
        sd=storage,
        parameters=dict(_NEW_PARAMETERS),
    )
