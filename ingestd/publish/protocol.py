"""Publishes the files of one transaction in any number of tables, and commits it. These are the steps:

    register   the partitions, before a file appears under them
    place      the files, so that each delta appears complete
    announce   the files to a metastore that has an event log
    count      the rows in numRows, from which Hive answers `count(*)`
    commit     the transaction; rows and key-value become visible at once

Invariant: if a step fails, every file that was placed is withdrawn. Only after CommitOutcomeUnknown do the files stay,
because their rows may be visible. The caller must hold the locks before the first step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Literal, Protocol

from ingestd.errors import CommitOutcomeUnknown, IngestdError, StorageUnavailable
from ingestd.hive.partitions import PartitionInfo
from ingestd.hive.tables import Table, TableName
from ingestd.hive.transactions import Transaction
from ingestd.publish import deltas, outcome
from ingestd.publish.deltas import DeltaFiles, Placement
from ingestd.publish.outcome import CommitRequest
from ingestd.publish.row_count_parameters import WriteIdRange
from ingestd.publish.row_counts import RowCounts
from ingestd.publish.warehouse import Warehouse
from ingestd.storage.contract import Listing, Location

Step = Literal["registered", "placed", "announced", "counted", "committed"]
Observer = Callable[[Step], None]


class Files(Protocol):
    """The files that a transaction adds to one table: `StagedFiles`, or shared files of a transaction batch."""

    @property
    def partitions(self) -> Collection[tuple[str, ...]]:
        """The values of each partition that is written; empty if there are no rows."""
        ...

    def place(
        self,
        table: Table,
        write_id: int,
        partitions: Mapping[str, PartitionInfo],
        listings: Mapping[str, Listing],
    ) -> Placement:
        """Place the files in `partitions`, their registered partitions by name; the commit makes the rows visible.

        `listings` contains the directories that were listed when the partitions were registered, by URI.
        Raises StorageUnavailable, InvalidTable or TransactionAborted.
        """
        ...

    def withdraw(self, deltas: Iterable[DeltaFiles]) -> None:
        """Remove `deltas`, which `place` returned, of a transaction that will not commit; never raises."""
        ...

    def discard(self) -> None:
        """Remove the remaining staging files after the commit; never raises."""
        ...


@dataclass(frozen=True, slots=True)
class TableWrite:
    """The files that one transaction adds to one table, and how to publish them.

    `location` is the table's directory when the transaction was planned, and `counts` maintains the table's row counts.
    `excludes_overwrites` is True if the lock of the transaction excludes TRUNCATE
    (`transactions.lock_against_overwrites`). `partitions` contains the partitions that were registered earlier in the
    transaction, by name. `batch` is the range of write ids of a transaction batch whose transactions share their files.
    `on_placed` is called with the placed deltas, which a caller may need even if the outcome of the commit is unknown.
    """

    table: Table
    write_id: int
    location: Location
    files: Files
    counts: RowCounts
    excludes_overwrites: bool = False
    partitions: Mapping[str, PartitionInfo] = field(default_factory=dict)
    batch: WriteIdRange | None = None
    on_placed: Callable[[Sequence[DeltaFiles]], None] = lambda _deltas: None


@dataclass(frozen=True, slots=True)
class Publication:
    """What a committed transaction published in one table.

    `hidden` maps the name of each partition (or WHOLE_TABLE) whose new rows are hidden to the base directory of the
    concurrent TRUNCATE that hides them. `unchecked` is the error that prevented the search for such directories.
    """

    deltas: Sequence[DeltaFiles]
    hidden: Mapping[str, str]
    unchecked: StorageUnavailable | None = None


def publish(
    warehouse: Warehouse,
    txn: Transaction,
    writes: Iterable[TableWrite],
    request: CommitRequest,
    observe: Observer = lambda _step: None,
) -> dict[TableName, Publication]:
    """Publish and commit; on return the rows of all tables are visible. `observe` is called after each step.

    Raises TransactionAborted, InvalidTable, or Unavailable. In these cases no delta is left in place, and no row will
    become visible once the caller has aborted the transaction. Raises CommitOutcomeUnknown if it cannot be established
    whether the transaction has committed.
    """
    # Sorted, so that all transactions wait for the counting leases of their tables in the same order.
    tables = [
        _TablePublisher(warehouse, txn, write) for write in sorted(writes, key=lambda write: str(write.table.name))
    ]
    try:
        for table in tables:
            table.register()
        observe("registered")
        if any(table.has_rows for table in tables):
            deltas.check_alive(warehouse.metastore, txn)
        for table in tables:
            table.place()
        observe("placed")
        for table in tables:
            table.announce()
        observe("announced")
        with ExitStack() as counted:
            for table in tables:
                counted.enter_context(table.counted(request.stop))
            observe("counted")
            for table in tables:
                table.refuse_overwritten()
            outcome.commit(warehouse.metastore, txn, request)
    except CommitOutcomeUnknown:
        raise
    except IngestdError:  # any other exception interrupts the commit and leaves its outcome open
        for table in tables:
            table.withdraw()
        raise
    observe("committed")
    return {table.name: table.finish() for table in tables}


class _TablePublisher:
    """Performs the steps of one `TableWrite`, which `publish` calls in order."""

    def __init__(self, warehouse: Warehouse, txn: Transaction, write: TableWrite) -> None:
        self._warehouse = warehouse
        self._txn = txn
        self._write = write
        self._partitions = dict(write.partitions)
        self._listings: dict[str, Listing] = {}
        self._placement = Placement((), {})

    @property
    def name(self) -> TableName:
        return self._write.table.name

    @property
    def has_rows(self) -> bool:
        return bool(self._write.files.partitions)

    def register(self) -> None:
        """Create and register the partitions that were not registered earlier in the transaction."""
        write, table = self._write, self._write.table
        missing = [
            partition for partition in write.files.partitions if table.partition_name(partition) not in self._partitions
        ]
        if missing:
            write.location.check()  # before the metastore creates directories under it
            created = deltas.create_partitions(self._warehouse.metastore, table, write.location, missing)
            self._listings = deltas.register(self._warehouse, self._txn, table, write.write_id, created)
            self._partitions |= created

    def place(self) -> None:
        write = self._write
        self._placement = write.files.place(write.table, write.write_id, self._partitions, self._listings)
        write.on_placed(self._placement.deltas)

    def announce(self) -> None:
        """Report the files to programs that replicate the table, because the event of the commit does not name them."""
        write = self._write
        deltas.announce(self._warehouse.metastore, self._txn, write.table, write.write_id, self._placement.deltas)

    def counted(self, stop: threading.Event) -> AbstractContextManager[None]:
        """Return a context manager that adds the rows to numRows. The caller commits inside its block."""
        write = self._write
        increments = {name: more for name, more in self._placement.increments.items() if more.rows}
        return write.counts.counted(write.table, self._txn, write.write_id, increments, stop, write.batch)

    def refuse_overwritten(self) -> None:
        """Check again for a TRUNCATE, unless the lock has excluded it since before the partitions were registered."""
        if self._write.partitions or not self._write.excludes_overwrites:
            deltas.refuse_overwritten(self._warehouse.storages, self._partitions, self._write.write_id)

    def withdraw(self) -> None:
        self._write.files.withdraw(self._placement.deltas)

    def finish(self) -> Publication:
        """Check after the commit whether a TRUNCATE hides its rows, and remove the remaining staging files."""
        hidden: Mapping[str, str] = {}
        unchecked = None
        if not self._write.excludes_overwrites:
            try:
                hidden = deltas.hiding_bases(self._warehouse.storages, self._partitions, self._write.write_id)
            except StorageUnavailable as error:
                unchecked = error
        self._write.files.discard()
        return Publication(self._placement.deltas, hidden, unchecked)
