"""Row counts that stay true, so that `select count(*)` is right although Hive answers it from statistics.

Invariant: `numRows` of a table or partition equals its visible rows, and the flag COLUMN_STATS_ACCURATE is absent after
every change of ours. The flag alone is not enough: Hive's compaction sets it again and trusts the `numRows` it finds
(Updater's `analyze … noscan`), and so does StatsOptimizer. Each change carries a mark, `ingestd.added.MAPPING` =
`writeId rows files bytes`, by which a change whose transaction aborted can be found and taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hive_metastore import ttypes

from ingestd.acid.layout import ValidWriteIds
from ingestd.clock import now, pause
from ingestd.errors import MetastoreUnavailable
from ingestd.hive.client import CAPABILITIES, Metastore
from ingestd.hive.partitions import MARK, read_partitions
from ingestd.hive.tables import Table, read_table
from ingestd.hive.write_ids import as_text, as_writer

_ACCURATE = "COLUMN_STATS_ACCURATE"
_DDL_TIME = "transient_lastDdlTime"
_CONTEXT = {"DO_NOT_UPDATE_STATS": "true"}
_CHUNK = 500
_TRIES = 20
# Clocks of this machine and the metastore's are taken to agree within a tenth of a second.
_SETTLED_SECONDS = 1.1
# HiveAlterHandler's words when an expected parameter has another value.
_MODIFIED = "The table has been modified"
# The statement of HIVE-26882, which the database behind the metastore refused.
_CANNOT_COMPARE = 'update "TABLE_PARAMS" set'
_UNKNOWN = -1
# The name under which an unpartitioned table's own counters go.
WHOLE_TABLE = ""

Change = Callable[[str, dict[str, str]], None]


@dataclass(frozen=True, slots=True)
class Added:
    """What a transaction adds to one table or partition."""

    rows: int
    files: int
    bytes: int


def count_up(
    metastore: Metastore,
    table: Table,
    mapping: str,
    added: Mapping[str, Added],
    writer: tuple[int, ValidWriteIds],
) -> dict[str, int]:
    """Add to the counters as the writer of a write id, leave the mark, drop the flag; returns numRows by name.

    `added` is by partition name, or WHOLE_TABLE. With the write id and the writer's view of the table, an ANALYZE by
    somebody who cannot see our rows loses its flag by itself (ObjectStore.alterTable, isCurrentStatsValidForTheQuery).
    A number that nobody vouches for, neither Hive's flag nor a mark of ours, is answered as -1: it must be counted.
    """
    write_id, snapshot = writer
    expected: dict[str, int] = {}

    def change(name: str, parameters: dict[str, str]) -> None:
        more = added[name]
        trusted = _is_trusted(parameters)
        for key, amount in (("numRows", more.rows), ("numFiles", more.files), ("totalSize", more.bytes)):
            parameters[key] = str(max(0, _number(parameters, key)) + amount)
        parameters[_mark(mapping)] = f"{write_id} {more.rows} {more.files} {more.bytes}"
        expected[name] = int(parameters["numRows"]) if trusted else _UNKNOWN

    _alter(metastore, table, list(added), change, (write_id, as_text(as_writer(snapshot, write_id))))
    return expected


def take_back(metastore: Metastore, table: Table, mapping: str, aborted: frozenset[int]) -> list[str]:
    """Subtract what aborted write ids had added; returns the names that were mended."""

    def is_stale(parameters: Mapping[str, str]) -> bool:
        return int(parameters.get(_mark(mapping), "0").split()[0]) in aborted

    def change(name: str, parameters: dict[str, str]) -> None:
        if not is_stale(parameters):
            return
        _, rows, files, size = map(int, parameters.pop(_mark(mapping)).split())
        for key, amount in (("numRows", rows), ("numFiles", files), ("totalSize", size)):
            parameters[key] = str(max(0, _number(parameters, key) - amount))

    stale = [name for name, parameters in _every(metastore, table) if is_stale(parameters)]
    if stale:
        _alter(metastore, table, stale, change, None)
    return stale


def moved(metastore: Metastore, table: Table, expected: Mapping[str, int]) -> list[str]:
    """Names whose numRows is not what we left: an ANALYZE or a writer came in between, or the flag is back."""
    current = dict(_some(metastore, table, list(expected)))
    return [name for name, rows in expected.items() if name in current and _number(current[name], "numRows") != rows]


def set_rows(metastore: Metastore, table: Table, counted: Mapping[str, int]) -> None:
    """Write counted rows as numRows and drop the flag."""

    def change(name: str, parameters: dict[str, str]) -> None:
        parameters["numRows"] = str(counted[name])

    _alter(metastore, table, list(counted), change, None)


def _mark(mapping: str) -> str:
    return f"{MARK}{mapping}"


def _number(parameters: Mapping[str, str], key: str) -> int:
    return int(parameters.get(key) or 0)


def _alter(
    metastore: Metastore, table: Table, names: Sequence[str], change: Change, writer: tuple[int, str] | None
) -> None:
    if table.partition_columns:
        _alter_partitions(metastore, table, names, change, writer)
    else:
        _alter_table(metastore, table, change, writer)


def _alter_partitions(
    metastore: Metastore, table: Table, names: Sequence[str], change: Change, writer: tuple[int, str] | None
) -> None:
    """Read and write back at once: HMS ignores `expected_parameter_*` here (live experiment B16)."""
    for start in range(0, len(names), _CHUNK):
        partitions = read_partitions(metastore, table, names[start : start + _CHUNK])
        for partition in partitions:
            partition.parameters = _changed(partition.parameters, table.partition_name(partition.values), change)
        request = ttypes.AlterPartitionsRequest(
            dbName=table.name.database,
            tableName=table.name.table,
            partitions=partitions,
            environmentContext=ttypes.EnvironmentContext(properties=dict(_CONTEXT)),
            **_as_writer(writer),
        )
        metastore.call("alter_partitions_req", request)


def _alter_table(metastore: Metastore, table: Table, change: Change, writer: tuple[int, str] | None) -> None:
    """Compare and set on the time of the last DDL, so that no DDL of a user is undone (HIVE-26882).

    That time has whole seconds: a table touched in this very second is read again when the second is over.
    """
    for _ in range(_TRIES):
        raw = read_table(metastore, table.name)
        touched = (raw.parameters or {}).get(_DDL_TIME, "0")
        if now() < int(touched) + _SETTLED_SECONDS:
            pause(int(touched) + _SETTLED_SECONDS - now())
            continue
        raw.parameters = _changed(raw.parameters, WHOLE_TABLE, change)
        if write_back(metastore, raw, touched, writer):
            return
    raise MetastoreUnavailable(
        f"others changed the table {_TRIES} times in a row while its row count was being kept",
        where=f"table {table.name}",
    )


def write_back(metastore: Metastore, raw: Any, touched: str, writer: tuple[int, str] | None) -> bool:
    """Write the table back unless somebody changed it since `touched`; False when somebody did.

    A metastore whose database cannot compare its text columns (Derby, Oracle) says so once; from then on the table is
    written back without the comparison, milliseconds after it was read.
    """
    properties = dict(_CONTEXT)
    comparing = metastore.compares_parameters  # another mapping's thread may find out meanwhile
    if comparing:
        properties |= {"expected_parameter_key": _DDL_TIME, "expected_parameter_value": touched}
    request = ttypes.AlterTableRequest(
        dbName=raw.dbName,
        tableName=raw.tableName,
        table=raw,
        environmentContext=ttypes.EnvironmentContext(properties=properties),
        processorCapabilities=CAPABILITIES,
        processorIdentifier="ingestd",
        **_as_writer(writer),
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


def _is_trusted(parameters: Mapping[str, str]) -> bool:
    """Hive vouches for numRows by BASIC_STATS, we by a mark."""
    vouched = '"BASIC_STATS":"true"' in parameters.get(_ACCURATE, "").replace(" ", "")
    return "numRows" in parameters and (vouched or any(key.startswith(MARK) for key in parameters))


def _changed(parameters: Mapping[str, str] | None, name: str, change: Change) -> dict[str, str]:
    after = dict(parameters or {})
    change(name, after)
    after.pop(_ACCURATE, None)
    return after


def _as_writer(writer: tuple[int, str] | None) -> dict[str, Any]:
    return {} if writer is None else {"writeId": writer[0], "validWriteIdList": writer[1]}


def _some(metastore: Metastore, table: Table, names: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Name and parameters of these partitions, or of the whole table."""
    if not table.partition_columns:
        yield WHOLE_TABLE, dict(read_table(metastore, table.name).parameters or {})
        return
    for start in range(0, len(names), _CHUNK):
        for partition in read_partitions(metastore, table, names[start : start + _CHUNK]):
            yield table.partition_name(partition.values), dict(partition.parameters or {})


def _every(metastore: Metastore, table: Table) -> Iterator[tuple[str, dict[str, str]]]:
    """Name and parameters of every partition, or of the whole table."""
    names: Sequence[str] = ()
    if table.partition_columns:
        names = metastore.call("get_partition_names", table.name.database, table.name.table, -1)
    yield from _some(metastore, table, names)
