"""Limits that an administrator of the metastore sets: requests keep to them, or the error names the setting."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from ingestd.errors import IngestdError
from ingestd.hive.client import Metastore
from ingestd.hive.objects import find_partitions
from ingestd.hive.partitions import partition_names, read_partitions
from ingestd.hive.tables import TableName, load_acid_table
from ingestd.hive.transactions import begin_batch
from ingestd.streaming import ArrowWriter, HiveStreamingConnection
from tests.support.metastore import Home, metastore
from tests.support.stack import eventually
from tests.support.tables import make_table, visible_ids

_LIMITS = {
    "hive.metastore.limit.partition.request": "3",
    "hive.max.open.txns": "2",
    # The metastore does not count open transactions at each request.
    "hive.count.open.txns.interval": "1s",
}


def test_limits_when_partitions_or_transactions_exceed_them_then_are_respected_or_named(
    processes: None, tmp_path: Path
) -> None:
    name, count = TableName("default", "limited"), 20
    with metastore(Home(tmp_path / "home"), "limited", _LIMITS) as server, closing(Metastore(server.uri)) as client:
        make_table(client, name, partitioned=True)
        days = [f"{number:02}" for number in range(count)]
        rows = pa.table({"id": pa.array(range(count), pa.int32()), "note": days, "day": days})
        for _ in range(2):  # in new partitions, then in existing ones
            connection = HiveStreamingConnection(
                table=name.table, metastore_uri=server.uri, record_writer=ArrowWriter()
            )
            with connection, connection.transaction():
                connection.write(rows)
        assert visible_ids(client, name) == sorted([*range(count)] * 2)
        table = load_acid_table(client, name)
        names = partition_names(client, table)
        with pytest.raises(IngestdError, match=r"exceeds limit .*metastore\.limit\.partition\.request"):
            client.call("get_partitions_by_names", name.database, name.table, names)
        assert sorted(partition.values[0] for partition in read_partitions(client, table, names)) == days
        assert len(list(find_partitions(client, name, names))) == count

        def refused() -> IngestdError | None:
            try:
                begin_batch(client, name, "test", 1)
            except IngestdError as error:
                return error
            return None

        error = eventually("the metastore to refuse a transaction", refused)
        assert "metastore.max.open.txns" in error.hint
        assert "SHOW TRANSACTIONS" in error.hint
