"""A copy whose source is lost is made writable, and replicated back, as docs/replication.md says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import orc

from ingestd.errors import InvalidTable
from ingestd.hive.tables import TableName
from ingestd.replication import cycle
from tests.support.replica import Replica
from tests.support.replica_policies import Pair
from tests.support.replica_rows import insert, read_rows, table_of
from tests.support.replica_tables import EXTERNAL, make_table


class _Reversed(Replica):
    """The clusters of another pair, with the target as the source."""

    def __init__(self, other: Replica) -> None:
        self.source, self.target = other.target, other.source


def test_copy_when_its_source_is_lost_then_is_made_writable_and_replicated_back(pair: Pair, tmp_path: Path) -> None:
    external = TableName(pair.database, "e")
    make_table(pair.replica.source.metastore, external, parameters=EXTERNAL, location=f"file:{tmp_path}/e")
    (tmp_path / "e").mkdir(exist_ok=True)
    orc.write_table(pa.table({"id": [1], "day": ["a"]}), tmp_path / "e" / "1")
    for number in (1, 2):
        pair.insert([(number, "a")])
        pair.dump()
        pair.load()
    target, copied = pair.replica.target, TableName(pair.target, "t")
    with pytest.raises(InvalidTable, match="is a target of replication"):
        insert(target, copied, [(3, "b")])

    cycle.forget(pair.cluster(target), "", pair.load_statement)
    target.sql(f"ALTER DATABASE {pair.target} SET DBPROPERTIES ('repl.target.for'='', 'readonly'='false')")
    insert(target, copied, [(3, "b")])
    rows = [(1, "a"), (2, "a"), (3, "b")]
    assert read_rows(target.metastore, copied) == rows

    root = tmp_path / "back"
    root.mkdir()
    back = replace(
        pair, replica=_Reversed(pair.replica), root=root, database=pair.target, target=pair.replica.name("back")
    )
    back.dump()
    back.load()
    insert(target, copied, [(4, "c")])
    back.dump()
    back.load()
    assert back.rows() == [*rows, (4, "c")]
    again = TableName(back.target, "e")
    base = f"file:{pair.replica.source.external}{target.external}"
    assert table_of(pair.replica.source.metastore, again).location == f"{base}{tmp_path}/e"
    assert read_rows(pair.replica.source.metastore, again) == [(1, "a")]
    back.assert_equal()
