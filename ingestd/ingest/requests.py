"""Carries out what operators request of one mapping, between two of its transactions.

Invariant: the future of a request has a result only after the change is committed. A change is one transaction that
stores another position or the flag `paused` under the lease, so it survives restarts and takeovers. After a retriable
error, the request is carried out again once the mapping has recovered, except a new position that may be committed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection

from ingestd.errors import CommitOutcomeUnknown, IngestdError
from ingestd.ingest.control import Control, PositionChange, Request, RequestFailed
from ingestd.ingest.ledger import Change, Ledger
from ingestd.ingest.table.columns import columns_of, describe, find_losses
from ingestd.kafka.admin import Broker
from ingestd.kafka.ranges import Offsets, Position, TopicIdentity, TopicPartition

# The maximum number of partitions that the text of a change lists.
_MAX_NAMES = 16


def carry_out(ledger: Ledger, broker: Broker, request: Request) -> None:
    """Pause the mapping, resume it, or set its position. Does nothing if that is already the stored state.

    A mapping that is resumed accepts the current columns of its table, even if they no longer fit those of the last
    commit. Raises RequestFailed, and the errors of a commit and of Kafka.
    """
    state = ledger.state
    position, paused, columns, text = state.position, state.paused, state.columns, str(request.action)
    if request.action == "set_position" and request.change is not None:
        position = changed_position(state.position, broker, ledger.topics, request.change)
        text = f"set_position {_listed(state.position.offsets, request.change.offsets)}"
    elif request.action in ("pause", "resume"):
        paused = request.action == "pause"
        if not paused and (losses := find_losses(columns, current := columns_of(ledger.read_table()))):
            columns, text = current, f"resume with changed columns: {describe(losses)}"
    else:
        raise RequestFailed(f"only the main loop of a mapping can carry out the request {request.action}")
    if (position, paused, columns) != (state.position, state.paused, state.columns):
        ledger.change(Change(position, paused, columns, text, request.by))


def changed_position(stored: Position, broker: Broker, read: Collection[str], change: PositionChange) -> Position:
    """Return the position after a change, with the current ids of its topics. `read` contains the mapping's topics.

    Raises RequestFailed if the mapping does not read a topic, if the committed offsets are not those that the author of
    the change expects, or if Kafka does not have the new offsets; BrokerUnavailable or InvalidTopic.
    """
    if others := {p.topic for p in change.offsets}.difference(read):
        raise RequestFailed(f"the mapping does not read the topics {', '.join(sorted(others))}")
    topics = broker.topics(sorted({p.topic for p in change.offsets}))
    recreated = {n for n, topic in topics.items() if topic.identity.differs(stored.topics.get(n, TopicIdentity()))}
    seen = {p: stored.offsets[p] for p in change.offsets if p in stored.offsets}
    if seen == change.offsets and not recreated:  # an earlier attempt has committed it, and its answer was lost
        return stored
    if seen != {p: offset for p, offset in change.expected.items() if p in change.offsets}:
        raise RequestFailed(
            f"the committed offsets are {_named(seen)}, but the request expects {_named(change.expected)}",
            hint="look at the current offsets, and repeat the request if it is still wanted",
        )
    partitions = {p for topic in topics.values() for p in topic.partitions}
    if unknown := set(change.offsets) - partitions:
        raise RequestFailed(f"Kafka does not have the partitions {', '.join(map(str, sorted(unknown)))}")
    first, ends = broker.earliest(change.offsets), broker.ends(change.offsets)
    for partition, offset in change.offsets.items():
        if not first[partition] <= offset <= ends[partition]:
            raise RequestFailed(
                f"Kafka does not have the offset {offset}: it has {first[partition]}..{ends[partition]}",
                where=str(partition),
            )
    for name in recreated:
        if not set(topics[name].partitions) <= set(change.offsets):
            raise RequestFailed(
                "the topic was recreated, so the committed offsets of its other partitions belong to the old topic",
                where=f"topic {name}",
                hint="set the offsets of all partitions of the topic in one request",
            )
    # The old topic may have had more partitions. Their offsets must not remain, because the new topic can grow.
    kept = {p: offset for p, offset in stored.offsets.items() if p.topic not in recreated}
    identities = {
        name: topic.identity if name in recreated else stored.topics.get(name, TopicIdentity()).merged(topic.identity)
        for name, topic in topics.items()
    }
    epochs = {p: epoch for p, epoch in stored.epochs.items() if p in kept and p not in change.offsets}
    return Position({**kept, **change.offsets}, {**stored.topics, **identities}, epochs)


def _unknown(error: CommitOutcomeUnknown) -> RequestFailed:
    hint = "see the last change in `ingestd offsets show`, and repeat the request if it is still wanted"
    return RequestFailed(f"the request may have been carried out: {error.what}", where=error.where, hint=hint)


def _named(offsets: Offsets) -> str:
    names = [f"{partition} {offset}" for partition, offset in sorted(offsets.items())[:_MAX_NAMES]]
    return ", ".join(names) + (", …" if len(offsets) > _MAX_NAMES else "") or "none"


def _listed(before: Offsets, after: Offsets) -> str:
    """Return `topic[partition] OLD -> NEW` for each partition that changes."""
    names = [
        f"{p} {before.get(p, 'none')} -> {offset}" for p, offset in sorted(after.items()) if before.get(p) != offset
    ]
    return ", ".join(names[:_MAX_NAMES]) + (f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else "")


class Requests:
    """The requests that the main loop of a mapping has taken from its `Control` and not yet finished."""

    def __init__(self, control: Control, broker: Broker) -> None:
        self._control = control
        self._broker = broker
        self._taken: deque[Request] = deque()
        # The flushes in progress, each with the offsets to commit.
        self._flushes: list[tuple[Request, Offsets]] = []

    @property
    def are_waiting(self) -> bool:
        """Whether requests wait to be carried out."""
        return bool(self._taken) or self._control.changed.is_set()

    @property
    def goal(self) -> Offsets | None:
        """The offsets that must be committed without waiting for `commit.interval`; None if no flush is in progress."""
        if not self._flushes:
            return None
        goal: dict[TopicPartition, int] = {}
        for _, ends in self._flushes:
            goal |= {p: max(end, goal.get(p, 0)) for p, end in ends.items()}
        return goal

    def carry_out(self, ledger: Ledger, find_ends: Callable[[], Offsets]) -> None:
        """Carry out the waiting requests. A flush begins here; `reached` ends it.

        `find_ends` returns the last stable offsets. After a retriable error, which is raised, the request waits again.
        A new position whose commit has an unknown outcome fails instead.
        """
        self._taken.extend(self._control.take())
        while self._taken:
            request = self._taken[0]
            try:
                if request.action == "flush":
                    self._begin_flush(ledger, request, find_ends)
                else:
                    carry_out(ledger, self._broker, request)
                    request.done.set_result(None)
            except RequestFailed as error:
                request.done.set_exception(error)
            except CommitOutcomeUnknown as error:
                if request.action == "set_position":  # another daemon may have committed and read the same range since
                    request.done.set_exception(_unknown(error))
                    self._taken.popleft()
                raise
            self._taken.popleft()
        if ledger.state.paused:
            flushes, self._flushes = self._flushes, []
            for request, _ in flushes:
                request.done.set_exception(RequestFailed("the mapping was paused before the flush ended"))

    def _begin_flush(self, ledger: Ledger, request: Request, find_ends: Callable[[], Offsets]) -> None:
        if ledger.state.paused:
            raise RequestFailed("the mapping is paused", hint="resume it first")
        self._flushes.append((request, find_ends()))

    def reached(self) -> None:
        """End the flushes, because the offsets of `goal` are committed."""
        flushes, self._flushes = self._flushes, []
        for request, _ in flushes:
            request.done.set_result(None)

    def refuse(self, error: IngestdError) -> None:
        """Fail all requests, and later ones until `accept`."""
        self.put_back()
        self._control.close(error)

    def accept(self) -> None:
        """Accept requests."""
        self._control.open()

    def put_back(self) -> None:
        """Return the requests that are not finished to the `Control`."""
        requests = [*self._taken, *(request for request, _ in self._flushes)]
        self._taken.clear()
        self._flushes = []
        self._control.put_back(requests)
