"""Where the columns of a table find their values in a JSON record.

Invariant: each column has exactly one place. `find` and the tape reader (`tape_reader`) follow the same tree of places.

By default a column is the member of its name, of the record or of the row in its envelope. A column with a path is at
that path of the record, or of the payload in its envelope. Missing members and elements, and what is inside of them or
of null, are NULL. A value on the way to a column that is neither null nor the object or array of the path is a reject.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

from ingestd.formats.decoder import RejectError
from ingestd.formats.json.envelope import AFTER, INSERTS, Envelope
from ingestd.formats.json.timestamp_formats import DEFAULT_FORMATS
from ingestd.formats.json.types import shown
from ingestd.formats.unmatched import own_columns
from ingestd.schema import Column, HiveType

Step = str | int  # the name of a member in lower case, or the index of an element
Path = tuple[Step, ...]
_Target = tuple[int, str, Path]  # index, name and path of a column

_MAX_STEPS = 50  # far from the depth to which records may nest
_STEP = re.compile(
    r"""\.(?P<name>[^\s.*\[\]'"]+)|\['(?P<single>(?:[^'\\]|\\.)+)'\]|\["(?P<double>(?:[^"\\]|\\.)+)"\]"""
    r"|\[(?P<index>[0-9]{1,9})\]"
)


def parse_path(text: str) -> Path:
    """Parse a path such as `$.user.id`, `$['first name']` or `$.tags[0]`; `$` is the whole record. Raises ValueError.

    Names match in any case, as those of columns do. A backslash in a quoted name quotes the next character.
    """
    steps: list[Step] = []
    place = 1
    while text.startswith("$") and place < len(text) and (match := _STEP.match(text, place)):
        quoted = match["single"] or match["double"]
        name = re.sub(r"\\(.)", r"\1", quoted) if quoted else match["name"]
        steps.append(name.lower() if name else int(match["index"]))
        place = match.end()
    if not text.startswith("$") or place < len(text) or len(steps) > _MAX_STEPS:
        raise ValueError("must be a path of names and indexes, such as $.user.id, $['first name'] or $.tags[0]")
    return tuple(steps)


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a record: the columns that store its value, and the places inside it.

    `columns` are indexes. `column` is the name of the first column that is stored from here or from inside.
    """

    path: str
    column: str
    columns: tuple[int, ...]
    members: Mapping[str, Place]
    elements: Mapping[int, Place]


@dataclass(frozen=True, slots=True)
class Layout:
    """How records contain the values of columns: their paths by column name, an envelope, the formats of timestamps.

    `lenient` records are read by the rules of Hive's JsonSerDe (`lenient`). `operations` are the operations of Debezium
    that have a row. `rejects_unmatched` says whether a record with fields, none of which is a column, is a reject
    (`formats.unmatched`).
    """

    paths: Mapping[str, Path] = field(default_factory=dict)
    envelope: Envelope = "none"
    timestamp_formats: tuple[str, ...] = DEFAULT_FORMATS
    lenient: bool = False
    operations: tuple[str, ...] = INSERTS
    rejects_unmatched: bool = False

    @property
    def is_flat(self) -> bool:
        """Whether each column is the member of the record that has its name."""
        return not self.paths and self.envelope == "none"

    def tree(self, columns: Sequence[Column], row_of_event: str = AFTER) -> Place:
        """Return the place of the object that `envelope.event_of` returns, for events with this row."""
        row = (row_of_event,) if self.envelope == "debezium" else ()
        names = [column.name for column in columns]
        paths = [(index, name, self.paths.get(name, (*row, name))) for index, name in enumerate(names)]
        return _place("$", 0, paths)

    def matching(self, columns: Sequence[Column]) -> tuple[int, ...]:
        """Return the indexes of the columns that each unmatched record lacks; none if no record is unmatched.

        Other records can lack them as well (`unmatched_fields`). A column at a path of a change event is not one of
        them, because it can have a value whatever the row in the event is, nor is one that is not in `own_members`.
        """
        if not self.rejects_unmatched:
            return ()
        own = self.own_members(columns)
        return tuple(i for i, member in enumerate(self._members(columns)) if member in own)

    def stored_members(self, columns: Sequence[Column]) -> list[str]:
        """Return the members of a row, in lower case, in or inside of which columns are; `''` is the whole row."""
        return [member for member in self._members(columns) if member is not None]

    def own_members(self, columns: Sequence[Column]) -> list[str]:
        """Return those of the `stored_members` which show that a row belongs to the table.

        Members that describe an envelope which has not been unwrapped do not (`own_columns`).
        """
        members = self.stored_members(columns)
        return members if self.envelope == "debezium" or "" in members else own_columns(members)

    def _members(self, columns: Sequence[Column]) -> list[str | None]:
        """Return the member of the row for each column; None for a column at a path of a change event."""
        if self.envelope == "debezium":
            return [None if column.name in self.paths else column.name for column in columns]
        return [str((*self.paths.get(column.name, (column.name,)), "")[0]) for column in columns]

    def stored_type(self, columns: Sequence[Column]) -> HiveType:
        """Return the type of a row with nothing but the values of columns, at their places; for fields without one."""
        place = self.tree(columns)
        if self.envelope == "debezium" and not place.columns:
            place = place.members.get(AFTER, _place("", 0, ()))
        return _stored_type(place, columns)

    def unmatched_fields(self, place: Place, event: Mapping[str, object], row_of_event: str) -> list[str]:
        """Return the fields of the row of an event without a column, if it has fields and none for any column; else [].

        `place` is that of the event. A field inside of an object on the way to a column has a name such as `user.id`.
        On the way to a column, null, an empty object, and an array without the element of the path count as a field.
        """
        if self.envelope == "debezium":
            if place.columns:
                return []
            place = place.members[row_of_event]
            event = _last(event)[row_of_event]  # type: ignore[assignment]  # `event_of` has checked that it is an object
        return _unmatched(place, event, "") or []


PLAIN = Layout()


def _last(members: Mapping[str, object]) -> dict[str, object]:
    """Return the members of an object by their names in lower case. Of several with one name, the last wins."""
    return {name.lower(): item for name, item in members.items()}


def _unmatched(place: Place, value: object, prefix: str) -> list[str] | None:
    """Return the names of the fields at or inside of a place if none of them is for a column, else None.

    Of an array, only the elements on the way to a column count.
    """
    inside: list[tuple[str, Place | None, object]] = []
    if isinstance(value, list):
        inside = [(f"{prefix}[{i}]", inner, value[i]) for i, inner in place.elements.items() if i < len(value)]
    elif isinstance(value, dict):
        dot = "." if prefix else ""
        last = {name.lower(): (name, item) for name, item in value.items()}
        inside = [(f"{prefix}{dot}{name}", place.members.get(key), item) for key, (name, item) in last.items()]
    if place.columns or not inside:
        return None
    unmatched: list[str] = []
    for name, inner, item in inside:
        fields = [name] if inner is None else _unmatched(inner, item, name)
        if fields is None:
            return None
        unmatched += fields
    return unmatched


def _stored_type(place: Place, columns: Sequence[Column]) -> HiveType:
    """Return the type of the value at a place, with all that columns store of it."""
    types = [columns[index].type for index in place.columns]
    if place.members or not (types or place.elements):
        children = tuple(_stored_type(inner, columns) for inner in place.members.values())
        types.append(HiveType("struct", children=children, names=tuple(place.members)))
    if place.elements:
        items = [_stored_type(inner, columns) for inner in place.elements.values()]
        types.append(HiveType("array", children=(reduce(HiveType.extended, items),)))
    return next((kind for kind in types if kind.kind == "string"), reduce(HiveType.extended, types))


def _place(text: str, depth: int, paths: Sequence[_Target]) -> Place:
    inside: dict[Step, list[_Target]] = {}
    for index, name, path in paths:
        if len(path) > depth:
            inside.setdefault(path[depth], []).append((index, name, path))
    members = {step: targets for step, targets in inside.items() if isinstance(step, str)}
    elements = {step: targets for step, targets in inside.items() if isinstance(step, int)}
    return Place(
        path=text,
        column=paths[0][1] if paths else "",
        columns=tuple(index for index, _, path in paths if len(path) == depth),
        members={step: _place(f"{text}.{step}", depth + 1, targets) for step, targets in members.items()},
        elements={step: _place(f"{text}[{step}]", depth + 1, targets) for step, targets in elements.items()},
    )


def find(place: Place, value: object) -> Iterator[tuple[int, object]]:
    """Yield the index and the JSON value of each column whose place in `value` exists and is not null.

    The keys of each object must be in the order of their last occurrence. Raises RejectError.
    """
    if value is None:
        return
    for column in place.columns:
        yield column, value
    if place.members:
        if not isinstance(value, dict):
            raise RejectError(place.column, f"{shown(value)} at {place.path} is not an object")
        last = _last(value)
        for name, inner in place.members.items():
            yield from find(inner, last.get(name))
    if place.elements:
        if not isinstance(value, list):
            raise RejectError(place.column, f"{shown(value)} at {place.path} is not an array")
        for index, inner in place.elements.items():
            if index < len(value):
                yield from find(inner, value[index])
