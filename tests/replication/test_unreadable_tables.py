"""A table whose files cannot be read where they are is not copied, and stops no other one."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from ingestd.errors import OwnershipLost, ReplicationError
from ingestd.hive.objects import alter_partitions, alter_table, drop_table, find_partitions, find_table
from ingestd.hive.tables import TableName
from ingestd.hive.transactions import commit
from ingestd.replication.cluster import Cluster
from ingestd.replication.cycle import Progress, Result, Step
from ingestd.replication.policies.policy_status import State
from ingestd.replication.statements.grammar import ReplDump
from ingestd.replication.statements.scope import Scope
from ingestd.replication.verify.content import Verdict
from ingestd.replication.verify.tables import verify
from ingestd.storage.contract import CredentialsRefused, PermissionDenied, child
from ingestd.storage.local import local_path
from tests.support.denying import DenyingStorages
from tests.support.replica import Replica, Side
from tests.support.replica_changes import renamed
from tests.support.replica_policies import Pair, new_pair
from tests.support.replica_rows import Rows, begin_locked, insert, read_rows, table_of
from tests.support.replica_tables import EXTERNAL, make_table, move_table

_TABLES = ["t", "other"]
_ABFS = "abfs://container@account/ext"


@dataclass(frozen=True)
class _Places(Pair):
    """A pair of which each side has storages of its own. No dump waits for writers."""

    here: DenyingStorages = field(default_factory=DenyingStorages)
    there: DenyingStorages = field(default_factory=DenyingStorages)

    def cluster(self, side: Side) -> Cluster:
        return Cluster(side.metastore, self.here if side.name == "source" else self.there)

    @property
    def dump_statement(self) -> ReplDump:
        wait = "hive.repl.bootstrap.dump.open.txn.timeout"
        abort = "hive.repl.bootstrap.dump.abort.write.txn.after.timeout"
        statement = super().dump_statement
        return replace(statement, given={**statement.given, wait: "0s", abort: "false"})

    def name(self, table: str) -> TableName:
        return TableName(self.database, table)

    def location(self, table: str) -> str:
        return table_of(self.replica.source.metastore, self.name(table)).location

    def cycle(self) -> Result:
        self.dump()
        return self.load()

    def copy(self, table: str) -> Rows | None:
        """Return the rows of a copy; None if it does not exist."""
        name = TableName(self.target, table)
        return None if find_table(self.replica.target.metastore, name) is None else self._read(name)

    def _read(self, name: TableName) -> Rows:
        return sorted(read_rows(self.replica.target.metastore, name))

    def problems(self) -> list[str]:
        return [self.status(side).problem for side in (self.replica.source, self.replica.target)]


@pytest.fixture
def places(replica: Replica, tmp_path: Path) -> _Places:
    made = new_pair(replica, tmp_path)
    make_table(replica.source.metastore, TableName(made.database, "other"))
    return _Places(made.replica, made.root, made.database, made.target, made.namespace)


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message for message in caplog.messages if "is not copied" in message]


def _lose() -> None:
    raise OwnershipLost("the execution has ended")


def _rename(places: _Places, table: str, name: str) -> None:
    found = table_of(places.replica.source.metastore, places.name(table))
    renamed(name)(found)
    alter_table(places.replica.source.metastore, places.name(table), found)


def _external(places: _Places, name: str, content: bytes) -> tuple[Path, Path]:
    """Create an external table with a file; return the file, and where its copy is."""
    source, target = places.replica.source, places.replica.target
    file = source.external / places.database / name / "file"
    make_table(
        source.metastore, places.name(name), parameters=EXTERNAL, location=f"file:{file.parent}", partitioned=False
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return file, target.external / str(file)[1:]


def test_transactional_table_when_denied_from_the_beginning_then_others_are_copied_and_it_is_when_permitted(
    places: _Places, caplog: pytest.LogCaptureFixture
) -> None:
    source = places.replica.source
    places.create()
    for table in _TABLES:
        insert(source, places.name(table), [(1, "a")])
    places.here.deny(places.location("t"))
    assert places.cycle().unreadable == ("t",)
    assert (places.copy("t"), places.copy("other")) == (None, [(1, "a")])
    writer, _ = begin_locked(source, places.name("t"))  # for which no dump waits
    for number in (2, 3):
        insert(source, places.name("other"), [(number, "b")])
        result = places.cycle()
        assert (result.unreadable, result.lost) == (("t",), ())
    assert (places.copy("t"), places.copy("other")) == (None, [(1, "a"), (2, "b"), (3, "b")])
    location = places.location("t")
    (warning,) = _warnings(caplog)
    reason = f"{location}: Permission denied → grant access"
    assert warning == f"the table t is not copied, and each cycle tries again: {reason}"
    assert places.problems() == [f"the table t is not copied: {reason}"] * 2
    assert {places.status(side).state for side in (source, places.replica.target)} == {State.IDLE}
    commit(source.metastore, writer)
    places.here.denied.clear()
    assert places.cycle().unreadable == ()
    assert (places.copy("t"), places.problems()) == ([(1, "a")], ["", ""])


def test_transactional_table_when_denied_later_then_keeps_its_state_until_it_is_permitted(
    places: _Places, caplog: pytest.LogCaptureFixture
) -> None:
    source = places.replica.source
    places.create()
    for table in _TABLES:
        insert(source, places.name(table), [(1, "a")])
    places.cycle()
    places.cycle()
    places.here.deny(places.location("t"))
    for number in (2, 3):
        for table in _TABLES:
            insert(source, places.name(table), [(number, "b")])
        assert places.cycle().unreadable == ("t",)
    assert (places.copy("t"), places.copy("other")) == ([(1, "a")], [(1, "a"), (2, "b"), (3, "b")])
    assert len(_warnings(caplog)) == 1
    places.here.denied.clear()
    assert places.cycle().unreadable == ()
    assert places.copy("t") == [(1, "a"), (2, "b"), (3, "b")]
    assert places.problems() == ["", ""]
    insert(source, places.name("t"), [(4, "b")])
    places.cycle()
    assert places.copy("t") == [(1, "a"), (2, "b"), (3, "b"), (4, "b")]


def test_transactional_table_when_an_attempt_of_a_dump_is_denied_and_the_next_one_has_its_rename_then_it_follows(
    places: _Places,
) -> None:
    source = places.replica.source
    places.create()
    insert(source, places.name("t"), [(1, "a")])
    places.cycle()
    places.cycle()
    insert(source, places.name("t"), [(2, "a")])
    places.here.deny(places.location("t"))
    with pytest.raises(OwnershipLost):
        places.dump(Step(confirm=_lose))
    places.here.denied.clear()
    _rename(places, "t", "u")
    assert (places.cycle().unreadable, places.problems()) == ((), ["", ""])
    insert(source, places.name("u"), [(3, "a")])
    places.cycle()
    assert (places.copy("t"), places.copy("u")) == (None, [(1, "a"), (2, "a"), (3, "a")])


def test_transactional_table_when_it_is_renamed_while_it_is_denied_then_no_dump_waits_for_its_writers(
    places: _Places, caplog: pytest.LogCaptureFixture
) -> None:
    source = places.replica.source
    places.create()
    insert(source, places.name("t"), [(1, "a")])
    places.cycle()
    places.cycle()
    places.here.deny(places.location("t"))
    insert(source, places.name("t"), [(2, "a")])
    assert places.cycle().unreadable == ("t",)
    _rename(places, "t", "u")
    places.here.deny(places.location("u"))
    writer, _ = begin_locked(source, places.name("u"))
    assert places.cycle().unreadable == ("u",)
    assert (places.copy("t"), places.copy("u"), len(_warnings(caplog))) == (None, None, 1)
    commit(source.metastore, writer)
    places.here.denied.clear()
    assert places.cycle().unreadable == ()
    assert places.copy("u") == [(1, "a"), (2, "a")]


def test_copy_of_another_table_when_it_is_missing_while_a_table_is_denied_then_the_load_stops(places: _Places) -> None:
    source, target = places.replica.source, places.replica.target
    for _ in range(2):
        insert(source, places.name("t"), [(1, "a")])
        places.cycle()
    places.here.deny(places.location("t"))
    insert(source, places.name("t"), [(2, "a")])

    def write_meanwhile(progress: Progress) -> None:
        if "EVENTS" in progress.counts:
            insert(source, places.name("other"), [(1, "a")])

    places.dump(Step(on_progress=write_meanwhile))
    assert places.load().unreadable == ("t",)
    drop_table(target.metastore, TableName(places.target, "other"), delete_data=True)
    places.dump()
    with pytest.raises(ReplicationError, match="missing on the target"):
        places.load()


@pytest.mark.parametrize("is_first", [True, False])
def test_transactional_table_when_the_load_is_denied_its_files_then_others_are_loaded(
    places: _Places, caplog: pytest.LogCaptureFixture, *, is_first: bool
) -> None:
    source = places.replica.source
    places.create()
    if not is_first:
        places.cycle()
    for table in _TABLES:
        insert(source, places.name(table), [(1, "a")])
    places.there.deny(places.location("t"))
    result = places.cycle()
    assert (result.unreadable, result.lost) == (("t",), ())
    insert(source, places.name("other"), [(2, "b")])
    result = places.cycle()
    assert (result.unreadable, result.lost) == (("t",), ())
    assert places.copy("other") == [(1, "a"), (2, "b")]
    assert places.copy("t") == (None if is_first else [])
    assert len(_warnings(caplog)) == 1
    assert all(problem.startswith("the table t is not copied: file:") for problem in places.problems())
    places.there.denied.clear()
    assert places.cycle().unreadable == ()
    assert places.copy("t") == [(1, "a")]
    assert places.problems() == ["", ""]


@pytest.mark.parametrize("is_denied", [True, False])
def test_external_table_when_denied_or_in_a_storage_that_is_not_supported_then_others_are_copied(
    places: _Places, caplog: pytest.LogCaptureFixture, *, is_denied: bool
) -> None:
    source = places.replica.source
    places.create()
    file, copy = _external(places, "ext", b"first")
    other, other_copy = _external(places, "ext2", b"first")
    location = places.location("ext")
    if is_denied:
        places.there.deny(location)
    else:
        move_table(source.metastore, places.name("ext"), _ABFS)
    assert places.cycle().unreadable == ("ext",)
    insert(source, places.name("t"), [(1, "a")])
    other.write_bytes(b"second one")
    assert places.cycle().unreadable == ("ext",)
    assert (places.copy("t"), other_copy.read_bytes(), copy.exists()) == ([(1, "a")], b"second one", False)
    (warning,) = _warnings(caplog)
    assert warning.startswith("the table ext is not copied, and each cycle tries again: ")
    assert (location if is_denied else _ABFS) in warning
    for problem in places.problems():
        assert problem.startswith(f"the table ext is not copied: {location if is_denied else _ABFS}: ")
    target = places.cluster(places.replica.target)
    reports = verify(places.cluster(source), target, Scope(places.database), places.target)
    verdicts = {report.table: report.verdict for report in reports}
    assert verdicts["t"] is Verdict.EQUAL
    if not is_denied:  # to the source
        assert verdicts["ext"] is Verdict.NOT_COMPARABLE
    places.there.denied.clear()
    if not is_denied:
        move_table(source.metastore, places.name("ext"), location)
    assert places.cycle().unreadable == ()
    assert copy.read_bytes() == file.read_bytes()
    assert places.problems() == ["", ""]


def test_transactional_table_when_a_partition_is_in_a_storage_that_is_not_supported_then_others_are_copied(
    places: _Places,
) -> None:
    source, name = places.replica.source, places.name("parts")
    make_table(source.metastore, name, partitioned=True)
    insert(source, name, [(1, "a"), (2, "b")])
    (partition,) = find_partitions(source.metastore, name, ["day=a"])
    alter_partitions(source.metastore, name, [partition.copied(name, _ABFS, partition.parameters)])
    insert(source, places.name("other"), [(1, "a")])
    assert places.cycle().unreadable == ("parts",)
    insert(source, places.name("other"), [(2, "a")])
    writer, _ = begin_locked(source, name, "day=b")  # for which no dump waits
    assert places.cycle().unreadable == ("parts",)
    commit(source.metastore, writer)
    assert (places.copy("parts"), places.copy("other")) == (None, [(1, "a"), (2, "a")])


def test_transactional_table_when_a_directory_of_a_write_is_denied_then_no_dump_waits_for_its_writers(
    places: _Places,
) -> None:
    source, name = places.replica.source, places.name("t")
    insert(source, name, [(1, "a")])
    listed = places.here.at(places.location("t")).entries(places.location("t"))
    (delta,) = (entry.name for entry in listed if entry.name.startswith("delta_"))
    places.here.deny(child(places.location("t"), delta))
    assert places.cycle().unreadable == ("t",)
    writer, _ = begin_locked(source, name)
    assert places.cycle().unreadable == ("t",)
    commit(source.metastore, writer)
    places.here.denied.clear()
    assert places.cycle().unreadable == ()
    assert places.copy("t") == [(1, "a")]


def test_transactional_table_when_only_its_own_directory_is_denied_and_all_partitions_are_apart_then_it_is_copied(
    places: _Places, tmp_path: Path
) -> None:
    source, name = places.replica.source, places.name("parts")
    make_table(source.metastore, name, partitioned=True)
    insert(source, name, [(1, "a")])
    (partition,) = find_partitions(source.metastore, name, ["day=a"])
    apart = shutil.move(local_path(partition.location), tmp_path / "apart")
    alter_partitions(source.metastore, name, [partition.copied(name, f"file:{apart}", partition.parameters)])
    for location in (places.location("parts"), f"file:{apart}"):
        places.here.deny(location)
    assert places.cycle().unreadable == ("parts",)
    del places.here.denied[f"file:{apart}"]
    assert places.cycle().unreadable == ()
    assert places.copy("parts") == [(1, "a")]


@pytest.mark.parametrize("is_source", [True, False])
def test_transactional_tables_when_all_that_were_written_are_denied_then_others_continue(
    places: _Places, *, is_source: bool
) -> None:
    source = places.replica.source
    make_table(source.metastore, places.name("quiet"))
    insert(source, places.name("quiet"), [(1, "a")])
    places.cycle()
    places.cycle()
    for table in _TABLES:
        insert(source, places.name(table), [(1, "a")])
        (places.here if is_source else places.there).deny(places.location(table))
    assert places.cycle().unreadable == ("other", "t")
    insert(source, places.name("quiet"), [(2, "a")])
    assert places.cycle().unreadable == ("other", "t")
    assert places.copy("quiet") == [(1, "a"), (2, "a")]
    places.here.denied.clear()
    places.there.denied.clear()
    assert places.cycle().unreadable == ()
    assert [places.copy(table) for table in _TABLES] == [[(1, "a")]] * 2


def test_external_tables_when_all_are_denied_then_others_continue_unless_they_are_denied_as_well(
    places: _Places,
) -> None:
    source = places.replica.source
    for table in ("ext", "ext2"):
        _external(places, table, b"first")
    insert(source, places.name("t"), [(1, "a")])
    places.there.deny(f"file:{source.external}/{places.database}")
    for table in _TABLES:
        places.there.deny(places.location(table))
    places.dump()
    with pytest.raises(PermissionDenied):
        places.load()
    for table in _TABLES:
        del places.there.denied[places.location(table)]
    assert places.load().unreadable == ("ext", "ext2")
    assert places.copy("t") == [(1, "a")]


def test_tables_when_all_are_denied_or_the_credentials_are_then_it_is_an_error(places: _Places) -> None:
    for table in _TABLES:
        insert(places.replica.source, places.name(table), [(1, "a")])
        places.here.deny(places.location(table))
    with pytest.raises(PermissionDenied):
        places.dump()
    location = places.location("t")
    places.here.denied = {location: CredentialsRefused("the keys are not known", where=location)}
    with pytest.raises(CredentialsRefused):
        places.dump()
    places.here.denied = {}
    places.cycle()
    assert places.copy("t") == [(1, "a")]
