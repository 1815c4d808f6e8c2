"""What the metastore says about itself: version, settings, clock, and transactions that have not committed.

Invariant: nothing that this module creates in the metastore remains after the call.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass

from hive_metastore import ttypes

from ingestd.clock import monotonic, now
from ingestd.errors import MetastoreUnavailable
from ingestd.hive import leases
from ingestd.hive.answers import MetastoreRefusal
from ingestd.hive.client import Metastore
from ingestd.hive.tables import TableName
from ingestd.hive.transactions import describe_transactions

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "": 1.0}
_NOT_SET = "ingestd-not-set"
TRANSACTION_TIMEOUT = "hive.txn.timeout"
_DEFAULT_TIMEOUT_SECONDS = 300.0


def setting(metastore: Metastore, name: str) -> str | None:
    """Return the value of a `hive.` or `metastore.` property, including the metastore's default; None if not set.

    Properties that only HiveServer2 has are not set. The metastore refuses to show properties with other prefixes.
    """
    value = str(metastore.call("get_config_value", name, _NOT_SET) or "").strip()
    return None if value in ("", _NOT_SET) else value


def seconds(value: str) -> float | None:
    """Return the seconds of a duration in Hive's notation, such as `300s`, `5m` or `12h`; None for other text."""
    match = re.fullmatch(r"(\d+)\s*(ms|s|m|min|h|d)?(?:ec|in|our|ay)?s?", value.strip().lower())
    return float(match[1]) * _UNITS[match[2] or ""] if match else None


def transaction_timeout(metastore: Metastore) -> float:
    """Return the seconds without a heartbeat after which the metastore ends a transaction or a lease."""
    return seconds(setting(metastore, TRANSACTION_TIMEOUT) or "") or _DEFAULT_TIMEOUT_SECONDS


@dataclass(frozen=True, slots=True)
class ClockReading:
    """The clock of the metastore's database minus that of this machine, in seconds, and the error of the reading."""

    skew: float
    uncertainty: float

    @property
    def database_time(self) -> float:
        """The current Unix time of the database in seconds."""
        return now() + self.skew


def read_clock(metastore: Metastore) -> ClockReading:
    """Compare the clocks by means of a lock on an unused name, whose time the database sets.

    Raises MetastoreUnavailable if the lock is not granted.
    """
    name = TableName("ingestd", f"clock_{uuid.uuid4().hex[:8]}")
    before, began = now(), monotonic()
    lock_id = leases.try_acquire(metastore, name, "ingestd/clock")
    took = monotonic() - began
    if lock_id is None:
        raise MetastoreUnavailable("the metastore did not grant a lock on an unused name", where=f"lease {name}")
    try:
        beats = [claim.beat[0] for claim in leases.claims(metastore, name) if claim.lock_id == lock_id]
    finally:
        leases.release(metastore, lock_id)
    if not beats or not beats[0]:
        raise MetastoreUnavailable("the metastore does not report the time of a lock", where=f"lease {name}")
    return ClockReading(beats[0] / 1000 - (before + took / 2), took / 2)


@dataclass(frozen=True, slots=True)
class Uncommitted:
    """A transaction that is open, or that has aborted and is still remembered.

    `started` and `beat`, the time of its last heartbeat, are Unix times in seconds by the clock of the metastore's
    database, or 0 if they are not known.
    """

    id: int
    is_open: bool
    owner: str
    started: float
    beat: float


def uncommitted(metastore: Metastore) -> list[Uncommitted]:
    """Return all open and aborted transactions, in the order of their ids."""
    transactions = [
        Uncommitted(
            id=txn.id,
            is_open=txn.state == ttypes.TxnState.OPEN,
            owner=f"{txn.user or '?'} at {txn.hostname or '?'}",
            started=(txn.startedTime or 0) / 1000,
            beat=(txn.lastHeartbeatTime or 0) / 1000,
        )
        for txn in describe_transactions(metastore)
    ]
    return sorted(transactions, key=lambda txn: txn.id)


def version(metastore: Metastore) -> str:
    """Return the version of Hive that the metastore reports, such as 4.0.1. Hive 3 reports 3.0 or 3.1.x."""
    try:
        return str(metastore.call("getVersion"))
    except MetastoreRefusal as error:
        raise MetastoreUnavailable(error.what, where=error.where, hint=error.hint) from error
