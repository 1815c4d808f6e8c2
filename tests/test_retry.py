"""How long retries wait, and how long the texts are that tell of it."""

from __future__ import annotations

import threading

from ingestd import retry
from ingestd.daemon.log import shortened
from ingestd.errors import IngestdError, MetastoreUnavailable, TableChanged


def test_backoff_when_the_error_is_of_another_class_then_begins_with_the_shortest_wait() -> None:
    failures: list[IngestdError] = [MetastoreUnavailable("away") for _ in range(6)]
    failures += [TableChanged("moved"), MetastoreUnavailable("away")]
    told: list[tuple[type[IngestdError], float]] = []

    def fail() -> None:
        if failures:
            raise failures.pop(0)

    backoff = retry.Backoff(first_seconds=0.001, cap_seconds=0.1)
    retry.call(
        fail,
        stop=threading.Event(),
        on_wait=lambda error, seconds: told.append((type(error), seconds)),
        backoff=backoff,
    )
    outage = [seconds for kind, seconds in told if kind is MetastoreUnavailable]
    assert outage[5] > 10 * outage[0]
    assert outage[6] > outage[4]
    assert next(seconds for kind, seconds in told if kind is TableChanged) < 0.0013
    backoff.reset()
    assert backoff.seconds(MetastoreUnavailable("away")) < 0.0013


def test_text_when_long_then_is_cut_and_says_how_long_it_was() -> None:
    assert shortened("short") == "short"
    assert shortened("x" * 24_000) == "x" * 2_000 + "… (24,000 characters)"
