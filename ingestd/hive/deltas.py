"""Staged files become deltas of an open transaction.

Invariant: every partition is registered with the transaction before a file appears under it (an aborted write id whose
partition was never registered becomes visible once HMS forgets it), and a delta appears whole, by one rename.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ingestd.acid.layout import ORC_ACID_VERSION, ORC_ACID_VERSION_FILE, bucket_name, delta_name
from ingestd.acid.pool import WrittenFile
from ingestd.hive import transactions
from ingestd.hive.client import Metastore
from ingestd.hive.partitions import PartitionInfo, ensure_partitions
from ingestd.hive.statistics import WHOLE_TABLE
from ingestd.hive.tables import Table
from ingestd.hive.transactions import Transaction
from ingestd.storage import local


@dataclass(frozen=True, slots=True)
class Placed:
    """Files of one delta directory: `partition` has the values of its partition, `location` is the URI of that."""

    partition: tuple[str, ...]
    location: str
    delta: str
    files: tuple[str, ...]


def register(
    metastore: Metastore, table: Table, txn: Transaction, partitions: Iterable[tuple[str, ...]]
) -> dict[str, PartitionInfo]:
    """Make missing partitions and register all that are written; returns them by name (or WHOLE_TABLE)."""
    if not table.partition_columns:
        return {WHOLE_TABLE: PartitionInfo(WHOLE_TABLE, table.location, existed=True)}
    values = {table.partition_name(partition): partition for partition in partitions}
    found = ensure_partitions(metastore, table, values) if values else {}
    if found:
        transactions.register_partitions(metastore, txn, list(found))
    return found


def place(
    table: Table, write_id: int, files: Iterable[WrittenFile], partitions: Mapping[str, PartitionInfo], staging: Path
) -> list[Placed]:
    """Gather each delta in the staging directory, then rename it to its place; returns what lies where."""
    deltas: dict[tuple[str, int], list[WrittenFile]] = {}
    for file in files:
        deltas.setdefault((table.partition_name(file.partition), file.statement), []).append(file)
    placed = []
    for number, ((name, statement), parts) in enumerate(deltas.items()):
        gathered = staging / f"delta-{number}"
        local.make_directory(gathered)
        for file in parts:
            local.move(Path(file.path), gathered / bucket_name(file.bucket))
        local.write_bytes(gathered / ORC_ACID_VERSION_FILE, ORC_ACID_VERSION)
        location, delta = partitions[name].location, delta_name(write_id, statement)
        target = local.local_path(location) / delta
        local.move(gathered, target)
        local.sync_directory(target.parent)
        names = (ORC_ACID_VERSION_FILE, *(bucket_name(file.bucket) for file in parts))
        placed.append(Placed(parts[0].partition, location, delta, names))
    return placed
