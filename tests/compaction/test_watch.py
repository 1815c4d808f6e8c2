"""The policy on the real services: what is requested, once per partition, and what is reported."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ingestd.acid.writer_pool import StagingFile
from ingestd.compaction.options import CompactionOptions
from ingestd.compaction.survey import survey
from ingestd.errors import MetastoreUnavailable
from ingestd.hive.client import Metastore
from ingestd.hive.compactions import request_compaction
from ingestd.hive.tables import TableName, load_acid_table
from ingestd.hive.transactions import abort, begin_writing
from ingestd.publish.warehouse import Warehouse
from ingestd.storage.local import local_path
from ingestd.storage.storages import Storages
from tests.compaction.support import ON_REQUEST, entries, watching, write_deltas
from tests.streaming.support import connect, rows
from tests.support.compaction import wait_for_cleaner
from tests.support.metastore import Home, Process
from tests.support.metastore import metastore as metastore_process
from tests.support.stack import Stack, eventually
from tests.support.tables import make_table

ODD = "a b/c:d=%"


def _name(stack: Stack) -> TableName:
    return TableName("default", stack.name)


def test_policy_when_partitions_have_too_many_deltas_then_each_is_compacted_once(stack: Stack) -> None:
    stack.table("id int, note string", "day string", **ON_REQUEST)
    write_deltas(stack, 4, day=ODD)
    write_deltas(stack, 3, first=10, day="y")
    write_deltas(stack, 2, first=20, day="z")
    table, warehouse = load_acid_table(stack.metastore, _name(stack)), Warehouse(stack.metastore, Storages())
    odd, y, z = (table.partition_name([day]) for day in (ODD, "y", "z"))
    everything = [*range(4), *range(10, 13), 20, 21]
    assert {name: files.deltas for name, files in survey(warehouse, table, [odd, y, z]).items()} == {
        odd: 4,
        y: 3,
        z: 2,
    }
    options = CompactionOptions(deltas=3, ratio=1000.0, survey=1.0)

    with watching(stack.metastore, _name(stack), options, count=2) as watches:
        (first, notes), (_, other) = watches

        def requests() -> list[tuple[str, str]]:
            asked = sorted(
                (compaction for compaction, _ in notes.asked + other.asked), key=lambda compaction: compaction.id
            )
            return [(compaction.partition, compaction.kind) for compaction in asked]

        def wait_for(*compactions: tuple[str, str]) -> int:
            """Wait until these compactions are done and visible, and return the number of requests so far.

            A compaction is requested again if its result becomes visible only long after its end. So wait for all.
            """
            eventually(
                "the compactions",
                lambda: {*compactions} <= {(compaction.partition, compaction.kind) for compaction in notes.done},
            )
            eventually("the survey", lambda: first.status.deltas < 3)
            eventually("an empty queue", lambda: not [entry for entry in entries(stack) if entry.is_pending])
            wait_for_cleaner(stack, str(table.name))
            return len(requests())

        asked = wait_for((odd, "major"), (y, "major"))
        assert set(requests()) == {(odd, "major"), (y, "major")}
        assert sorted(stack.ids()) == everything
        # A base exists now, so the next compaction is minor.
        write_deltas(stack, 3, first=30, day=ODD)
        wanted = wait_for((odd, "minor"))
        assert set(requests()[asked:]) == {(odd, "minor")}
        assert sorted(stack.ids()) == [*everything, 30, 31, 32]
        cycles = notes.cycles
        eventually("another survey", lambda: notes.cycles > cycles + 12)
        assert len(requests()) == wanted
        assert not first.status.problem

    made = {(entry.partition, entry.kind) for entry in entries(stack)}
    assert made == {(odd, "major"), (y, "major"), (odd, "minor")}
    after = survey(warehouse, table, [odd, y, z])
    assert {name: (files.deltas, files.has_base) for name, files in after.items()} == {
        odd: (1, True),
        y: (0, True),
        z: (2, False),
    }


def test_policy_when_the_name_of_a_partition_is_not_ascii_then_requests_none_and_says_so(stack: Stack) -> None:
    stack.table("id int, note string", "day string", **ON_REQUEST)
    write_deltas(stack, 3, day="é")
    with watching(stack.metastore, _name(stack), CompactionOptions(deltas=3)) as [(watch, notes)]:
        eventually("the reading of the queue", lambda: watch.status.crowded and not watch.needs_queue({}))
    assert not entries(stack)
    assert "ASCII" in notes.faults[-1][-1]


def test_policy_when_a_compaction_fails_then_its_error_is_reported_and_it_is_not_repeated(stack: Stack) -> None:
    stack.table("id int, note string", **ON_REQUEST)
    write_deltas(stack, 3)
    table = load_acid_table(stack.metastore, _name(stack))
    broken = next(local_path(table.location).glob("delta_0000002*/bucket_*"))
    broken.write_bytes(b"not an ORC file")

    with watching(stack.metastore, _name(stack), CompactionOptions(deltas=3, survey=0.2)) as [(watch, notes)]:
        eventually("the failure", lambda: notes.broken)
        eventually("the status", lambda: watch.status.problem)
        write_deltas(stack, 1, first=10)
        eventually("a later survey", lambda: watch.status.deltas == 4)

    [failed] = notes.broken
    assert (failed.state, failed.kind, failed.partition) == ("failed", "major", "")
    assert failed.error
    assert failed.error in watch.status.problem
    assert len(notes.asked) == len(entries(stack)) == 1


@pytest.mark.parametrize(
    ("properties", "options"),
    [({"no_auto_compaction": "true"}, CompactionOptions(deltas=2)), (ON_REQUEST, CompactionOptions("never", deltas=2))],
    ids=["table", "mapping"],
)
def test_policy_when_excluded_then_counts_but_requests_nothing(
    stack: Stack, properties: dict[str, str], options: CompactionOptions
) -> None:
    stack.table("id int, note string", **properties)
    write_deltas(stack, 3)
    with watching(stack.metastore, _name(stack), options) as [(watch, notes)]:
        eventually("the survey", lambda: watch.status.crowded == 1)
        assert (watch.status.deltas, watch.status.small_files) == (3, 3)
        eventually("the reading of the queue", lambda: not watch.needs_queue({}))
    assert not entries(stack)
    assert bool(notes.faults) == (options.request == "auto")


def test_policy_when_an_open_transaction_prevents_a_compaction_then_requests_it_afterwards(stack: Stack) -> None:
    stack.table("id int, note string", **ON_REQUEST)
    txn, _ = begin_writing(stack.metastore, _name(stack), "tests")
    write_deltas(stack, 3)
    with watching(stack.metastore, _name(stack), CompactionOptions(deltas=3, survey=0.2)) as [(watch, notes)]:
        eventually("the survey", lambda: watch.status.crowded and not watch.needs_queue({}))
        assert not entries(stack)
        abort(stack.metastore, txn.id)
        eventually("the request", lambda: notes.asked)


def test_policy_when_a_table_is_recreated_with_partitions_then_only_those_count(stack: Stack) -> None:
    make_table(stack.metastore, _name(stack))
    write_deltas(stack, 3)
    with watching(stack.metastore, _name(stack), CompactionOptions("never", deltas=3)) as [(watch, notes)]:
        eventually("the survey", lambda: watch.status.deltas == 3)
        table = load_acid_table(stack.metastore, _name(stack))
        stack.metastore.call("drop_table", "default", stack.name, True)
        make_table(stack.metastore, _name(stack), partitioned=True)
        write_deltas(stack, 2, day="x")
        watch.committed(table, [StagingFile((), 0, 0, "", 1, 1)])  # the last commit to the old table
        eventually("the survey of the new table", lambda: watch.status.deltas == 2)
    assert not [error for error in notes.delays if not isinstance(error, MetastoreUnavailable)]


@pytest.fixture(scope="module")
def without_workers(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """Yield a metastore that has no initiator, no worker and no cleaner."""
    home = Home(tmp_path_factory.mktemp("without-workers"))
    properties = {
        "metastore.compactor.initiator.on": "false",
        "metastore.compactor.cleaner.on": "false",
        "hive.metastore.runworker.in": "metastore",
    }
    with metastore_process(home, "idle", properties) as process:
        yield process


def test_policy_when_hive_has_no_initiator_worker_and_cleaner_then_all_are_reported(without_workers: Process) -> None:
    metastore = Metastore(f"thrift://127.0.0.1:{without_workers.port}")
    name = TableName("default", "waiting")
    table = make_table(metastore, name)
    request_compaction(metastore, name, "", "major", "tests")
    options = CompactionOptions(survey=0.2, patience=0.5)
    with watching(metastore, name, options) as [(watch, notes)]:
        eventually("the stall", lambda: notes.stalls)
        eventually("the status", lambda: "worker" in watch.status.problem)
    metastore.close()
    assert Path(local_path(table.sd.location)).exists()
    [faults] = notes.faults
    text = " ".join(faults)
    for setting in ("no_auto_compaction", "initiator.on", "cleaner.on", "worker.threads"):
        assert setting in text
    assert [(stall.service, stall.count) for stall in notes.stalls] == [("worker", 1)]


def test_policy_when_a_compaction_is_queued_already_then_requests_none(stack: Stack, without_workers: Process) -> None:
    """The metastore would refuse the request."""
    calls: list[str] = []
    uri = f"thrift://127.0.0.1:{without_workers.port}"
    metastore = Metastore(uri, on_call=lambda method, _seconds, _outcome: calls.append(method))
    name = TableName("default", "queued")
    make_table(metastore, name, no_auto_compaction="false")
    for number in range(3):
        with connect(stack, metastore_uri=uri, table=name.table) as connection, connection.transaction():
            connection.write(rows(number, 1))
    request_compaction(metastore, name, "", "major", "tests")
    before = len(calls)
    with watching(metastore, name, CompactionOptions(deltas=3, survey=0.2)) as [(watch, notes)]:
        eventually("the compaction to be known", lambda: watch.status.pending == watch.status.crowded == 1)
        surveys = calls.count("get_table_req")
        eventually("later surveys", lambda: calls.count("get_table_req") > surveys + 2)
    metastore.close()
    assert not notes.asked
    assert "show_compact" in calls[before:]
    assert "compact2" not in calls[before:]


def test_policy_when_many_partitions_are_crowded_then_one_survey_suffices_to_request_all(
    stack: Stack, without_workers: Process
) -> None:
    uri = f"thrift://127.0.0.1:{without_workers.port}"
    metastore, name = Metastore(uri), TableName("default", "crowded")
    make_table(metastore, name, partitioned=True, no_auto_compaction="false")
    days = [f"{day:02}" for day in range(21)]
    with connect(stack, metastore_uri=uri, table=name.table) as connection, connection.transaction():
        connection.write(rows(0, len(days), day=days))
    with watching(metastore, name, CompactionOptions(deltas=1)) as [(_, notes)]:
        eventually("all requests", lambda: len(notes.asked) == len(days))
    metastore.close()
    assert sorted(compaction.partition for compaction, _ in notes.asked) == [f"day={day}" for day in days]
