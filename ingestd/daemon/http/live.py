"""The stream of changes (/events): what changed in any mapping, as server-sent events.

The first event of a stream, `state`, contains all mappings and policies. Each event `change` contains the fields of
mappings that changed, and all policies if one of them changed, at most once a second. If nothing changes, an empty
`change` follows every five seconds, so that a client notices a lost connection.

Invariant: memory is bounded. A stream has one pending change, into which later changes are merged until its client
reads it. The number of streams and their age are limited. All methods run in the thread of the server.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress

from ingestd.clock import Deadline, now
from ingestd.daemon.http.access import Refused
from ingestd.daemon.http.fleet import Fleet
from ingestd.daemon.http.history import History
from ingestd.daemon.http.policies import policy_entry
from ingestd.daemon.http.status import Json, daemon_status, mapping_summary

MAX_STREAMS = 32
# A stream ends after this time, and its client reconnects. A client that has disappeared holds a stream no longer.
STREAM_SECONDS = 900.0
_ALIVE_SECONDS = 5.0
# How long a browser waits before it reconnects.
_RETRY_MS = 2000


class _Stream:
    """What one client has not read yet."""

    def __init__(self) -> None:
        self.wake = asyncio.Event()
        self.changed: dict[str, Json] = {}
        self.removed: set[str] = set()
        self.policies: list[Json] | None = None

    def add(self, changed: dict[str, Json], removed: set[str], policies: list[Json] | None) -> None:
        for name, fields in changed.items():
            self.changed.setdefault(name, {}).update(fields)
        self.removed = (self.removed | removed) - changed.keys()
        for name in removed:
            self.changed.pop(name, None)
        self.policies = self.policies if policies is None else policies
        if self.changed or self.removed or policies is not None:
            self.wake.set()

    def take(self) -> Json:
        change = {"now_unix": round(now(), 3), "mappings": self.changed, "removed": sorted(self.removed)}
        if self.policies is not None:
            change["policies"] = self.policies
        self.changed, self.removed, self.policies = {}, set(), None
        self.wake.clear()
        return change


class Live:
    """Watches the mappings while a stream is open."""

    def __init__(self, fleet: Fleet, history: History) -> None:
        self._fleet = fleet
        self._history = history
        self._streams: set[_Stream] = set()
        self._known: dict[str, Json] = {}
        self._policies: list[Json] = []
        self._closed = False

    def publish(self) -> None:
        """Find what changed and pass it to all streams. Call this once a second."""
        if not self._streams:
            return
        current = self._summaries()
        changed = {name: _changed_fields(self._known.get(name, {}), new) for name, new in current.items()}
        changed = {name: fields for name, fields in changed.items() if fields}
        removed = self._known.keys() - current.keys()
        policies = self._all_policies()
        changed_policies = policies if policies != self._policies else None
        self._known, self._policies = current, policies
        for stream in self._streams:
            stream.add(changed, set(removed), changed_policies)

    @property
    def is_closed(self) -> bool:
        """Whether the server stops."""
        return self._closed

    def close(self) -> None:
        """End all streams."""
        self._closed = True
        for stream in self._streams:
            stream.wake.set()

    def open(self) -> AsyncIterator[str]:
        """Return the events of a new stream. Raises Refused if there are too many."""
        if len(self._streams) >= MAX_STREAMS:
            raise Refused(503, f"{MAX_STREAMS} clients already read this stream", hint="close other status pages")
        if not self._streams:
            self._known, self._policies = self._summaries(), self._all_policies()
        stream = _Stream()
        self._streams.add(stream)
        return self._events(stream)

    async def _events(self, stream: _Stream) -> AsyncIterator[str]:
        limit = Deadline.after(STREAM_SECONDS)
        try:
            state = {
                "now_unix": round(now(), 3),
                "daemon": daemon_status(self._fleet.scope),
                "mappings": self._known,
                "policies": self._policies,
            }
            yield f"retry: {_RETRY_MS}\n{_event('state', state)}"
            while not self._closed and not limit.passed:
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(stream.wake.wait(), _ALIVE_SECONDS)
                if not self._closed:
                    yield _event("change", stream.take())
        finally:
            self._streams.discard(stream)

    def _all_policies(self) -> list[Json]:
        return [policy_entry(policy) for policy in self._fleet.policies]

    def _summaries(self) -> dict[str, Json]:
        rate = self._history.records_per_second
        return {name: mapping_summary(monitor.snapshot(), rate(name)) for name, monitor in self._fleet.monitors.items()}


def _changed_fields(old: Json, new: Json) -> Json:
    return {field: value for field, value in new.items() if field not in old or old[field] != value}


def _event(kind: str, data: Json) -> str:
    return f"event: {kind}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n"
