"""Reads and creates partitions.

Invariant: a partition's own location is used; it is never assumed to be under the table's directory.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import Any, TypeVar

from hive_metastore import ttypes

from ingestd.acid.partitions import odd_partition_names
from ingestd.errors import IngestdError, MetastoreUnavailable
from ingestd.hive.answers import MetastoreDenied, MetastoreRefusal, has_answered, is_of_value
from ingestd.hive.client import CAPABILITIES, PARTITIONS_PER_CALL, Metastore
from ingestd.hive.health import setting
from ingestd.hive.tables import Table

T = TypeVar("T")
_WHITELIST = "metastore.partition.name.whitelist.pattern"
_MAX_KNOWN_VALUES = 100_000
# A new partition starts with statistics of zero, which each commit increases. Without numRows Hive would start to count
# at its own first INSERT, and count(*) would stay wrong. If one of the numbers of files and bytes were missing, the
# metastore would list the new directory to find them (StatsSetupConst.FAST_STATS), which takes three requests in S3.
# ROWS_WRITTEN is the value of numRows after the last change by ingestd (publish/row_count_parameters.py).
ROWS_WRITTEN = "ingestd.rows"
_SURVEYED_PARTITIONS = 10_000
_REFUSED_HINT = (
    "if other partitions are created, its database cannot store this name, or treats it as equal to another (MySQL and"
    " Derby ignore blanks at the end): correct or skip its records"
)
_NEW_PARAMETERS = dict.fromkeys(
    ("numRows", "numFiles", "totalSize", "rawDataSize", "numFilesErasureCoded", ROWS_WRITTEN), "0"
)
# HMSHandler.checkLimitNumberOfPartitions
_ABOVE_LIMIT = re.compile(r"exceeds limit \(=(\d+)\)")


def read_partitions(metastore: Metastore, table: Table, names: Sequence[str]) -> list[Any]:
    """Return the Thrift partitions in `names` that exist. Names are escaped, as in `k=v/k2=v2`."""
    return [partition for partitions in by_request(names, partial(_read, metastore, table)) for partition in partitions]


def partition_locations(metastore: Metastore, table: Table, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the partitions in `names`, which are escaped, that exist, with the URIs of their directories."""
    for partition in read_partitions(metastore, table, names):
        yield table.partition_name(partition.values), partition.sd.location


def by_request(names: Sequence[str], read: Callable[[Sequence[str]], T]) -> Iterator[T]:
    """Yield the results of `read` for chunks of names, which are smaller if the metastore limits its answers.

    Its setting metastore.limit.partition.request is the most partitions that a client may read with one request. The
    metastore refuses larger ones, and says how large they may be.
    """
    for some in by_call(names):
        try:
            results = [read(some)]
        except IngestdError as error:
            refused = _ABOVE_LIMIT.search(error.what)
            most = int(refused[1]) if refused else 0
            if not 0 < most < len(some):
                raise
            results = [read(some[start : start + most]) for start in range(0, len(some), most)]
        yield from results


def by_call(partitions: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield partitions or their names in chunks, each small enough for one call."""
    for start in range(0, len(partitions), PARTITIONS_PER_CALL):
        yield partitions[start : start + PARTITIONS_PER_CALL]


def _read(metastore: Metastore, table: Table, names: Sequence[str]) -> list[Any]:
    """Return the partitions in `names` that exist.

    HMS reads the values of partitions by a second query (MetastoreDirectSql). A partition that is dropped in between is
    returned without values.
    """
    request = ttypes.GetPartitionsByNamesRequest(
        db_name=table.name.database,
        tbl_name=table.name.table,
        names=list(names),
        get_col_stats=False,
        processorCapabilities=CAPABILITIES,
        processorIdentifier="ingestd",
    )
    partitions = metastore.call("get_partitions_by_names_req", request).partitions
    return [partition for partition in partitions if len(partition.values or ()) == len(table.partition_columns)]


def partition_names(metastore: Metastore, table: Table, most: int = -1) -> list[str]:
    """Return the escaped names of all partitions, or of at most `most` partitions (≤ 32767)."""
    return list(metastore.call("get_partition_names", table.name.database, table.name.table, most))


def odd_partitions(metastore: Metastore, table: Table) -> list[str]:
    """Return the names of partitions whose values are not in Hive's normal form, such as `p=007` for an int.

    Checks the first 10,000 partitions. Calls the metastore only if a partition column is not a string or varchar.
    """
    columns = table.partition_columns
    if all(column.type.kind in ("string", "varchar") for column in columns):
        return []
    return odd_partition_names(columns, partition_names(metastore, table, _SURVEYED_PARTITIONS))


def describe_odd(names: Sequence[str]) -> str:
    """Return a log text of bounded length that lists odd partitions and says how to correct them."""
    shown = ", ".join(name if len(name) <= 100 else name[:97] + "..." for name in names[:5])
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return (
        f"{shown}{more}: these partition values are not in Hive's normal form; WHERE, INSERT OVERWRITE and DROP"
        " PARTITION may not find the partitions; copy their rows to partitions with normal values, then drop them"
    )


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """A partition: its escaped name, the URI of its directory, and whether it existed before it was requested."""

    name: str
    location: str
    existed: bool


class PartitionsRefused(MetastoreRefusal):
    """The metastore cannot create some partitions because of their values; `refused` has the reason by the values."""

    def __init__(
        self,
        what: str,
        *,
        where: str = "",
        hint: str = "",
        refused: Mapping[tuple[str, ...], str] = MappingProxyType({}),
    ) -> None:
        super().__init__(what, where=where, hint=hint)
        self.refused = refused


class PartitionNames:
    """Asks the metastore whether its whitelist contains the values of partitions, once for each value. Thread-safe."""

    def __init__(self, metastore: Metastore) -> None:
        self._metastore = metastore
        self._pattern: str | None = None
        self._valid: dict[str, bool] = {}

    def refused(self, partitions: Sequence[tuple[str, ...]]) -> dict[tuple[str, ...], str]:
        """Return the reason for each partition, given by values, that is refused. Raises MetastoreUnavailable."""
        if self._pattern is None:
            self._pattern = setting(self._metastore, _WHITELIST) or ""
        if not self._pattern:
            return {}
        if len(self._valid) > _MAX_KNOWN_VALUES:
            self._valid = {}
        known = self._valid
        self._ask([value for value in dict.fromkeys(chain(*partitions)) if value not in known], known)
        bad = {values: next((value for value in values if not known[value]), None) for values in partitions}
        return {
            values: f"the metastore refuses its partition: {value!r} does not match {_WHITELIST}, {self._pattern!r}"
            for values, value in bad.items()
            if value is not None
        }

    def _ask(self, values: Sequence[str], known: dict[str, bool]) -> None:
        """Add to `known` whether the metastore accepts each value. Only the half with such a value is asked again."""
        if not values:
            return
        throws = False
        if self._metastore.call("partition_name_has_valid_characters", list(values), throws):
            known |= dict.fromkeys(values, True)
        elif len(values) == 1:
            known[values[0]] = False
        else:
            self._ask(values[: len(values) // 2], known)
            self._ask(values[len(values) // 2 :], known)


def ensure_partitions(
    metastore: Metastore,
    table: Table,
    values: Mapping[str, Sequence[str]],
    make_directories: Callable[[Sequence[str]], None],
) -> dict[str, PartitionInfo]:
    """Create the partitions in `values` that do not exist, and return all of them by name.

    `values` maps each name to its partition values, one per partition column. `make_directories` is called with the
    names of missing partitions before the metastore creates these: a metastore that fails to create partitions removes
    the directories that it has created for them (AddPartitionsHandler), even if another metastore has created the same
    partition meanwhile, and rows were committed to it. A repeated call is enough for that. So several clients may
    safely create the same partition. Raises PartitionsRefused if the metastore cannot store some of the values; the
    others have been created. Raises MetastoreRefusal if it cannot create a partition for another reason, and the errors
    of `make_directories`.
    """
    partitions = _infos(table, read_partitions(metastore, table, list(values)), existed=True)
    missing = [name for name in values if name not in partitions]
    if missing:
        make_directories(missing)
    refused: dict[str, MetastoreRefusal] = {}
    for some in by_call(missing):
        wanted = {name: list(values[name]) for name in some}
        partitions |= _infos(table, _add(metastore, table, wanted, refused), existed=False)
    if refused:
        first = next(iter(refused.values()))
        more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
        reasons = {tuple(values[name]): error.what for name, error in refused.items()}
        raise PartitionsRefused(f"{first.what}{more}", where=first.where, hint=first.hint, refused=reasons) from first
    others = [name for name in missing if name not in partitions]
    return partitions | _infos(table, read_partitions(metastore, table, others), existed=True)


def _infos(table: Table, partitions: Sequence[Any], *, existed: bool) -> dict[str, PartitionInfo]:
    infos = {}
    for partition in partitions:
        name = table.partition_name(partition.values)
        infos[name] = PartitionInfo(name, partition.sd.location.rstrip("/"), existed)
    return infos


def _add(
    metastore: Metastore, table: Table, values: Mapping[str, list[str]], refused: dict[str, MetastoreRefusal]
) -> Sequence[Any]:
    """Create partitions and return those that did not exist.

    The metastore creates all or none, and its errors do not always name a partition. If it refuses several, although it
    answers, each of them is requested alone, if need be. Those whose values it cannot store are added to `refused`. Any
    other error is that for one partition; others may have been created.
    """
    try:
        return _request_partitions(metastore, table, values)
    except (MetastoreRefusal, MetastoreUnavailable) as error:
        if not has_answered(error):
            raise
        if len(values) == 1:
            (name,) = values
            what = f"the metastore cannot create the partition {name}: {error.what}"
            of_value = "" if isinstance(error, MetastoreDenied) else _REFUSED_HINT
            hint = "; ".join(filter(None, [error.hint, of_value]))
            explained = type(error)(what, where=error.where, hint=hint)
            if not isinstance(explained, MetastoreRefusal) or not is_of_value(error):
                raise explained from error
            # A reject has a reason without a hint.
            refused[name] = type(explained)(f"{explained.what} ({explained.hint})", where=error.where, hint=hint)
            return ()
        partition_names(metastore, table, most=1)  # raises if it is not about the partitions
        names, half = list(values), len(values) // 2
        halves = [
            _add(metastore, table, {name: values[name] for name in some}, refused)
            for some in (names[:half], names[half:])
        ]
        return [partition for some in halves for partition in some]


def _request_partitions(metastore: Metastore, table: Table, values: Mapping[str, list[str]]) -> Sequence[Any]:
    parts = [_new_partition(table, name, v) for name, v in values.items()]
    request = ttypes.AddPartitionsRequest(
        dbName=table.name.database,
        tblName=table.name.table,
        parts=parts,
        ifNotExists=True,
        needResult=True,
    )
    return metastore.call("add_partitions_req", request).partitions or ()


def _new_partition(table: Table, name: str, values: list[str]) -> Any:
    storage = copy.deepcopy(table.raw.sd)
    storage.location = f"{table.location}/{name}"
    return ttypes.Partition(
        values=values,
        dbName=table.name.database,
        tableName=table.name.table,
        sd=storage,
        parameters=dict(_NEW_PARAMETERS),
    )
