"""Heartbeats follow the time after which the metastore ends transactions and leases that receive none."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from ingestd.clock import Stopwatch
from ingestd.hive import leases
from ingestd.hive.client import Metastore
from ingestd.hive.tables import TableName
from ingestd.ingest.monitoring.monitor import Monitor
from ingestd.ingest.options import MappingOptions
from ingestd.ingest.ownership.liveness import Liveness
from ingestd.ingest.ownership.owner import Ownership
from ingestd.streaming import ArrowWriter, HiveStreamingConnection
from tests.support.metastore import Home, metastore
from tests.support.proxy import proxy
from tests.support.stack import eventually
from tests.support.tables import make_table


def test_heartbeats_then_their_intervals_follow_the_metastores_transaction_timeout(
    processes: None, tmp_path: Path
) -> None:
    """This test starts its own metastore, because that of the stack has Hive's default timeout of 300 s."""
    names = dict.fromkeys(("hive.txn.timeout", "metastore.txn.timeout"), "12s")
    options = MappingOptions("beaten", ("beaten",), TableName("default", "beaten"))
    with (
        metastore(Home(tmp_path / "home"), "brief", names) as server,
        proxy(server.uri) as door,
        closing(Metastore(server.uri)) as client,
    ):
        make_table(client, options.table)
        liveness = Liveness(client, "ingestd")
        owner = Ownership(client, options, Monitor(options), liveness, on_lost=lambda _error: None)
        owner.acquire_unowned()
        (lease,) = leases.claims(client, options.owner_lease)
        with HiveStreamingConnection(table="beaten", metastore_uri=door.uri, record_writer=ArrowWriter()) as connection:
            watch = Stopwatch()
            connection.begin_transaction()
            eventually("two heartbeats", lambda: door.calls["heartbeat_txn_range"] >= 2)
            watch.lap("beats")
            assert watch.steps["beats"] > 11_600  # not more often than every 6 s
            connection.commit_transaction()  # not less often than every 12 s: the transaction is still open
        eventually("a heartbeat of the lease", lambda: leases.claims(client, options.owner_lease)[0].beat != lease.beat)
        owner.release()
        liveness.close()
