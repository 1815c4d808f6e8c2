"""Which columns of a table may not be NULL, as the metastore knows it, without a call for each transaction.

Invariant: an answer is at most ten seconds old, and it was read at least ten seconds after the table's last DDL or is
read again: HiveServer2 adds a constraint in a call of its own after it has altered the table, and drops one without
altering it.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from hive_metastore import ttypes

from ingestd.clock import Deadline
from ingestd.hive.client import Metastore, UnknownCall

_SECONDS = 10.0
_CATALOG = "hive"


@dataclass(frozen=True, slots=True)
class _Known:
    """`key` changes with each DDL; until `settled` the answer is read again each time, and after `expires` too."""

    key: object
    settled: Deadline
    expires: Deadline
    columns: frozenset[str]


_answers: WeakKeyDictionary[Metastore, dict[tuple[str, str], _Known]] = WeakKeyDictionary()
_guard = threading.Lock()


def not_null_columns(metastore: Metastore, raw: Any) -> frozenset[str]:
    """Names of the columns of a Thrift table with an enabled NOT NULL constraint. Raises MetastoreUnavailable.

    Constraints that are disabled (`DISABLE`) are ignored, as in Hive.
    """
    name = (raw.dbName.lower(), raw.tableName.lower())
    key = (raw.id, raw.createTime, (raw.parameters or {}).get("transient_lastDdlTime"))
    with _guard:
        known = _answers.setdefault(metastore, {}).get(name)
    same = known is not None and known.key == key
    if known is not None and same and known.settled.passed and not known.expires.passed:
        return known.columns
    columns = _read(metastore, raw)
    settled = known.settled if known is not None and same else Deadline.after(_SECONDS)
    with _guard:
        _answers[metastore][name] = _Known(key, settled, Deadline.after(_SECONDS), columns)
    return columns


def _read(metastore: Metastore, raw: Any) -> frozenset[str]:
    request = ttypes.NotNullConstraintsRequest(
        catName=raw.catName or _CATALOG, db_name=raw.dbName, tbl_name=raw.tableName
    )
    try:
        found = metastore.call("get_not_null_constraints", request).notNullConstraints
    except UnknownCall:  # before Hive 3 there are none
        return frozenset()
    return frozenset(one.column_name.lower() for one in found or () if one.enable_cstr)
