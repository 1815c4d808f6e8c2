"""Staged files of clients that were killed are removed by the next client of the table.

Invariant: only directories of transactions that have ended are touched.
"""

from __future__ import annotations

import re

from ingestd.hive.client import Metastore
from ingestd.hive.tables import Table
from ingestd.hive.write_ids import has_ended, read_snapshot
from ingestd.storage import local

_OWN = re.compile(r"[0-9]+")  # the id of a transaction
_JOINED = re.compile(r"w([0-9]+)-[0-9]+")  # the write id of somebody else's, and a statement


def clean(metastore: Metastore, table: Table, staging: str) -> None:
    """Remove directories under `<table>/<staging>` whose transaction is not open any more."""
    root = local.local_path(table.location) / staging
    if not root.is_dir():
        return
    for directory in root.iterdir():
        if _is_left(metastore, table, directory.name):
            local.discard_tree(directory)


def _is_left(metastore: Metastore, table: Table, name: str) -> bool:
    if _OWN.fullmatch(name):
        return has_ended(metastore, int(name))
    if joined := _JOINED.fullmatch(name):
        snapshot = read_snapshot(metastore, table.name)
        return int(joined[1]) <= snapshot.high_watermark and int(joined[1]) not in snapshot.open
    return False
