"""Compares row counts with the rows in the files, without changing either.

Invariant: a count is reported as wrong only if neither the count nor the snapshot changed while the files were read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ingestd.acid.visibility import visible_rows
from ingestd.clock import Deadline
from ingestd.hive.parameters import Parameters, read_parameters
from ingestd.hive.partitions import ROWS_WRITTEN
from ingestd.hive.tables import Table
from ingestd.hive.write_ids import is_committed, read_snapshot
from ingestd.publish.warehouse import Warehouse

_ROWS = "numRows"
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class AuditedCount:
    """The count of one partition (or WHOLE_TABLE): `claimed` is numRows, and `rows` is what the files contain.

    `is_trusted` is False if ingestd has marked the count as unreliable; Hive then reads the rows. `is_settled` is False
    if the partition changed during each attempt.
    """

    name: str
    claimed: int
    rows: int
    is_trusted: bool
    is_settled: bool

    @property
    def is_wrong(self) -> bool:
        """Whether the count is known to be wrong, and Hive may answer `count(*)` from it."""
        return self.is_settled and self.is_trusted and self.claimed != self.rows


def audit(warehouse: Warehouse, table: Table, names: Sequence[str], deadline: Deadline) -> Iterator[AuditedCount]:
    """Yield the count of each partition in `names` that has one, or of the whole table, until `deadline`.

    Raises MetastoreUnavailable, StorageUnavailable, and InvalidTable for a file that is not an ORC file.
    """
    for name in names:
        if deadline.passed:
            return
        audited = _audit(warehouse, table, name)
        if audited is not None:
            yield audited


def _audit(warehouse: Warehouse, table: Table, name: str) -> AuditedCount | None:
    metastore = warehouse.metastore
    for attempt in range(1, _ATTEMPTS + 1):
        snapshot = read_snapshot(metastore, table.name)
        before = next(read_parameters(metastore, table, [name]), None)
        if before is None or not before.values.get(_ROWS, "").isdecimal():
            return None
        storage = warehouse.storages.at(before.location)
        rows = visible_rows(storage, before.location, snapshot, lambda txn_id: is_committed(metastore, txn_id))
        after = next(read_parameters(metastore, table, [name]), None)
        is_settled = after == before and read_snapshot(metastore, table.name) == snapshot
        if is_settled or attempt == _ATTEMPTS:
            return _audited(before, rows, is_settled=is_settled)
    return None


def _audited(parameters: Parameters, rows: int, *, is_settled: bool) -> AuditedCount:
    is_trusted = parameters.values.get(ROWS_WRITTEN) != "unknown" or "COLUMN_STATS_ACCURATE" in parameters.values
    return AuditedCount(parameters.name, int(parameters.values[_ROWS]), rows, is_trusted, is_settled)
