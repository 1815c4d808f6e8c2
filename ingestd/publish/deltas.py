"""Files of an open transaction: partitions are registered, staged files are placed as deltas, and can be withdrawn.

Invariant: every partition is registered with the transaction before a file appears under it, and a delta appears
complete, by one rename. An aborted write id whose partition was never registered becomes visible once HMS forgets it.
HMS also forgets a registered transaction that has aborted and left nothing to clean; therefore files are placed right
after a heartbeat (`check_alive`), and a transaction that fails before its commit withdraws what it placed
(`protocol.py`).
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
    """Files of one delta directory: `partition` has the values of its partition, `location` the partition's URI."""

    partition: tuple[str, ...]
    location: str
    delta: str
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Placement:
    """The deltas that a transaction placed in one table, and what they add by partition name (or WHOLE_TABLE)."""

    deltas: Sequence[DeltaFiles]
    increments: Mapping[str, Increment]


@dataclass(frozen=True, slots=True)
class StagedFiles:
    """Closed files in a staging directory, each named after its partition, statement and bucket."""

    files: Sequence[StagingFile]
    staging: Staging

    @property
    def partitions(self) -> Collection[tuple[str, ...]]:
        """Values of the partitions that the files belong to; `((),)` in an unpartitioned table."""
        return {file.partition for file in self.files}

    def place(self, table: Table, write_id: int, partitions: Mapping[str, PartitionInfo]) -> Placement:
        """Gather each delta in the staging directory, then rename it into its partition.

        `partitions` has those of the files by name, registered. Raises StorageUnavailable, or TransactionAborted when
        the staged files were removed; then nothing is left in place.
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
        """Remove deltas of a transaction that can no longer commit, as far as storage permits; never raises."""
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
    """Create missing partitions and register all of them with the transaction; returns them by name (or WHOLE_TABLE).

    `partitions` has their values, `location` is the table's directory as planned. Raises StorageUnavailable when that
    or a partition's directory is missing, TransactionAborted as `refuse_overwritten`.
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
    """Send a heartbeat right before files are placed. Raises TransactionAborted when the transaction has ended.

    A process may have been frozen until HMS aborted the transaction and forgot it: files that appear under its write id
    after that are visible to every reader.
    """
    if not leases.heartbeat_transaction(metastore, txn.id):
        raise TransactionAborted(
            "the metastore has ended the transaction: it timed out, or another daemon or an administrator aborted it",
            where=f"transaction {txn.id}",
            hint="nothing is lost: its records are read again",
        )


def announce(metastore: Metastore, txn: Transaction, table: Table, write_id: int, placed: Iterable[DeltaFiles]) -> None:
    """Report the files to a metastore that keeps an event log; without a log nothing is sent. Repeating it is safe.

    The COMMIT_TXN event names no files, so rows that were not announced would never reach a replica. Raises
    MetastoreUnavailable, InvalidTable.
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
    """Raise TransactionAborted where an INSERT OVERWRITE or TRUNCATE took a later write id than `write_id`.

    Its `base_N` hides every delta up to N, even one that commits later (AcidUtils.getAcidState). Bases of
    compactions (`_v`) never pass an open write id. The result is final while `lock_against_overwrites` holds; without
    that lock, `hiding_bases` must be asked after the commit. Raises StorageUnavailable.
    """
    for info in partitions.values():
        directory = Location.of(info.location)
        _refuse_base(directory.path, directory.names(), write_id)


def hiding_bases(partitions: Mapping[str, PartitionInfo], write_id: int) -> dict[str, str]:
    """By partition name (or WHOLE_TABLE), the path of a later `base_N` that hides what `write_id` committed there.

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
            "the table was overwritten or truncated since this transaction began; its rows would be hidden",
            where=str(directory / base),
            hint="a new transaction gets a later write id, so its rows are visible",
        )


def _later_base(names: Iterable[str], write_id: int) -> str | None:
    for name in names:
        found = parse_directory(name)
        if isinstance(found, Base) and not found.visibility_txn and found.write_id > write_id:
            return name
    return None
