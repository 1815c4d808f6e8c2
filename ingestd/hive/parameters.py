"""Reads and changes the parameters of a table or of its partitions, under a write id.

Invariant: a change does not revert DDL of other clients. A table is written with compare-and-set on the time of its
last DDL (HIVE-26882). For partitions HMS ignores the comparison, so they are written within milliseconds after they
were read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hive_metastore import ttypes

from ingestd.acid.visibility import ValidWriteIds
from ingestd.clock import monotonic, now, pause
from ingestd.errors import MetastoreUnavailable, TransactionAborted
from ingestd.hive.client import CAPABILITIES, KEEP_STATISTICS, PARTITIONS_PER_CALL, Metastore
from ingestd.hive.partitions import read_partitions
from ingestd.hive.tables import WHOLE_TABLE, Table, read_table
from ingestd.hive.transactions import Wait
from ingestd.hive.write_ids import as_text, as_writer

_log = logging.getLogger(__name__)
DDL_TIME = "transient_lastDdlTime"
_TRIES = 20
# The clocks of this machine and of the metastore are assumed to agree within a tenth of a second.
_SETTLED_SECONDS = 1.1
# HiveAlterHandler's message when the expected parameter has another value.
_MODIFIED = "The table has been modified"
# The SQL statement of HIVE-26882, quoted in the error of a database that rejects it.
_CANNOT_COMPARE = 'update "TABLE_PARAMS" set'


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters and location of a partition. For an unpartitioned table, `name` is WHOLE_TABLE."""

    name: str
    location: str
    values: Mapping[str, str]


Change = Callable[[Sequence[Parameters]], Sequence[dict[str, str]]]
"""Returns the new parameters of each partition, or of the table."""


@dataclass(frozen=True, slots=True)
class WriterView:
    """The write id under which parameters are written, and the snapshot that the writer had read.

    HMS uses both to detect that the statistics of an ANALYZE do not include the writer's rows. It then removes the
    flag COLUMN_STATS_ACCURATE (ObjectStore.alterTable, isCurrentStatsValidForTheQuery).
    """

    write_id: int
    snapshot: ValidWriteIds

    def fields(self) -> dict[str, Any]:
        """Return the fields to set in a Thrift request."""
        return {"writeId": self.write_id, "validWriteIdList": as_text(as_writer(self.snapshot, self.write_id))}


def read_parameters(metastore: Metastore, table: Table, names: Sequence[str]) -> Iterator[Parameters]:
    """Yield the parameters of the partitions in `names` that exist, or of the table; one call per 200 partitions."""
    if not table.partition_columns:
        yield _of_table(read_table(metastore, table.name))
        return
    for start in range(0, len(names), PARTITIONS_PER_CALL):
        for partition in read_partitions(metastore, table, names[start : start + PARTITIONS_PER_CALL]):
            yield _of_partition(table, partition)


def change_parameters(
    metastore: Metastore, table: Table, names: Sequence[str], change: Change, view: WriterView, wait: Wait
) -> None:
    """Replace the parameters of these partitions, or of the whole table, with the result of `change`.

    `change` may be called again for a table that another client has changed. Partitions that do not exist are skipped.
    Raises MetastoreUnavailable, and TransactionAborted if `wait` is stopped.
    """
    if table.partition_columns:
        _change_partitions(metastore, table, names, change, view)
    else:
        _change_table(metastore, table, change, view, wait)


def _of_table(raw: Any) -> Parameters:
    return Parameters(WHOLE_TABLE, raw.sd.location, dict(raw.parameters or {}))


def _of_partition(table: Table, partition: Any) -> Parameters:
    return Parameters(table.partition_name(partition.values), partition.sd.location, dict(partition.parameters or {}))


def _change_partitions(
    metastore: Metastore, table: Table, names: Sequence[str], change: Change, view: WriterView
) -> None:
    for start in range(0, len(names), PARTITIONS_PER_CALL):
        partitions = read_partitions(metastore, table, names[start : start + PARTITIONS_PER_CALL])
        changed = change([_of_partition(table, partition) for partition in partitions])
        for partition, values in zip(partitions, changed, strict=True):
            partition.parameters = values
        if not partitions:
            continue
        request = ttypes.AlterPartitionsRequest(
            dbName=table.name.database,
            tableName=table.name.table,
            partitions=partitions,
            environmentContext=ttypes.EnvironmentContext(properties=dict(KEEP_STATISTICS)),
            **view.fields(),
        )
        metastore.call("alter_partitions_req", request)


def _change_table(metastore: Metastore, table: Table, change: Change, view: WriterView, wait: Wait) -> None:
    for _ in range(_TRIES):
        raw = read_settled(metastore, table, wait)
        changed_at = _changed_at(raw)
        (raw.parameters,) = change([_of_table(raw)])
        if write_table_back(metastore, raw, changed_at, view):
            return
    raise MetastoreUnavailable(
        f"other clients changed the table {_TRIES} times in a row while its row count was being updated",
        where=f"table {table.name}",
    )


def read_settled(metastore: Metastore, table: Table, wait: Wait) -> Any:
    """Return the Thrift table. If it was changed in the current second, read it again in the next second.

    The comparison with the time of the last DDL, which is in whole seconds, finds no other change in the same second.
    Without the comparison there is nothing to wait for. Returns when `wait` is over at the latest, and raises
    TransactionAborted if it is stopped.
    """
    while True:
        raw = read_table(metastore, table.name)
        seconds = min(_seconds_to_settle(table, _changed_at(raw)), wait.deadline.left)
        if seconds <= 0 or not metastore.compares_parameters:
            return raw
        if pause(seconds, wait.stop):
            raise TransactionAborted("stopped while the row count was being updated", where=f"table {table.name}")


def _changed_at(raw: Any) -> str:
    return str((raw.parameters or {}).get(DDL_TIME, "0"))


# By table name: the last DDL time that was read, and when this process first read it.
_first_reads: dict[str, tuple[str, float]] = {}


def _seconds_to_settle(table: Table, changed_at: str) -> float:
    """Return the seconds until the second of the last DDL has passed; 0 if it has.

    The second has passed if the clocks say so, or if this process first read that time more than a second ago. The
    second rule limits the delay of commits if the metastore's clock is ahead.
    """
    name = str(table.name)
    if _first_reads.get(name, ("", 0.0))[0] != changed_at:
        _first_reads[name] = (changed_at, monotonic())
        ahead = int(changed_at) - now()
        if ahead > _SETTLED_SECONDS:
            _log.warning(
                "the last DDL of table %s is %.0f s in the future: synchronize the clocks of this machine and of the"
                " metastore",
                name,
                ahead,
            )
    by_clock = int(changed_at) + _SETTLED_SECONDS - now()
    since_read = _first_reads[name][1] + _SETTLED_SECONDS - monotonic()
    return max(0.0, min(by_clock, since_read))


def write_table_back(metastore: Metastore, raw: Any, changed_at: str, view: WriterView | None = None) -> bool:
    """Write a Thrift table back unless it has changed since `changed_at`; return False if it has.

    A metastore whose database cannot compare its text columns (Derby, Oracle) reports this at the first attempt. From
    then on, tables are written back without the comparison, milliseconds after they were read.
    """
    properties = dict(KEEP_STATISTICS)
    comparing = metastore.compares_parameters  # another thread may change it during the call
    if comparing:
        properties |= {"expected_parameter_key": DDL_TIME, "expected_parameter_value": changed_at}
    fields: dict[str, Any] = {}
    if view is not None:
        fields = view.fields()
        raw.writeId = view.write_id  # HMS 4.0 ignores the write id of a request for a table
    request = ttypes.AlterTableRequest(
        dbName=raw.dbName,
        tableName=raw.tableName,
        table=raw,
        environmentContext=ttypes.EnvironmentContext(properties=properties),
        processorCapabilities=CAPABILITIES,
        processorIdentifier="ingestd",
        **fields,
    )
    try:
        metastore.call("alter_table_req", request)
    except MetastoreUnavailable as error:
        if _MODIFIED in error.what:
            return False
        if not (comparing and _CANNOT_COMPARE in error.what):
            raise
        metastore.compares_parameters = False
        return False
    return True
