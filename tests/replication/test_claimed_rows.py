"""The numbers of rows that readers of a copy take from statistics, compared with its rows."""

from __future__ import annotations

import pytest
from hive_metastore import ttypes

from ingestd.acid.visibility import ValidWriteIds
from ingestd.hive.objects import TableObject
from ingestd.replication.verify.claimed_rows import claimed_rows, wrong_claim

IDS = ValidWriteIds("a.t", 6, open=frozenset({5}), aborted=frozenset({4}))
EXACT = '{"BASIC_STATS":"true"}'


def _table(rows: str = "3", write_id: int | None = 6, accurate: str = EXACT) -> TableObject:
    return TableObject(
        ttypes.Table(
            dbName="a",
            tableName="t",
            parameters={"numRows": rows, "COLUMN_STATS_ACCURATE": accurate},
            writeId=write_id,
        )
    )


@pytest.mark.parametrize(
    ("table", "rows"),
    [
        (_table(), 3),
        (_table(write_id=7), None),
        (_table(write_id=5), None),
        (_table(write_id=4), None),
        (_table(write_id=0), None),
        (_table(write_id=None), None),
        (_table(accurate='{"COLUMN_STATS":{"id":"true"}}'), None),
        (_table(accurate="no JSON"), None),
        (_table(accurate="[]"), None),
        (_table(rows="many"), None),
    ],
)
def test_claim_when_exact_and_of_a_valid_write_then_counts(table: TableObject, rows: int | None) -> None:
    assert claimed_rows(table, IDS) == rows


def test_claim_when_wrong_on_the_target_only_then_is_an_error() -> None:
    same = _table(), _table()
    assert wrong_claim(3, same, _table("9"), IDS) == ""
    assert wrong_claim(4, same, _table("9"), IDS) == "the statistics of the target count 3 rows, but it has 4"
    assert wrong_claim(4, same, _table("9", accurate="{}"), IDS)
    assert wrong_claim(4, same, _table(write_id=2), IDS) == ""
    assert wrong_claim(4, (_table(), _table("4")), _table("9"), IDS) == ""
    assert wrong_claim(4, (_table(write_id=2), _table()), _table("9"), IDS) == ""
