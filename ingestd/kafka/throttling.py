"""Distinguishes a broker that delays its answers, because of a client quota, from one that does not answer.

Invariant: the time for which a broker has announced that it delays the answers to a client never counts as silence.

A broker whose quota is exceeded answers a fetch at once, without records and with the time for which it will not read
from the connection (KIP-219). Requests for offsets and topics use other connections, to which `consumer_byte_rate` does
not apply, and `request_percentage` delays them by at most `quota.window.size.seconds`.
"""

from __future__ import annotations

from confluent_kafka import ThrottleEvent

from ingestd.clock import monotonic


class Throttling:
    """The delays that brokers have announced to one client. Pass `report` to the client as `throttle_cb`.

    Only the thread that polls the client may use it, because librdkafka calls `report` there.
    """

    def __init__(self) -> None:
        # When the last delay ends (monotonic seconds).
        self.until = float("-inf")

    def report(self, event: ThrottleEvent) -> None:
        """Note that a broker delays its next answer by `event.throttle_time` seconds."""
        self.until = max(self.until, monotonic() + event.throttle_time)


class Silence:
    """How long a client has waited without an answer: too long after `seconds`, not counting announced delays.

    `throttled_seconds` is the time that it has waited because of such delays.
    """

    def __init__(self, throttling: Throttling, seconds: float) -> None:
        self.seconds = seconds
        self.throttled_seconds = 0.0
        self._throttling = throttling
        self._since = self._polled_at = monotonic()

    def end(self) -> None:
        """Note that an answer has arrived, or that the client was not polled for a while."""
        self._since = self._polled_at = monotonic()

    def is_too_long(self) -> bool:
        """Note that a poll returned nothing, and return whether to give up."""
        now = monotonic()
        if now < self._throttling.until:
            self.throttled_seconds += now - self._polled_at
        self._polled_at = now
        return now >= max(self._since, self._throttling.until) + self.seconds
