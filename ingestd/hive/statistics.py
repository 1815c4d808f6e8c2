"""Row counts that stay true, so that `select count(*)` is right although Hive answers it from statistics.

Invariant: `numRows` of a table or partition equals its visible rows, and the flag COLUMN_STATS_ACCURATE is absent after
every change of ours. The flag alone is not enough: Hive's compaction sets it again and trusts the `numRows` it finds
(Updater's `analyze … noscan`), and so does StatsOptimizer. Each change carries a mark, `ingestd.added.WRITER` =
`writeId rows files bytes`, by which a change whose transaction aborted can be found and taken back; and it leaves its
numRows in `ingestd.rows` too, so that a number written by anybody else since is seen; where it had to add to a number
that was in doubt already, it leaves `unknown` there, and the doubt lasts until the rows have been counted.
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
from ingestd.hive.partitions import LEFT, partition_names, read_partitions
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
_ROWS = "numRows"
_UNKNOWN = "unknown"
_MARK = "ingestd.added."
# The name under which an unpartitioned table's own counters go.
WHOLE_TABLE = ""

Change = Callable[[str, dict[str, str]], None]


@dataclass(frozen=True, slots=True)
class Writer:
    """Who counts: the name of a mapping or of one transaction of a streaming client, and the write id it counts."""

    name: str
    write_id: int

    @property
    def mark(self) -> str:
        """The parameter under which its change can be found."""
        return f"{_MARK}{self.name}"


@dataclass(frozen=True, slots=True)
class Added:
    """What a transaction adds to one table or partition."""

    rows: int
    files: int
    bytes: int


def count_up(
    metastore: Metastore,
    table: Table,
    writer: Writer,
    added: Mapping[str, Added],
    snapshot: ValidWriteIds,
    *,
    alone: bool,
) -> frozenset[str]:
    """Add to the counters as the writer of a write id, leave the mark, drop the flag.

    `added` is by partition name, or WHOLE_TABLE; `alone` says whether no other writer of ours can count meanwhile. With
    the write id and the snapshot, an ANALYZE by somebody who cannot see our rows loses its flag by itself
    (ObjectStore.alterTable, isCurrentStatsValidForTheQuery). Returns the names whose number nobody vouched for: they
    are left marked as unknown, and must be counted.
    """
    doubtful = set()

    def change(name: str, parameters: dict[str, str]) -> None:
        more = added[name]
        trusted = _settled(parameters, snapshot) and alone
        _add(parameters, more, 1)
        parameters[writer.mark] = f"{writer.write_id} {more.rows} {more.files} {more.bytes}"
        parameters[LEFT] = parameters[_ROWS] if trusted else _UNKNOWN
        if not trusted:
            doubtful.add(name)

    _alter(metastore, table, list(added), change, (writer.write_id, as_text(as_writer(snapshot, writer.write_id))))
    return frozenset(doubtful)


def stale_names(
    metastore: Metastore, table: Table, snapshot: ValidWriteIds, names: Sequence[str] | None = None
) -> list[str]:
    """Names, of these or of all, in whose counters aborted write ids are left."""
    if not snapshot.aborted:
        return []
    read = _every(metastore, table) if names is None else _some(metastore, table, names)
    return [
        name for name, parameters in read if any(write_id in snapshot.aborted for _, write_id, _ in _marks(parameters))
    ]


def take_back(metastore: Metastore, table: Table, names: Sequence[str], snapshot: ValidWriteIds) -> None:
    """Subtract what aborted write ids had added; a number that was in doubt stays in doubt."""

    def change(_name: str, parameters: dict[str, str]) -> None:
        trusted = _settled(parameters, snapshot)
        parameters[LEFT] = parameters[_ROWS] if trusted else _UNKNOWN

    _alter(metastore, table, names, change, None)


def moved(metastore: Metastore, table: Table, writer: Writer, names: Sequence[str]) -> list[str]:
    """Names whose counters are not what a writer of ours left.

    Somebody else wrote numRows, or wrote back what he had read before we counted: then our mark is gone, and none of a
    later write id tells that a writer of ours took it away.
    """
    return [name for name, parameters in _some(metastore, table, names) if _is_moved(parameters, writer)]


def _is_moved(parameters: Mapping[str, str], writer: Writer) -> bool:
    if parameters.get(LEFT) != parameters.get(_ROWS):
        return True
    return max((write_id for _, write_id, _ in _marks(parameters)), default=0) < writer.write_id


def set_rows(metastore: Metastore, table: Table, counted: Mapping[str, int]) -> None:
    """Write counted rows as numRows and drop the flag."""

    def change(name: str, parameters: dict[str, str]) -> None:
        parameters[_ROWS] = parameters[LEFT] = str(counted[name])

    _alter(metastore, table, list(counted), change, None)


def _marks(parameters: Mapping[str, str]) -> list[tuple[str, int, Added]]:
    """Key, write id and amounts of every mark."""
    found = []
    for key, value in parameters.items():
        if key.startswith(_MARK):
            write_id, rows, files, size = map(int, value.split())
            found.append((key, write_id, Added(rows, files, size)))
    return found


def _settled(parameters: dict[str, str], snapshot: ValidWriteIds) -> bool:
    """Take back what aborted write ids added, forget the marks of all that have ended; True when all was trusted."""
    trusted = _is_trusted(parameters)
    for key, write_id, amount in _marks(parameters):
        if write_id in snapshot.aborted:
            _add(parameters, amount, -1)
        if write_id in snapshot.aborted or snapshot.is_valid(write_id):
            del parameters[key]
    return trusted


def _add(parameters: dict[str, str], amount: Added, sign: int) -> None:
    for key, more in ((_ROWS, amount.rows), ("numFiles", amount.files), ("totalSize", amount.bytes)):
        parameters[key] = str(max(0, int(parameters.get(key) or 0) + sign * more))


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
    """We vouch for numRows as we left it; where we never wrote, Hive does by BASIC_STATS."""
    if LEFT in parameters:
        return parameters[LEFT] == parameters.get(_ROWS)
    return _ROWS in parameters and '"BASIC_STATS":"true"' in parameters.get(_ACCURATE, "").replace(" ", "")


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
        names = partition_names(metastore, table)
    yield from _some(metastore, table, names)
