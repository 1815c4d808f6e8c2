"""Tables in HDFS, in S3 and in local directories as HiveServer2 reads them: rows, counts, changes, crashes and rivals.

The tests of `tests/ingest` examine the same in local directories, and more. So here, those are examined with `-m soak`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from hive_metastore import ttypes

from ingestd.hive.tables import TableName, load_acid_table
from ingestd.hive.transactions import describe_transactions
from ingestd.ingest.steps import STEPS
from ingestd.sandbox import Addresses, Sandbox, SandboxOptions
from ingestd.storage.contract import split
from ingestd.storage.options import StorageOptions
from ingestd.storage.storages import Storages
from ingestd.streaming import InvalidConnection
from ingestd.streaming.configuration import Configuration
from tests.streaming.support import connect, counted, sees
from tests.support.compaction import request_compaction
from tests.support.every_table import every_table
from tests.support.sandbox import running
from tests.support.stack import Stack, eventually

_TYPES = "id bigint, flag boolean, money decimal(10,2), txt string, day date, tags array<string>"


_soak = partial(pytest.param, marks=pytest.mark.soak)
# Such a test examines one storage in each run, and all with `-m soak`.
_HDFS = pytest.mark.parametrize("box", ["hdfs", _soak("s3"), _soak("local")], indirect=True)
_S3 = pytest.mark.parametrize("box", ["s3", _soak("hdfs"), _soak("local")], indirect=True)


@pytest.fixture(scope="module", params=["hdfs", "s3", _soak("local")])
def box(processes: None, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    state_dir = tmp_path_factory.mktemp(request.param)
    with running(SandboxOptions(state_dir=state_dir, hiveserver2=True, storage=request.param)) as made:
        yield made


@pytest.fixture(scope="module")
def addresses(box: Sandbox) -> Addresses:
    """Return the addresses that the fixture `stack` uses in this module."""
    return box.addresses()


def _assert_clean(stack: Stack) -> None:
    """Assert that neither a staging directory nor an open transaction is left."""
    storages = Storages(_options(stack))
    table = load_acid_table(stack.metastore, TableName("default", stack.name))
    warehouse = split(stack.addresses.warehouse).levels
    assert split(table.location).levels[: len(warehouse)] == warehouse
    for root in (".ingestd-staging", ".ingestd-streaming"):
        assert storages.at(table.location).leftovers(f"{table.location}/{root}") == []
    agents = [txn.hostname for txn in describe_transactions(stack.metastore) if txn.state == ttypes.TxnState.OPEN]
    # A transaction that a killed process used to count rows ends with `hive.txn.timeout`.
    assert [agent for agent in agents if agent and agent.startswith("ingestd/ingestd/")] == []


def _options(stack: Stack) -> StorageOptions:
    folder = stack.addresses.hadoop_conf_dir
    return StorageOptions(hadoop_conf_dir=Path(folder) if folder else None)


# After the others, the storage is as after the step before.
_STEPS = [step for step in STEPS if step not in ("planned", "queued")]


@_S3
def test_kill_after_each_step_when_restarted_then_every_id_is_stored_once_and_nothing_is_left(stack: Stack) -> None:
    """Kill a process whose transactions wait after one step each. Each mapping writes its own static partition."""
    stack.topic(2)
    stack.table("id bigint, note string", "step string")
    config = stack.config(
        *({"name": f"{stack.name[-6:]}_{step}", "partition": {"step": step}, "start": "earliest"} for step in _STEPS),
        defaults={"commit": {"rows": 100, "interval": "1s"}},
    )
    stack.drain(config)  # stores the start positions, so that the next transactions contain records
    stack.produce({"id": n, "note": f"note {n}"} for n in range(100))
    killed, _ = stack.start_held(config, _STEPS)
    killed.kill()
    assert _ids_by_step(stack) == [list(range(100))] * 2  # the steps `committed` and `mirrored`

    stack.drain(config)
    assert _ids_by_step(stack) == [list(range(100))] * len(_STEPS)
    assert counted(stack) == stack.count() == 100 * len(_STEPS)
    _assert_clean(stack)


def _ids_by_step(stack: Stack) -> list[list[int]]:
    """Return the sorted ids of each partition with rows."""
    found: dict[str, list[int]] = {}
    for step, one in stack.sql(f"SELECT step, id FROM {stack.name}"):
        found.setdefault(step, []).append(one)
    return [sorted(ids) for ids in found.values()]


@_HDFS
def test_rows_when_updated_deleted_and_compacted_then_values_and_counts_are_right(stack: Stack) -> None:
    stack.topic(2)
    stack.table(_TYPES, "dt date, region string")
    records = [
        {
            "id": n,
            "flag": n % 2 == 0,
            "money": f"{n}.25",
            "txt": None if n % 10 == 3 else f"naïve {n}",
            "day": "0001-01-01",
            "tags": ["a", str(n)],
            "dt": f"2026-11-0{n % 2 + 1}",
            "region": f"r/{n % 3}",
        }
        for n in range(60)
    ]
    for half in (records[:30], records[30:]):  # so that each partition has two deltas
        stack.produce(half)
        stack.drain()
    expected = {n: n % 2 == 0 for n in range(60)}
    one = f"SELECT money, txt, cast(day AS string), tags[1], dt, region FROM {stack.name} WHERE id = 33"
    assert stack.sql(one) == [(Decimal("33.25"), None, "0001-01-01", "33", date(2026, 11, 2).isoformat(), "r/0")]
    assert counted(stack) == stack.count() == 60

    stack.sql(f"UPDATE {stack.name} SET flag = true WHERE id % 5 = 0")
    stack.sql(f"DELETE FROM {stack.name} WHERE id % 7 = 0")
    expected = {n: flag or n % 5 == 0 for n, flag in expected.items() if n % 7}
    compacted = request_compaction(stack, f"default.{stack.name}", "major", "dt='2026-11-01', region='r/1'")
    assert _flags(stack) == expected
    compacted()
    assert _flags(stack) == expected
    assert counted(stack) == stack.count() == len(expected)
    _assert_clean(stack)


@_S3
def test_doctor_when_a_row_count_is_wrong_then_it_has_read_the_files_and_says_so(stack: Stack) -> None:
    stack.topic(1)
    stack.table("id bigint", "dt string")
    stack.produce({"id": n, "dt": "2026-11-01"} for n in range(10))
    config = stack.config()
    stack.drain(config)
    findings = _examined(stack, config)
    assert [findings[f"table.{check}"][0] for check in ("storage", "permissions", "deltas")] == ["ok"] * 3
    assert "1 of 1 row counts agree" in findings["table.row_counts"][1]
    assert "at most 1 deltas" in findings["table.deltas"][1]
    stack.sql(f"ALTER TABLE {stack.name} PARTITION (dt='2026-11-01') UPDATE STATISTICS SET ('numRows'='7')")
    status, evidence = _examined(stack, config)["table.row_counts"]
    assert status == "warning"
    assert "numRows is 7, but the files contain 10 rows" in evidence


def _examined(stack: Stack, config: Path) -> dict[str, tuple[str, str]]:
    """Return the status and the evidence of each check of the mapping's table by `ingestd doctor`."""
    command = [sys.executable, "-m", "ingestd", "doctor", "--config", str(config), "--output", "json"]
    printed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    findings = json.loads(printed)["findings"]
    tables = [finding for finding in findings if finding["check"].startswith("table.")]
    return {finding["check"]: (finding["status"], finding["evidence"]) for finding in tables}


def _flags(stack: Stack) -> dict[int, bool]:
    rows = stack.sql(f"SELECT id, flag FROM {stack.name}")
    assert len({row[0] for row in rows}) == len(rows)
    return {row[0]: row[1] for row in rows}


@pytest.mark.soak
def test_records_when_the_tables_are_of_every_kind_then_each_row_and_dead_letter_is_stored_once(stack: Stack) -> None:
    with every_table(stack) as tables:
        daemon = stack.drain(stack.config(*tables.mappings, **tables.sections))
        tables.assert_distributed(daemon.events("committed"))
    tables.assert_stored_once()


@_HDFS
def test_owner_when_frozen_and_resumed_then_its_rival_has_committed_200_partitions_once(stack: Stack) -> None:
    stack.topic(2)
    stack.table("id bigint", "part int")
    config = stack.config({"commit": {"rows": 400, "interval": "1s"}})
    gate = stack.directory / "gate"
    frozen = stack.start_process(config, INGESTD_TESTING="1", INGESTD_FAILPOINT=f"staged@1=hold:{gate}")
    eventually("the first daemon to become owner", partial(frozen.events, "owner"))
    stack.produce({"id": n, "part": n % 200} for n in range(400))
    eventually("the stage to be blocked", Path(f"{gate}.held").exists)
    # Freeze the daemon between stage and lock, including its heartbeats, as in a long pause of the machine.
    os.kill(frozen.process.pid, signal.SIGSTOP)
    rival = stack.start(config)
    eventually("the rival's rows", lambda: sum(event["rows"] for event in rival.events("committed")) == 400)
    gate.touch()
    os.kill(frozen.process.pid, signal.SIGCONT)
    eventually("the frozen daemon to become standby", partial(frozen.events, "standby"))
    for daemon in (rival, frozen):
        daemon.terminate()
    assert rival.wait() == frozen.wait() == 0
    assert counted(stack) == stack.count() == 400
    # Without this condition, HiveServer2 reads 200 files one by one.
    assert sorted(stack.sql(f"SELECT id, part FROM {stack.name} WHERE part < 8")) == [
        *((n, n) for n in range(8)),
        *((n + 200, n) for n in range(8)),
    ]
    _assert_clean(stack)


@pytest.mark.parametrize("box", ["hdfs", "s3"], indirect=True)
def test_streaming_when_hive_is_configured_then_rows_are_readable_and_batches_are_refused(stack: Stack) -> None:
    stack.table("id int, note string", "day string")
    storage = _options(stack)
    # A program that has a Hive configuration passes the same properties, and not the option `storage`.
    configuration = dict(Configuration().storage_options(storage).properties or {})
    data = pa.table({"id": pa.array(range(10), pa.int32()), "note": ["n"] * 10, "day": ["a", "b"] * 5})
    with connect(stack, configuration=configuration) as connection:
        with connection.transaction():
            connection.write(data)
            write_id = connection.current_write_id
        assert write_id
        connection.begin_transaction()
        connection.write(data)
        connection.abort_transaction()
        file = connection.delta_file_location(["a"], 0, write_id, write_id)
    with connect(stack, storage=storage, static_partition_values=["b"]) as connection, connection.transaction():
        connection.write(data.select(["id", "note"]))
    scheme = stack.addresses.warehouse.partition(":")[0]
    refused = f"files that can be read while they are being written, which {scheme}: does not support"
    with pytest.raises(InvalidConnection, match=refused):
        connect(stack, storage=storage, transaction_batch_size=2)
    assert Storages(storage).at(file).read(file).startswith(b"ORC")
    assert list(Storages(storage).files(file.rpartition("/")[0])) == ["bucket_00000"]  # and no _orc_acid_version
    sees(stack, [*range(10), *range(10)], by_job=True)
    sees(stack, range(0, 10, 2), "WHERE day = 'a'")
    _assert_clean(stack)
