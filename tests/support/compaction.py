"""Requests compactions and waits for their results."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Protocol

from hive_metastore import ttypes

from ingestd.errors import SandboxError
from ingestd.hive.client import Metastore
from ingestd.hive.compactions import Compaction, read_compactions
from ingestd.hive.transactions import abort, describe_transactions
from ingestd.hive.write_ids import ended_transactions
from tests.support.patience import LIMIT
from tests.support.stack import eventually

# Part of the name of the client that has requested a compaction, if it was a statement.
_MANUAL = "manual"
# How often a compaction is repeated whose commit the metastore has failed by accident.
_MOST_REPETITIONS = 5
# The numbers of columns of SHOW COMPACTIONS.
_STATE, _TRANSACTION, _LAST_BEFORE_COMMIT = 5, 16, 17


class Hive(Protocol):
    """A HiveServer2 and its metastore: a `Stack`, or the `Side` of a replica."""

    @property
    def metastore(self) -> Metastore: ...

    def sql(self, statement: str) -> list[tuple[Any, ...]]: ...


def compact(hive: Hive, table: str, kind: str, partition: str = "") -> None:
    """Run one compaction of `db.table` and wait until readers see the result."""
    request_compaction(hive, table, kind, partition)()


def request_compaction(hive: Hive, table: str, kind: str, partition: str = "") -> Callable[[], None]:
    """Request one compaction of `db.table`. Return a function that waits until readers see the result, and only it.

    Hive polls for requests, so compactions that are requested together finish sooner than those requested one by one.
    """
    part = f" PARTITION ({partition})" if partition else ""
    request = partial(_request, hive, table, f"ALTER TABLE {table}{part} COMPACT '{kind}'")
    return partial(_wait, hive, f"the {kind} compaction of {table}", request, request())


def _request(hive: Hive, table: str, statement: str) -> int:
    """Request a compaction and return its id."""
    before = {compaction.id for compaction in _requested(hive, table)}
    try:
        # The cleaner waits for the transactions of killed daemons, which end after 300 s at the latest.
        eventually("the compaction request to be accepted", lambda: _accepted(hive, statement), 2 * LIMIT)
    except AssertionError as error:
        shown = [f"{statement}: {hive.sql(statement)}" for statement in ("SHOW TRANSACTIONS", "SHOW COMPACTIONS")]
        raise AssertionError("\n".join([str(error), *shown])) from error
    [added] = {compaction.id for compaction in _requested(hive, table)} - before
    return added


def _wait(hive: Hive, what: str, request: Callable[[], int], number: int) -> None:
    """Wait until readers see the result of a compaction, which `request` repeats if Hive failed it by accident.

    A simple SELECT omits all rows of a partition, without an error, if one of its directories disappears while Hive
    lists them: it takes the partition for an empty one (FetchOperator.generateWrappedSplits, since HIVE-14165). So this
    also waits until the cleaner has removed the replaced directories, unless it waits for other transactions itself.
    """
    for _ in range(_MOST_REPETITIONS):
        ended = eventually(what, partial(_ended, hive, number))
        transaction = int(_shown(hive, number)[_TRANSACTION])
        if not _is_accident(ended):
            break
        # Nothing else ends it before it times out. Until then it holds its lock, and the cleaner waits for it.
        abort(hive.metastore, transaction)
        number = request()
    # One is refused if another one, which Hive itself has begun, has left nothing to compact.
    assert ended.has_result or ended.state == "refused", ended
    # Its state changes before its transaction commits. Hive reads the files of a simple SELECT after the query's
    # transaction has ended, so a query that starts in between can find neither the new base nor the old deltas.
    eventually("the commit of the compaction", lambda: ended_transactions(hive.metastore, [transaction]))
    eventually("the cleaner", lambda: not _is_being_cleaned(hive, number))


def wait_for_cleaner(hive: Hive, table: str) -> None:
    """Wait until the cleaner has removed what the compactions of `db.table` have replaced, whoever requested them.

    As after `compact`, no directory disappears then while Hive lists the table.
    """

    def found() -> list[Compaction]:
        return [compaction for compaction in read_compactions(hive.metastore) if str(compaction.table) == table]

    eventually("the compactions", lambda: not any(compaction.is_pending for compaction in found()))
    eventually("the cleaner", lambda: not any(_is_being_cleaned(hive, compaction.id) for compaction in found()))


def _is_being_cleaned(hive: Hive, number: int) -> bool:
    """Return whether the cleaner removes what a compaction has replaced, or will soon."""
    shown = _shown(hive, number)
    if shown[_STATE] != "ready for cleaning":
        return False
    last = int(shown[_LAST_BEFORE_COMMIT])
    opened = (txn.id for txn in describe_transactions(hive.metastore) if txn.state == ttypes.TxnState.OPEN)
    return all(txn_id > last for txn_id in opened)


def _shown(hive: Hive, number: int) -> tuple[Any, ...]:
    """Return the row of a compaction in SHOW COMPACTIONS."""
    return hive.sql(f"SHOW COMPACTIONS COMPACTIONID = {number}")[-1]


def _accepted(hive: Hive, request: str) -> bool:
    try:
        hive.sql(request)
    except SandboxError as error:
        # Hive 4.0.1 refuses a request while the cleaner has not finished the table's previous compaction.
        if "10432" not in str(error) and "refused" not in str(error).lower():
            raise
        return False
    return True


def compaction_states(hive: Hive, tables: Collection[str]) -> list[str]:
    """Return the states of all compactions of `tables` (without database). Faster than SHOW COMPACTIONS."""
    answer = hive.metastore.call("show_compact", ttypes.ShowCompactRequest())
    return [compaction.state for compaction in answer.compacts if compaction.tablename in tables]


def _requested(hive: Hive, table: str) -> list[Compaction]:
    """Return the compactions of `db.table` that were requested by a statement."""
    return [
        compaction
        for compaction in read_compactions(hive.metastore)
        if str(compaction.table) == table and _MANUAL in compaction.initiator
    ]


def _ended(hive: Hive, number: int) -> Compaction | None:
    found = [
        compaction
        for compaction in read_compactions(hive.metastore)
        if compaction.id == number and not compaction.is_pending
    ]
    return found[0] if found else None


def _is_accident(compaction: Compaction) -> bool:
    """Return whether the metastore has failed the commit of a compaction. Derby does so if a transaction deadlocks."""
    return compaction.state == "failed" and "Internal error processing" in compaction.error
