"""The exceptions of Hive Streaming, each with the reaction that `retry.py` follows.

Invariant: the public methods raise `StreamingException` for everything outside the caller's own Python. They translate
errors of the layers below (`streaming_errors`); inner modules let those pass.
Source of the names and of their conditions: org.apache.hive.streaming (see docs/streaming.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ingestd import errors
from ingestd.errors import IngestdError
from ingestd.formats.decoder import Reject
from ingestd.hive.client import MetastoreRefusal


class StreamingException(IngestdError):
    """The base class; raised itself for wrong arguments and for calls in the wrong state or thread."""


class ConnectionError(StreamingException, errors.MetastoreUnavailable):  # noqa: A001
    """No metastore answers. Retry with backoff and a new connection."""


class InvalidConnection(ConnectionError):
    """The options do not fit the table or the security settings, or the login was refused. Do not retry."""

    reaction = errors.Reaction.STOP


class InvalidTable(StreamingException, errors.InvalidTable):
    """The table is missing or cannot be written by streaming. Do not retry."""


class PartitionCreationFailed(StreamingException, errors.MetastoreUnavailable):
    """The metastore did not create a partition. Retry with backoff."""


class TransactionError(StreamingException, errors.TransactionError):
    """A lock, a commit or an abort failed, or the metastore failed during the transaction; no row of it is visible.

    Begin a new transaction and write its records again.
    """


class InvalidTransactionState(TransactionError):
    """The transaction's state does not allow the call; an error in the program."""

    reaction = errors.Reaction.STOP


class TableChanged(TransactionError, errors.TableChanged):
    """The table was changed so that this connection can no longer write it. Open a new connection."""

    reaction = errors.Reaction.STOP


class CommitOutcomeUnknown(TransactionError, errors.CommitOutcomeUnknown):
    """The answer to the commit was lost and the outcome could not be queried: check for the rows before you continue.

    The daemon can check by itself. A program that simply wrote the records again might duplicate them, so the reaction
    is STOP.
    """

    reaction = errors.Reaction.STOP


class StreamingIOFailure(StreamingException, errors.StorageUnavailable):
    """Files could not be written. Retry with a new transaction."""


class SerializationError(StreamingException, errors.RecordError):
    """Records that cannot become rows; the transaction continues without them.

    `rejects` has one `Reject` per record: `row`, its number in the transaction; `index`, its position in the list or
    stream of the call (both from 0; None for a record of an earlier call); `column`, `reason`, and for dead letters the
    whole `record`. Records are kept by reference. For a stream, only the first 64 MiB of rejected records are kept; the
    others have their first bytes (`head`) and None. Arrow data has no rejects: the message names the first row and its
    column.
    """

    def __init__(self, what: str, *, where: str = "", hint: str = "", rejects: Sequence[Reject] = ()) -> None:
        super().__init__(what, where=where, hint=hint)
        self.rejects = tuple(rejects)

    @classmethod
    def of(cls, rejects: Sequence[Reject]) -> SerializationError:
        """The error that describes the first reject and holds all of them."""
        first = rejects[0]
        more = f" ({len(rejects)} rejected records)" if len(rejects) > 1 else ""
        column = f", column {first.column}" if first.column else ""
        return cls(
            f"{first.reason}{more}; the record starts with {first.head!r}",
            where=f"record {first.row}{column}",
            hint="the transaction continues without it: commit or abort",
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
CREATING_PARTITION: tuple[Translation, ...] = (
    (errors.MetastoreUnavailable, PartitionCreationFailed),
    (MetastoreRefusal, PartitionCreationFailed),
)


def streaming_error(error: IngestdError, context: Sequence[Translation] = ()) -> StreamingException:
    """The streaming error for `error`; the translations of `context` precede the general ones."""
    if isinstance(error, StreamingException):
        return error
    kind = next((to for kind, to in (*context, *_GENERAL) if isinstance(error, kind)), StreamingException)
    return kind(error.what, where=error.where, hint=error.hint)


@contextmanager
def streaming_errors(context: Sequence[Translation] = ()) -> Iterator[None]:
    """Translate errors of the layers below, for a public method (as a decorator) or a block."""
    try:
        yield
    except StreamingException:
        raise
    except IngestdError as error:
        raise streaming_error(error, context) from error
