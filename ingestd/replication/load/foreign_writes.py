"""Whether another client has written to a target table under a write id of a source transaction that has aborted.

Invariant: no load places a file under such a write id, so a directory of it belongs to another client. A metastore
forgets an aborted transaction without locks in a few seconds, so it cannot tell whose the write id was.
"""

from __future__ import annotations

from collections.abc import Iterator

from ingestd.acid.layout import Base, parse_directory
from ingestd.hive.objects import TableObject, all_partition_names, find_partitions
from ingestd.replication.cluster import Cluster
from ingestd.storage.contract import NotFound


def has_directory(target: Cluster, table: TableObject, write_id: int) -> bool:
    """Return whether a location of a transactional table has a directory of `write_id` that no compaction has written.

    Raises InvalidTable if the table does not exist, MetastoreUnavailable and StorageUnavailable.
    """
    for location in _locations(target, table):
        try:
            entries = target.storages.at(location).entries(location)
        except NotFound:
            continue
        if any(_is_of(entry.name, write_id) for entry in entries if entry.is_directory):
            return True
    return False


def _locations(target: Cluster, table: TableObject) -> Iterator[str]:
    if not table.partition_columns:
        yield table.location
        return
    for partition in find_partitions(target.metastore, table.name, all_partition_names(target.metastore, table.name)):
        yield partition.location


def _is_of(name: str, write_id: int) -> bool:
    directory = parse_directory(name)
    if directory is None or directory.visibility_txn:
        return False
    if isinstance(directory, Base):
        return directory.write_id == write_id
    return directory.min_write_id <= write_id <= directory.max_write_id
