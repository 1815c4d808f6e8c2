"""Which changes of a source make the dump contain a table as a whole."""

from __future__ import annotations

import json

import pytest

from ingestd.hive.events import Event
from ingestd.replication.lag import rebalanced


@pytest.mark.parametrize(
    ("kind", "database", "tables"),
    [("REBALANCE", "Db", ["t"]), ("REBALANCE", "other", []), ("MAJOR", "db", []), ("MINOR", "db", [])],
)
def test_compaction_when_it_gives_new_ids_to_rows_then_its_table_is_copied(
    kind: str, database: str, tables: list[str]
) -> None:
    text = json.dumps({"txnid": 7, "compactionId": 3, "type": kind, "dbname": database, "tableName": "T"})
    assert list(rebalanced(Event(1, 0, "COMMIT_COMPACTION_EVENT", "", "", text), "db")) == tables


def test_compaction_when_of_another_catalog_then_nothing_is_copied() -> None:
    assert list(rebalanced(Event(1, 0, "COMMIT_COMPACTION_EVENT", "", "", "{}"), "db")) == []
