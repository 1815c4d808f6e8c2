"""Staged files become deltas of an open transaction.

Invariant: every partition is registered with the transaction before a file appears under it (an aborted write id whose
partition was never registered becomes visible once HMS forgets it), and a delta appears whole, by one rename. HMS also
forgets a registered transaction once it has aborted and nothing of it was there to clean, so `place` is called right
after a heartbeat, and whoever does not commit takes back what was placed (`withdrawn_unless_committed`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from ingestd.errors import CommitOutcomeUnknown, IngestdError, StorageUnavailable, TransactionAborted
from ingestd.hive import leases, transactions
from ingestd.hive.client import Metastore
from ingestd.hive.partitions import PartitionInfo, ensure_partitions
from ingestd.hive.tables import Table
from ingestd.hive.transactions import Transaction
from ingestd.publish.staging import Staging, remove_copies
from ingestd.publish.statistics import WHOLE_TABLE
from ingestd.storage import local
from ingestd.storage.local import Location


@dataclass(frozen=True, slots=True)
class Placed:
    """Files of one delta directory: `partition` has the values of its partition, `location` is the URI of that."""

    partition: tuple[str, ...]
    location: str
    delta: str
    files: tuple[str, ...]


def register(
    metastore: Metastore,
    txn: Transaction,
    table: Table,
    write_id: int,
    location: Location,
    partitions: Iterable[tuple[str, ...]],
) -> dict[str, PartitionInfo]:
    """Make missing partitions and register all that are written; returns them by name (or WHOLE_TABLE).

    `location` is the table's directory as planned. Raises StorageUnavailable when that or a partition's directory is
    missing, TransactionAborted as `refuse_overtaken`.
    """
    location.check()  # before the metastore makes directories below it
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


def refuse_overtaken(partitions: Mapping[str, PartitionInfo], write_id: int) -> None:
    """Raise TransactionAborted where an INSERT OVERWRITE or TRUNCATE took a later write id than ours.

    Its `base_N` hides every delta up to N, ours too, although we commit after it (AcidUtils.getAcidState). Compaction's
    bases (`_v`) never pass an open write id. The answer is final while `lock_against_overwrites` holds; without it, it
    is asked again right before the commit, and after it by `overtaken`. Raises StorageUnavailable.
    """
    for info in partitions.values():
        directory = Location.of(info.location)
        _refuse_base(directory.path, directory.names(), write_id)


def overtaken(partitions: Mapping[str, PartitionInfo], write_id: int) -> dict[str, str]:
    """Partitions (or WHOLE_TABLE) in which a later `base_N` hides what `write_id` committed, each with that base."""
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
            "the table was overwritten or truncated since this transaction began; its rows would not be seen",
            where=str(directory / base),
            hint="the next transaction comes after it",
        )


def _later_base(names: Iterable[str], write_id: int) -> str | None:
    for name in names:
        found = parse_directory(name)
        if isinstance(found, Base) and not found.visibility_txn and found.write_id > write_id:
            return name
    return None


def check_alive(metastore: Metastore, txn: Transaction) -> None:
    """Send a heartbeat right before files are placed. Raises TransactionAborted when the transaction has ended.

    A process may have been frozen until HMS aborted the transaction and forgot it: files that appear under its write id
    after that are visible to everybody.
    """
    if not leases.heartbeat_transaction(metastore, txn.id):
        raise TransactionAborted(
            "the metastore has ended the transaction: it timed out, or another daemon or an administrator aborted it",
            where=f"transaction {txn.id}",
            hint="nothing is lost: its records are read again",
        )


def place(
    table: Table, write_id: int, files: Iterable[StagingFile], partitions: Mapping[str, PartitionInfo], staging: Staging
) -> list[Placed]:
    """Gather each delta in the staging directory, then rename it to its place; returns what lies where.

    Raises StorageUnavailable, or TransactionAborted when the staged files were removed; then nothing is left in place.
    """
    deltas: dict[tuple[str, int], list[StagingFile]] = {}
    for file in files:
        deltas.setdefault((table.partition_name(file.partition), file.statement), []).append(file)
    placed: list[Placed] = []
    try:
        staging.location.check()
        for number, ((name, statement), parts) in enumerate(deltas.items()):
            gathered = _gathered(parts, staging.path / f"delta-{number}")
            location = staging.location if name == WHOLE_TABLE else Location.of(partitions[name].location)
            delta = delta_name(write_id, statement)
            location.receive(gathered, delta, staging.copy_name(delta))
            names = (ORC_ACID_VERSION_FILE, *(bucket_name(file.bucket) for file in parts))
            placed.append(Placed(parts[0].partition, partitions[name].location, delta, names))
    except StorageUnavailable as error:
        withdraw(placed)
        raise staging.explain(error) from error
    return placed


def withdraw(placed: Iterable[Placed]) -> None:
    """Take back deltas of a transaction that can commit no more, as far as storage permits; never raises."""
    for one in placed:
        local.discard_tree(local.local_path(one.location) / one.delta)


@contextmanager
def withdrawn_unless_committed(placed: Iterable[Placed]) -> Iterator[None]:
    """From placing on, up to the commit: an error takes the deltas back, unless the commit may have happened.

    Only an IngestdError does: whatever else interrupts a commit leaves its outcome open.
    """
    try:
        yield
    except CommitOutcomeUnknown:
        raise
    except IngestdError:
        withdraw(placed)
        raise


def _gathered(parts: Sequence[StagingFile], directory: Path) -> Path:
    local.make_leaf(directory)
    for file in parts:
        local.move(Path(file.path), directory / bucket_name(file.bucket))
    local.write_bytes(directory / ORC_ACID_VERSION_FILE, ORC_ACID_VERSION)
    return directory
