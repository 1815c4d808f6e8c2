"""Counts what a connection has done so far, in `ConnectionStats`.

Invariant: as in Java, an accepted record is counted in `records_written` at once, whether or not its transaction
commits.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class ConnectionStats:
    """Counters of one connection (org.apache.hive.streaming.ConnectionStats).

    `records_size` is the number of input bytes. `aborted_transactions` counts open transactions that were aborted by a
    call, by a failure or by `close`. A commit whose outcome is unknown counts as neither committed nor aborted.
    """

    records_written: int
    records_size: int
    committed_transactions: int
    aborted_transactions: int
    auto_flushes: int
    created_partitions: int
    total_partitions: int
    metastore_calls: int


@dataclass(slots=True)
class Counters:
    """The counters of `ConnectionStats` that the connection itself increments."""

    records_written: int = 0
    records_size: int = 0
    committed_transactions: int = 0
    aborted_transactions: int = 0
    auto_flushes: int = 0
    created_partitions: int = 0
    total_partitions: int = 0

    def snapshot(self, metastore_calls: int) -> ConnectionStats:
        """Return the counters as they are now."""
        return ConnectionStats(**asdict(self), metastore_calls=metastore_calls)
