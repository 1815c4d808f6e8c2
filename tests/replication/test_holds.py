"""A hold keeps the files of a source until they are loaded, and ends by itself."""

from __future__ import annotations

from ingestd.doctor.metastore import oldest_of
from ingestd.hive.health import uncommitted
from ingestd.hive.snapshot import ReadTransaction
from ingestd.hive.tables import TableName
from ingestd.hive.transactions import abort, open_transactions
from ingestd.replication.cycle import Step
from ingestd.replication.directory.protocol import Dump, DumpDirectory
from ingestd.replication.policies.holds import Holds
from tests.support.replica_compaction import abort_open_transactions, compact_first_write, is_cleaned
from tests.support.replica_policies import Pair
from tests.support.replica_rows import insert
from tests.support.replica_tables import make_database, make_table
from tests.support.stack import eventually

LONG = 3600.0


def _step(holds: Holds, pair: Pair, seconds: float = LONG) -> Step:
    """Return a step with the holds of a policy that has the name of its namespace."""

    def hold(directory: DumpDirectory, dump: Dump) -> None:
        holds.begin(pair.namespace, directory, dump, seconds)

    return Step(hold=hold)


def _open(pair: Pair) -> int:
    """Return the number of open holds of the policy."""
    return len(open_transactions(pair.replica.source.metastore, f"ingestd repl hold {pair.namespace}"))


def test_table_when_compacted_and_cleaned_then_only_after_its_files_were_loaded(pair: Pair) -> None:
    metastore, storages = pair.replica.source.metastore, pair.cluster(pair.replica.source).storages
    abort_open_transactions(metastore)
    holds, other = Holds(metastore), TableName(pair.replica.name("other"), "t")
    make_database(metastore, other.database)
    make_table(metastore, other)
    insert(pair.replica.source, other, [(1, "a")])
    step = _step(holds, pair)
    with ReadTransaction(metastore, "tests/earlier") as earlier:
        earlier.keep_files([other])
        compact_first_write(metastore, storages, other)
        pair.dump(step)  # its hold began after the compaction of the other table, and does not concern it
        pair.load()
        pair.insert([(1, "a")])
        compact_first_write(metastore, storages, pair.table)
    eventually("the cleaner, which skips the table", lambda: is_cleaned(metastore, storages, other))
    assert not is_cleaned(metastore, storages, pair.table)
    pair.dump(step)
    holds.review({pair.namespace})
    assert _open(pair) == 2
    found = pair.load()
    assert (found.lost, found.progress.counts["FILES"]) == ((), (1, 1))
    pair.dump(step)
    pair.load()
    holds.review({pair.namespace})
    assert _open(pair) == 1  # that of a dump which began when the target had the files
    eventually("the cleaner", lambda: is_cleaned(metastore, storages, pair.table))
    assert pair.rows() == [(1, "a")]
    holds.close()
    assert _open(pair) == 0


def test_hold_when_no_load_follows_then_ends_at_its_limit_or_with_its_policy(pair: Pair) -> None:
    holds = Holds(pair.replica.source.metastore)
    pair.dump(_step(holds, pair, 0.0))
    assert _open(pair) == 0
    pair.load()
    pair.dump(_step(holds, pair, 1.0))
    assert _open(pair) == 1
    pair.load()

    def is_over() -> bool:
        holds.review({pair.namespace})
        return _open(pair) == 0

    eventually("the limit", is_over)
    pair.dump(_step(holds, pair))
    holds.review({pair.namespace})
    assert _open(pair) == 1
    # `ingestd doctor` suggests to abort a transaction that has been open for an hour, but not a hold.
    metastore = pair.replica.source.metastore
    (hold,) = open_transactions(metastore, f"ingestd repl hold {pair.namespace}")
    with ReadTransaction(metastore, "tests/other") as other:
        ours = [txn for txn in uncommitted(metastore) if txn.id in (hold, other.id)]
    oldest = oldest_of(ours)
    assert len(ours) == 2
    assert oldest is not None
    assert oldest.id == other.id
    holds.review(())
    assert _open(pair) == 0


def test_hold_when_its_transaction_has_ended_then_the_dump_begins_another(pair: Pair) -> None:
    metastore = pair.replica.source.metastore
    holds = Holds(metastore)
    directory = DumpDirectory(pair.cluster(pair.replica.source).storages, pair.root_uri, pair.database)
    begun = directory.begin_dump(pair.dump_statement.scope, lambda: 1)
    assert isinstance(begun, Dump)
    for _ in range(2):
        holds.begin(pair.namespace, directory, begun, LONG)
        assert _open(pair) == 1
    (one,) = open_transactions(metastore, f"ingestd repl hold {pair.namespace}")
    abort(metastore, one)
    assert _open(pair) == 0
    holds.begin(pair.namespace, directory, begun, LONG)
    assert _open(pair) == 1
    holds.close()
    holds.begin(pair.namespace, directory, begun, LONG)
    assert _open(pair) == 0
