"""Registers the partitions of an open transaction, places staged files as deltas, and withdraws deltas.

Invariant: every partition is registered with the transaction before a file appears under it, and each delta appears
complete, by one rename. The rows of an aborted write id whose partition was never registered would become visible once
HMS forgets the write id. HMS also forgets an aborted transaction that was registered but left nothing to clean up.
Therefore files are placed right after a heartbeat (`check_alive`), and a transaction that fails before its commit
withdraws its deltas (`protocol.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
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
from ingestd.acid.writer_pool import StagingFile
from ingestd.errors import StorageUnavailable, TransactionAborted
from ingestd.hive import leases, transactions
from ingestd.hive.client import Metastore
from ingestd.hive.notifications import WrittenPartition, keeps_event_log, notify_writes
from ingestd.hive.partitions import PartitionInfo, ensure_partitions
from ingestd.hive.tables import WHOLE_TABLE, Table
from ingestd.hive.transactions import Transaction
from ingestd.publish.row_count_parameters import Increment
from ingestd.publish.staging import Staging, remove_copies
from ingestd.storage import local
from ingestd.storage.local import Location


@dataclass(frozen=True, slots=True)
class DeltaFiles:
    """The files of one delta directory.

    `partition` contains the values of the partition, and `location` is its URI. `delta` is the name of
    the directory, and `files` contains the names of its files.
    """

    partition: tuple[str, ...]
    location: str
    delta: str
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Placement:
    """The deltas that a transaction placed in one table, and their increments by partition name (or WHOLE_TABLE)."""

    deltas: Sequence[DeltaFiles]
    increments: Mapping[str, Increment]


@dataclass(frozen=True, slots=True)
class StagedFiles:
    """The closed files of one table in the staging directory of a transaction."""

    files: Sequence[StagingFile]
    staging: Staging

    @property
    def partitions(self) -> Collection[tuple[str, ...]]:
        """The values of each partition that the files belong to; `{()}` in an unpartitioned table."""
        return {file.partition for file in self.files}

    def place(self, table: Table, write_id: int, partitions: Mapping[str, PartitionInfo]) -> Placement:
        """Assemble each delta in the staging directory, then move it into its partition.

        `partitions` contains the registered partitions of the files by name. Raises StorageUnavailable, or
        TransactionAborted if the staged files were removed. In both cases no delta is left in place.
        """
        deltas: dict[tuple[str, int], list[StagingFile]] = {}
        for file in self.files:
            deltas.setdefault((table.partition_name(file.partition), file.statement), []).append(file)
        placed: list[DeltaFiles] = []
        try:
            self.staging.location.check()
            for number, ((name, statement), parts) in enumerate(deltas.items()):
                gathered = _gathered(parts, self.staging.path / f"delta-{number}")
                location = self.staging.location if name == WHOLE_TABLE else Location.of(partitions[name].location)
                delta = delta_name(write_id, statement)
                location.receive(gathered, delta, self.staging.copy_name(delta))
                names = (ORC_ACID_VERSION_FILE, *(bucket_name(file.bucket) for file in parts))
                placed.append(DeltaFiles(parts[0].partition, partitions[name].location, delta, names))
        except StorageUnavailable as error:
            self.withdraw(placed)
            raise self.staging.explain(error) from error
        return Placement(placed, self._increments(table))

    def withdraw(self, deltas: Iterable[DeltaFiles]) -> None:
        """Remove deltas of a transaction that can no longer commit, as far as possible; never raises."""
        for one in deltas:
            local.discard_tree(local.local_path(one.location) / one.delta)

    def discard(self) -> None:
        """Remove the staging directory; never raises."""
        self.staging.discard()

    def _increments(self, table: Table) -> dict[str, Increment]:
        found: dict[str, Increment] = {}
        for file in self.files:
            name = table.partition_name(file.partition)
            found[name] = found.get(name, Increment()) + Increment(file.rows, 1, file.bytes)
        return found


def _gathered(parts: Sequence[StagingFile], directory: Path) -> Path:
    local.make_leaf(directory)
    for file in parts:
        local.move(Path(file.path), directory / bucket_name(file.bucket))
    local.write_bytes(directory / ORC_ACID_VERSION_FILE, ORC_ACID_VERSION)
    return directory


def register(
    metastore: Metastore,
    txn: Transaction,
    table: Table,
    write_id: int,
    location: Location,
    partitions: Iterable[tuple[str, ...]],
) -> dict[str, PartitionInfo]:
    """Create missing partitions, register all with the transaction, and return them by name (or WHOLE_TABLE).

    `partitions` contains the values of each partition. `location` is the table's directory when the transaction was
    planned. Raises StorageUnavailable if that directory or the directory of a partition is missing, and
    TransactionAborted for the same reasons as `refuse_overwritten`.
    """
    location.check()  # before the metastore creates directories under it
    values = {table.partition_name(partition): partition for partition in partitions}
    if not table.partition_columns:
        found = {WHOLE_TABLE: PartitionInfo(WHOLE_TABLE, table.location, existed=True)}
    elif values:
        found = ensure_partitions(metastore, table, values)
        transactions.register_partitions(metastore, txn, table.name, write_id, list(found))
    else:
        found = {}
    for info in found.values():
        directory = Location.of(info.location)
        names = directory.names()
        _refuse_base(directory.path, names, write_id)
        remove_copies(metastore, table, directory.path, names)
    return found


def check_alive(metastore: Metastore, txn: Transaction) -> None:
    """Send a heartbeat right before files are placed. Raises TransactionAborted if the transaction has ended.

    While this process was frozen, HMS may have aborted and forgotten the transaction. Files that are placed under its
    write id after that would be visible to every reader.
    """
    if not leases.heartbeat_transaction(metastore, txn.id):
        raise TransactionAborted(
            "the metastore has ended the transaction: it timed out, or another daemon or an administrator aborted it",
            where=f"transaction {txn.id}",
            hint="no data is lost: its records are read again",
        )


def announce(metastore: Metastore, txn: Transaction, table: Table, write_id: int, placed: Iterable[DeltaFiles]) -> None:
    """Report the files to a metastore that has an event log; otherwise do nothing. The call may be repeated.

    The COMMIT_TXN event does not name files, so rows that are not announced would never reach a replica. Raises
    MetastoreUnavailable or InvalidTable.
    """
    if not keeps_event_log(metastore):
        return
    by_partition: dict[tuple[str, ...], dict[tuple[str, str], None]] = {}
    for one in placed:
        files = by_partition.setdefault(one.partition, {})
        files.update(dict.fromkeys((f"{one.location}/{one.delta}/{name}", one.delta) for name in one.files))
    partitions = [WrittenPartition(values, list(files)) for values, files in by_partition.items()]
    notify_writes(metastore, txn, table, write_id, partitions)


def refuse_overwritten(partitions: Mapping[str, PartitionInfo], write_id: int) -> None:
    """Raise TransactionAborted if an INSERT OVERWRITE or TRUNCATE of a partition has a later write id than `write_id`.

    Its `base_N` hides every delta up to N, even one that commits later (AcidUtils.getAcidState). The base of a
    compaction (`_v`) never includes an open write id. The result is final while the lock of `lock_against_overwrites`
    is held. Without that lock, `hiding_bases` must be called after the commit. Raises StorageUnavailable.
    """
    for info in partitions.values():
        directory = Location.of(info.location)
        _refuse_base(directory.path, directory.names(), write_id)


def hiding_bases(partitions: Mapping[str, PartitionInfo], write_id: int) -> dict[str, str]:
    """Return the path of each later `base_N` that hides rows of `write_id`, by partition name (or WHOLE_TABLE).

    Raises StorageUnavailable.
    """
    found = {}
    for name, info in partitions.items():
        directory = Location.of(info.location)
        base = _later_base(directory.names(), write_id)
        if base:
            found[name] = str(directory.path / base)
    return found


def _refuse_base(directory: Path, names: Iterable[str], write_id: int) -> None:
    base = _later_base(names, write_id)
    if base:
        raise TransactionAborted(
            "the table was overwritten or truncated after this transaction began, which would hide its rows",
            where=str(directory / base),
            hint="write the rows again in a new transaction, whose later write id makes them visible",
        )


def _later_base(names: Iterable[str], write_id: int) -> str | None:
    for name in names:
        found = parse_directory(name)
        if isinstance(found, Base) and not found.visibility_txn and found.write_id > write_id:
            return name
    return None
