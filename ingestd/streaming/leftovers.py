"""Staged files of clients that were killed are removed by the next client of the table.

Invariant: only directories of transactions that have ended are touched.
"""

from __future__ import annotations

from ingestd.hive.client import Metastore
from ingestd.hive.tables import Table
from ingestd.hive.write_ids import has_ended
from ingestd.storage import local


def clean(metastore: Metastore, table: Table, staging: str) -> None:
    """Remove directories `<table>/<staging>/<transaction id>` whose transaction is not open any more."""
    root = local.local_path(table.location) / staging
    if not root.is_dir():
        return
    for directory in root.iterdir():
        if directory.name.isdigit() and has_ended(metastore, int(directory.name)):
            local.discard_tree(directory)
