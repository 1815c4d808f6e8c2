"""The measurements of `python -m bench.replication` run, and a load makes few calls of the metastore for a commit."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.table import Table

from bench.copies import create, programs
from bench.replay import Copied
from bench.replication import copies, replay
from tests.support.daemon import shared_engine
from tests.support.replica import Replica


def _cells(table: Table) -> list[list[str]]:
    return [list(map(str, column.cells)) for column in table.columns]


def test_copies_when_measured_then_each_program_has_its_rates(processes: None, tmp_path: Path) -> None:
    table = copies({"small": create(tmp_path / "small", 3, 100)}, programs(shared_engine(), None), runs=1)
    assert _cells(table)[1] == ["cp -r", "ingestd, threads", "ingestd, repeated", "ingestd, Spark"]


@pytest.mark.soak
def test_replay_when_measured_then_each_kind_of_table_has_its_rates(replica: Replica, tmp_path: Path) -> None:
    table = replay(replica.source.uri, replica.target.uri, tmp_path, commits=2, runs=1)
    assert _cells(table)[:2] == [["unpartitioned", "partitioned"], ["2", "2"]]


def test_load_when_commits_are_many_then_each_needs_two_calls(replica: Replica, tmp_path: Path) -> None:
    copied = Copied(replica.source.uri, replica.target.uri, tmp_path / "dumps", is_partitioned=True)
    copied.measure(4)  # creates four partitions
    calls = copied.measure(8).calls
    copied.close()
    assert (calls["open_txns"], calls["commit_txn"]) == (8, 8)
    assert (calls["alter_partitions_req"], calls["get_partitions_by_names_req"]) == (4, 4)
    assert calls["allocate_table_write_ids"] == calls["get_table_req"] == 1
    assert calls["alter_database"] <= 1
