"""A storage that does not answer while a table on it is surveyed: the other tables are compacted as before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from ingestd.compaction.options import CompactionOptions
from ingestd.errors import StorageUnavailable
from ingestd.hive.tables import TableName, load_acid_table
from ingestd.publish.warehouse import Warehouse
from ingestd.sandbox import NAMENODE
from ingestd.storage.storages import Storages
from tests.compaction.support import ON_REQUEST, Notes, watching_each, write_deltas
from tests.support.hdfs import Cluster, hdfs
from tests.support.stack import Stack, eventually
from tests.support.tables import add_partition, make_table

FOR_EVER = 1e6


@pytest.fixture
def cluster(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Yield a running HDFS for one test."""
    with hdfs(tmp_path_factory.mktemp("hdfs") / "state") as running:
        yield running


def test_policy_when_the_storage_of_a_table_is_frozen_then_others_are_compacted_and_its_survey_counts_later(
    stack: Stack, cluster: Cluster
) -> None:
    frozen = TableName("default", f"{stack.name}_frozen")
    make_table(stack.metastore, frozen, partitioned=True)
    elsewhere = f"{cluster.root}/x"
    cluster.storage().make_directory(elsewhere)
    add_partition(stack.metastore, frozen, "x", elsewhere)
    write_deltas(stack, 3, options={"table": frozen.table, "storage": cluster.options()}, day="x")
    stack.table("id int, note string", **ON_REQUEST)
    write_deltas(stack, 3)

    warehouse = Warehouse(stack.metastore, Storages(replace(cluster.options(), timeout=FOR_EVER)))
    tables = [
        (frozen, CompactionOptions("never", deltas=3)),
        (TableName("default", stack.name), CompactionOptions(deltas=3)),
    ]
    cluster.box.pause_service(NAMENODE)
    with watching_each(warehouse, tables, report_seconds=0.5) as [(watch, notes), (_, other)]:
        eventually("the compaction of the other table", lambda: other.done)
        eventually("the report", lambda: _unavailable(notes))
        cycles = other.cycles
        eventually("later cycles", lambda: other.cycles > cycles + 2)
        assert watch.status.deltas == notes.cycles == 0
        cluster.box.resume_service(NAMENODE)
        eventually("the result of the survey", lambda: watch.status.deltas == 3)
        eventually("a cycle with it", lambda: notes.cycles)
    # A survey that takes long for another reason is reported as well, with the name of the table before it has a place.
    place = load_acid_table(stack.metastore, frozen).location
    assert {error.where for error in _unavailable(notes)} <= {str(frozen), place}


def _unavailable(notes: Notes) -> list[StorageUnavailable]:
    return [error for error in notes.delays if isinstance(error, StorageUnavailable)]
