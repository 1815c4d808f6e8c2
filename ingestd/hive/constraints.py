"""A cache of the NOT NULL constraints of tables.

Invariant: a cached result is at most ten seconds old, and is used only if it was read at least ten seconds after the
table's last DDL. HiveServer2 adds a constraint in a separate call after altering the table, and drops a constraint
without altering the table.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from hive_metastore import ttypes

from ingestd.clock import Deadline
from ingestd.hive.answers import UnknownCall
from ingestd.hive.client import CATALOG, Metastore

_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class _Entry:
    """A cached result, which is valid after `settled` and before `expires`; `key` changes with each DDL."""

    key: object
    settled: Deadline
    expires: Deadline
    columns: frozenset[str]


_cache: WeakKeyDictionary[Metastore, dict[tuple[str, str], _Entry]] = WeakKeyDictionary()
_guard = threading.Lock()


def not_null_columns(metastore: Metastore, raw: Any) -> frozenset[str]:
    """Return the lower-case names of the columns of a Thrift table that have an enabled NOT NULL constraint.

    Disabled constraints (`DISABLE`) are ignored, as in Hive. Raises MetastoreUnavailable.
    """
    name = (raw.dbName.lower(), raw.tableName.lower())
    key = (raw.id, raw.createTime, (raw.parameters or {}).get("transient_lastDdlTime"))
    with _guard:
        entry = _cache.setdefault(metastore, {}).get(name)
    same = entry is not None and entry.key == key
    if entry is not None and same and entry.settled.passed and not entry.expires.passed:
        return entry.columns
    columns = _read(metastore, raw)
    settled = entry.settled if entry is not None and same else Deadline.after(_SECONDS)
    with _guard:
        _cache[metastore][name] = _Entry(key, settled, Deadline.after(_SECONDS), columns)
    return columns


def _read(metastore: Metastore, raw: Any) -> frozenset[str]:
    request = ttypes.NotNullConstraintsRequest(
        catName=raw.catName or CATALOG, db_name=raw.dbName, tbl_name=raw.tableName
    )
    try:
        constraints = metastore.call("get_not_null_constraints", request).notNullConstraints
    except UnknownCall:  # Hive before 3.0 has no such constraints
        return frozenset()
    return frozenset(constraint.column_name.lower() for constraint in constraints or () if constraint.enable_cstr)
