"""The number of rows that Hive takes from the statistics of a table or partition, in place of reading its files.

Invariant: a claim is one that a reader with the snapshot trusts: it is marked as exact, and the write id with which it
was stored is valid (ObjectStore.isCurrentStatsValidForTheQuery). Only tables with transactions have such claims.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from ingestd.acid.visibility import ValidWriteIds
from ingestd.hive.objects import PartitionObject, TableObject

Described = TableObject | PartitionObject


def claimed_rows(described: Described, ids: ValidWriteIds) -> int | None:
    """Return the number of rows that readers trust; None if they read the files."""
    write_id = described.write_id
    return _exact_rows(described.parameters) if write_id > 0 and ids.is_valid(write_id) else None


def wrong_claim(rows: int, copies: tuple[Described, Described], original: Described, ids: ValidWriteIds) -> str:
    """Return what is wrong with the statistics of a target whose number of rows under `ids` is `rows`; '' if nothing.

    `copies` are the definitions before and after the rows were counted: other ones would be of another moment. A wrong
    number that the source has too is no error of the copy.
    """
    claims = {(claimed_rows(copy, ids), copy.write_id) for copy in copies}
    claim = next(iter(claims))[0] if len(claims) == 1 else None
    if claim in (None, rows, _exact_rows(original.parameters)):
        return ""
    return f"the statistics of the target count {claim} rows, but it has {rows}"


def _exact_rows(parameters: Mapping[str, str]) -> int | None:
    """Return the number of rows in the statistics that are marked as exact."""
    try:
        is_exact = json.loads(parameters.get("COLUMN_STATS_ACCURATE", "{}")).get("BASIC_STATS") == "true"
        return int(parameters["numRows"]) if is_exact else None
    except (AttributeError, KeyError, ValueError):  # another client has stored another text
        return None
