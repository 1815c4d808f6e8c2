"""Watches the topics and the ends of many mappings with a few requests to each Kafka cluster.

Invariant: one thread requests everything that is due soon, with one request for topics and one for ends, so the number
of requests depends on the shortest interval and not on the number of subscriptions. What is not answered within a few
seconds, because the leader of a partition hangs, is requested by a second thread, which has more patience: the other
subscriptions do not wait for it. Topics without news cause no wake-ups: `on_news` is called only when something has
changed, or when the request failed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from ingestd.clock import Deadline, monotonic
from ingestd.errors import BrokerUnavailable, IngestdError
from ingestd.kafka.admin import QUICK_SECONDS, Broker, Topic, checked
from ingestd.kafka.ranges import EpochOffset, TopicPartition

# How often topics are described.
_TOPICS_SECONDS = 10.0
# A subscription takes part in a request that others need if its own is due within this part of its interval, or within
# this time after `ask_in`.
_EARLY = 0.5
_TOGETHER_SECONDS = 0.02
# How long a reader waits, as a multiple of the time limit of a request: one request may be in progress already.
_PATIENCE = 3


@dataclass(frozen=True, slots=True)
class View:
    """The topics of a subscription, by name, and the last stable offset of each partition.

    `epochs` contains the epochs of the leaders that reported the ends, as far as they are known. All of this was
    requested at `at`, but the topics at `topics_at` (monotonic seconds).
    """

    topics: Mapping[str, Topic] = field(default_factory=dict)
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    epochs: Mapping[TopicPartition, int] = field(default_factory=dict)
    at: float = float("-inf")
    topics_at: float = float("-inf")


class Subscription:
    """The topics of one mapping, which are polled every `interval_seconds`. Create it with `Watch.subscribe`."""

    def __init__(
        self, watch: Watch, topics: Sequence[str], interval_seconds: float, on_news: Callable[[], None]
    ) -> None:
        self.topics = tuple(topics)
        self._interval = interval_seconds
        self._watch = watch
        self._on_news = on_news
        self._view = View()
        self._error: Exception | None = None
        self._asked_at = float("-inf")
        # The topics are described again if they were last described before this time.
        self._topics_since = float("-inf")
        self._wanted_since = float("-inf")
        # Whether the last request failed because a broker did not answer in time.
        self.is_slow = False
        self.due = Deadline.after(0.0)
        # How long before `due` the subscription takes part in a request that others need.
        self.early_seconds = 0.0

    @property
    def latest(self) -> View:
        """The latest view. It is older than the interval only if requests fail, or take longer."""
        return self._view

    @property
    def has_failed(self) -> bool:
        """Whether the last request failed."""
        return self._error is not None

    def ask_in(self, seconds: float) -> None:
        """Make the next request after `seconds` instead of the interval."""
        with self._watch.changed:
            self.due, self.early_seconds = Deadline.after(seconds), _TOGETHER_SECONDS
            self._watch.changed.notify_all()

    def ask_now(self, *, describing: bool) -> float:
        """Request a new view, and describe the topics again if `describing`. Return a time for `is_answered`."""
        now = monotonic()
        with self._watch.changed:
            self._wanted_since = now
            self._topics_since = now if describing else self._topics_since
            self.due = Deadline(now)
            self._watch.changed.notify_all()
        return now

    def is_answered(self, since: float) -> bool:
        """Return whether a request after the time `since` was answered, or has failed."""
        return self._asked_at >= since

    def checked(self) -> View:
        """Return the latest view. Raises the error of the last request, if it failed.

        Errors are BrokerUnavailable, InvalidTopic and LoginFailed.
        """
        with self._watch.changed:
            if self._error is not None:
                raise self._error
            return self._view

    def read(self) -> View:
        """Request a new view, wait for it and return it. Raises the errors of `checked`."""
        since = self.ask_now(describing=True)
        self._watch.wait_for(self, since)
        return self.checked()

    def close(self) -> None:
        """End the subscription. Calls of `read` that wait raise BrokerUnavailable."""
        self._watch.unsubscribe(self)

    def needs_topics(self, asked: float) -> bool:
        """Return whether the topics must be described, in a request at the time `asked`."""
        return self._view.topics_at < max(self._topics_since, asked - _TOPICS_SECONDS)

    def partitions(self, described: Mapping[str, Topic | IngestdError]) -> list[TopicPartition]:
        """Return the partitions of the topics, as far as they are known."""
        known = [described.get(name) or self._view.topics.get(name) for name in self.topics]
        return [partition for topic in known if isinstance(topic, Topic) for partition in topic.partitions]

    def answer(
        self,
        asked: float,
        described: Mapping[str, Topic | IngestdError],
        ends: Mapping[TopicPartition, EpochOffset | IngestdError],
    ) -> None:
        """Replace the view by the answer to a request at the time `asked`."""
        before = self._view
        error: Exception | None = None
        try:
            topics = {name: checked(described.get(name) or before.topics[name]) for name in self.topics}
            checked_ends = {p: checked(ends[p]) for topic in topics.values() for p in topic.partitions}
            described_at = asked if described.keys() >= set(self.topics) else before.topics_at
            offsets = {p: end.offset for p, end in checked_ends.items()}
            epochs = {p: end.epoch for p, end in checked_ends.items() if end.epoch is not None}
            self._view = View(topics, offsets, epochs, asked, described_at)
        except IngestdError as raised:
            error = raised
        after = self._view
        is_news = (after.topics, after.ends, after.epochs) != (before.topics, before.ends, before.epochs)
        self._finish(asked, error, is_news=is_news)

    def fail(self, asked: float, error: Exception) -> None:
        """Note that a request failed as a whole."""
        self._finish(asked, error, is_news=True)

    def _finish(self, asked: float, error: Exception | None, *, is_news: bool) -> None:
        was_slow, self.is_slow = self.is_slow, isinstance(error, BrokerUnavailable)
        if self.is_slow and not was_slow:
            return  # the other thread asks at once, and reports the result
        is_news |= error is not None or self._error is not None or self._asked_at < self._wanted_since <= asked
        self._asked_at, self._error = asked, error
        if asked >= self._wanted_since:  # otherwise another request must follow immediately
            self.due, self.early_seconds = Deadline(asked + self._interval), _EARLY * self._interval
        if is_news:
            self._on_news()


class Watch:
    """Polls one cluster on behalf of all subscriptions. Safe for use from any thread.

    Its threads run while there are subscriptions for them. `changed` protects the subscriptions. `broker` is the client
    that the watch uses, and that others may use, too.
    """

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.changed = threading.Condition()
        self._subscriptions: dict[Subscription, None] = {}
        # For each value of `Subscription.is_slow`, whether the thread that asks for these subscriptions runs.
        self._is_running = {False: False, True: False}

    def subscribe(
        self, topics: Sequence[str], interval_seconds: float, on_news: Callable[[], None] = lambda: None
    ) -> Subscription:
        """Watch topics. `on_news` is called in the thread of the watch and must not block."""
        made = Subscription(self, topics, interval_seconds, on_news)
        with self.changed:
            self._subscriptions[made] = None
            self._start()
            self.changed.notify_all()
        return made

    def unsubscribe(self, subscription: Subscription) -> None:
        """End a subscription."""
        with self.changed:
            self._subscriptions.pop(subscription, None)
            self.changed.notify_all()

    def wait_for(self, subscription: Subscription, since: float) -> None:
        """Wait until a request after the time `since` is answered. Raises BrokerUnavailable if the watch hangs."""
        limit = Deadline.after(self.broker.timeout_seconds * _PATIENCE)
        with self.changed:
            while not subscription.is_answered(since):
                if limit.passed or subscription not in self._subscriptions:
                    raise BrokerUnavailable("the broker did not answer in time", where=self.broker.where)
                self.changed.wait(limit.left)

    def _start(self) -> None:
        """Start the threads that subscriptions need; the caller holds `changed`."""
        for is_slow in {subscription.is_slow for subscription in self._subscriptions}:
            if not self._is_running[is_slow]:
                self._is_running[is_slow] = True
                threading.Thread(target=self._run, args=(is_slow,), name="kafka-watch", daemon=True).start()

    def _run(self, is_slow: bool) -> None:  # noqa: FBT001 - not called, but run in a thread
        limit = self.broker.timeout_seconds
        seconds = limit if is_slow else min(limit, QUICK_SECONDS)
        while due := self._next_due(is_slow=is_slow):
            asked = monotonic()
            try:
                described, failure = self._describe(due, asked, seconds)
                ends = self.broker.find_ends(
                    (p for subscription in due for p in subscription.partitions(described)), seconds
                )
            except Exception as error:  # noqa: BLE001 - each subscriber raises it in its own thread
                answers = [partial(subscription.fail, asked, error) for subscription in due]
            else:
                answers = [
                    partial(subscription.fail, asked, failure)
                    if failure and (is_slow or not subscription.latest.topics)
                    else partial(subscription.answer, asked, described, ends)
                    for subscription in due
                ]
            with self.changed:
                for answer in answers:
                    answer()
                self._start()
                self.changed.notify_all()

    def _describe(
        self, due: Sequence[Subscription], asked: float, seconds: float
    ) -> tuple[Mapping[str, Topic | IngestdError], BrokerUnavailable | None]:
        """Return the topics that must be described, or nothing and the error.

        A subscription that knows its topics does not need them at once. They are described with the next request.
        """
        names = {name for subscription in due if subscription.needs_topics(asked) for name in subscription.topics}
        try:
            return self.broker.describe(sorted(names), seconds), None
        except BrokerUnavailable as error:
            return {}, error

    def _next_due(self, *, is_slow: bool) -> list[Subscription]:
        """Wait until a subscription is due; return those that are due now or soon, or [] if none is left."""
        with self.changed:
            while ours := [subscription for subscription in self._subscriptions if subscription.is_slow is is_slow]:
                seconds = min(subscription.due.left for subscription in ours)
                if seconds <= 0:
                    return [
                        subscription for subscription in ours if subscription.due.left <= subscription.early_seconds
                    ]
                self.changed.wait(seconds)
            self._is_running[is_slow] = False
            return []
