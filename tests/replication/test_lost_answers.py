"""A policy keeps its copy up to date although both metastores lose the answer to each of its calls once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

import pytest

from ingestd.clock import Deadline
from ingestd.errors import MetastoreUnavailable
from ingestd.hive.client import Metastore
from ingestd.hive.leases import all_claims
from ingestd.hive.repeatable import REPEATABLE
from ingestd.replication import cycle
from ingestd.replication.cluster import Cluster
from ingestd.replication.cycle import Result, Step
from ingestd.storage.storages import Storages
from tests.support.patience import LIMIT
from tests.support.proxy import Proxy, proxy
from tests.support.replica import Side
from tests.support.replica_policies import Pair
from tests.support.replica_statements import ACID, INSERT_ONLY

_BEFORE = (
    "DROP TABLE {db}.t",
    f"CREATE TABLE {{db}}.t (id INT, v INT) {ACID}",
    f"CREATE TABLE {{db}}.p (id INT) PARTITIONED BY (day STRING) {ACID}",
    f"CREATE TABLE {{db}}.inserted (id INT) {INSERT_ONLY}",
    f"CREATE TABLE {{db}}.gone (id INT) {ACID}",
    "CREATE EXTERNAL TABLE {db}.ext (id INT) PARTITIONED BY (day STRING) STORED AS ORC LOCATION '{place}'",
    "INSERT INTO {db}.t VALUES (1, 10), (2, 20), (3, 30)",
    "INSERT INTO {db}.p PARTITION (day) VALUES (1, 'a'), (2, 'b'), (3, 'c')",
    "INSERT INTO {db}.inserted VALUES (1)",
    "INSERT INTO {db}.ext PARTITION (day='a') VALUES (1)",
)
_CHANGES = (
    "INSERT INTO {db}.t VALUES (4, 40)",
    "UPDATE {db}.t SET v = v + 1 WHERE id < 3",
    "DELETE FROM {db}.t WHERE id = 3",
    "ALTER TABLE {db}.t ADD COLUMNS (extra STRING)",
    "ALTER TABLE {db}.t RENAME TO {db}.renamed",
    "INSERT INTO {db}.renamed VALUES (5, 50, 'x')",
    f"CREATE TABLE {{db}}.t (id INT) {ACID}",
    "INSERT INTO {db}.t VALUES (6)",
    "ALTER TABLE {db}.p PARTITION (day='a') RENAME TO PARTITION (day='x')",
    "INSERT INTO {db}.p PARTITION (day='x') VALUES (6)",
    "ALTER TABLE {db}.p DROP PARTITION (day='b')",
    "ALTER TABLE {db}.p ADD PARTITION (day='n')",
    "TRUNCATE TABLE {db}.p PARTITION (day='c')",
    "ANALYZE TABLE {db}.p PARTITION (day) COMPUTE STATISTICS FOR COLUMNS",
    "INSERT OVERWRITE TABLE {db}.inserted SELECT 7",
    "DROP TABLE {db}.gone",
    "CREATE VIEW {db}.seen AS SELECT id FROM {db}.renamed",
    "INSERT INTO {db}.ext PARTITION (day='b') VALUES (2)",
    "ALTER TABLE {db}.ext DROP PARTITION (day='a')",
)


_CALLS = {
    *("open_txns", "allocate_table_write_ids", "commit_txn", "alter_database", "create_table_req", "alter_table_req"),
    *("add_partitions_req", "alter_partitions_req", "drop_partitions_req", "drop_table_with_environment_context"),
}


def _run(pair: Pair, *statements: str) -> None:
    place = f"file:{pair.replica.source.external}/{pair.database}/ext"
    for statement in statements:
        pair.replica.source.sql(statement.replace("{db}", pair.database).replace("{place}", place))


@dataclass(frozen=True)
class _Attacked:
    """A side of a policy, whose metastore loses the answer to each request once."""

    cluster: Cluster
    between: Proxy

    def complete(self, step: Callable[[Cluster], Result]) -> None:
        """Repeat a step until it succeeds, as a policy does."""
        self.between.lose_answer("alter_database")
        deadline, result = Deadline.after(LIMIT), None
        while result is None:
            try:
                result = step(self.cluster)
            except MetastoreUnavailable:  # noqa: PERF203 - the loop is there to repeat the step
                if deadline.passed:
                    raise
        assert (result.skipped, result.lost) == ("", ())


@contextmanager
def _attacked(side: Side) -> Iterator[_Attacked]:
    with proxy(side.uri) as between, closing(Metastore(between.uri)) as metastore:
        # A lock has a new agent each time, and a database has the last event of its own metastore.
        between.lose_first_answers("lock", "alter_database")
        yield _Attacked(Cluster(metastore, Storages()), between)


@pytest.mark.soak
def test_cycles_when_each_answer_of_both_metastores_is_lost_once_then_the_copy_is_equal(pair: Pair) -> None:
    with _attacked(pair.replica.source) as source, _attacked(pair.replica.target) as target:
        for statements in (_BEFORE, (), _CHANGES):
            _run(pair, *statements)
            source.complete(lambda cluster: cycle.dump(cluster, pair.dump_statement, Step(), pair.stop))
            target.complete(lambda cluster: cycle.load(cluster, pair.load_statement, {}, None, Step(), pair.stop))
            pair.assert_equal()
            assert all_claims(pair.replica.target.metastore, pair.target) == []
    assert target.between.calls.keys() >= _CALLS
    reads = {method for side in (source, target) for method in side.between.calls if method.startswith("get")}
    assert reads <= REPEATABLE.keys()
