"""Keeps the row counts of one table right around each commit of one writer.

Invariant: numRows is written only by the holder of the table's counting lease, because it can only be read, added to
and written back. A writer that does not get the lease marks the number as doubtful (`row_count_parameters.py`), and it
is recounted later (`row_count_repair.py`).

The lease is held from the count to the end of the transaction. It delays a commit by at most 5 s: a writer that was
killed between its count and its commit holds the lease until the metastore times its transaction out, and meanwhile
the other writers wait for it only briefly.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from ingestd.acid.visibility import read_content
from ingestd.clock import Deadline
from ingestd.hive.client import Metastore
from ingestd.hive.parameters import Parameters, WriterView, change_parameters
from ingestd.hive.tables import Table, TableName
from ingestd.hive.transactions import Transaction, Wait
from ingestd.hive.write_ids import read_snapshot
from ingestd.publish.row_count_parameters import Increment, Mark, WriteIdRange, doubtful, incremented
from ingestd.publish.row_count_repair import CHECKS, Report, RowCountRepair, counting_lease
from ingestd.storage.local import local_path


class RowCounts:
    """The row counts of `table` for `writer`, a name that no other writer of the table has at the same time.

    `checks` are the seconds after the last commit at which its partitions are checked. Its methods may be called from
    any thread.
    """

    def __init__(
        self, metastore: Metastore, table: TableName, writer: str, report: Report, checks: Sequence[float] = CHECKS
    ) -> None:
        self._metastore = metastore
        self._writer = writer
        self._repair = RowCountRepair(metastore, table, writer, report, checks)

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
        """Count what a transaction adds, by partition name (or WHOLE_TABLE), for a block that commits it.

        `batch` is the range of write ids of its transaction batch, when that shares its files. The wait for the lease
        is at most 5 s. Raises TransactionAborted when `stop` is set, MetastoreUnavailable: then the caller must abort.
        """
        self._repair.begin(table, batch)
        names_in_doubt: frozenset[str] = frozenset()
        try:
            if increments:
                lease = counting_lease(table)
                wait = lease.wait(stop)
                with lease.taken(self._metastore, txn, wait) as has_lease:
                    names_in_doubt = self._count(table, write_id, increments, wait, has_lease=has_lease)
                    yield
            else:
                yield
        except BaseException:
            # It may have been counted without being committed.
            self._repair.watch(increments, 0, increments)
            raise
        self._repair.watch(increments, write_id, names_in_doubt)

    def survey(self, seconds: float) -> None:
        """Check once all partitions that ingestd has counted, beginning `seconds` from now."""
        self._repair.survey(seconds)

    def close(self, deadline: Deadline, stop: threading.Event) -> None:
        """Check immediately what is due soon, then end; waits until `deadline` or until `stop` is set."""
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
        """Add the increments, each under a mark; returns the names whose new number is in doubt."""
        snapshot = read_snapshot(self._metastore, table.name)
        in_doubt = set()

        def change(found: Parameters) -> dict[str, str]:
            content = read_content(local_path(found.location))
            mark = Mark(self._writer, write_id, increments[found.name])
            values, is_known = incremented(found.values, mark, content, snapshot, self._repair.known(found.name))
            if has_lease and is_known:
                return values
            in_doubt.add(found.name)
            return doubtful(values)

        view = WriterView(write_id, snapshot)
        change_parameters(self._metastore, table, list(increments), change, view, wait)
        return frozenset(in_doubt)
