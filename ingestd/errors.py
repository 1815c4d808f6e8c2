"""Every error that ingestd raises; the class decides the reaction, and an unknown error means stop.

    IngestdError                       STOP      the daemon ends
    ├ ConfigError                      STOP      exit 78
    │  └ ConfigFaults                            several of them, each with file and line
    ├ RecordError                      STOP_ONE  this mapping stops; names topic, partition, offset, column
    ├ Unavailable                      RETRY     wait and try again
    │  ├ MetastoreUnavailable                    (Hive Streaming: ConnectionError)
    │  ├ BrokerUnavailable
    │  └ StorageUnavailable                      (Hive Streaming: StreamingIOFailure)
    ├ LoginFailed                      STOP      exit 77
    ├ InvalidTable                     STOP_ONE  missing, not ACID, not ORC, does not fit
    │  └ TableMissing
    ├ TooManyPartitions                STOP_ONE  one transaction would write more partitions than allowed
    ├ InvalidTopic                     STOP_ONE  missing, or no right to read it
    ├ OffsetsLost                      STOP_ONE  the committed position is not in Kafka any more
    ├ TransactionError                 REWIND    nothing is visible: read the stored offsets, begin again
    │  ├ TransactionAborted
    │  ├ TableChanged                            its shape moved between plan and commit
    │  ├ RangeLost                               Kafka lost a planned range; the next plan applies on_offset_loss
    │  └ CommitOutcomeUnknown          RESOLVE   ask the control row, never guess
    ├ OwnershipLost                    STAND_BY  another daemon owns the mapping
    └ SandboxError                     STOP      the sandbox could not start

Foreign exceptions are translated once, at the door of the package that owns the foreign library.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import ClassVar


class Reaction(Enum):
    """What the supervisor does with an error."""

    STOP = "stop"
    STOP_ONE = "stop this mapping"
    RETRY = "retry"
    REWIND = "rewind"
    RESOLVE = "resolve"
    STAND_BY = "stand by"


AGAIN = frozenset({Reaction.RETRY, Reaction.REWIND, Reaction.RESOLVE, Reaction.STAND_BY})


class IngestdError(Exception):
    """An error that says what was wrong, where, and what to do.

    `what` is one sentence; `where` names file, key, topic, partition, offset or column; `hint` is the mend.
    """

    reaction: ClassVar[Reaction] = Reaction.STOP
    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(what, where, hint)
        self.what = what
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        mend = f" → {self.hint}" if self.hint else ""
        return f"{place}{self.what}{mend}"

    def __reduce__(self) -> tuple[object, ...]:
        return _revive, (type(self), self.what, self.where, self.hint)


def _revive(kind: type[IngestdError], what: str, where: str, hint: str) -> IngestdError:
    """Rebuild an error that crossed a process border (Spark tasks raise these)."""
    return kind(what, where=where, hint=hint)


class ConfigError(IngestdError):
    """The configuration is wrong; `where` is file and key path."""

    exit_code = 78


class ConfigFaults(ConfigError):
    """All faults of a configuration that were found at once; `str` has one line for each."""

    def __init__(self, faults: Sequence[ConfigError]) -> None:
        super().__init__("; ".join(fault.what for fault in faults))
        self.faults = tuple(faults)

    def __str__(self) -> str:
        return "\n".join(str(fault) for fault in self.faults)

    def __reduce__(self) -> tuple[object, ...]:
        return ConfigFaults, (self.faults,)


class RecordError(IngestdError):
    """A record cannot be stored as the table's columns ask (Hive Streaming: SerializationError)."""

    reaction = Reaction.STOP_ONE
    exit_code = 65


class Unavailable(IngestdError):
    """A service does not answer now; it may later."""

    reaction = Reaction.RETRY
    exit_code = 69


class MetastoreUnavailable(Unavailable):
    """No metastore of the list answers (Hive Streaming: ConnectionError)."""


class BrokerUnavailable(Unavailable):
    """Kafka does not answer."""


class StorageUnavailable(Unavailable):
    """The warehouse cannot be written now: disk full, no answer (Hive Streaming: StreamingIOFailure)."""


class LoginFailed(IngestdError):
    """Credentials were refused."""

    exit_code = 77


class InvalidTable(IngestdError):
    """The table is missing, is not ACID ORC, or its columns do not fit the mapping."""

    reaction = Reaction.STOP_ONE
    exit_code = 65


class TooManyPartitions(IngestdError):
    """One transaction would write more partitions than `commit.partitions` allows."""

    reaction = Reaction.STOP_ONE
    exit_code = 65


class TableMissing(InvalidTable):
    """There is no table of this name, at least now."""


class InvalidTopic(IngestdError):
    """The topic does not exist or may not be read."""

    reaction = Reaction.STOP_ONE
    exit_code = 65


class OffsetsLost(IngestdError):
    """The committed position is not in Kafka: retention, truncation, or a recreated topic."""

    reaction = Reaction.STOP_ONE
    exit_code = 65


class TransactionError(IngestdError):
    """The Hive transaction failed and nothing of it is visible."""

    reaction = Reaction.REWIND


class TransactionAborted(TransactionError):
    """The metastore aborted the transaction: time-out, administrator, or a rival's take-over."""


class TableChanged(TransactionError):
    """The table's shape changed between plan and commit."""


class RangeLost(TransactionError):
    """Records of a planned range are gone, or their topic was recreated; the next plan applies `on_offset_loss`."""


class CommitOutcomeUnknown(TransactionError):
    """The answer to the commit was lost: it may or may not have happened."""

    reaction = Reaction.RESOLVE


class OwnershipLost(IngestdError):
    """Another daemon owns this mapping; nothing of ours became visible."""

    reaction = Reaction.STAND_BY


class SandboxError(IngestdError):
    """The sandbox could not start or stop."""

    exit_code = 69


def masked(text: str, values: Iterable[object]) -> str:
    """`text` of a foreign library with each of the values that it was given replaced by `***`.

    A value of less than four characters is replaced where it stands as a word of its own.
    """
    for value in sorted({str(value) for value in values if str(value).strip()}, key=len, reverse=True):
        pattern = re.escape(value) if len(value) > 3 else rf"(?<!\w){re.escape(value)}(?!\w)"
        text = re.sub(pattern, "***", text, flags=re.IGNORECASE)
    return text
