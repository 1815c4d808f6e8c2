"""Requests compactions and waits for their results."""

from __future__ import annotations

from collections.abc import Callable, Collection

from hive_metastore import ttypes

from ingestd.errors import SandboxError
from tests.support.stack import COMPACTED, Stack, eventually

# Part of the name of the client that has requested a compaction, if it was a statement.
_MANUAL = "manual"


def compact(stack: Stack, table: str, kind: str, partition: str = "") -> None:
    """Run one compaction of `db.table` and wait until readers see the result."""
    request_compaction(stack, table, kind, partition)()


def request_compaction(stack: Stack, table: str, kind: str, partition: str = "") -> Callable[[], None]:
    """Request one compaction of `db.table`. Return a function that waits until readers see the result.

    Hive polls for requests, so compactions that are requested together finish sooner than those requested one by one.
    """
    part = f" PARTITION ({partition})" if partition else ""
    before = len(_done(stack, table))
    try:
        eventually(
            "the compaction request to be accepted",
            lambda: _accepted(stack, f"ALTER TABLE {table}{part} COMPACT '{kind}'"),
            400,  # the cleaner waits for transactions of other tests, which end after 300 s at the latest
        )
    except AssertionError as error:
        shown = [f"{statement}: {stack.sql(statement)}" for statement in ("SHOW TRANSACTIONS", "SHOW COMPACTIONS")]
        raise AssertionError("\n".join([str(error), *shown])) from error

    def wait() -> None:
        eventually(f"the {kind} compaction of {table}", lambda: len(_done(stack, table)) > before, 240)
        # Its state changes before its transaction commits. Hive reads the files of a simple SELECT after the query's
        # transaction has ended, so a query that starts in between can find neither the new base nor the old deltas.
        running = _readers(stack, table)
        eventually("the commit of the compaction", lambda: not running & _readers(stack, table))

    return wait


def _accepted(stack: Stack, request: str) -> bool:
    try:
        stack.sql(request)
    except SandboxError as error:
        # Hive 4.0.1 refuses a request while the cleaner has not finished the table's previous compaction.
        if "10432" not in str(error) and "refused" not in str(error).lower():
            raise
        return False
    return True


def compaction_states(stack: Stack, tables: Collection[str]) -> list[str]:
    """Return the states of all compactions of `tables` (without database). Faster than SHOW COMPACTIONS."""
    answer = stack.metastore.call("show_compact", ttypes.ShowCompactRequest())
    return [one.state for one in answer.compacts if one.tablename in tables]


def _readers(stack: Stack, table: str) -> set[int]:
    """Return the ids of the transactions that hold a shared lock on a table, among them that of its compaction."""
    database, _, name = table.rpartition(".")
    answer = stack.metastore.call("show_locks", ttypes.ShowLocksRequest(dbname=database, tablename=name))
    return {lock.txnid for lock in answer.locks if lock.type == ttypes.LockType.SHARED_READ}


def _done(stack: Stack, table: str) -> list[str]:
    """Return the states of the compactions that were requested by a statement and have ended.

    One is refused if another one, which Hive itself has begun, has left nothing to compact.
    """
    answer = stack.metastore.call("show_compact", ttypes.ShowCompactRequest())
    name = table.rpartition(".")[2]
    states = [one.state for one in answer.compacts if one.tablename == name and _MANUAL in (one.initiatorId or "")]
    assert "failed" not in states, states
    return [state for state in states if state in (*COMPACTED, "refused")]
