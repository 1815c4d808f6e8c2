"""Decides which statistics a copy may take over as exact.

Invariant: statistics that an aborted transaction has stored are never exact on a target. A source knows the write id as
aborted, so its readers ignore them; a target forgets aborted write ids, and its readers would use them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from ingestd.acid.visibility import ValidWriteIds
from ingestd.hive.objects import PartitionObject, TableObject

T = TypeVar("T", TableObject, PartitionObject)

_EXACT = "COLUMN_STATS_ACCURATE"


def inexact(parameters: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters of a table or partition without the mark that its statistics are exact."""
    return {key: value for key, value in parameters.items() if key != _EXACT}


def as_exact_as(parameters: Mapping[str, str], existing: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters with the mark of the existing copy.

    A metastore refuses to rename a partition of a transactional table if its mark changes.
    """
    return {**inexact(parameters), **{key: value for key, value in existing.items() if key == _EXACT}}


def for_copy(described: T, ids: ValidWriteIds) -> T:
    """Return a table or partition as it is copied in a snapshot: without statistics of an aborted transaction."""
    if described.write_id not in ids.aborted:
        return described
    return described.without_column_statistics().with_parameters(inexact(described.parameters))
