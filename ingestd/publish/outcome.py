"""The commit of a transaction, and its outcome when the answer to the call is lost.

Invariant: `commit` returns only when the transaction has committed. It raises TransactionAborted when nothing of the
transaction is or will become visible, CommitOutcomeUnknown when neither can be established, and no other IngestdError.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from ingestd.clock import Deadline, pause
from ingestd.errors import CommitOutcomeUnknown, IngestdError, MetastoreUnavailable, TransactionAborted
from ingestd.hive import transactions
from ingestd.hive.client import Metastore
from ingestd.hive.transactions import KeyValue, Transaction
from ingestd.retry import Backoff

RESOLVE_SECONDS = 180.0
_LONGEST_WAIT_SECONDS = 5.0
# A metastore that answers this many times in a row, each time with an error of its own, will not commit.
_REFUSALS = 3
# What a Java Thrift server says for an exception that the call does not declare: the metastore was reached.
_ANSWERED = "Internal error processing"


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """How to commit a transaction, and how to find out whether it committed when the answer is lost.

    `has_committed` asks the metastore; it raises CommitOutcomeUnknown when the metastore can no longer tell.
    `on_wait(error, seconds)` is called before each wait, and `stop` ends the waits. `key_value` is set by the same
    commit. `resolve_seconds` bounds the time spent on a lost answer.
    """

    has_committed: Callable[[], bool]
    on_wait: Callable[[IngestdError, float], None]
    stop: threading.Event = field(default_factory=threading.Event)
    key_value: KeyValue | None = None
    resolve_seconds: float = RESOLVE_SECONDS


def commit(metastore: Metastore, txn: Transaction, request: CommitRequest) -> None:
    """Commit `txn`. When the answer is lost, ask for the outcome; while the transaction is open, commit again.

    Repeating the call is safe: HMS accepts the repeated commit of a committed transaction and refuses that of an
    aborted one (TxnHandler.commitTxn). Raises TransactionAborted, CommitOutcomeUnknown.
    """
    try:
        transactions.commit(metastore, txn, request.key_value)
    except TransactionAborted:
        raise
    except IngestdError as error:
        _Resolution(metastore, txn, request).resolve(error)


class _Resolution:
    """Finds out the outcome of one commit whose answer was lost, within at most `resolve_seconds`."""

    def __init__(self, metastore: Metastore, txn: Transaction, request: CommitRequest) -> None:
        self._metastore = metastore
        self._txn = txn
        self._request = request
        self._backoff = Backoff(cap_seconds=_LONGEST_WAIT_SECONDS)
        self._deadline = Deadline.after(request.resolve_seconds)

    def resolve(self, cause: IngestdError) -> None:
        """Return once the transaction has committed. Raises TransactionAborted, CommitOutcomeUnknown."""
        refusal = self._commit_again(cause)
        # HMS answers "no such transaction" for some that have committed.
        if refusal is not None and not self._has_committed_after_all():
            raise refusal from cause

    def _commit_again(self, cause: IngestdError) -> TransactionAborted | None:
        """Query and commit alternately; None once the transaction has committed, else the reason why it cannot."""
        refusals = 0
        while True:
            refusals = refusals + 1 if _is_refusal(cause) else 0
            self._wait(cause)
            try:
                if self._request.has_committed():
                    return None
                if refusals >= _REFUSALS:
                    transactions.abort(self._metastore, self._txn.id)
                    where = f"transaction {self._txn.id}"
                    return TransactionAborted(f"the metastore refused the commit: {cause.what}", where=where)
                transactions.commit(self._metastore, self._txn, self._request.key_value)
                return None
            except TransactionAborted as error:
                return error
            except CommitOutcomeUnknown:
                raise
            except IngestdError as error:
                cause = error

    def _has_committed_after_all(self) -> bool:
        while True:
            try:
                return self._request.has_committed()
            except CommitOutcomeUnknown:  # noqa: PERF203 - the loop is there to repeat the query
                raise
            except IngestdError as error:
                self._wait(error)

    def _wait(self, cause: IngestdError) -> None:
        """Wait before the next query, longer each time. Raises CommitOutcomeUnknown when no time is left."""
        if not self._deadline.passed:
            seconds = self._backoff.seconds()
            self._request.on_wait(cause, seconds)
            if not pause(seconds, self._request.stop):
                return
        raise CommitOutcomeUnknown(
            f"the answer to the commit was lost: {cause.what}",
            where=f"transaction {self._txn.id}",
            hint="check whether its rows are visible before you write them again; the daemon checks by itself",
        ) from cause


def _is_refusal(error: IngestdError) -> bool:
    return not isinstance(error, MetastoreUnavailable) or _ANSWERED in error.what
