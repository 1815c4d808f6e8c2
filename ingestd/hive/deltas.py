"""Staged files become deltas of an open transaction.

Invariant: every partition is registered with the transaction before a file appears under it (an aborted write id whose
partition was never registered becomes visible once HMS forgets it), and a delta appears whole, by one rename.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ingestd.acid.layout import (
    ORC_ACID_VERSION,
    ORC_ACID_VERSION_FILE,
    Base,
    bucket_name,
    delta_name,
    parse_directory,
)
from ingestd.acid.pool import WrittenFile
from ingestd.errors import StorageUnavailable, TransactionAborted
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
        _refuse_overtaken(table.location, txn)
        return {WHOLE_TABLE: PartitionInfo(WHOLE_TABLE, table.location, existed=True)}
    values = {table.partition_name(partition): partition for partition in partitions}
    found = ensure_partitions(metastore, table, values) if values else {}
    if found:
        transactions.register_partitions(metastore, txn, list(found))
    for info in found.values():
        _refuse_overtaken(info.location, txn)
    return found


def _refuse_overtaken(location: str, txn: Transaction) -> None:
    """Raise TransactionAborted where an overwrite took a later write id than ours before we had our lock.

    Its `base_N` hides every delta up to N, ours too, although we commit after it (AcidUtils.getAcidState). Compaction's
    bases (`_v`) never pass an open write id. Nobody can overwrite it any more: who writes rows there holds its lock.
    """
    root = local.local_path(location)
    with local.guarded(root):
        names = [entry.name for entry in root.iterdir()] if root.is_dir() else []
    for name in names:
        found = parse_directory(name)
        if isinstance(found, Base) and not found.visibility_txn and found.write_id > txn.write_id:
            raise TransactionAborted(
                "the table was overwritten since this transaction began; its rows would not be seen",
                where=str(root / name),
                hint="the next transaction comes after it",
            )


def place(
    table: Table, write_id: int, files: Iterable[WrittenFile], partitions: Mapping[str, PartitionInfo], staging: Path
) -> list[Placed]:
    """Gather each delta in the staging directory, then rename it to its place; returns what lies where.

    Raises StorageUnavailable; then nothing of it is left in place.
    """
    deltas: dict[tuple[str, int], list[WrittenFile]] = {}
    for file in files:
        deltas.setdefault((table.partition_name(file.partition), file.statement), []).append(file)
    placed: list[Placed] = []
    try:
        for number, ((name, statement), parts) in enumerate(deltas.items()):
            location = partitions[name].location
            placed.append(_place(parts, location, delta_name(write_id, statement), staging / f"delta-{number}"))
    except StorageUnavailable:
        for one in placed:
            local.discard_tree(local.local_path(one.location) / one.delta)
        raise
    return placed


def _place(parts: Sequence[WrittenFile], location: str, delta: str, gathered: Path) -> Placed:
    local.make_directory(gathered)
    for file in parts:
        local.move(Path(file.path), gathered / bucket_name(file.bucket))
    local.write_bytes(gathered / ORC_ACID_VERSION_FILE, ORC_ACID_VERSION)
    target = local.local_path(location) / delta
    local.move(gathered, target)
    local.sync_directory(target.parent)
    names = (ORC_ACID_VERSION_FILE, *(bucket_name(file.bucket) for file in parts))
    return Placed(parts[0].partition, location, delta, names)
