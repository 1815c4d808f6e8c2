"""The commit of a transaction, and what to make of an answer that does not come.

Invariant: returning means committed, TransactionAborted means that nothing is or will be visible, and where neither can
be found out CommitOutcomeUnknown says so; no other error leaves.
"""

from __future__ import annotations

import logging

from ingestd.clock import Deadline, pause
from ingestd.errors import CommitOutcomeUnknown, IngestdError, TransactionAborted
from ingestd.hive import transactions
from ingestd.hive.client import Metastore
from ingestd.hive.transactions import KeyValue, Transaction
from ingestd.hive.write_ids import is_committed

_log = logging.getLogger(__name__)
_RESOLVE_SECONDS = 180.0
# A metastore that answers, but with an error of its own, so often in a row will not commit this one.
_REFUSALS = 3
# A Java Thrift server's words for an exception that the call does not declare; nobody's network is to blame then.
_ANSWERED = "Internal error processing"


def commit(metastore: Metastore, txn: Transaction, key_value: KeyValue | None) -> None:
    """Commit, and repeat it while the answer is lost: HMS accepts the repeated commit of a committed transaction."""
    try:
        transactions.commit(metastore, txn, key_value)
    except TransactionAborted:
        raise
    except IngestdError as error:
        _resolve(metastore, txn, key_value, error)


def _resolve(metastore: Metastore, txn: Transaction, key_value: KeyValue | None, cause: IngestdError) -> None:
    _log.warning("the commit of transaction %d failed or was not answered, asking again: %s", txn.id, cause)
    deadline = Deadline.after(_RESOLVE_SECONDS)
    refusals = 0
    while not deadline.passed:
        refusals = refusals + 1 if _ANSWERED in cause.what else 0
        pause(0.5)
        try:
            if refusals >= _REFUSALS:
                _give_up(metastore, txn, cause)
                return
            transactions.commit(metastore, txn, key_value)
            return
        except TransactionAborted as error:
            if _was_committed(metastore, txn):
                return
            raise error from cause
        except IngestdError as error:
            cause = error
    raise CommitOutcomeUnknown(
        f"the answer to the commit was lost: {cause.what}",
        where=f"transaction {txn.id}",
        hint="look whether its rows are there before you write them again",
    ) from cause


def _give_up(metastore: Metastore, txn: Transaction, cause: IngestdError) -> None:
    """Abort what the metastore will not commit; returns when it had committed all the same."""
    transactions.abort(metastore, txn.id)
    if not is_committed(metastore, txn.id):
        raise TransactionAborted(f"the metastore refused the commit: {cause.what}", where=f"transaction {txn.id}")


def _was_committed(metastore: Metastore, txn: Transaction) -> bool:
    """Asked until there is an answer, since HMS says "no such transaction" of some that have committed."""
    deadline = Deadline.after(_RESOLVE_SECONDS)
    while not deadline.passed:
        try:
            return is_committed(metastore, txn.id)
        except IngestdError:  # noqa: PERF203 - one try a call is what this loop is about
            pause(0.5)
    raise CommitOutcomeUnknown(
        "nobody could be asked whether the commit happened",
        where=f"transaction {txn.id}",
        hint="look whether its rows are there before you write them again",
    )
