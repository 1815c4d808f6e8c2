"""The answers to probes: /livez (must this process be restarted?) and /readyz (does it do its work?).

- Live: no commit loop has been stuck for longer than its own limits. An outage of Kafka or of the metastore is no
  reason to restart.
- Ready: every running mapping owns its lease or is a standby, and the metastore, and for an owner also Kafka, has
  answered it within the last minute. A paused mapping is ready: an operator paused it on purpose. A mapping that has
  failed or was stopped is listed, but does not count: it will not become ready by itself, and the others must stay in
  service.
- A daemon that runs replication policies is ready if the metastore has answered it within the last minute. The results
  of the policies do not count. Replication that a defect has ended is listed like a mapping that has failed.

Invariant: a probe reads memory only, so it is answered immediately during any outage.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ingestd.clock import now
from ingestd.daemon.http.status import Json
from ingestd.errors import IngestdError
from ingestd.ingest.monitoring.monitor import Snapshot

_CONTACT_SECONDS = 60.0
_ENDED = ("failed", "stopped")


def liveness(stuck: Sequence[str]) -> tuple[int, Json]:
    """Return the HTTP status and the document of /livez."""
    return (503 if stuck else 200), {"live": not stuck, "stuck": sorted(stuck)}


def readiness(
    mappings: Iterable[Snapshot], policies_read_at: float | None, policies_error: IngestdError | None
) -> tuple[int, Json]:
    """Return the HTTP status and the document of /readyz. `policies_read_at` and `policies_error` are of `Fleet`."""
    mappings = list(mappings)
    waiting = {seen.name: reason for seen in mappings if (reason := _why_not(seen))}
    ended = {seen.name: _described(seen) for seen in mappings if seen.state in _ENDED}
    if policies_error is not None:
        ended["replication"] = f"failed: {policies_error}"
    elif policies_read_at is not None and _is_old(policies_read_at):
        waiting["replication"] = f"no answer of the metastore for {_CONTACT_SECONDS:.0f} s"
    has_replication = bool(policies_read_at) and policies_error is None
    ready = bool(mappings or has_replication) and not waiting
    return (200 if ready else 503), {"ready": ready, "not_ready": waiting, "ended": ended}


def _why_not(seen: Snapshot) -> str:
    """Return why a mapping is not ready; an empty text if it is, or if it does not count."""
    if seen.state in _ENDED:
        return ""
    if seen.state not in ("running", "standby", "paused"):
        return _described(seen)
    if _is_old(seen.metastore_at):
        return f"{seen.state}, but no answer of the metastore for {_CONTACT_SECONDS:.0f} s"
    # The loop polls Kafka again once the stages of its open transactions have ended.
    if seen.state == "running" and not seen.open_transactions and _is_old(seen.polled_at):
        return f"running, but no answer of Kafka for {_CONTACT_SECONDS:.0f} s"
    return ""


def _described(seen: Snapshot) -> str:
    if seen.problem is None:
        return seen.state
    place = f"{seen.problem.where}: " if seen.problem.where else ""
    return f"{seen.state}: {place}{seen.problem.what}"


def _is_old(at: float | None) -> bool:
    return at is None or now() - at > _CONTACT_SECONDS
