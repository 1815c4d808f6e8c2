"""What a connection has done so far.

Invariant: a record that was taken is in `records_written` at once, whether its transaction commits or not, as in Java.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class ConnectionStats:
    """Counters of one connection at one moment (org.apache.hive.streaming.ConnectionStats).

    `records_size` is input bytes. `aborted_transactions` counts those that had begun and were aborted: by a call, by a
    failure, or by `close`. A commit whose outcome is unknown is neither committed nor aborted.
    """

    records_written: int = 0
    records_size: int = 0
    committed_transactions: int = 0
    aborted_transactions: int = 0
    auto_flushes: int = 0
    metastore_calls: int = 0
    created_partitions: int = 0
    total_partitions: int = 0


@dataclass(slots=True)
class Counters:
    """The same, as a connection counts."""

    records_written: int = 0
    records_size: int = 0
    committed_transactions: int = 0
    aborted_transactions: int = 0
    auto_flushes: int = 0
    created_partitions: int = 0
    total_partitions: int = 0

    def snapshot(self, metastore_calls: int) -> ConnectionStats:
        """The counters as they are now."""
        return ConnectionStats(**asdict(self), metastore_calls=metastore_calls)
