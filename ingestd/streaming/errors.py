"""The exceptions of Hive Streaming by their names, each with the reaction that `retry.py` knows.

Invariant: whatever a streaming call raises for a reason outside the caller's Python is a `StreamingException`.
Source of the names and of when each is raised: org.apache.hive.streaming (facts in docs/streaming.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from ingestd import errors
from ingestd.errors import IngestdError
from ingestd.formats.decoder import Reject
from ingestd.hive.client import MetastoreRefusal


class StreamingException(IngestdError):
    """The base class; raised itself for wrong arguments and for calls in the wrong state or thread."""


class ConnectionError(StreamingException, errors.MetastoreUnavailable):  # noqa: A001
    """No metastore answers. Try again, with backoff and a new connection."""


class InvalidConnection(ConnectionError):
    """Options that do not fit the table or the security settings, or a login that was refused. No use to try again."""

    reaction = errors.Reaction.STOP


class InvalidTable(StreamingException, errors.InvalidTable):
    """The table is missing or cannot be written by streaming. No use to try again."""


class PartitionCreationFailed(StreamingException, errors.MetastoreUnavailable):
    """The metastore did not make a partition. Try again, with backoff."""


class TransactionError(StreamingException, errors.TransactionError):
    """Locks, commit or abort failed, or the metastore did meanwhile; nothing of the transaction is visible.

    Begin again, write its records again.
    """


class InvalidTransactionState(TransactionError):
    """A call that the transaction's state does not allow; an error of the program."""

    reaction = errors.Reaction.STOP


class TableChanged(TransactionError, errors.TableChanged):
    """The table was changed so that this connection cannot write it any more. Make a new connection."""

    reaction = errors.Reaction.STOP


class CommitOutcomeUnknown(TransactionError, errors.CommitOutcomeUnknown):
    """The answer to the commit was lost and nobody could be asked: look whether the rows are there before you go on.

    The daemon knows where to look; a program that just wrote them again might double them, so it stops here.
    """

    reaction = errors.Reaction.STOP


class StreamingIOFailure(StreamingException, errors.StorageUnavailable):
    """Files could not be written. Try again with a new transaction."""


class SerializationError(StreamingException, errors.RecordError):
    """Records that cannot become rows; the transaction goes on without them.

    `rejects` has every one: `row`, its number in the transaction; `index`, its place in the list or stream of the call
    (both from 0; None for a record that an earlier call gave); `column`, `reason`, and for dead letters the whole
    `record`. Records are kept by reference; of a stream only the first 64 MiB of bad ones are, the further ones have
    their first bytes (`head`) and None. Arrow data has no rejects: the message names the first row and the column.
    """

    def __init__(self, what: str, *, where: str = "", hint: str = "", rejects: Sequence[Reject] = ()) -> None:
        super().__init__(what, where=where, hint=hint)
        self.rejects = tuple(rejects)

    @classmethod
    def of(cls, rejects: Sequence[Reject]) -> SerializationError:
        """The error that tells of the first reject and holds them all."""
        first = rejects[0]
        more = f" ({len(rejects)} bad records)" if len(rejects) > 1 else ""
        column = f", column {first.column}" if first.column else ""
        return cls(
            f"{first.reason}{more}; the record begins {first.head!r}",
            where=f"record {first.row}{column}",
            hint="the transaction goes on without it: commit, or abort",
            rejects=rejects,
        )


_NAMES: tuple[tuple[type[IngestdError], type[StreamingException]], ...] = (
    (errors.CommitOutcomeUnknown, CommitOutcomeUnknown),
    (errors.InvalidTable, InvalidTable),
    (errors.StorageUnavailable, StreamingIOFailure),
    (errors.Unavailable, ConnectionError),
    (errors.TransactionError, TransactionError),
    (errors.RecordError, SerializationError),
)


@contextmanager
def _named(name: type[StreamingException], *kinds: type[IngestdError]) -> Iterator[None]:
    """Errors of these kinds get this name; one that has a name of the streaming API already keeps it."""
    try:
        yield
    except StreamingException:
        raise
    except kinds as error:
        raise name(error.what, where=error.where, hint=error.hint) from error


def partition_errors() -> AbstractContextManager[None]:
    """A metastore that does not make or register a partition."""
    return _named(PartitionCreationFailed, errors.MetastoreUnavailable, MetastoreRefusal)


def connection_errors() -> AbstractContextManager[None]:
    """Options and logins that do not fit."""
    return _named(InvalidConnection, errors.ConfigError, errors.LoginFailed)


def transaction_errors() -> AbstractContextManager[None]:
    """A metastore that fails while a transaction is open."""
    return _named(TransactionError, errors.MetastoreUnavailable, MetastoreRefusal)


@contextmanager
def streaming_errors() -> Iterator[None]:
    """Give errors of the floors below their name of the streaming API."""
    try:
        yield
    except StreamingException:
        raise
    except IngestdError as error:
        named = next((name for kind, name in _NAMES if isinstance(error, kind)), StreamingException)
        raise named(error.what, where=error.where, hint=error.hint) from error
