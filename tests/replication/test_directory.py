"""The protocol of the dump directory: numbers, acknowledgements, who skips when, and who may use it."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ingestd.errors import ConfigError, OwnershipLost, ReplicationError
from ingestd.replication.directory.dump_files import DumpMetadata, DumpState, Owner, Phase
from ingestd.replication.directory.manifest import ManifestWriter, UnreadableRecord
from ingestd.replication.directory.protocol import Dump, DumpDirectory, NonRecoverable, Side, Skipped
from ingestd.replication.statements.scope import Scope
from ingestd.storage.contract import NotFound, Storage, child
from ingestd.storage.local import LocalStorage
from ingestd.storage.storages import Storages
from tests.replication.conftest import Root

SCOPE = Scope("Db1")


def _never() -> int:
    raise AssertionError("the event log is only read for a bootstrap")


def _directory(root: Root) -> DumpDirectory:
    return DumpDirectory(root.storages, root.uri, "Db1")


def _begin(directory: DumpDirectory, scope: Scope = SCOPE, event: int | None = None) -> Dump:
    dump = directory.begin_dump(scope, _never if event is None else lambda: event)
    assert isinstance(dump, Dump)
    return dump


def _metadata(dump: Dump, to_event: int) -> DumpMetadata:
    return DumpMetadata(dump.state.phase, dump.state.from_event, to_event, dump.state.scope)


def _finish(directory: DumpDirectory, dump: Dump, to_event: int) -> None:
    directory.finish_dump(dump, _metadata(dump, to_event))


def _manifest(storage: Storage, dump: Dump, name: str, external: bytes = b"", unreadable: Sequence[str] = ()) -> str:
    """Write a manifest that leaves out the tables `unreadable`; return its URI."""
    manifest = storage.location(dump.uri).make_directory(name)
    writer = ManifestWriter(storage, manifest)
    writer.write_file("_external_tables_info", external)
    for table in unreadable:
        writer.add(UnreadableRecord(table, f"{table} is denied"))
    writer.finish()
    return manifest


def _load(directory: DumpDirectory) -> Dump:
    dump = directory.begin_load()
    assert isinstance(dump, Dump)
    directory.finish_load(dump)
    return dump


def test_cycle_when_dumps_and_loads_alternate_then_each_skips_until_the_other_has_finished(root: Root) -> None:
    source, target = _directory(root), _directory(root)
    assert source.uri == f"{root.uri}/{base64.b64encode(b'db1').decode()}"
    assert target.begin_load() == Skipped("there is no dump yet")

    first = _begin(source, event=7)
    assert first.state == DumpState(1, Phase.BOOTSTRAP, SCOPE, 7)
    assert target.begin_load() == Skipped("dump 1 is not finished yet")
    _finish(source, first, 7)
    assert isinstance(source.begin_dump(SCOPE, _never), Skipped)
    assert target.metadata(first) == DumpMetadata(Phase.BOOTSTRAP, 7, 7, SCOPE)
    assert _load(target).uri == first.uri
    assert isinstance(target.begin_load(), Skipped)

    second = _begin(source)
    assert second.state == DumpState(2, Phase.INCREMENTAL, SCOPE, 7)
    assert second.uri != first.uri
    _finish(source, second, 12)
    assert [dump.uri for dump in source.dumps()] == [second.uri]  # the first one has been removed
    assert not root.storages.at(root.uri).exists(first.uri)
    assert _load(target).uri == second.uri
    assert _begin(source).state.from_event == 12


def test_side_that_continues_when_a_dump_was_ended_early_then_is_the_other_until_one_has_all_events(root: Root) -> None:
    source, storage = _directory(root), root.storages.at(root.uri)

    def finish(dump: Dump, *, is_limited: bool) -> None:
        manifest = _manifest(storage, dump, "manifest")
        if is_limited:
            storage.create(child(manifest, "_complete_until"), b"1795900000")
        source.finish_dump(dump, replace(_metadata(dump, 9), payload="manifest"))

    def side() -> Side | None:
        return source.continuing_side(source.dumps())

    assert side() is None
    for is_limited in (False, False, True, True):
        dump = _begin(source, event=7)
        seen = [side()]
        finish(dump, is_limited=is_limited)
        seen.append(side())
        _load(source)
        seen.append(side())
        expected = [Side.SOURCE if dump.state.continues else None]
        assert seen == expected + ([Side.TARGET, Side.SOURCE] if is_limited else [None, None])
    last = _begin(source)
    assert (last.state.continues, side()) == (True, Side.SOURCE)
    finish(last, is_limited=False)
    assert side() is Side.TARGET
    _load(source)
    assert side() is None


@pytest.mark.parametrize(
    ("due", "is_limited", "expected"),
    [(None, False, None), (1795900060, False, 1795900060), (1795900060, True, None)],
)
def test_next_dump_when_a_dump_has_its_time_then_is_known_if_the_dump_is_complete(
    local_root: Root, due: int | None, is_limited: bool, expected: int | None
) -> None:
    source, storage = _directory(local_root), local_root.storages.at(local_root.uri)
    dump = _begin(source, event=7)
    metadata = replace(_metadata(dump, 9), payload="manifest")
    manifest = _manifest(storage, dump, "manifest")
    if is_limited:
        storage.create(child(manifest, "_complete_until"), b"1795900000")
    source.finish_dump(dump, metadata, next_dump=due)
    assert source.next_dump(dump, metadata) == expected


def test_dump_when_killed_before_it_finished_then_it_is_continued_if_the_scope_is_the_same(root: Root) -> None:
    source = _directory(root)
    first = _begin(source, event=7)
    assert _begin(source) == first  # with the event that was current when it began
    other = Scope("db1", "a.*")
    changed = _begin(source, other, event=9)
    assert changed.state == DumpState(2, Phase.BOOTSTRAP, other, 9)
    _finish(source, changed, 9)
    assert [dump.uri for dump in source.dumps()] == [changed.uri]
    _load(source)
    back = _begin(source)
    assert back.state == DumpState(3, Phase.INCREMENTAL, SCOPE, 9, previous_scope=other)
    assert source.dumps()[-1].state == back.state


def test_dump_when_killed_after_its_metadata_then_it_is_announced_unchanged(root: Root) -> None:
    source = _directory(root)
    dump = _begin(source, event=7)
    storage = root.storages.at(root.uri)
    storage.create(child(dump.uri, "_dumpmetadata"), _metadata(dump, 7).encode())
    assert isinstance(source.begin_dump(SCOPE, _never), Skipped)
    _finish(source, dump, 99)  # a second process, which has read more events
    assert source.metadata(_load(source)).to_event == 7


def test_dump_when_announced_then_external_tables_info_of_its_valid_manifest_is_in_its_root(root: Root) -> None:
    source, storage = _directory(root), root.storages.at(root.uri)

    def metadata(dump: Dump, manifest: str) -> DumpMetadata:
        _manifest(storage, dump, manifest, manifest.encode())
        return replace(_metadata(dump, 7), payload=manifest)

    dump = _begin(source, event=7)
    storage.create(child(dump.uri, "_dumpmetadata"), metadata(dump, "first").encode())  # and killed
    assert isinstance(source.begin_dump(SCOPE, _never), Skipped)
    source.finish_dump(dump, metadata(dump, "second"))
    assert storage.read(child(dump.uri, "_external_tables_info")) == b"first"
    _load(source)
    dump = _begin(source)
    source.finish_dump(dump, metadata(dump, "third"))
    assert storage.read(child(dump.uri, "_external_tables_info")) == b"third"


def test_dump_when_attempts_leave_out_different_tables_then_only_those_of_its_valid_manifest_are_noted(
    root: Root,
) -> None:
    source, storage = _directory(root), root.storages.at(root.uri)
    dump = _begin(source, event=7)
    _manifest(storage, dump, "first", unreadable=["a", "b"])  # and killed
    metadata = replace(_metadata(dump, 7), payload=_manifest(storage, dump, "second", unreadable=["a/b"])[-6:])
    storage.create(child(dump.uri, "_dumpmetadata"), metadata.encode())  # and killed
    assert isinstance(source.begin_dump(SCOPE, _never), Skipped)
    _manifest(storage, dump, "third", unreadable=["c"])
    source.finish_dump(dump, replace(metadata, payload="third"))
    loaded = source.begin_load()
    assert isinstance(loaded, Dump)
    assert (loaded.unreadable, loaded.lost) == (("a/b",), ("a/b",))
    assert source.unreadable(source.dumps()) == {"a/b": "a/b is denied"}
    source.finish_load(loaded)
    state = _begin(source).state
    assert (state.unreadable, state.tables) == (("a/b",), ("a/b",))


def test_bootstrap_when_the_last_dump_has_unreadable_tables_then_they_are_known_until_it_is_loaded(
    local_root: Root,
) -> None:
    source, storage = _directory(local_root), local_root.storages.at(local_root.uri)
    dump = _begin(source, event=7)
    _manifest(storage, dump, "manifest", unreadable=["b", "a"])
    source.finish_dump(dump, replace(_metadata(dump, 7), payload="manifest"))
    for number in (2, 3):
        bootstrap = source.begin_bootstrap(SCOPE, lambda: 9)
        assert (bootstrap.state.number, bootstrap.state.unreadable) == (number, ("a", "b"))
        assert source.unreadable(source.dumps()) == {"a": "a is denied", "b": ""}
    _finish(source, bootstrap, 9)
    _load(source)
    assert source.unreadable(source.dumps()) == {}
    assert _begin(source).state.unreadable == ()


def test_dump_when_the_last_one_has_the_fingerprint_of_its_last_event_then_it_is_in_the_state(root: Root) -> None:
    source, storage = _directory(root), root.storages.at(root.uri)
    _finish(source, _begin(source, event=7), 7)  # as an earlier release did, without the file
    _load(source)
    dump = _begin(source)
    assert dump.state.fingerprint == ""
    manifest = _manifest(storage, dump, "manifest")
    storage.write(child(manifest, "_last_event"), b"COMMIT_TXN 2026-11-28")
    source.finish_dump(dump, replace(_metadata(dump, 9), payload="manifest"))
    _load(source)
    assert _begin(source).state.fingerprint == "COMMIT_TXN 2026-11-28"
    assert _begin(source) == source.dumps()[-1]


def test_state_when_an_earlier_release_wrote_it_then_is_read() -> None:
    state = DumpState(3, Phase.INCREMENTAL, SCOPE, 7, fingerprint="COMMIT_TXN 2026-11-28")
    assert DumpState.decode(state.encode(), "f") == state
    content = json.loads(state.encode())
    del content["fingerprint"], content["began"]
    assert DumpState.decode(json.dumps(content).encode(), "f") == replace(state, fingerprint="")


def test_dump_when_two_processes_begin_at_once_then_at_most_one_continues(root: Root) -> None:
    source = _directory(root)

    def begin_another() -> int:
        _begin(_directory(root), event=5)
        return 6

    with pytest.raises(OwnershipLost, match="at the same time"):
        source.begin_dump(SCOPE, begin_another)
    assert [dump.state.from_event for dump in source.dumps()] == [5]


def test_dump_when_removed_meanwhile_then_it_cannot_be_finished(root: Root) -> None:
    source = _directory(root)
    stale = _begin(source, event=5)
    current = source.begin_bootstrap(SCOPE, lambda: 8)
    _finish(source, current, 8)
    with pytest.raises(OwnershipLost, match="removed"):
        _finish(source, stale, 5)
    assert [dump.uri for dump in source.dumps()] == [current.uri]
    loadable = source.begin_load()
    assert isinstance(loadable, Dump)
    assert loadable.uri == current.uri


class _Suspended(Storages):
    """The storage of a process that is suspended when it has announced a dump; others act `meanwhile`."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        super().__init__()
        self._meanwhile = meanwhile

    def at(self, uri: str) -> Storage:
        return _SuspendedStorage(self._meanwhile)


class _SuspendedStorage(LocalStorage):
    def __init__(self, meanwhile: Callable[[], None]) -> None:
        super().__init__()
        self._meanwhile = meanwhile

    def create(self, uri: str, content: bytes) -> None:
        super().create(uri, content)
        if uri.endswith("/_finished_dump"):
            self._meanwhile()


def test_dump_when_suspended_after_it_was_announced_then_later_dumps_stay(local_root: Root) -> None:
    others = _directory(local_root)

    def meanwhile() -> None:
        _load(others)
        _finish(others, _begin(others), 9)
        _load(others)
        _begin(others)

    slow = DumpDirectory(_Suspended(meanwhile), local_root.uri, "Db1")
    _finish(slow, _begin(slow, event=7), 7)
    assert [(dump.state.number, dump.is_loaded) for dump in others.dumps()] == [(2, True), (3, False)]


def test_failure_when_not_recoverable_then_both_sides_stop_until_resumed(root: Root) -> None:
    directory = _directory(root)
    dump = _begin(directory, event=5)
    directory.fail(dump, "events expired")
    directory.fail(dump, "the second reason")
    stopped = f"{re.escape(dump.uri)}/_non_recoverable.*remove the file"
    with pytest.raises(NonRecoverable, match=stopped):
        directory.begin_dump(SCOPE, _never)
    with pytest.raises(NonRecoverable, match=stopped):
        directory.begin_load()
    assert directory.resume() == ["events expired"]
    assert directory.resume() == []
    assert _begin(directory).uri == dump.uri


def test_claim_when_a_second_policy_uses_the_directory_then_it_is_refused(root: Root) -> None:
    directory = _directory(root)
    hand, first = Owner("", "uuid", "db1"), Owner("p1", "uuid", "db1")
    for owner in (hand, first, first, hand):
        directory.claim(Side.SOURCE, owner)
    for other in (replace(first, policy="p2"), replace(first, metastore="other"), replace(hand, metastore="other")):
        with pytest.raises(ConfigError, match=r"the policy p1 of .* uses this dump directory, so .* cannot"):
            directory.claim(Side.SOURCE, other)
    directory.claim(Side.TARGET, Owner("p2", "target", "copy"))
    directory.release(Side.SOURCE, replace(first, policy="p2"))
    directory.release(Side.SOURCE, first)
    directory.claim(Side.SOURCE, replace(first, policy="p2"))
    assert directory.dumps() == []
    other_database = DumpDirectory(root.storages, root.uri, "db2")
    other_database.claim(Side.SOURCE, Owner("p3", "uuid", "db2"))
    assert isinstance(other_database.begin_load(), Skipped)


def test_directory_when_the_root_is_missing_then_it_is_not_created(local_root: Root, tmp_path: Path) -> None:
    directory = DumpDirectory(local_root.storages, f"file:{tmp_path}/missing", "db1")
    assert directory.dumps() == []
    with pytest.raises(NotFound, match=r"hive\.repl\.rootdir"):
        directory.begin_dump(SCOPE, lambda: 1)
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize("keep", [0, 1, 2, 3, 9])
def test_dump_when_old_ones_are_kept_then_the_last_remain(local_root: Root, keep: int) -> None:
    directory = _directory(local_root)
    for number in range(1, 6):
        dump = _begin(directory, event=number)
        directory.finish_dump(dump, _metadata(dump, number), keep)
        _load(directory)
    assert [dump.state.number for dump in directory.dumps()] == [1, 2, 3, 4, 5][-1 - keep :]
    dump = _begin(directory)
    local_root.storages.at(dump.uri).create(child(dump.uri, "_dumpmetadata"), _metadata(dump, 6).encode())  # and killed
    assert isinstance(directory.begin_dump(SCOPE, _never, keep), Skipped)
    assert [dump.state.number for dump in directory.dumps()] == [1, 2, 3, 4, 5, 6][-1 - keep :]


def test_metadata_then_is_written_as_hive_does() -> None:
    metadata = DumpMetadata(Phase.INCREMENTAL, 10, 20, Scope("db1", "a.*"), execution_id=3, is_scope_changed=True)
    assert metadata.encode() == b"INCREMENTAL\t10\t20\t\\N\t3\t\\N\ttrue\ndb1\ta.*\t\\N\n"
    assert DumpMetadata.decode(metadata.encode(), "f") == metadata


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"BOOTSTRAP\t1\n", b"\xff"])
def test_file_when_its_content_is_not_valid_then_the_error_names_it(content: bytes) -> None:
    for decode in (DumpMetadata.decode, DumpState.decode, Owner.decode):
        with pytest.raises(ReplicationError, match=r"/dumps/_state: the content of the file is not valid"):
            decode(content, "/dumps/_state")


def test_scope_then_matches_whole_names_in_any_case() -> None:
    scope = Scope("DB1", "orders.*|items", "orders_tmp.*")
    assert scope.database == "db1"
    assert [name for name in ("orders", "ITEMS", "items2", "orders_tmp1", "x") if scope.contains(name)] == [
        "orders",
        "ITEMS",
    ]
    assert str(scope) == "db1.'orders.*|items'.'orders_tmp.*'"
    assert Scope("db1").contains("anything")
    with pytest.raises(ConfigError, match="regular expression"):
        Scope("db1", "a(")
    with pytest.raises(ConfigError, match="needs one of included tables"):
        Scope("db1", None, "a")
