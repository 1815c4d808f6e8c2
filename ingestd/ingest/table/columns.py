"""The columns that a mapping has written, and what other clients have changed in them since.

Invariant: a mapping writes a table only while the table can store everything that it could store at the last commit.
Each commit stores the columns in the mapping's state, so a change is found even if no daemon ran meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ingestd.errors import InvalidTable
from ingestd.hive.tables import Table
from ingestd.schema import HiveType

# The maximum number of changes that an error lists.
_MAX_CHANGES = 10


@dataclass(frozen=True, slots=True)
class Loss:
    """A column or a field of a struct that lost values: it was removed (`after` is ''), or its type is not wider."""

    column: str
    before: str
    after: str

    def __str__(self) -> str:
        if self.after:
            return f"the type of {self.column} changed from {self.before} to {self.after}"
        return f"{self.column} {self.before} was removed or renamed"


def columns_of(table: Table) -> dict[str, str]:
    """Return the Hive types of all columns of a table, including its partition columns, by name."""
    return {column.name: str(column.type) for column in (*table.columns, *table.partition_columns)}


def find_losses(before: Mapping[str, str], after: Mapping[str, str]) -> list[Loss]:
    """Return what columns with the types `before` could store and columns with the types `after` cannot."""
    return [
        loss
        for name, text in before.items()
        for loss in _losses(name, HiveType.parse(text), HiveType.parse(after[name]) if name in after else None)
    ]


def require_fit(before: Mapping[str, str], table: Table, mapping: str) -> None:
    """Raise InvalidTable with each difference if the table has lost a column, or values that a column could store."""
    losses = find_losses(before, columns_of(table))
    if losses:
        raise InvalidTable(
            f"the columns of the table no longer fit those of the last commit: {describe(losses)}",
            where=f"mapping {mapping}, table {table.name}",
            hint=f"to continue with the changed columns, run `ingestd mappings resume {mapping}`;"
            " fields without a column are then not stored, unless schema_evolution adds columns for them",
        )


def describe(losses: list[Loss]) -> str:
    """Return a text that lists the first losses."""
    more = f"; and {len(losses) - _MAX_CHANGES} more" if len(losses) > _MAX_CHANGES else ""
    return "; ".join(map(str, losses[:_MAX_CHANGES])) + more


def _losses(name: str, before: HiveType, after: HiveType | None) -> Iterator[Loss]:
    if after is None:
        yield Loss(name, str(before), "")
    elif before.kind == after.kind == "struct":
        fields = dict(zip(after.names, after.children, strict=True))
        for field, child in zip(before.names, before.children, strict=True):
            yield from _losses(f"{name}.{field}", child, fields.get(field))
    elif not after.holds(before):
        yield Loss(name, str(before), str(after))
