"""Partitions: which exist, where they lie, and making those that do not.

Invariant: a partition's own location is respected; it is never assumed to be under the table's directory.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hive_metastore import ttypes

from ingestd.hive.client import CAPABILITIES, Metastore
from ingestd.hive.tables import Table

# Statistics of a partition that we make start at zero and are counted up by each commit; without numRows Hive would
# begin to count at its own first INSERT and be wrong for ever (live experiment B11).
# LEFT is numRows as a writer of ours left it (`statistics.py`).
LEFT = "ingestd.rows"
_NEW_PARAMETERS = {"numRows": "0", "numFiles": "0", "totalSize": "0", "rawDataSize": "0", LEFT: "0"}


def read_partitions(metastore: Metastore, table: Table, names: Sequence[str]) -> list[Any]:
    """The Thrift partitions of these names that exist; names are escaped `k=v/k2=v2`."""
    request = ttypes.GetPartitionsByNamesRequest(
        db_name=table.name.database,
        tbl_name=table.name.table,
        names=list(names),
        get_col_stats=False,
        processorCapabilities=CAPABILITIES,
        processorIdentifier="ingestd",
    )
    return list(metastore.call("get_partitions_by_names_req", request).partitions)


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """A partition: its escaped name, the URI of its directory, and whether it existed before it was asked for."""

    name: str
    location: str
    existed: bool


def ensure_partitions(
    metastore: Metastore, table: Table, values: Mapping[str, Sequence[str]]
) -> dict[str, PartitionInfo]:
    """Each partition by name, `values` by name; those that do not exist are made, empty.

    Several clients may race to make one: whoever comes second finds it there.
    """
    found = _infos(metastore, table, list(values), existed=True)
    missing = {name: list(v) for name, v in values.items() if name not in found}
    if missing:
        _add(metastore, table, missing)
        found |= _infos(metastore, table, list(missing), existed=False)
    return found


def _infos(metastore: Metastore, table: Table, names: Sequence[str], *, existed: bool) -> dict[str, PartitionInfo]:
    infos = {}
    for partition in read_partitions(metastore, table, names):
        name = table.partition_name(partition.values)
        infos[name] = PartitionInfo(name, partition.sd.location.rstrip("/"), existed)
    return infos


def _add(metastore: Metastore, table: Table, values: Mapping[str, list[str]]) -> None:
    parts = [_new_partition(table, name, v) for name, v in values.items()]
    request = ttypes.AddPartitionsRequest(
        dbName=table.name.database,
        tblName=table.name.table,
        parts=parts,
        ifNotExists=True,
        needResult=False,
    )
    metastore.call("add_partitions_req", request)


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
