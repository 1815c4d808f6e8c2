"""Registers the partitions of an open transaction, publishes staged files as deltas, and withdraws deltas.

Invariant: every partition is registered with the transaction before a file appears under it. The rows of an aborted
write id whose partition was never registered would become visible once HMS forgets the write id. HMS also forgets an
aborted transaction that was registered but left nothing to clean up. Therefore files are published right after a
heartbeat (`check_alive`), and a transaction that fails before its commit withdraws its deltas (`protocol.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from ingestd.acid.layout import (
    ORC_ACID_VERSION,
    ORC_ACID_VERSION_FILE,
    Base,
    FileLayout,
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
from ingestd.publish.warehouse import Warehouse
from ingestd.storage.contract import Listing, Location, StagedDelta, child
from ingestd.storage.parallel import run_all
from ingestd.storage.storages import Storages

_DIRECTORY_THREADS = 32


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

    def place(
        self,
        table: Table,
        write_id: int,
        partitions: Mapping[str, PartitionInfo],
        listings: Mapping[str, Listing] = MappingProxyType({}),
    ) -> Placement:
        """Publish the files as deltas in their partitions.

        `partitions` contains the registered partitions of the files by name, and `listings` the directories that
        `register` has listed. Raises StorageUnavailable, or TransactionAborted if the staged files were removed. In
        both cases no delta is left in place.
        """
        deltas: dict[tuple[str, int], list[StagingFile]] = {}
        for file in self.files:
            deltas.setdefault((table.partition_name(file.partition), file.statement), []).append(file)
        placed: list[DeltaFiles] = []
        staged: list[StagedDelta] = []
        try:
            locations = self._locations([partitions[name] for name, _ in deltas], listings)
            for number, ((name, statement), parts) in enumerate(deltas.items()):
                uri = partitions[name].location
                siblings = listings[uri].names if uri in listings else None
                layout = table.encoding.layout
                delta = self._staged(locations[name], siblings, delta_name(write_id, statement), parts, number, layout)
                names = (*delta.contents, *delta.files)
                staged.append(delta)
                placed.append(DeltaFiles(parts[0].partition, uri, delta.name, names))
            self.staging.publish(staged)
        except StorageUnavailable as error:
            raise self.staging.explain(error) from error
        return Placement(placed, self._increments(table))

    def _locations(self, partitions: Iterable[PartitionInfo], listings: Mapping[str, Listing]) -> dict[str, Location]:
        """Return the location of each partition by name; those that are not in `listings` are looked up."""
        uris = {partition.name: partition.location for partition in partitions}
        if WHOLE_TABLE in uris:
            return {WHOLE_TABLE: self.staging.location}
        locations = self.staging.storages.locations(uri for uri in uris.values() if uri not in listings)
        locations |= {uri: listing.location for uri, listing in listings.items()}
        return {name: locations[uri] for name, uri in uris.items()}

    def _staged(
        self,
        location: Location,
        siblings: Collection[str] | None,
        name: str,
        parts: Sequence[StagingFile],
        number: int,
        layout: FileLayout,
    ) -> StagedDelta:
        has_version = layout is FileLayout.EVENTS and self.staging.storages.at(location.uri).capabilities.cheap_files
        return StagedDelta(
            location,
            name,
            {bucket_name(file.bucket, layout): file.uri for file in parts},
            {ORC_ACID_VERSION_FILE: ORC_ACID_VERSION} if has_version else {},
            self.staging.scratch(number),
            self.staging.copy_name(name),
            siblings,
            partial(self.staging.note_copy, location.uri, name),
        )

    def withdraw(self, deltas: Iterable[DeltaFiles]) -> None:
        """Remove deltas of a transaction that can no longer commit, as far as possible; never raises."""
        self.staging.storages.discard(child(delta.location, delta.delta) for delta in deltas)

    def discard(self) -> None:
        """Remove the staging directory; never raises."""
        self.staging.discard()

    def _increments(self, table: Table) -> dict[str, Increment]:
        increments: dict[str, Increment] = {}
        for file in self.files:
            name = table.partition_name(file.partition)
            increments[name] = increments.get(name, Increment()) + Increment(file.rows, 1, file.bytes)
        return increments


def create_partitions(
    metastore: Metastore, table: Table, location: Location, partitions: Iterable[Sequence[str]]
) -> dict[str, PartitionInfo]:
    """Create missing partitions in the table's directory `location`, and return all by name; see `ensure_partitions`.

    `partitions` contains the values of each partition. A table without partition columns has only WHOLE_TABLE, which
    exists. Raises StorageUnavailable if a directory cannot be created.
    """
    if not table.partition_columns:
        return {WHOLE_TABLE: PartitionInfo(WHOLE_TABLE, table.location, existed=True)}

    def make_directories(names: Sequence[str]) -> None:
        run_all([partial(location.mark_directory, *name.split("/")) for name in names], _DIRECTORY_THREADS)

    return ensure_partitions(
        metastore, table, {table.partition_name(partition): partition for partition in partitions}, make_directories
    )


def register(
    warehouse: Warehouse, txn: Transaction, table: Table, write_id: int, partitions: Mapping[str, PartitionInfo]
) -> dict[str, Listing]:
    """Register the result of `create_partitions` with the transaction, and list its directories by URI.

    Raises StorageUnavailable if a directory is missing, and TransactionAborted for the same reasons as
    `refuse_overwritten`.
    """
    if table.partition_columns:
        transactions.register_partitions(warehouse.metastore, txn, table.name, write_id, list(partitions))
    listings = warehouse.storages.listings(info.location for info in partitions.values())
    for uri, listing in listings.items():
        _refuse_base(uri, listing.names, write_id)
        remove_copies(warehouse, table, uri, listing.names)
    return listings


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
    for delta in placed:
        files = by_partition.setdefault(delta.partition, {})
        files.update(dict.fromkeys((f"{delta.location}/{delta.delta}/{name}", delta.delta) for name in delta.files))
    partitions = [WrittenPartition(values, list(files)) for values, files in by_partition.items()]
    notify_writes(metastore, txn, table, write_id, partitions)


def refuse_overwritten(storages: Storages, partitions: Mapping[str, PartitionInfo], write_id: int) -> None:
    """Raise TransactionAborted if an INSERT OVERWRITE or TRUNCATE of a partition has a later write id than `write_id`.

    Its `base_N` hides every delta up to N, even one that commits later (AcidUtils.getAcidState). The base of a
    compaction (`_v`) never includes an open write id. The result is final while the lock of `lock_against_overwrites`
    is held. Without that lock, `hiding_bases` must be called after the commit. Raises StorageUnavailable.
    """
    for uri, names in storages.names(info.location for info in partitions.values()).items():
        _refuse_base(uri, names, write_id)


def hiding_bases(storages: Storages, partitions: Mapping[str, PartitionInfo], write_id: int) -> dict[str, str]:
    """Return the path of each later `base_N` that hides rows of `write_id`, by partition name (or WHOLE_TABLE).

    Raises StorageUnavailable.
    """
    bases = {}
    names = storages.names(info.location for info in partitions.values())
    for name, info in partitions.items():
        base = _later_base(names[info.location], write_id)
        if base:
            bases[name] = child(info.location, base)
    return bases


def _refuse_base(location: str, names: Iterable[str], write_id: int) -> None:
    base = _later_base(names, write_id)
    if base:
        raise TransactionAborted(
            "the table was overwritten or truncated after this transaction began, which would hide its rows",
            where=child(location, base),
            hint="write the rows again in a new transaction, whose later write id makes them visible",
        )


def _later_base(names: Iterable[str], write_id: int) -> str | None:
    for name in names:
        directory = parse_directory(name)
        if isinstance(directory, Base) and not directory.visibility_txn and directory.write_id > write_id:
            return name
    return None
