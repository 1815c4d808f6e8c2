"""Removes the write ids that a name has on the target although no table has the name.

A write id is replayed where it is in the log. CREATE TABLE AS SELECT has one before it creates the table, and leaves it
if it fails. So does a table that was not copied because the source has dropped it since. The metastore keeps such ids
for the next table of the name: a copy would neither get the write ids of its snapshot, nor could it be renamed to the
name, and a table that was dropped in between begins with ids that seem to be those of another client.
"""

from __future__ import annotations

from ingestd.hive.objects import TableObject, create_table, find_table
from ingestd.hive.replay import Replay
from ingestd.hive.tables import TableName
from ingestd.replication.cluster import Cluster
from ingestd.replication.exact_statistics import inexact
from ingestd.replication.load.target_moves import drop_table
from ingestd.replication.marks import without_marks


def forget_write_ids(target: Cluster, name: TableName, described: TableObject) -> None:
    """Let the metastore forget the write ids of `name`, unless a table has the name.

    It forgets them when it drops a table. So a table like `described` is created for a moment, without marks, so that
    no load takes it for a copy if this one is killed. Raises the errors of the metastore and of the storage.
    """
    if not described.kind.is_transactional:
        return
    metastore = target.metastore
    replay = Replay(metastore, name.database, accepts_gaps=lambda _: True)
    if replay.highest_write_id(name) > 0 and find_table(metastore, name) is None:
        create_table(metastore, described.copied(name, None, inexact(without_marks(described.parameters))))
        created = find_table(metastore, name)
        if created is not None:
            drop_table(target, created)
