"""Commits a transaction, and determines the outcome if the answer to the call is lost.

Invariant: `commit` returns only if the transaction has committed. It raises TransactionAborted if no row of the
transaction is or will become visible, CommitOutcomeUnknown if neither can be established, and no other IngestdError.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from ingestd.clock import Deadline, pause
from ingestd.errors import CommitOutcomeUnknown, CommitRefused, IngestdError, MetastoreUnavailable, TransactionAborted
from ingestd.hive import transactions
from ingestd.hive.client import Metastore
from ingestd.hive.transactions import KeyValue, Transaction
from ingestd.retry import Backoff

RESOLVE_SECONDS = 180.0
_LONGEST_WAIT_SECONDS = 5.0
# After this many consecutive errors that the metastore itself reported, the transaction is aborted.
_REFUSALS = 3
# A Java Thrift server reports this for an exception that the call does not declare. The metastore was reached.
_ANSWERED = "Internal error processing"


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """How to commit a transaction, and how to determine the outcome if the answer is lost.

    `has_committed` queries the metastore; it raises CommitOutcomeUnknown if the metastore can no longer tell.
    `on_wait(error, seconds)` is called before each wait, and `stop` ends the waits. `key_value` is stored by the same
    commit. `resolve_seconds` limits the time spent on determining the outcome.
    """

    has_committed: Callable[[], bool]
    on_wait: Callable[[IngestdError, float], None]
    stop: threading.Event = field(default_factory=threading.Event)
    key_value: KeyValue | None = None
    resolve_seconds: float = RESOLVE_SECONDS


def commit(metastore: Metastore, txn: Transaction, request: CommitRequest) -> None:
    """Commit `txn`. If the answer is lost, query the outcome, and repeat the commit while the transaction is open.

    Repeating the call is safe: HMS accepts the repeated commit of a committed transaction and rejects the commit of an
    aborted one (TxnHandler.commitTxn). Raises TransactionAborted or CommitOutcomeUnknown.
    """
    try:
        transactions.commit(metastore, txn, request.key_value)
    except TransactionAborted:
        raise
    except IngestdError as error:
        _Resolution(metastore, txn, request).resolve(error)


class _Resolution:
    """Determines the outcome of one commit whose answer was lost, within at most `resolve_seconds`."""

    def __init__(self, metastore: Metastore, txn: Transaction, request: CommitRequest) -> None:
        self._metastore = metastore
        self._txn = txn
        self._request = request
        self._backoff = Backoff(cap_seconds=_LONGEST_WAIT_SECONDS)
        self._deadline = Deadline.after(request.resolve_seconds)

    def resolve(self, cause: IngestdError) -> None:
        """Return once the transaction has committed. Raises TransactionAborted or CommitOutcomeUnknown."""
        refusal = self._commit_again(cause)
        # HMS also reports "no such transaction" for some transactions that have committed.
        if refusal is not None and not self._has_committed_after_all():
            raise refusal from cause

    def _commit_again(self, cause: IngestdError) -> TransactionAborted | None:
        """Alternate queries and commits. Return None once the transaction has committed, else why it cannot commit."""
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
                    hint = "its answer does not say why: the log of the metastore contains the exception of commit_txn"
                    return CommitRefused(f"the metastore refused the commit: {cause.what}", where=where, hint=hint)
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
        """Wait before the next query, longer each time. Raises CommitOutcomeUnknown if no time is left."""
        if not self._deadline.passed:
            seconds = self._backoff.seconds()
            self._request.on_wait(cause, seconds)
            if not pause(seconds, self._request.stop):
                return
        raise CommitOutcomeUnknown(
            f"the answer to the commit was lost: {cause.what}",
            where=f"transaction {self._txn.id}",
            hint="check whether its rows are visible before you write them again; the daemon does this automatically",
        ) from cause


def _is_refusal(error: IngestdError) -> bool:
    return not isinstance(error, MetastoreUnavailable) or _ANSWERED in error.what
