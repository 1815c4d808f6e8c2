"""The claims on the leases of a control database, and how long each of them has been silent.

Invariant: one request to the metastore serves all mappings of the daemon. A claim is silent while neither it nor the
lease of its daemon receives heartbeats. The silence is measured with the clock of this machine, and only while the
metastore answers, because no daemon can send heartbeats during an outage. It lasts from the answer that first contained
the latest heartbeats until the last request was sent; what happened later is unknown, even if the answer to this
request was delayed for long.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from ingestd.clock import monotonic
from ingestd.errors import MetastoreUnavailable
from ingestd.hive import leases
from ingestd.hive.client import Metastore
from ingestd.hive.leases import Claim
from ingestd.hive.tables import TableName


def daemon_lease(database: str, agent: str) -> TableName:
    """Return the name of the lease that the daemon of a claim keeps alive. `agent` is the agent of the claim."""
    return TableName(database, f"daemon_{agent.rpartition('-')[2]}")


def last_heartbeat(metastore: Metastore, claim: Claim) -> float:
    """Return the Unix time, by the metastore's clock, of the last heartbeat of a claim or of its daemon.

    An owner lease itself receives few heartbeats. Raises MetastoreUnavailable.
    """
    daemon = leases.claims(metastore, daemon_lease(claim.lease.database, claim.agent))
    return max(holder.beat[0] for holder in (claim, *daemon)) / 1000


@dataclass(frozen=True, slots=True)
class _Observation:
    """The latest heartbeats of a claim and of its daemon's lease, and the time when they were first seen."""

    beats: tuple[object, ...]
    since: float


class Claims:
    """Reads the claims of one control database. Safe for use from any thread.

    After a pause of more than `patience_seconds`, or a failed request, every silence starts again at 0.
    """

    def __init__(self, metastore: Metastore, database: str, patience_seconds: float) -> None:
        self._metastore = metastore
        self._database = database
        self._patience = patience_seconds
        self._guard = threading.Lock()
        self._seen: dict[int, _Observation] = {}
        self._claims: dict[TableName, list[Claim]] = {}
        self._read_at = float("-inf")
        # When the last request failed, and its error.
        self._failed: tuple[float, MetastoreUnavailable] | None = None

    def of(self, lease: TableName, *, seconds: float) -> list[Claim]:
        """Return the claims of a lease, first the one that is held, as they were at most `seconds` ago.

        Raises MetastoreUnavailable.
        """
        return self._read(seconds).get(lease, [])

    def all(self) -> list[Claim]:
        """Return all claims as they are now, those of daemons included. Raises MetastoreUnavailable."""
        return [claim for claims in self._read(0.0).values() for claim in claims]

    def silence(self, claim: Claim) -> float:
        """Return the seconds for which the claim and its daemon have certainly been silent; 0 for an unknown claim."""
        with self._guard:
            seen = self._seen.get(claim.lock_id)
            return max(0.0, self._read_at - seen.since) if seen else 0.0

    def beats(self, claim: Claim) -> tuple[object, ...]:
        """Return the latest heartbeats of the claim and of its daemon, which change while the daemon is alive."""
        with self._guard:
            seen = self._seen.get(claim.lock_id)
        return seen.beats if seen else ()

    def _read(self, seconds: float) -> dict[TableName, list[Claim]]:
        """Return the claims by lease. Threads that ask at the same time wait for one request, and share its error."""
        asked = monotonic()
        with self._guard:
            # A metastore that hangs must not delay each of many mappings by the time limits of all others.
            if self._failed is not None and self._failed[0] >= asked:
                raise self._failed[1]
            if self._read_at < asked - seconds:
                try:
                    self._refresh()
                except MetastoreUnavailable as error:
                    self._failed = monotonic(), error
                    raise
            return self._claims

    def _refresh(self) -> None:
        began, before = monotonic(), self._read_at
        self._read_at = float("-inf")  # stays if the request fails
        claims = leases.all_claims(self._metastore, self._database)
        answered = monotonic()
        was_blind = began - before > self._patience
        by_lease: dict[TableName, list[Claim]] = {}
        for claim in claims:
            by_lease.setdefault(claim.lease, []).append(claim)
        seen = {}
        for claim in claims:
            daemon = by_lease.get(daemon_lease(self._database, claim.agent), [])
            beats = (claim, *(holder.beat for holder in daemon))
            known = self._seen.get(claim.lock_id)
            is_same = known is not None and known.beats == beats and not was_blind
            seen[claim.lock_id] = known if known is not None and is_same else _Observation(beats, answered)
        self._seen, self._claims, self._read_at = seen, by_lease, began
