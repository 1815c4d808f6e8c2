"""Tables and directories are followed through renames and drops, also those that happen while they are looked up."""

from __future__ import annotations

from collections.abc import Mapping

from ingestd.hive.events import Event
from ingestd.replication.dump.moves import Moves
from tests.support.replica_events import dropped, moves_of, table_renamed


def _read(*events: Event) -> Moves:
    moves = moves_of("d", *events)
    moves.read()
    return moves


def test_name_when_tables_are_swapped_then_is_that_of_the_same_table() -> None:
    moves = _read(table_renamed(5, "d.t", "d.old"), table_renamed(6, "d.new", "d.t"), table_renamed(9, "d.t", "d.u"))
    assert [moves.name_after(4, name) for name in ("t", "new", "other")] == ["old", "u", "other"]
    assert [moves.name_after(5, name) for name in ("old", "new")] == ["old", "u"]
    assert [moves.name_after(4, "new", until=8), moves.name_after(6, "t", until=8)] == ["t", "t"]
    assert [moves.name_before(4, name) for name in ("old", "u", "other")] == ["t", "new", "other"]
    assert [moves.name_before(8, name) for name in ("old", "u")] == ["old", "t"]


def test_name_when_the_table_is_dropped_or_leaves_the_database_then_is_none() -> None:
    moves = _read(dropped(5, "d.t"), table_renamed(6, "d.u", "e.u"), table_renamed(7, "e.v", "d.w"))
    assert [moves.name_after(4, name) for name in ("t", "u")] == [None, None]
    assert [moves.name_before(4, name) for name in ("t", "u", "w")] == [None, None, None]
    assert moves.name_before(5, "t") == "t"


def test_look_up_when_a_table_moves_meanwhile_then_looks_again_and_leaves_out_what_was_dropped() -> None:
    events = [table_renamed(5, "d.a", "d.b")]
    moves = Moves(lambda after: [event for event in events if event.id > after], "d", 0)
    looked: list[Mapping[str, str]] = []
    later = [[table_renamed(6, "d.b", "d.c"), dropped(7, "d.x")], [table_renamed(8, "d.c", "d.a")], []]

    def look(places: Mapping[str, str]) -> Mapping[str, str]:
        looked.append(places)
        events.extend(later.pop(0))
        return {key: place.upper() for key, place in places.items()}

    found = moves.look_up(["a", "x", "y"], lambda name: moves.name_after(4, name), look)
    assert looked == [{"a": "b", "x": "x", "y": "y"}, {"a": "c"}, {"a": "a"}]
    assert found == {"a": "A", "y": "Y"}
    assert moves.look_up([], lambda name: moves.name_after(4, name), look) == {}
