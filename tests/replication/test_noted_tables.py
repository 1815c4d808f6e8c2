"""Notes about tables in a dump, whatever their names are."""

from __future__ import annotations

import pytest

from ingestd.replication.directory.noted_tables import NotedTables
from ingestd.replication.directory.protocol import Dump, DumpDirectory
from ingestd.replication.statements.scope import Scope
from tests.replication.conftest import Root

# A metastore accepts these, of at most 256 characters. The last two differ in their ends.
NAMES = ("t", "a/b c", "=t", "n" * 215, "n" * 256, "/" * 256, "é" * 255 + "a", "é" * 255 + "b")


@pytest.mark.parametrize("prefix", ["_lost.", "_unreadable.", "_refused."])
def test_note_when_the_name_of_its_table_is_long_then_is_found_with_the_first_reason(root: Root, prefix: str) -> None:
    directory, storage = DumpDirectory(root.storages, root.uri, "db1"), root.storages.at(root.uri)
    begun = directory.begin_dump(Scope("db1"), lambda: 7)
    assert isinstance(begun, Dump)
    earlier, later = (NotedTables(storage, begun.uri, prefix) for _ in range(2))
    for noted in (earlier, later):  # the second one does not know of the notes of the first
        for name in NAMES:
            noted.add(name, "the first\nreason" if noted is earlier else "another reason")
            assert name in noted
    assert NotedTables(storage, begun.uri, prefix).names == tuple(sorted(NAMES))
    [dump] = directory.dumps()
    found = {"_lost.": dump.lost, "_unreadable.": dump.unreadable, "_refused.": dump.unconstrained}
    assert found.pop(prefix) == tuple(sorted(NAMES))
    assert set(found.values()) == {()}
    assert set(directory.unreadable([dump])) == (set(NAMES) if prefix == "_unreadable." else set())


@pytest.mark.parametrize("name", NAMES)
def test_unreadable_table_when_its_name_is_long_then_the_reason_is_that_of_its_note(
    local_root: Root, name: str
) -> None:
    directory = DumpDirectory(local_root.storages, local_root.uri, "db1")
    begun = directory.begin_dump(Scope("db1"), lambda: 7)
    assert isinstance(begun, Dump)
    NotedTables(local_root.storages.at(begun.uri), begun.uri, "_unreadable.").add(name, "denied: é\nask for access")
    assert directory.unreadable(directory.dumps()) == {name: "denied: é\nask for access"}
