"""ingestd writes only to table and partition directories that exist, and leaves no staging files behind."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ingestd.hive import transactions
from ingestd.hive.tables import TableName, load_acid_table
from ingestd.storage.local import local_path
from tests.support.daemon import Hold
from tests.support.stack import Stack, eventually


def _place(stack: Stack) -> Path:
    return local_path(load_acid_table(stack.metastore, TableName("default", stack.name)).location)


def _staged(place: Path) -> list[str]:
    return [path.name for path in (place / ".ingestd-staging").glob("*")]


class _Unmounted:
    """A table whose directory disappears, as when a file system is not mounted, and a daemon that writes to it."""

    def __init__(self, stack: Stack, case: str, partitioned: str) -> None:
        self._stack = stack
        self.name = f"{stack.name}_{case}"
        stack.topic(1, self.name)
        stack.table("id int", partitioned, f"default.{self.name}")
        self.place = local_path(load_acid_table(stack.metastore, TableName("default", self.name)).location)
        self._away = self.place.with_name(f"{self.place.name}.unmounted")
        self.hold = Hold("staged")
        mapping = {"name": self.name[-40:], "topics": [self.name], "table": f"default.{self.name}"}
        self.daemon = stack.start(stack.config(mapping), hold=self.hold)

    def produce(self, ids: range, dt: str) -> None:
        self._stack.produce(({"id": number, "dt": dt} for number in ids), self.name)

    def unmount(self) -> None:
        self.place.rename(self._away)

    def mount(self) -> None:
        assert not self.place.exists()
        self._away.rename(self.place)

    def has_rows(self, rows: int) -> bool:
        return bool(sum(event["rows"] for event in self.daemon.events("committed")) == rows)

    def waits(self) -> list[dict[str, Any]]:
        return [event for event in self.daemon.events("waiting") if event["reason"] == "NotFound"]

    def has_waited(self, times: int) -> bool:
        return len(self.waits()) >= times


def test_table_directory_when_not_mounted_then_waits_and_does_not_create_it(stack: Stack) -> None:
    cases = [_Unmounted(stack, "t", ""), _Unmounted(stack, "p", "dt string")]
    for case in cases:
        eventually("the mapping to be owned", partial(case.daemon.events, "owner"))
        case.produce(range(10), "a")
    for case in cases:
        case.hold.wait()
        case.unmount()  # between stage and publish
        case.hold.release()
    for case in cases:
        eventually("two attempts", partial(case.has_waited, 2))
        told = case.waits()[0]["error"]
        assert f"{case.place}: the directory does not exist" in told
        assert "mounted" in told
        case.mount()
    tries = {}
    for case in cases:
        eventually("the rows", partial(case.has_rows, 10))
        tries[case.name] = len(case.waits())
        case.unmount()  # between two transactions
        case.produce(range(10, 20), "b")
    for case in cases:
        eventually("an attempt", partial(case.has_waited, tries[case.name] + 1))
        case.mount()
    for case in cases:
        eventually("all rows", partial(case.has_rows, 20))
        assert stack.ids(case.name) == list(range(20))
        case.daemon.terminate()
        assert case.daemon.wait() == 0
        assert _staged(case.place) == []


@pytest.fixture
def other_disk(stack: Stack) -> Iterator[Path]:
    """Yield a directory on another file system than that of the warehouse, which may be in memory."""
    here = local_path(stack.addresses.warehouse).stat().st_dev
    memory = Path("/dev/shm")
    home = stack.directory if memory.stat().st_dev == here else memory
    place = home / f"ingestd-test-{uuid.uuid4().hex[:8]}"
    place.mkdir()
    try:
        yield place
    finally:
        shutil.rmtree(place)


def test_partition_when_on_another_file_system_then_written_and_incomplete_copies_are_removed(
    stack: Stack, other_disk: Path
) -> None:
    stack.topic(1)
    stack.table("id int", partitioned="dt string")
    assert other_disk.stat().st_dev != _place(stack).stat().st_dev
    stack.sql(f"ALTER TABLE {stack.name} ADD PARTITION (dt='a')")
    (_place(stack) / "dt=a").rmdir()
    (_place(stack) / "dt=a").symlink_to(other_disk)
    ended, living = (transactions.begin(stack.metastore, "tests").id for _ in range(2))
    transactions.abort(stack.metastore, ended)
    half = [other_disk / f".ingestd-incoming-{txn}-delta_0000001_0000001_0000" for txn in (ended, living)]
    for path in half:
        path.mkdir()
        (path / "bucket_00000").write_bytes(b"ORC")
    stack.produce({"id": number, "dt": "a"} for number in range(10))

    stack.drain()

    assert stack.ids() == list(range(10))
    assert sorted(path.name for path in other_disk.iterdir() if path.name.startswith(".")) == [half[1].name]
    assert _staged(_place(stack)) == []
    transactions.abort(stack.metastore, living)


def test_table_when_moved_while_a_transaction_is_staged_then_no_staging_files_remain(stack: Stack) -> None:
    stack.topic(1)
    stack.table("id int")
    old = _place(stack)
    new = old.with_name(f"{old.name}_moved")
    hold = Hold("staged")
    stack.produce({"id": number} for number in range(10))
    daemon = stack.start(stack.config(), "--until-caught-up", hold=hold)
    hold.wait()
    assert len(_staged(old)) == 1

    new.mkdir()
    stack.sql(f"ALTER TABLE {stack.name} SET LOCATION 'file:{new}'")
    hold.release()

    assert daemon.wait() == 0, daemon.text()[-2000:]
    assert "TableChanged" in [event["reason"] for event in daemon.events("waiting")]
    assert stack.ids() == list(range(10))
    assert _staged(old) == _staged(new) == []


def test_table_when_swapped_while_a_transaction_is_staged_then_no_staging_files_remain(stack: Stack) -> None:
    stack.topic(1)
    stack.table("id int")
    stack.table("id int", name=f"default.{stack.name}_new")
    place = _place(stack)
    hold = Hold("staged")
    stack.produce({"id": number} for number in range(10))
    daemon = stack.start(stack.config(), "--until-caught-up", hold=hold)
    hold.wait()
    stack.sql(f"ALTER TABLE {stack.name} RENAME TO {stack.name}_old")
    stack.sql(f"ALTER TABLE {stack.name}_new RENAME TO {stack.name}")
    old = place.with_name(f"{place.name}_old")
    assert len(_staged(old)) == 1
    hold.release()

    assert daemon.wait() == 0, daemon.text()[-2000:]
    assert stack.ids() == list(range(10))
    assert _staged(old) == _staged(place) == []


def test_two_deployments_when_mapping_name_and_table_are_the_same_then_files_are_separate(
    stack: Stack,
) -> None:
    stack.topic(1)
    stack.table("id int")
    stack.produce({"id": number} for number in range(10))
    hold = Hold("staged")
    first = stack.start(stack.config(control={"database": f"{stack.name}_a"}), "--until-caught-up", hold=hold)
    hold.wait()

    stack.drain(stack.config(control={"database": f"{stack.name}_b"}))
    hold.release()

    assert first.wait() == 0, first.text()[-2000:]
    assert "NotFound" not in [event["reason"] for event in first.events("waiting")]
    assert stack.ids() == sorted([*range(10), *range(10)])  # each deployment reads the whole topic
    assert _staged(_place(stack)) == []
