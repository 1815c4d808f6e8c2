"""A process that dumps or loads changes and ends after a step; started by Following."""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

from ingestd.hive.client import Metastore
from ingestd.hive.events import EventLog
from ingestd.hive.snapshot import WriterRule
from ingestd.replication.cluster import Cluster
from ingestd.replication.copying.copy import Copier
from ingestd.replication.directory.protocol import Dump, DumpDirectory
from ingestd.replication.dump.incremental import IncrementalDumpOptions, dump_incremental
from ingestd.replication.load.incremental import IncrementalLoadOptions, load_incremental
from ingestd.storage.storages import Storages
from tests.support.replica_kills import Ending, ProcessStep


def main(side: str, given: dict[str, Any]) -> None:
    """Dump, or load the last dump; see Following."""
    ending = Ending.of(given)
    metastore = Metastore(given["uri"], on_call=ending.on_call)
    cluster, stop = Cluster(metastore, Storages()), threading.Event()
    directory = DumpDirectory(cluster.storages, given["root"], given["database"])
    if side == "dump":
        scope = directory.dumps()[-1].state.scope
        dump = directory.begin_dump(scope, EventLog(cluster.metastore).current_id)
        assert isinstance(dump, Dump)
        ending.observe(ProcessStep.BEGUN)
        options = IncrementalDumpOptions(writers=WriterRule(0.0), observe=ending.observe)
        directory.finish_dump(dump, dump_incremental(cluster, dump, options, stop))
    else:
        dump = directory.dumps()[-1]
        loading = IncrementalLoadOptions(given["target"], given["external"], ending.on_files, observe=ending.observe)
        load_incremental(cluster, dump, directory.metadata(dump), Copier(cluster.storages), loading, stop)
        directory.finish_load(dump)
    ending.observe(ProcessStep.FINISHED)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
