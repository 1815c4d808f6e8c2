"""The steps of a policy: they alternate, stop both sides after an error that a repetition cannot fix, and resume."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ingestd.errors import BootstrapRequired, ConfigError, InvalidTable, OwnershipLost
from ingestd.hive.events import EventLog
from ingestd.hive.objects import change_database, find_database, find_table
from ingestd.hive.replay import Replay
from ingestd.hive.tables import TableName
from ingestd.replication import cycle
from ingestd.replication.cycle import Progress, Step
from ingestd.replication.directory.dump_files import Owner
from ingestd.replication.directory.protocol import DumpDirectory, NonRecoverable, Side
from ingestd.replication.external import ExternalDirectory, decoded
from ingestd.replication.statements.grammar import ReplLoad
from ingestd.storage.local import local_path
from ingestd.storage.storages import Storages
from tests.support.daemon import jobs_of_shared_engine, shared_engine
from tests.support.files import files_below
from tests.support.replica import Replica
from tests.support.replica_following import write
from tests.support.replica_policies import Pair, new_pair
from tests.support.replica_rows import table_of
from tests.support.replica_tables import EXTERNAL, make_database, make_table


def test_steps_when_repeated_then_alternate_and_report_what_they_did(pair: Pair) -> None:
    pair.insert([(1, "a")])
    assert pair.load().skipped == "there is no dump yet"
    seen: list[Progress] = []
    first = pair.dump(Step(execution=7, on_progress=seen.append))
    assert (first.progress.phase, first.progress.counts) == ("BOOTSTRAP", {"TABLES": (1, 1)})
    assert seen[-1] == first.progress
    assert first.progress.directory.startswith(f"{pair.root_uri}/")
    assert pair.dump().skipped == "the target has not loaded dump 1 yet"
    loaded = pair.load()
    assert (loaded.progress.dump_execution, loaded.last_event) == (7, first.last_event)
    assert loaded.progress.counts["FILES"][0] > 0
    assert loaded.progress.counts["BYTES"][0] > 0
    assert pair.load().skipped == "dump 1 is loaded, and there is no later one"
    assert pair.rows() == [(1, "a")]
    pair.insert([(2, "b")])
    second = pair.dump()
    assert second.progress.phase == "INCREMENTAL"
    assert second.progress.counts["EVENTS"] == (second.last_event - first.last_event,) * 2
    done, known = pair.load().progress.counts["EVENTS"]
    assert 0 < done == known <= second.last_event - first.last_event
    assert pair.rows() == [(1, "a"), (2, "b")]


def test_step_when_its_error_is_final_then_both_sides_stop_until_resumed(pair: Pair) -> None:
    pair.dump()
    pair.load()
    pair.insert([(1, "a")])
    pair.dump()
    target = pair.cluster(pair.replica.target)
    change_database(target.metastore, pair.target, {"repl.incompatible": "true"})
    with pytest.raises(BootstrapRequired, match="was ended by another client"):
        pair.load()
    for step in (pair.dump, pair.load):
        with pytest.raises(NonRecoverable, match="an earlier run has failed: BootstrapRequired: database"):
            step()
    source = pair.cluster(pair.replica.source)
    with pytest.raises(ConfigError, match="only the policy that dumps the source"):
        cycle.resume(target, pair.load_statement, bootstrap=True)
    (reason,) = cycle.resume(source, pair.dump_statement, bootstrap=True)
    assert reason.startswith("BootstrapRequired: ")
    assert pair.dump().progress.phase == "BOOTSTRAP"
    pair.load()
    assert pair.rows() == [(1, "a")]
    assert cycle.resume(source, pair.dump_statement, bootstrap=False) == []


def test_step_when_the_execution_is_lost_then_stores_no_result(pair: Pair) -> None:
    def lose() -> None:
        raise OwnershipLost("the execution has ended")

    lost = Step("p", 1, confirm=lose)
    with pytest.raises(OwnershipLost):
        pair.dump(lost)
    assert pair.load().skipped == "dump 1 is not finished yet"
    pair.dump()
    with pytest.raises(OwnershipLost):
        pair.load(lost)
    assert pair.dump().skipped == "the target has not loaded dump 1 yet"
    pair.load()
    pair.dump()
    change_database(pair.replica.target.metastore, pair.target, {"repl.incompatible": "true"})
    with pytest.raises(OwnershipLost):
        pair.load(lost)
    with pytest.raises(BootstrapRequired):  # not NonRecoverable: the lost execution has not stopped the policy
        pair.load()


def test_step_when_a_mistake_is_in_the_policy_then_the_next_one_succeeds(pair: Pair, tmp_path: Path) -> None:
    pair.dump(Step("one"))
    with pytest.raises(ConfigError, match="the policy one of the database"):
        pair.dump(Step("two"))
    pair.load(Step("one"))
    assert pair.dump(Step("one")).progress.phase == "INCREMENTAL"


def test_load_when_its_base_directory_is_that_of_another_source_then_is_refused(
    pair: Pair, replica: Replica, tmp_path: Path
) -> None:
    directory = DumpDirectory(Storages(), pair.root_uri, "elsewhere")
    directory.claim(Side.SOURCE, Owner("p", "the uuid of another metastore", "elsewhere"))
    pair.dump()
    load, target = pair.load_statement, pair.cluster(replica.target)
    inner = {**load.given, "hive.repl.replica.external.table.base.dir": f"file:{replica.target.external}/inner"}
    others = {"theirs": ReplLoad("elsewhere", "x", inner)}
    with pytest.raises(
        ConfigError, match=r"overlaps with file:.*/inner of the policy theirs, which loads from another"
    ):
        cycle.load(target, load, others, None, Step(), pair.stop)
    for source in (pair.database, "nothing"):
        with pytest.raises(ConfigError, match=r"inside or around file:.*/inner, that of the policy nested"):
            cycle.load(target, load, {"nested": ReplLoad(source, "x", inner)}, None, Step(), pair.stop)
    same = {"other": ReplLoad(pair.database, "x", load.given), "unused": ReplLoad("nothing", "y", load.given)}
    cycle.load(target, load, same, None, Step(), pair.stop)


def test_load_when_another_database_has_an_external_table_at_its_place_then_is_refused(
    replica: Replica, tmp_path: Path
) -> None:
    """Loads by hand do not know other policies, so nothing compares their base directories."""
    folders = [tmp_path / number for number in "12"]
    for folder in folders:
        folder.mkdir()
    first, second = (new_pair(replica, folder) for folder in folders)
    nested = f"{tmp_path}/nested"
    places = {first: Path(f"{nested}{tmp_path}/t"), second: tmp_path / "t"}
    bases = {first: f"file:{replica.target.external}", second: f"file:{replica.target.external}{nested}"}
    for pair, place in places.items():
        place.mkdir(parents=True)
        (place / pair.database).write_text("content")
        make_table(
            replica.source.metastore, TableName(pair.database, "e"), parameters=EXTERNAL, location=f"file:{place}"
        )

    def load(pair: Pair) -> None:
        given = {"hive.repl.rootdir": pair.root_uri, "hive.repl.replica.external.table.base.dir": bases[pair]}
        statement = ReplLoad(pair.database, pair.target, given)
        cycle.load(pair.cluster(replica.target), statement, {}, None, Step(), pair.stop)

    for pair in (first, second):
        pair.dump()
    load(first)
    with pytest.raises(ConfigError, match=rf"is the copy of file:{places[first]} for the database {first.target} of"):
        load(second)
    copied = Path(f"{replica.target.external}{places[first]}")
    assert [file.name for file in copied.iterdir() if not file.name.startswith(".")] == [first.database]
    shutil.rmtree(copied)
    load(second)


@pytest.fixture
def transaction(pair: Pair) -> int:
    """Return a transaction of the source that is open on the target after two cycles."""
    pair.dump(Step("p"))
    pair.load(Step("p"))
    made = write(pair.replica.source, pair.table, "delta_{w}_{w}_0000", then=lambda _: None)
    pair.dump(Step("p"))
    pair.load(Step("p"))
    return made.id


def test_load_when_the_base_directory_is_wrong_then_succeeds_when_it_is_corrected(pair: Pair, tmp_path: Path) -> None:
    """The tables are where the first base directory was, so files must not be copied to another one."""
    load, target = pair.load_statement, pair.cluster(pair.replica.target)
    without = {"hive.repl.rootdir": pair.root_uri}
    other = {**load.given, "hive.repl.replica.external.table.base.dir": f"file:{tmp_path}/other"}

    def refused(given: dict[str, str], what: str) -> None:
        with pytest.raises(ConfigError, match=what):
            cycle.load(target, ReplLoad(load.source, load.target, given), {}, None, Step(), pair.stop)

    table = TableName(pair.database, "e")
    make_table(pair.replica.source.metastore, table, parameters=EXTERNAL, location=f"file:{tmp_path}/e")
    (tmp_path / "e").mkdir(exist_ok=True)
    (tmp_path / "e" / "1").write_bytes(b"one")
    pair.dump()
    refused(without, "no base directory")
    pair.load()
    pair.dump()
    refused(without, "are below file:.*, not any base directory")
    refused(other, "are below file:.*, not file:.*/other")
    pair.load()
    copied = find_table(target.metastore, TableName(pair.target, "e"))
    assert copied is not None
    assert (local_path(copied.location) / "1").read_bytes() == b"one"


def test_dump_when_a_table_is_external_then_its_directories_are_in_the_root_of_the_dump_in_both_phases(
    pair: Pair, tmp_path: Path
) -> None:
    table = TableName(pair.database, "e")
    location = f"file:{tmp_path}/e"
    make_table(pair.replica.source.metastore, table, parameters=EXTERNAL, location=location)
    for phase in ("BOOTSTRAP", "INCREMENTAL"):
        progress = pair.dump().progress
        file = local_path(progress.directory) / "_external_tables_info"
        assert (progress.phase, decoded(file.read_bytes(), str(file))) == (
            phase,
            [ExternalDirectory("e", "", location)],
        )
        pair.load()


def test_load_when_tables_are_external_then_counts_their_files(pair: Pair, tmp_path: Path) -> None:
    name = TableName(pair.database, "e")
    make_table(pair.replica.source.metastore, name, parameters=EXTERNAL, location=f"file:{tmp_path}/e")
    (tmp_path / "e").mkdir(exist_ok=True)
    for number in range(3):
        (tmp_path / "e" / f"{number}").write_bytes(b"content")
    seen = list[Progress]()
    pair.dump()
    assert pair.load(Step(on_progress=seen.append)).progress.counts["FILES"] == (3, 3)
    assert {progress.counts.get("FILES", (0, 3))[1] for progress in seen} == {3}
    (tmp_path / "e" / "1").write_bytes(b"other content")
    pair.insert([(1, "a")])
    pair.dump()
    table = table_of(pair.replica.target.metastore, TableName(pair.target, "t"))
    counts = pair.load().progress.counts
    copied = len(files_below(local_path(table.location))) + 1
    assert copied > 1
    assert counts["FILES"] == (copied, copied)


def test_load_when_an_external_table_is_large_then_spark_lists_it(pair: Pair, tmp_path: Path) -> None:
    name = TableName(pair.database, "e")
    make_table(pair.replica.source.metastore, name, parameters=EXTERNAL, location=f"file:{tmp_path}/e")
    for number in range(2000):
        (tmp_path / "e" / f"{number}").mkdir(parents=True)
    (tmp_path / "e" / "7" / "file").write_bytes(b"content")
    for _ in range(2):
        before = jobs_of_shared_engine("list")
        pair.dump()
        assert pair.load(engine=shared_engine()).missing == ()
        assert jobs_of_shared_engine("list") > before
    copy = table_of(pair.replica.target.metastore, TableName(pair.target, "e"))
    assert (local_path(copy.location) / "7" / "file").read_bytes() == b"content"


def test_policy_when_forgotten_then_releases_directory_and_transactions(pair: Pair, transaction: int) -> None:
    metastore = pair.replica.target.metastore
    assert Replay(metastore, pair.target, accepts_gaps=lambda _: False).open_transactions == {transaction}
    with pytest.raises(ConfigError, match="the policy p of the database"):
        pair.load(Step("q"))
    cycle.forget(pair.cluster(pair.replica.target), "p", pair.load_statement)
    source = pair.replica.source.metastore
    assert _marked_for(pair) == "p"
    change_database(source, pair.database, {"repl.source.for": "other, p"})
    cycle.forget(pair.cluster(pair.replica.source), "p", pair.dump_statement)
    assert _marked_for(pair) == "other"
    assert not Replay(metastore, pair.target, accepts_gaps=lambda _: False).open_transactions
    assert pair.load(Step("q")).skipped
    pair.dump(Step("q"))
    assert _marked_for(pair) == "other,q"


def test_policy_when_it_continues_dumps_by_hand_then_takes_their_place(pair: Pair) -> None:
    pair.dump()
    pair.load()
    assert _marked_for(pair) == "by_hand"
    assert pair.dump(Step("p")).progress.phase == "INCREMENTAL"
    assert _marked_for(pair) == "p"
    cycle.forget(pair.cluster(pair.replica.source), "p", pair.dump_statement)
    assert _marked_for(pair) is None


def test_dump_when_the_database_does_not_exist_then_leaves_nothing(pair: Pair) -> None:
    missing = replace(pair, database=pair.replica.name("missing"))
    with pytest.raises(InvalidTable, match="the database does not exist"):
        missing.dump(Step("p"))
    assert not list(pair.root.iterdir())


def _marked_for(pair: Pair) -> str | None:
    found = find_database(pair.replica.source.metastore, pair.database)
    assert found
    return found.parameters.get("repl.source.for")


def test_dump_when_events_have_expired_then_says_that_a_bootstrap_is_required(pair: Pair) -> None:
    pair.dump()
    pair.load()
    directory = DumpDirectory(Storages(), pair.root_uri, pair.database)
    (dump,) = directory.dumps()
    last = EventLog(pair.replica.source.metastore).current_id()
    file = Path(dump.uri.removeprefix("file:")) / "_dumpmetadata"
    file.write_text(file.read_text().replace(str(directory.metadata(dump).to_event), str(last + 1000)))
    with pytest.raises(BootstrapRequired):
        pair.dump()
    with pytest.raises(NonRecoverable, match="EventsExpired"):
        pair.load()


def test_load_when_the_target_is_created_by_hand_then_is_taken_over_if_empty(pair: Pair) -> None:
    make_database(pair.replica.target.metastore, pair.target, {"team": "web"})
    pair.insert([(1, "a")])
    pair.dump()
    pair.load()
    found = find_database(pair.replica.target.metastore, pair.target)
    assert found
    assert found.parameters["repl.target.for"] == "true"
    assert pair.rows() == [(1, "a")]
