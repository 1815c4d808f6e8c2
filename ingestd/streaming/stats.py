"""What a connection has done so far.

Invariant: a record that was taken is in `records_written` at once, whether its transaction commits or not, as in Java.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ConnectionStats:
    """Counters of one connection (org.apache.hive.streaming.ConnectionStats); `records_size` is input bytes."""

    records_written: int = 0
    records_size: int = 0
    committed_transactions: int = 0
    aborted_transactions: int = 0
    auto_flushes: int = 0
    metastore_calls: int = 0
    created_partitions: int = 0
    total_partitions: int = 0
