"""Every error that ingestd raises. The class says whether a retry may succeed; other exceptions are not retried.

    IngestdError                              exit 1
    ├ ConfigError                             exit 78
    │  └ ConfigFaults                                  several at once, each with file and line
    ├ RecordError                             exit 65  a record does not fit the table's columns
    ├ Unavailable                  retriable  exit 69
    │  ├ MetastoreUnavailable                          (Hive Streaming: ConnectionError)
    │  ├ BrokerUnavailable
    │  │  └ BrokerDeclined                 exit 65  Kafka answers that it does not support or permit the request
    │  ├ StorageUnavailable                            (Hive Streaming: StreamingIOFailure)
    │  └ RegistryUnavailable                           the schema registry
    ├ LoginFailed                             exit 77
    ├ InvalidTable                            exit 65  missing, not ACID, not ORC, or the columns do not fit
    │  └ TableMissing
    ├ TooManyPartitions                       exit 65  above the limit for one transaction
    ├ InvalidTopic                            exit 65  its properties prevent using it
    │  ├ TopicMissing              retriable           the brokers do not know it, or not yet
    │  └ TopicDenied               retriable  exit 77  a permission on it, or on a consumer group, is missing
    ├ OffsetsLost                             exit 65  Kafka no longer has the committed position
    ├ RecordsUnreadable                       exit 65  Kafka has records that its client cannot read
    ├ TransactionError             retriable  exit 1   no row of the transaction is visible
    │  ├ TransactionAborted
    │  │  └ CommitRefused                             the metastore failed to commit, and does not say why
    │  ├ TableChanged                                  the table changed between plan and commit
    │  ├ RangeLost                                     Kafka lost a planned range; the next plan applies on_offset_loss
    │  └ CommitOutcomeUnknown                          the stored offsets decide what is read next
    ├ OwnershipLost                retriable  exit 1   another daemon owns the mapping
    ├ ReplicationError                        exit 65  a replication policy cannot continue
    │  └ BootstrapRequired                             the target must be copied again from the beginning
    └ SandboxError                            exit 69

`retry.call` repeats a call after a retriable error; a mapping then continues from the offsets that Hive has stored. Any
other error ends the mapping, and the other mappings continue. After a refusal, that is an answer that says no, the call
is repeated a few times only (`is_refusal`).

Each package translates the exceptions of its foreign library once. Packages add classes of their own, such as
`JobFailed` in spark/; tests/test_retry.py lists every class with its exit code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import ClassVar


class IngestdError(Exception):
    """An error that says what is wrong, where, and how to fix it.

    `what` is one sentence. `where` names the file and key, topic, partition and offset, table or column, or service.
    `hint` says how to fix it; it may be empty. `txn` is the id of the transaction that failed with it, if any.
    """

    is_retriable: ClassVar[bool] = False
    """Whether a retry may succeed without human intervention."""
    is_refusal: bool = False
    """Whether a service has answered no, such as for lack of permission. Then a call is repeated a few times only."""
    exit_code: ClassVar[int] = 1
    txn: int | None = None

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(what, where, hint)
        self.what = encodable(what)
        self.where = encodable(where)
        self.hint = encodable(hint)

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        hint = f" → {self.hint}" if self.hint else ""
        return f"{place}{self.what}{hint}"

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.what, self.where, self.hint)


def encodable(text: str) -> str:
    """Return the text with escape sequences for unpaired surrogates, which no file, table or answer can contain.

    Texts of records, schemas and names of files may have some.
    """
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _rebuild(kind: type[IngestdError], what: str, where: str, hint: str) -> IngestdError:
    """Unpickle an error that a Spark task raised in another process."""
    return kind(what, where=where, hint=hint)


class ConfigError(IngestdError):
    """The configuration is invalid. `where` names the file and the key."""

    exit_code = 78


class ConfigFaults(ConfigError):
    """All faults that were found in a configuration; `str` returns one line per fault."""

    def __init__(self, faults: Sequence[ConfigError]) -> None:
        super().__init__("; ".join(fault.what for fault in faults))
        self.faults = tuple(faults)

    def __str__(self) -> str:
        return "\n".join(str(fault) for fault in self.faults)

    def __reduce__(self) -> tuple[object, ...]:
        return ConfigFaults, (self.faults,)


class RecordError(IngestdError):
    """A record cannot be converted to the table's columns (Hive Streaming: SerializationError)."""

    exit_code = 65


class Unavailable(IngestdError):
    """A service does not answer at the moment."""

    is_retriable = True
    exit_code = 69


class MetastoreUnavailable(Unavailable):
    """No metastore answers, or the one that answers fails internally (Hive Streaming: ConnectionError)."""


class BrokerUnavailable(Unavailable):
    """Kafka does not answer."""


class BrokerDeclined(BrokerUnavailable):
    """Kafka has answered that it does not support the request, or that its configuration forbids it."""

    is_refusal = True
    exit_code = 65


class StorageUnavailable(Unavailable):
    """The warehouse cannot be read or written (Hive Streaming: StreamingIOFailure).

    For example, the disk is full, permission is denied, or the file system is not mounted.
    """


class RegistryUnavailable(Unavailable):
    """The schema registry does not answer."""


class LoginFailed(IngestdError):
    """A service rejected the credentials."""

    exit_code = 77


class InvalidTable(IngestdError):
    """The table is missing, is not a transactional ORC table, or its columns do not fit the mapping."""

    exit_code = 65


class TooManyPartitions(IngestdError):
    """One transaction would write more partitions than `commit.partitions` allows."""

    exit_code = 65


class TableMissing(InvalidTable):
    """No table of this name exists."""


class InvalidTopic(IngestdError):
    """The topic does not exist, or its permissions or properties prevent reading it or writing dead letters."""

    exit_code = 65


class TopicMissing(InvalidTopic):
    """The brokers do not know the topic: it does not exist, or was created a moment ago."""

    is_retriable = True
    is_refusal = True


class TopicDenied(InvalidTopic):
    """Kafka denies a permission on the topic or on a consumer group. It learns of new permissions after a moment."""

    is_retriable = True
    is_refusal = True
    exit_code = 77


class OffsetsLost(IngestdError):
    """Kafka no longer has the committed position, because of retention, truncation, or a recreated topic."""

    exit_code = 65


class RecordsUnreadable(IngestdError):
    """Kafka has records that its client cannot read: they are corrupt, in an unknown format, or too large."""

    exit_code = 65


class TransactionError(IngestdError):
    """The Hive transaction failed; none of its rows is visible."""

    is_retriable = True


class TransactionAborted(TransactionError):
    """The transaction was aborted after a timeout, by an administrator, or in a takeover."""


class CommitRefused(TransactionAborted):
    """The metastore has answered several commits of the transaction with an internal error, so it was aborted.

    `commit_txn` declares no exception for it (hive_metastore.thrift), so Thrift replaces that of a failing database, of
    a listener, and of a defect by the same text. An outage ends, so the transaction is repeated without end.
    """


class TableChanged(TransactionError):
    """The table's definition changed after the transaction was planned and before it committed."""


class RangeLost(TransactionError):
    """Kafka lost records of a planned range, or the topic was recreated; the next plan applies `on_offset_loss`."""


class CommitOutcomeUnknown(TransactionError):
    """The commit was sent and its outcome could not be determined.

    The daemon reads the offsets that Hive has stored and continues from there, whatever the outcome was.
    """


class OwnershipLost(IngestdError):
    """Another daemon owns this mapping; no row of this transaction is visible."""

    is_retriable = True


class ReplicationError(IngestdError):
    """A replication policy cannot continue until an operator has removed the cause."""

    exit_code = 65


class BootstrapRequired(ReplicationError):
    """The changes since the last cycle are no longer available, so the policy must bootstrap again."""


class SandboxError(IngestdError):
    """The sandbox could not start or stop."""

    exit_code = 69


def masked(text: str, values: Iterable[object]) -> str:
    """Return `text` with each of `values` replaced by `***`, for messages of libraries that quote their settings.

    A value of fewer than four characters is replaced only where it is a whole word.
    """
    for value in sorted({str(value) for value in values if str(value).strip()}, key=len, reverse=True):
        pattern = re.escape(value) if len(value) > 3 else rf"(?<!\w){re.escape(value)}(?!\w)"
        text = re.sub(pattern, "***", text, flags=re.IGNORECASE)
    return text
