"""If the answer to a commit is lost, the outcome is queried, and the commit is repeated if necessary."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial

import pytest

from ingestd.errors import CommitOutcomeUnknown, CommitRefused, IngestdError, TransactionAborted
from ingestd.hive import transactions
from ingestd.hive.client import Metastore
from ingestd.hive.tables import TableName, read_table
from ingestd.hive.transactions import KeyValue, Transaction
from ingestd.hive.write_ids import is_committed, read_snapshot
from ingestd.publish import outcome
from ingestd.publish.outcome import CommitRequest
from tests.support.proxy import Proxy, proxy
from tests.support.stack import Stack


@dataclass
class Case:
    """An open transaction whose metastore is behind a proxy; `waits` lists the error that caused each wait."""

    metastore: Metastore
    between: Proxy
    table: TableName
    txn: Transaction
    write_id: int
    waits: list[IngestdError] = field(default_factory=list)

    def commit(
        self,
        has_committed: Callable[[], bool] | None = None,
        key_value: KeyValue | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        ask = has_committed or partial(is_committed, self.metastore, self.txn.id)
        request = CommitRequest(
            ask, lambda error, _seconds: self.waits.append(error), stop or threading.Event(), key_value
        )
        outcome.commit(self.metastore, self.txn, request)

    @property
    def commits(self) -> int:
        return self.between.calls["commit_txn"]


@pytest.fixture
def case(stack: Stack) -> Iterator[Case]:
    name = TableName("default", stack.name)
    stack.table("id int")
    with proxy(stack.addresses.metastore) as between, closing(Metastore(between.uri)) as metastore:
        txn, write_id = transactions.begin_writing(metastore, name, "tests/outcome")
        yield Case(metastore, between, name, txn, write_id)
    # The cleaner of compactions waits for every open transaction.
    transactions.abort(stack.metastore, txn.id)


def _is_visible(stack: Stack, case: Case) -> bool:
    return read_snapshot(stack.metastore, case.table).is_valid(case.write_id)


def test_commit_when_its_answer_is_lost_then_the_outcome_is_queried_and_nothing_is_repeated(
    stack: Stack, case: Case
) -> None:
    case.between.lose_answer("commit_txn")
    case.between.lose_answer("get_open_txns", 2)  # each query makes two calls
    case.commit()
    assert (case.commits, case.between.calls["get_open_txns"], len(case.waits)) == (1, 3, 2)
    assert _is_visible(stack, case)


def test_commit_when_its_request_is_lost_then_it_is_repeated(stack: Stack, case: Case) -> None:
    case.between.lose_call("commit_txn", 2)
    case.commit()
    assert (case.commits, len(case.waits)) == (3, 2)
    assert _is_visible(stack, case)


def test_commit_when_its_request_is_lost_and_the_transaction_is_aborted_then_transaction_aborted(
    stack: Stack, case: Case
) -> None:
    def has_committed() -> bool:
        transactions.abort(stack.metastore, case.txn.id)
        return False

    case.between.lose_call("commit_txn")
    with pytest.raises(TransactionAborted):
        case.commit(has_committed)
    assert case.commits == 2
    assert not _is_visible(stack, case)


def test_commit_when_the_metastore_has_forgotten_the_transaction_then_the_outcome_is_queried_again(
    stack: Stack, case: Case
) -> None:
    """HMS forgets committed transactions, and then reports "no such transaction"."""
    answers = iter([False, True])
    case.between.lose_call("commit_txn")
    transactions.abort(stack.metastore, case.txn.id)
    case.commit(lambda: next(answers))
    assert next(answers, None) is None


def test_commit_when_the_metastore_refuses_it_three_times_then_commit_refused(stack: Stack, case: Case) -> None:
    wrong = KeyValue(read_table(case.metastore, case.table).id, "must begin with _meta", "x")
    with pytest.raises(CommitRefused, match=rf"transaction {case.txn.id}: .*refused the commit: .*Internal error"):
        case.commit(key_value=wrong)
    assert (case.commits, len(case.waits)) == (3, 3)
    assert case.txn.id not in transactions.open_transactions(stack.metastore, "tests/outcome")
    assert not _is_visible(stack, case)


def test_commit_when_no_metastore_answers_until_it_is_stopped_then_outcome_unknown(case: Case) -> None:
    stop = threading.Event()
    case.between.shut()

    def has_committed() -> bool:
        stop.set()
        return is_committed(case.metastore, case.txn.id)

    with pytest.raises(CommitOutcomeUnknown, match="check whether its rows are visible"):
        case.commit(has_committed, stop=stop)
    assert len(case.waits) == 2


def test_commit_when_its_outcome_cannot_be_established_then_outcome_unknown_and_nothing_is_aborted(
    stack: Stack, case: Case
) -> None:
    def has_committed() -> bool:
        raise CommitOutcomeUnknown("another daemon has committed since")

    wrong = KeyValue(read_table(case.metastore, case.table).id, "must begin with _meta", "x")
    with pytest.raises(CommitOutcomeUnknown, match="another daemon"):
        case.commit(has_committed, wrong)
    assert (case.commits, len(case.waits)) == (1, 1)
    assert case.txn.id in transactions.open_transactions(stack.metastore, "tests/outcome")
