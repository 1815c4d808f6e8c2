"""The commit of a transaction, and what to make of an answer that does not come.

Invariant: returning means committed, TransactionAborted means that nothing is or will be visible, and where neither can
be found out CommitOutcomeUnknown says so; no other error leaves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from ingestd.clock import Deadline, pause
from ingestd.errors import CommitOutcomeUnknown, IngestdError, MetastoreUnavailable, TransactionAborted
from ingestd.hive import transactions
from ingestd.hive.client import Metastore
from ingestd.hive.transactions import KeyValue, Transaction
from ingestd.retry import Backoff

_RESOLVE_SECONDS = 180.0
_LONGEST_WAIT_SECONDS = 5.0
# A metastore that answers, but with an error of its own, so often in a row will not commit this one.
_REFUSALS = 3
# A Java Thrift server's words for an exception that the call does not declare; nobody's network is to blame then.
_ANSWERED = "Internal error processing"


class Doubt:
    """How to find out whether a commit has happened: by asking, for up to three minutes.

    `has_happened` asks the metastore, and raises CommitOutcomeUnknown when it can no longer be told;
    `on_wait(error, seconds)` is told before each wait; `stop` ends the asking.
    """

    def __init__(
        self,
        has_happened: Callable[[], bool],
        on_wait: Callable[[IngestdError, float], None],
        stop: threading.Event | None = None,
    ) -> None:
        self.has_happened = has_happened
        self._on_wait = on_wait
        self._stop = stop
        self._backoff = Backoff(cap_seconds=_LONGEST_WAIT_SECONDS)
        self._deadline: Deadline | None = None

    def wait(self, txn: Transaction, cause: IngestdError) -> None:
        """Wait a little longer each time. Raises CommitOutcomeUnknown when there is no time left."""
        self._deadline = self._deadline or Deadline.after(_RESOLVE_SECONDS)
        if not self._deadline.passed:
            seconds = self._backoff.seconds()
            self._on_wait(cause, seconds)
            if not pause(seconds, self._stop):
                return
        raise CommitOutcomeUnknown(
            f"the answer to the commit was lost: {cause.what}",
            where=f"transaction {txn.id}",
            hint="look whether its rows are there before you write them again; a daemon does so itself",
        ) from cause


def commit(metastore: Metastore, txn: Transaction, key_value: KeyValue | None, doubt: Doubt) -> None:
    """Commit; when the answer is lost, find out whether it happened, and until it has, commit again.

    To repeat it is safe: HMS accepts the repeated commit of a committed transaction and refuses that of an aborted one
    (TxnHandler.commitTxn). Raises TransactionAborted, CommitOutcomeUnknown.
    """
    try:
        transactions.commit(metastore, txn, key_value)
    except TransactionAborted:
        raise
    except IngestdError as error:
        over = _resolve(metastore, txn, key_value, doubt, error)
        # HMS says "no such transaction" of some that have committed.
        if over is not None and not _is_committed_after_all(txn, doubt):
            raise over from error


def _resolve(
    metastore: Metastore, txn: Transaction, key_value: KeyValue | None, doubt: Doubt, cause: IngestdError
) -> TransactionAborted | None:
    """None once it is known to be committed, else why it can be committed no more."""
    refusals = 0
    while True:
        refusals = refusals + 1 if _is_refusal(cause) else 0
        doubt.wait(txn, cause)
        try:
            if doubt.has_happened():
                return None
            if refusals >= _REFUSALS:
                transactions.abort(metastore, txn.id)
                where = f"transaction {txn.id}"
                return TransactionAborted(f"the metastore refused the commit: {cause.what}", where=where)
            transactions.commit(metastore, txn, key_value)
            return None
        except TransactionAborted as error:
            return error
        except CommitOutcomeUnknown:
            raise
        except IngestdError as error:
            cause = error


def _is_refusal(error: IngestdError) -> bool:
    return not isinstance(error, MetastoreUnavailable) or _ANSWERED in error.what


def _is_committed_after_all(txn: Transaction, doubt: Doubt) -> bool:
    while True:
        try:
            return doubt.has_happened()
        except CommitOutcomeUnknown:  # noqa: PERF203 - one try a question is what this loop is about
            raise
        except IngestdError as error:
            doubt.wait(txn, error)
