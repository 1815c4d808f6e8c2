"""Each setting of the WITH clause of REPL DUMP has its effect when a policy is executed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from ingestd.errors import TransactionAborted
from ingestd.hive.events import EventLog
from ingestd.hive.snapshot import WritersActive
from ingestd.hive.tables import TableName
from ingestd.hive.transactions import commit, open_transactions
from ingestd.replication import cycle
from ingestd.replication.cycle import Step
from ingestd.replication.statements.grammar import ReplDump
from ingestd.replication.statements.scope import Scope
from tests.support.patience import LIMIT
from tests.support.replica_policies import Pair
from tests.support.replica_rows import begin_with_copies
from tests.support.replica_tables import make_table
from tests.support.stack import eventually

TIMEOUT = "hive.repl.bootstrap.dump.open.txn.timeout"
ABORT = "hive.repl.bootstrap.dump.abort.write.txn.after.timeout"
RETAIN = "hive.repl.retain.prev.dump.dir"
FAILING = {TIMEOUT: "0s", ABORT: "false"}


def test_dump_when_a_writer_does_not_end_in_time_then_fails_or_aborts_it_as_the_setting_says(pair: Pair) -> None:
    source = pair.replica.source
    pair.insert([(1, "a")])
    writer = begin_with_copies(source, pair.table)
    with pytest.raises(WritersActive, match=str(writer.id)):
        replace(pair, settings=FAILING).dump()
    replace(pair, settings={TIMEOUT: "0s"}).dump()
    with pytest.raises(TransactionAborted):
        commit(source.metastore, writer)
    pair.load()
    assert pair.rows() == [(1, "a")]


def test_dump_when_a_writer_ends_in_time_then_has_waited_for_it(pair: Pair) -> None:
    source = pair.replica.source
    pair.insert([(1, "a")])
    writer = begin_with_copies(source, pair.table)
    with ThreadPoolExecutor(1) as pool:
        dumping = pool.submit(replace(pair, settings={TIMEOUT: f"{LIMIT:.0f}s", ABORT: "false"}).dump)
        eventually(
            "the dump",
            lambda: dumping.done() or open_transactions(source.metastore, f"ingestd repl dump {pair.database}"),
        )
        assert not dumping.done()
        commit(source.metastore, writer)
        assert dumping.result().progress.phase == "BOOTSTRAP"
    pair.load()
    assert pair.rows() == [(1, "a"), (1, "a")]


def test_incremental_dump_when_it_copies_a_table_as_a_whole_then_the_settings_of_writers_apply(pair: Pair) -> None:
    source, other = pair.replica.source, TableName(pair.database, "other")
    make_table(source.metastore, other)
    one = Scope(pair.database, "other")

    def dump(scope: Scope, given: dict[str, str]) -> str:
        statement = ReplDump(scope, {"hive.repl.rootdir": pair.root_uri, **given})
        return cycle.dump(pair.cluster(source), statement, Step(), pair.stop).progress.phase

    assert dump(one, {}) == "BOOTSTRAP"
    pair.load()
    pair.insert([(1, "a")])
    writer = begin_with_copies(source, pair.table)
    with pytest.raises(WritersActive, match=str(writer.id)):
        dump(Scope(pair.database), FAILING)
    assert dump(Scope(pair.database), {TIMEOUT: "0s"}) == "INCREMENTAL"
    with pytest.raises(TransactionAborted):
        commit(source.metastore, writer)
    pair.load()
    assert pair.rows() == [(1, "a")]


@pytest.mark.parametrize(
    ("given", "earlier"),
    [({}, 0), ({RETAIN: "true"}, 3), ({RETAIN: "true", f"{RETAIN}.count": "1"}, 1)],
    ids=["none", "default", "one"],
)
def test_dumps_when_earlier_ones_are_retained_then_as_many_as_the_setting_says(
    pair: Pair, given: dict[str, str], earlier: int
) -> None:
    retaining = replace(pair, settings=given)
    for _ in range(5):
        made = retaining.dump()
        pair.load()
    latest = Path(made.progress.directory.removeprefix("file:"))
    for name in ("_finished_load", "_finished_dump"):  # as if the dump had been killed before it was announced
        latest.joinpath(name).unlink()
    assert retaining.dump().skipped.endswith("is now announced to the target")
    directories = [entry for entry in pair.root.glob("*/*") if entry.is_dir()]
    assert len(directories) == 1 + earlier
    assert latest in directories


def test_dump_when_its_events_are_limited_then_ends_early_and_later_ones_continue(pair: Pair) -> None:
    limited, log = replace(pair, settings={"ingestd.repl.events": "3"}), EventLog(pair.replica.source.metastore)
    limited.dump()
    pair.load()
    rows = [(number, "a") for number in range(3)]
    for row in rows:
        pair.insert([row])
    newest = log.current_id()
    assert limited.dump().last_event < newest
    pair.load()
    assert pair.rows() != rows

    def follows() -> bool:
        is_complete = limited.dump().last_event >= newest
        pair.load()
        return is_complete

    eventually("the last event", follows)
    assert pair.rows() == rows
