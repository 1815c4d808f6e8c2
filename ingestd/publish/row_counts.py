"""Updates the row counts of one table with each commit of one writer.

Invariant: a row count is trusted only if the holder of the table's counting lease wrote it, because the metastore
cannot increment numRows atomically. A writer that does not acquire the lease marks the number as doubtful
(`row_count_parameters.py`), and it is recounted later (`row_count_repair.py`). A writer that may not alter the table
makes Hive ignore the number (`hive/statistics.py`), because rows may be committed without that permission.

The lease is held from the count to the end of the transaction. A writer that is killed between its count and its commit
holds the lease until the transaction times out. A commit therefore waits for the lease for at most 5 s.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from ingestd.acid.layout import Content
from ingestd.acid.visibility import content_of
from ingestd.clock import Deadline
from ingestd.hive.answers import MetastoreDenied
from ingestd.hive.parameters import Parameters, WriterView, change_parameters
from ingestd.hive.tables import Table, TableName
from ingestd.hive.transaction_leases import counting_lease
from ingestd.hive.transactions import Transaction, Wait
from ingestd.hive.write_ids import read_snapshot
from ingestd.publish.row_count_parameters import Increment, Mark, WriteIdRange, doubtful, incremented
from ingestd.publish.row_count_repair import Report, RowCountRepair
from ingestd.publish.warehouse import Warehouse


class RowCounts:
    """Maintains the row counts of `table` for `writer`, a name that no other writer of the table uses at the same time.

    Methods may be called from any thread.
    """

    def __init__(self, warehouse: Warehouse, table: TableName, writer: str, report: Report) -> None:
        self._metastore = warehouse.metastore
        self._storages = warehouse.storages
        self._writer = writer
        self._repair = RowCountRepair(warehouse, table, writer, report)

    @contextmanager
    def counted(
        self,
        table: Table,
        txn: Transaction,
        write_id: int,
        increments: Mapping[str, Increment],
        stop: threading.Event,
        batch: WriteIdRange | None = None,
    ) -> Iterator[None]:
        """Add the increments of a transaction, by partition name (or WHOLE_TABLE). The caller commits inside the block.

        `batch` is the range of write ids of its transaction batch, if the transactions of the batch share files. Waits
        for the lease for at most 5 s. Raises MetastoreUnavailable, or TransactionAborted if `stop` is set; the caller
        must then abort the transaction.
        """
        self._repair.begin(table, batch)
        names_in_doubt: frozenset[str] = frozenset()
        try:
            if increments:
                lease = counting_lease(table.name)
                wait = lease.wait(stop)
                with lease.taken(self._metastore, txn, wait) as has_lease:
                    try:
                        names_in_doubt = self._count(table, write_id, increments, wait, has_lease=has_lease)
                    except MetastoreDenied as error:
                        self._repair.denied(error)
                        self._repair.distrust(table, list(increments), write_id)
                    else:
                        self._repair.permitted()
                    yield
            else:
                yield
        except BaseException:
            # The rows may have been counted without being committed.
            self._repair.watch(increments, 0, increments)
            raise
        self._repair.watch(increments, write_id, names_in_doubt)

    def survey(self, seconds: float) -> None:
        """Schedule one check of all partitions that ingestd has counted, `seconds` from now."""
        self._repair.survey(seconds)

    def close(self, deadline: Deadline, stop: threading.Event) -> None:
        """Run checks that are due soon immediately, then stop. Waits until `deadline` or until `stop` is set."""
        self._repair.close(deadline, stop)

    def _count(
        self,
        table: Table,
        write_id: int,
        increments: Mapping[str, Increment],
        wait: Wait,
        *,
        has_lease: bool,
    ) -> frozenset[str]:
        """Add the increments, each with a mark, and return the names whose new number is in doubt."""
        snapshot = read_snapshot(self._metastore, table.name)
        in_doubt = set()

        def increment(parameters: Parameters, content: Content) -> dict[str, str]:
            mark = Mark(self._writer, write_id, increments[parameters.name])
            values, is_known = incremented(
                parameters.values, mark, content, snapshot, self._repair.known(parameters.name)
            )
            if has_lease and is_known:
                return values
            in_doubt.add(parameters.name)
            return doubtful(values)

        def change(stored: Sequence[Parameters]) -> list[dict[str, str]]:
            names = self._storages.names(parameters.location for parameters in stored)
            return [increment(parameters, content_of(names[parameters.location])) for parameters in stored]

        view = WriterView(write_id, snapshot)
        change_parameters(self._metastore, table, list(increments), change, view, wait)
        return frozenset(in_doubt)
