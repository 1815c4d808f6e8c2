"""Row counts in the metastore, so that `select count(*)` is right although Hive answers it from statistics.

Invariant: after a commit `numRows` of a table or partition equals its visible rows or the parameters say that it may
not, and the flag COLUMN_STATS_ACCURATE is absent after every change of the number. The flag alone is not enough: Hive's
compaction sets it again and trusts the `numRows` it finds (Updater's `analyze … noscan`), and so does StatsOptimizer.

Parameters of ours beside numRows:

- `ingestd.rows`: numRows as a writer of ours left it, or `unknown`. Hive's INSERT, UPDATE, DELETE and ANALYZE change
  numRows only, so a difference shows that somebody else wrote it.
- `ingestd.counted`: the write ids that numRows accounts for (`counted.py`). ANALYZE writes back all parameters as it
  read them, ours included; then a visible delta is not in the set.
- `ingestd.added.WRITER` = `writeId rows files bytes`: a mark, by which the rows of a transaction that aborted after it
  was counted can be found and subtracted.

A number is right when numRows equals `ingestd.rows`, every visible directory is accounted for, and no mark is of a
write id that aborted, or that the metastore may have forgotten after it aborted (`is_right`). This needs no memory: any
writer finds a wrong number, also after a restart, and instead of adding to it leaves `unknown` until it is recounted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hive_metastore import ttypes

from ingestd.acid.layout import Content, Delta
from ingestd.acid.visibility import ValidWriteIds, read_content
from ingestd.clock import monotonic, now, pause
from ingestd.errors import MetastoreUnavailable, TransactionAborted
from ingestd.hive.client import CAPABILITIES, Metastore
from ingestd.hive.partitions import LEFT, read_partitions
from ingestd.hive.tables import Table, read_table
from ingestd.hive.transactions import Wait
from ingestd.hive.write_ids import as_text, as_writer
from ingestd.publish.counted_ids import CountedIds, Known, is_empty
from ingestd.storage.local import local_path

_log = logging.getLogger(__name__)
_ACCURATE = "COLUMN_STATS_ACCURATE"
_DDL_TIME = "transient_lastDdlTime"
_CONTEXT = {"DO_NOT_UPDATE_STATS": "true"}
CHUNK = 200
_TRIES = 20
# Clocks of this machine and the metastore's are taken to agree within a tenth of a second.
_SETTLED_SECONDS = 1.1
# HiveAlterHandler's words when an expected parameter has another value.
_MODIFIED = "The table has been modified"
# The statement of HIVE-26882, which the database behind the metastore refused.
_CANNOT_COMPARE = 'update "TABLE_PARAMS" set'
_ROWS = "numRows"
_UNKNOWN = "unknown"
_COUNTED = "ingestd.counted"
_MARK = "ingestd.added."
# The name under which an unpartitioned table's own counters go.
WHOLE_TABLE = ""


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
class Increment:
    """What a transaction adds to one table or partition."""

    rows: int = 0
    files: int = 0
    bytes: int = 0

    def __add__(self, other: Increment) -> Increment:
        return Increment(self.rows + other.rows, self.files + other.files, self.bytes + other.bytes)


@dataclass(frozen=True, slots=True)
class Counters:
    """Parameters and place of a partition, or of an unpartitioned table under the name WHOLE_TABLE."""

    name: str
    location: str
    parameters: Mapping[str, str]

    @property
    def is_ours(self) -> bool:
        """Whether a writer of ours has counted here."""
        return LEFT in self.parameters

    def content(self) -> Content:
        """What its directory holds now. Raises StorageUnavailable."""
        return read_content(local_path(self.location))


@dataclass(frozen=True, slots=True)
class Moment:
    """What a count is based on.

    `snapshot` was read after the counting lease came; `alone` says whether it came, so that no other writer of ours can
    count meanwhile. `known` tells by partition what the writer knows of its own write ids. `wait` bounds waits for DDL.
    """

    snapshot: ValidWriteIds
    alone: bool
    known: Callable[[str], Known]
    wait: Wait


Change = Callable[[Counters], dict[str, str]]


def count_up(
    metastore: Metastore, table: Table, writer: Writer, added: Mapping[str, Increment], moment: Moment
) -> frozenset[str]:
    """Add to the counters as the writer of a write id, leave the mark, drop the flag.

    `added` is by partition name, or WHOLE_TABLE. With the write id and the snapshot, an ANALYZE by somebody who cannot
    see our rows loses its flag by itself (ObjectStore.alterTable, isCurrentStatsValidForTheQuery). Returns the names
    whose number was not known to be right before: they are left as unknown and must be recounted.
    """
    doubtful = set()
    snapshot, alone = moment.snapshot, moment.alone

    def change(counters: Counters) -> dict[str, str]:
        content, parameters, known = counters.content(), dict(counters.parameters), moment.known(counters.name)
        if is_empty(content, snapshot, known):
            # Whatever the parameters say, for instance those of a partition that was dropped and created again.
            _forget_marks(parameters)
            parameters |= {_ROWS: "0", "numFiles": "0", "totalSize": "0"}
            is_known = alone
        else:
            _subtract_aborted(parameters, snapshot)
            # Only a writer without the lease can have a mark in flight now.
            is_known = alone and not _in_flight(parameters, snapshot)
            is_known = is_known and _is_right(parameters, content, snapshot, known)
            _forget_ended(parameters, snapshot)
        more = added[counters.name]
        _add(parameters, more, 1)
        parameters[writer.mark] = f"{writer.write_id} {more.rows} {more.files} {more.bytes}"
        if is_known:
            parameters[LEFT] = parameters[_ROWS]
            parameters[_COUNTED] = CountedIds.of(snapshot, writer.write_id).text()
        else:
            parameters[LEFT] = _UNKNOWN
            parameters.pop(_COUNTED, None)
            doubtful.add(counters.name)
        parameters.pop(_ACCURATE, None)
        return parameters

    _alter(metastore, table, list(added), change, wait=moment.wait, writer=_context(snapshot, writer.write_id))
    return frozenset(doubtful)


def is_right(counters: Counters, content: Content, snapshot: ValidWriteIds, known: Known) -> bool:
    """Whether numRows is known to be what `snapshot` sees, apart from transactions that are in flight.

    `snapshot` must be older than the parameters, and these older than the listing of `content`.
    """
    parameters = counters.parameters
    if any(mark.write_id in snapshot.aborted for mark in _marks(parameters)):
        return False
    if is_empty(content, snapshot, known):
        return parameters.get(_ROWS) == "0" or _in_flight(parameters, snapshot)
    return _is_right(parameters, content, snapshot, known)


def set_rows(
    metastore: Metastore, table: Table, counted: Mapping[str, int], snapshot: ValidWriteIds, own: int, wait: Wait
) -> None:
    """Write the rows that `snapshot` sees as numRows; drop the flag where they were not the same before.

    The marks go: what was in flight is not in the number, and not in its set of write ids. `own` is a write id that
    writes no rows: HiveServer2 keeps partitions as it read them until the table's write ids change.
    """

    def change(counters: Counters) -> dict[str, str]:
        parameters = dict(counters.parameters)
        rows = str(counted[counters.name])
        if parameters.get(_ROWS) != rows:
            parameters.pop(_ACCURATE, None)
        _forget_marks(parameters)
        parameters |= {_ROWS: rows, LEFT: rows, _COUNTED: CountedIds.of(snapshot, own).text()}
        return parameters

    _alter(metastore, table, list(counted), change, wait=wait, writer=_context(snapshot, own))


def read_counters(metastore: Metastore, table: Table, names: Sequence[str]) -> Iterator[Counters]:
    """The counters of those of these partitions that exist, or of the whole table; one call for CHUNK partitions."""
    if not table.partition_columns:
        yield _of_table(read_table(metastore, table.name))
        return
    for start in range(0, len(names), CHUNK):
        for partition in read_partitions(metastore, table, names[start : start + CHUNK]):
            yield _of_partition(table, partition)


def _of_table(raw: Any) -> Counters:
    return Counters(WHOLE_TABLE, raw.sd.location, dict(raw.parameters or {}))


def _of_partition(table: Table, partition: Any) -> Counters:
    return Counters(table.partition_name(partition.values), partition.sd.location, dict(partition.parameters or {}))


@dataclass(frozen=True, slots=True)
class _Mark:
    key: str
    write_id: int
    amount: Increment


def _marks(parameters: Mapping[str, str]) -> list[_Mark]:
    """Every valid mark; a parameter of that name with any other text is ignored."""
    found = []
    for key, value in parameters.items():
        numbers = value.split()
        if key.startswith(_MARK) and len(numbers) == 4 and all(number.isdecimal() for number in numbers):
            write_id, rows, files, size = map(int, numbers)
            found.append(_Mark(key, write_id, Increment(rows, files, size)))
    return found


def _is_right(parameters: Mapping[str, str], content: Content, snapshot: ValidWriteIds, known: Known) -> bool:
    """As `is_right`, of a directory that is not empty and without marks of aborted write ids."""
    if parameters.get(LEFT) != parameters.get(_ROWS):
        return False
    counted = CountedIds.parse(parameters.get(_COUNTED))
    if counted is None or not counted.accounts_for(content, snapshot, known):
        return False
    return all(
        _has_committed(mark.write_id, content, known) for mark in _marks(parameters) if snapshot.is_valid(mark.write_id)
    )


def _has_committed(write_id: int, content: Content, known: Known) -> bool:
    """Whether a write id that a snapshot calls valid has committed for certain.

    Once the metastore has cleaned up after an aborted write id it forgets it, and snapshots call it valid; its delta is
    gone then. So is that of a committed one after a compaction: then only its writer knows.
    """
    return write_id == known.committed or any(
        isinstance(one, Delta) and not one.visibility_txn and one.min_write_id <= write_id <= one.max_write_id
        for one in content.directories
    )


def _in_flight(parameters: Mapping[str, str], snapshot: ValidWriteIds) -> bool:
    ended = (snapshot.is_valid(mark.write_id) or mark.write_id in snapshot.aborted for mark in _marks(parameters))
    return not all(ended)


def _subtract_aborted(parameters: dict[str, str], snapshot: ValidWriteIds) -> None:
    was_left = parameters.get(LEFT) == parameters.get(_ROWS)
    for mark in _marks(parameters):
        if mark.write_id in snapshot.aborted:
            _add(parameters, mark.amount, -1)
            del parameters[mark.key]
    if was_left and LEFT in parameters:
        parameters[LEFT] = parameters[_ROWS]


def _forget_ended(parameters: dict[str, str], snapshot: ValidWriteIds) -> None:
    for mark in _marks(parameters):
        if snapshot.is_valid(mark.write_id):
            del parameters[mark.key]


def _forget_marks(parameters: dict[str, str]) -> None:
    for key in [key for key in parameters if key.startswith(_MARK)]:
        del parameters[key]


def _add(parameters: dict[str, str], amount: Increment, sign: int) -> None:
    for key, more in ((_ROWS, amount.rows), ("numFiles", amount.files), ("totalSize", amount.bytes)):
        parameters[key] = str(max(0, int(parameters.get(key) or 0) + sign * more))


def _alter(
    metastore: Metastore,
    table: Table,
    names: Sequence[str],
    change: Change,
    *,
    wait: Wait,
    writer: Mapping[str, Any],
) -> None:
    if table.partition_columns:
        _alter_partitions(metastore, table, names, change, writer)
    else:
        _alter_table(metastore, table, change, wait, writer)


def _alter_partitions(
    metastore: Metastore, table: Table, names: Sequence[str], change: Change, writer: Mapping[str, Any]
) -> None:
    """Read and write back at once: HMS ignores `expected_parameter_*` here (live experiment B16)."""
    for start in range(0, len(names), CHUNK):
        partitions = read_partitions(metastore, table, names[start : start + CHUNK])
        for partition in partitions:
            partition.parameters = change(_of_partition(table, partition))
        if not partitions:
            continue
        request = ttypes.AlterPartitionsRequest(
            dbName=table.name.database,
            tableName=table.name.table,
            partitions=partitions,
            environmentContext=ttypes.EnvironmentContext(properties=dict(_CONTEXT)),
            **writer,
        )
        metastore.call("alter_partitions_req", request)


def _alter_table(metastore: Metastore, table: Table, change: Change, wait: Wait, writer: Mapping[str, Any]) -> None:
    """Compare and set on the time of the last DDL, so that no DDL of a user is undone (HIVE-26882).

    That time has whole seconds: a table touched in this very second is read again when the second is over.
    """
    for _ in range(_TRIES):
        raw = read_table(metastore, table.name)
        touched = (raw.parameters or {}).get(_DDL_TIME, "0")
        seconds = min(_seconds_of_touch(table, touched), wait.deadline.left)
        if seconds > 0:
            if pause(seconds, wait.stop):
                raise TransactionAborted("stopped while the rows were being counted", where=f"table {table.name}")
            continue
        raw.parameters = change(_of_table(raw))
        if write_back(metastore, raw, touched, writer):
            return
    raise MetastoreUnavailable(
        f"others changed the table {_TRIES} times in a row while its row count was being kept",
        where=f"table {table.name}",
    )


_touched: dict[str, tuple[str, float]] = {}


def _seconds_of_touch(table: Table, touched: str) -> float:
    """Seconds until the second of the last DDL is over for certain, 0 when it is.

    By the clocks, or because this process first saw that value more than a second ago: a metastore whose clock is
    ahead of ours must not delay commits for as long as it is ahead.
    """
    name = str(table.name)
    if _touched.get(name, ("", 0.0))[0] != touched:
        _touched[name] = (touched, monotonic())
        ahead = int(touched) - now()
        if ahead > _SETTLED_SECONDS:
            _log.warning("the last DDL of table %s lies %.0f s in the future: the clocks differ", name, ahead)
    by_clock = int(touched) + _SETTLED_SECONDS - now()
    since_seen = _touched[name][1] + _SETTLED_SECONDS - monotonic()
    return max(0.0, min(by_clock, since_seen))


def write_back(metastore: Metastore, raw: Any, touched: str, writer: Mapping[str, Any]) -> bool:
    """Write the table back unless somebody changed it since `touched`; False when somebody did.

    A metastore whose database cannot compare its text columns (Derby, Oracle) says so once; from then on the table is
    written back without the comparison, milliseconds after it was read.
    """
    raw.writeId = writer.get("writeId", raw.writeId)  # HMS 4.0 ignores that of a request for a table
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
        **writer,
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


def _context(snapshot: ValidWriteIds, write_id: int) -> dict[str, Any]:
    return {"writeId": write_id, "validWriteIdList": as_text(as_writer(snapshot, write_id))}
