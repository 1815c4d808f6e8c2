"""A running daemon: when it commits, how it stops, and how it handles rejects and full disks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ingestd.hive.tables import TableName, load_acid_table, read_table
from ingestd.hive.transactions import open_transactions
from ingestd.storage.local import local_path
from tests.support.daemon import Daemon, Hold
from tests.support.files import files_below
from tests.support.patience import LIMIT
from tests.support.stack import Stack, eventually

KIB = "x" * 1_000


def _add(stack: Stack, case: str, columns: str = "id bigint, note string", **mapping: Any) -> dict[str, Any]:
    """Create the topic and the table of one case, and return its mapping."""
    name = f"{stack.name}_{case}"
    stack.topic(1, name)
    stack.table(columns, name=f"default.{name}")
    return {"name": name[-40:], "topics": [name], "table": f"default.{name}"} | mapping


def _produce(stack: Stack, mapping: dict[str, Any], ids: range, note: str = "") -> None:
    stack.produce(({"id": n, "note": note} for n in ids), mapping["topics"][0])


def _commits(daemon: Daemon, mapping: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the `committed` events of the mapping whose commits contained records."""
    return [e for e in daemon.events("committed") if e["mapping"] == mapping["name"] and e["records"]]


def _stop(daemon: Daemon) -> None:
    daemon.terminate()
    assert daemon.wait() == 0, daemon.text()[-3000:]


def test_commit_when_rows_bytes_or_interval_is_reached_then_happens_and_a_restart_continues(stack: Stack) -> None:
    rows = _add(stack, "rows", commit={"rows": 100, "interval": "1h"})
    size = _add(stack, "bytes", commit={"bytes": "64KiB", "interval": "1h"})
    time = _add(stack, "time", commit={"interval": "500ms"})
    config = stack.config(rows, size, time)
    daemon = stack.start(config)
    eventually("all mappings to be owned", lambda: len({e["mapping"] for e in daemon.events("owner")}) == 3)
    # The first plan is due at once, so it must not see only the first of these records.
    stack.produce_at_once(({"id": n, "note": ""} for n in range(250)), rows["topics"][0])
    _produce(stack, size, range(800), KIB)
    _produce(stack, time, range(10))
    eventually("two commits by rows", lambda: len(_commits(daemon, rows)) == 2)
    assert [c["rows"] for c in _commits(daemon, rows)] == [100, 100]
    eventually("six commits by bytes", lambda: len(_commits(daemon, size)) >= 6)
    # The first stage yields an estimate of the record size, but the next stages are planned before that.
    assert all(50_000 < c["bytes"] <= 64 * 1024 for c in _commits(daemon, size)[-2:])
    eventually("a commit by time", lambda: sum(c["rows"] for c in _commits(daemon, time)) == 10)
    _stop(daemon)
    _produce(stack, rows, range(250, 260))
    _produce(stack, size, range(800, 820), 20 * KIB)
    drained = stack.drain(config)
    # A daemon that has not read records yet plans as many small ones.
    assert {e["mapping"] for e in drained.events("waiting") if e["reason"] == "TransactionTooLarge"} == {size["name"]}
    assert all(c["bytes"] <= 64 * 1024 for c in _commits(drained, size))
    for mapping, count in ((rows, 260), (size, 820), (time, 10)):
        assert stack.ids(mapping["topics"][0]) == list(range(count))


def test_bad_record_when_read_then_only_its_mapping_stops_and_continues_after_the_table_is_changed(
    stack: Stack,
) -> None:
    bad = _add(stack, "bad", "id bigint, qty int", commit={"rows": 50})
    good = _add(stack, "good")
    _produce(stack, good, range(500))
    records: list[dict[str, object]] = [{"id": n, "qty": n} for n in range(120)]
    records[70]["qty"] = "many"
    stack.produce(records, bad["topics"][0], 0)
    config = stack.config(bad, good)
    for _ in range(2):
        daemon = stack.drain(config, expect=65)
        stops = daemon.events("failed")
        assert [e["mapping"] for e in stops] == [bad["name"]]
        for part in (f"{bad['topics'][0]}[0] offset 70", "column qty", "'many' is not a number", '{"id": 70'):
            assert part in stops[0]["error"]
        assert "Traceback" not in daemon.text()
        # The commit before the reject is preserved, and no row of the reject's transaction is visible.
        assert stack.ids(bad["topics"][0]) == list(range(50))
        assert stack.ids(good["topics"][0]) == list(range(500))
        assert open_transactions(stack.metastore, f"ingestd/ingestd/{bad['name']}/") == []
    stack.sql(f"ALTER TABLE {bad['table']} CHANGE COLUMN qty qty string")
    stack.drain(config)
    assert stack.ids(bad["topics"][0]) == list(range(120))
    assert stack.sql(f"SELECT qty FROM {bad['table']} WHERE id IN (69, 70, 71)") == [("69",), ("many",), ("71",)]


def test_stop_when_a_transaction_is_open_then_it_is_committed_and_exit_is_0(stack: Stack) -> None:
    stack.topic(1)
    stack.table("id bigint")
    # The first transaction stores the start position, and the second contains the records.
    hold = Hold("opened", times=2)
    daemon = stack.start(stack.config(), hold=hold)
    eventually("the mapping to be owned", lambda: daemon.events("owner"))
    stack.produce({"id": n} for n in range(100))
    hold.wait()
    daemon.terminate()
    stack.produce({"id": n} for n in range(100, 110))
    hold.release()
    assert daemon.wait() == 0, daemon.text()
    assert daemon.events("stopped")
    held = [n for n in stack.ids() if n < 100]
    assert held
    assert held == list(range(len(held)))
    assert open_transactions(stack.metastore, f"ingestd/ingestd/{stack.name}/") == []
    stack.drain()
    assert stack.ids() == list(range(110))


def test_table_when_swapped_by_two_renames_then_continues_and_when_missing_then_stops(stack: Stack) -> None:
    stack.topic(20)
    stack.table("id bigint")
    stack.table("id bigint", name=f"default.{stack.name}_new")
    stack.produce({"id": n} for n in range(400))
    daemon = stack.start(stack.config(), "--log-level", "debug")
    eventually("the first rows", lambda: stack.count() == 400)
    # A commit is logged after its offsets have been mirrored, and visible before.
    line, *_ = eventually("its event", lambda: [e for e in daemon.events("committed") if e["range_count"] > 16])
    assert "ranges" not in line
    assert line["offsets"] == line["records"]
    named = next(e for e in daemon.events("committed_ranges") if e["txn"] == line["txn"])
    assert len(named["ranges"]) == line["range_count"]
    stack.sql(f"ALTER TABLE {stack.name} RENAME TO {stack.name}_old")
    stack.produce({"id": n} for n in range(400, 500))
    eventually("the daemon to notice", lambda: "TableChanged" in [e["reason"] for e in _waits(daemon)])
    # Without HiveServer2, which may take longer on a busy machine than a table may be missing.
    _rename(stack, f"{stack.name}_new", stack.name)
    eventually("the other rows", lambda: stack.count() == 100)
    assert stack.count(name=f"{stack.name}_old") == 400
    stack.sql(f"ALTER TABLE {stack.name} RENAME TO {stack.name}_gone")
    stack.produce([{"id": 500}])
    assert daemon.wait() == 65
    assert "the table does not exist" in daemon.events("failed")[0]["error"]


def _rename(stack: Stack, old: str, new: str) -> None:
    table = read_table(stack.metastore, TableName("default", old))
    table.tableName = new
    stack.metastore.call("alter_table", "default", old, table)


def _staging(stack: Stack) -> Path:
    table = load_acid_table(stack.metastore, TableName("default", stack.name))
    return local_path(table.location) / ".ingestd-staging"


@contextmanager
def _unusable(place: Path) -> Iterator[None]:
    """Create a file in place of the directory, so that every write to the directory fails, even for root."""
    place.touch()
    try:
        yield
    finally:
        place.unlink()


@contextmanager
def _full(place: Path) -> Iterator[None]:
    """Mount a full file system of 2 MiB at `place`. Skips the test when mounting is not permitted."""
    place.mkdir(exist_ok=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"mounting a tmpfs is not permitted: {mounted.stderr.decode().strip()}")
    filler = place / "filler"
    try:
        with pytest.raises(OSError, match="No space left"):
            filler.write_bytes(bytes(4 << 20))
        yield
        filler.unlink()
    except BaseException:
        subprocess.run(["umount", "-l", str(place)], check=True)
        raise


@pytest.mark.parametrize(
    ("broken", "reason", "words"),
    [(_unusable, "NotFound", ".ingestd-staging"), (_full, "NoSpace", "No space left on device")],
    ids=["file", "full"],
)
def test_storage_when_it_fails_then_the_daemon_waits_and_continues_by_itself(
    stack: Stack, broken: Any, reason: str, words: str
) -> None:
    stack.topic(1)
    stack.table("id bigint, note string")
    daemon = stack.start(stack.config())
    eventually("the mapping to be owned", lambda: daemon.events("owner"))
    stack.produce({"id": n, "note": f"{n}"} for n in range(100))
    eventually("the first rows", lambda: stack.count() == 100)
    place = _staging(stack)
    try:
        _remove_tree_when_idle(place)
        with broken(place):
            stack.produce({"id": n, "note": os.urandom(500).hex()} for n in range(100, 1_000))
            eventually("two attempts", lambda: len(_told(daemon, reason, words)) >= 2)
            assert stack.count() == 100
        eventually("all rows", lambda: stack.count() == 1_000)
        assert stack.ids() == list(range(1_000))
        _stop(daemon)
        assert open_transactions(stack.metastore, f"ingestd/ingestd/{stack.name}/") == []
    finally:
        subprocess.run(["umount", "-l", str(place)], capture_output=True, check=False)


def _waits(daemon: Daemon) -> list[dict[str, Any]]:
    return daemon.events("waiting")


def _told(daemon: Daemon, reason: str, words: str) -> list[dict[str, Any]]:
    return [event for event in _waits(daemon) if event["reason"] == reason and words in event["error"]]


def _remove_tree_when_idle(place: Path) -> None:
    """Remove a directory tree after the daemon has removed the files of its last transaction."""
    eventually("an empty staging directory", lambda: not files_below(place))
    shutil.rmtree(place, ignore_errors=True)


def test_log_when_its_disk_is_full_then_records_are_committed(stack: Stack) -> None:
    stack.topic(1)
    stack.table("id bigint")
    stack.produce({"id": n} for n in range(10))
    command = [sys.executable, "-m", "ingestd", "run", "--config", str(stack.config()), "--until-caught-up"]
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        assert subprocess.run(command, stderr=full, timeout=LIMIT, check=False).returncode == 0
    assert stack.ids() == list(range(10))
