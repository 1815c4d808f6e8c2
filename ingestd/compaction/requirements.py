"""Checks what Hive's compaction requires of the metastore and of a table.

Sources: the requirements of Hive Streaming (hive.compactor.initiator.on, hive.compactor.cleaner.on,
hive.compactor.worker.threads), and MetastoreConf.

Invariant: a fault is reported only if it follows from the settings of the metastore. Workers usually run in
HiveServer2, whose settings cannot be read; missing workers show in the queue (`policy.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ingestd.hive.client import Metastore
from ingestd.hive.health import setting

_EXCLUDED = "no_auto_compaction"


def is_excluded(parameters: Mapping[str, str]) -> bool:
    """Return whether a table's properties exclude it from automatic compactions."""
    return any(key.lower() == _EXCLUDED and value.lower() == "true" for key, value in parameters.items())


def table_faults(parameters: Mapping[str, str], partitions: Iterable[str]) -> list[str]:
    """Return one sentence for each property of a table, and of its partitions, that prevents compaction."""
    faults = []
    if is_excluded(parameters):
        faults.append(
            f"the table property {_EXCLUDED} is true: neither Hive nor ingestd requests compactions of the table"
        )
    if not all(map(can_compact, partitions)):
        faults.append(
            "some partition names are not ASCII: ingestd does not request their compaction, because Hive's MapReduce"
            f" compaction loses their rows; set {_EXCLUDED} so that Hive does not request it either"
        )
    return faults


def can_compact(partition: str) -> bool:
    """Return whether Hive compacts a partition of this escaped name correctly.

    Hive's major compaction by MapReduce loses the rows of a partition whose name is not ASCII, seen with Hive 4.0.1.
    """
    return partition.isascii()


def metastore_faults(metastore: Metastore) -> list[str]:
    """Return one sentence for each setting of the metastore that prevents compaction.

    With several addresses there are none, because usually one metastore runs these threads and any of them may answer;
    `ingestd doctor` asks each. Makes up to four calls. Raises MetastoreUnavailable.
    """
    if len(metastore.addresses) > 1:
        return []
    faults = []
    if _setting(metastore, "hive.compactor.initiator.on") == "false":
        faults.append(
            "hive.compactor.initiator.on is false in this metastore: set it to true in one metastore, which then"
            " requests compactions of all tables and restarts those whose worker has died"
        )
    if _setting(metastore, "hive.compactor.cleaner.on") == "false":
        faults.append(
            "hive.compactor.cleaner.on is false in this metastore: set it to true in one metastore, which then removes"
            " the files that compactions replaced"
        )
    threads = _setting(metastore, "hive.compactor.worker.threads")
    if threads.lstrip("-").isdigit() and int(threads) < 1 and _runs_workers(metastore):
        faults.append("hive.compactor.worker.threads is 0: set it to 1 or more, because no process runs compactions")
    return faults


def _runs_workers(metastore: Metastore) -> bool:
    """Return whether the metastore, and not HiveServer2, runs the workers."""
    return _setting(metastore, "hive.metastore.runworker.in") == "metastore"


def _setting(metastore: Metastore, name: str) -> str:
    return (setting(metastore, name) or "").lower()
