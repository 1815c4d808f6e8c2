"""The exceptions of Hive Streaming, and which of them are retriable.

Invariant: every failure of a public method raises `StreamingException`, except an exception of the caller's own code.
They translate the errors of the layers below (`streaming_errors`).
Source of the names and of their conditions: org.apache.hive.streaming (see docs/streaming.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ingestd import errors
from ingestd.errors import IngestdError
from ingestd.formats.decoder import Reject
from ingestd.hive.answers import MetastoreRefusal


class StreamingException(IngestdError):
    """Base class of the errors below. Raised directly for wrong arguments and calls in the wrong state or thread."""


class ConnectionError(StreamingException, errors.MetastoreUnavailable):  # noqa: A001
    """No metastore answers. Retry with backoff and a new connection."""


class InvalidConnection(ConnectionError):
    """The options do not fit the table or the security settings, or the login was rejected. Do not retry."""

    is_retriable = False


class InvalidTable(StreamingException, errors.InvalidTable):
    """The table is missing or cannot be written by streaming. Do not retry."""


class TransactionError(StreamingException, errors.TransactionError):
    """A lock, a commit or an abort failed, or the metastore failed during the transaction. No row of it is visible.

    Begin a new transaction and write its records again.
    """


class InvalidTransactionState(TransactionError):
    """The state of the transaction does not allow the call, which is an error in the program. Do not retry."""

    is_retriable = False


class TableChanged(TransactionError, errors.TableChanged):
    """The table was changed so that this connection can no longer write it. Open a new connection."""

    is_retriable = False


class CommitOutcomeUnknown(TransactionError, errors.CommitOutcomeUnknown):
    """The answer to a commit was lost and its outcome could not be queried. Check for the rows before you continue.

    The daemon performs this check itself. A program that wrote the records again without a check might duplicate them,
    so the error is not retriable.
    """

    is_retriable = False


class StreamingIOFailure(StreamingException, errors.StorageUnavailable):
    """Files could not be written. Retry with a new transaction."""


class PartitionCreationFailed(StreamingIOFailure):
    """The metastore did not create a partition, or its directory cannot be created. Retry with backoff."""


class SerializationError(StreamingException, errors.RecordError):
    """Some records cannot become rows. The transaction continues without them.

    `rejects` contains one `Reject` per record. `row` is the number of the record in the transaction. `index` is its
    position in the list or stream that was passed to the call, or None for a record of an earlier call. Both count
    from 0. `record` is the whole record, for dead letters; it is not copied. For a stream, only the first 64 MiB of
    rejected records are kept, and `record` is None for the others; `head` always contains the first bytes. Arrow data
    has no rejects: the message names the first row that does not fit, and its column.
    """

    def __init__(self, what: str, *, where: str = "", hint: str = "", rejects: Sequence[Reject] = ()) -> None:
        super().__init__(what, where=where, hint=hint)
        self.rejects = tuple(rejects)

    @classmethod
    def of(cls, rejects: Sequence[Reject]) -> SerializationError:
        """Return an error that describes the first reject and contains all of them."""
        first = rejects[0]
        more = f" ({len(rejects)} rejected records)" if len(rejects) > 1 else ""
        column = f", column {first.column}" if first.column else ""
        return cls(
            f"{first.reason}{more}; the record starts with {first.head!r}",
            where=f"record {first.row}{column}",
            hint="the transaction continues without rejected records: commit or abort it",
            rejects=rejects,
        )


Translation = tuple[type[IngestdError], type[StreamingException]]

_GENERAL: tuple[Translation, ...] = (
    (errors.CommitOutcomeUnknown, CommitOutcomeUnknown),
    (errors.InvalidTable, InvalidTable),
    (errors.StorageUnavailable, StreamingIOFailure),
    (errors.Unavailable, ConnectionError),
    (errors.TransactionError, TransactionError),
    (errors.RecordError, SerializationError),
)
# What an error means depends on what the connection was doing.
CONNECTING: tuple[Translation, ...] = (
    (errors.ConfigError, InvalidConnection),
    (errors.LoginFailed, InvalidConnection),
)
IN_TRANSACTION: tuple[Translation, ...] = (
    (errors.MetastoreUnavailable, TransactionError),
    (MetastoreRefusal, TransactionError),
)
REGISTERING_PARTITION: tuple[Translation, ...] = (
    (errors.MetastoreUnavailable, PartitionCreationFailed),
    (MetastoreRefusal, PartitionCreationFailed),
)
CREATING_PARTITION: tuple[Translation, ...] = (
    *REGISTERING_PARTITION,
    (errors.StorageUnavailable, PartitionCreationFailed),
)


def streaming_error(error: IngestdError, context: Sequence[Translation] = ()) -> StreamingException:
    """Return the streaming error for `error`. The translations of `context` take precedence over the general ones."""
    if isinstance(error, StreamingException):
        return error
    kind = next((to for kind, to in (*context, *_GENERAL) if isinstance(error, kind)), StreamingException)
    made = kind(error.what, where=error.where, hint=error.hint)
    made.is_refusal = error.is_refusal
    return made


@contextmanager
def streaming_errors(context: Sequence[Translation] = ()) -> Iterator[None]:
    """Convert errors of the layers below to StreamingException. Use it as a decorator or in a `with` statement."""
    try:
        yield
    except StreamingException:
        raise
    except IngestdError as error:
        raise streaming_error(error, context) from error
