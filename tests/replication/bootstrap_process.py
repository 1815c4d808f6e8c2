"""A process that dumps or loads a database and kills itself after a step; started by test_bootstrap.py."""

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
from ingestd.replication.dump.bootstrap import BootstrapDumpOptions, dump_bootstrap
from ingestd.replication.load.bootstrap import BootstrapLoadOptions, load_bootstrap
from ingestd.replication.statements.scope import Scope
from ingestd.storage.storages import Storages
from tests.support.replica_kills import Ending, ProcessStep


def _main(side: str, given: dict[str, Any]) -> None:
    ending, storages, stop = Ending.of(given), Storages(), threading.Event()
    directory = DumpDirectory(storages, given["root"], given["database"])
    if side == "dump":
        source = Cluster(Metastore(given["source_uri"]), storages)
        dump = directory.begin_dump(Scope(given["database"]), EventLog(source.metastore).current_id)
        assert isinstance(dump, Dump)
        ending.observe(ProcessStep.BEGUN)
        options = BootstrapDumpOptions(WriterRule(0.0), ending.observe)
        directory.finish_dump(dump, dump_bootstrap(source, dump, options, stop))
    else:
        target = Cluster(Metastore(given["target_uri"]), storages)
        dump = directory.dumps()[-1]
        loading = BootstrapLoadOptions(given["target"], given["external"], ending.on_files, ending.observe)
        load_bootstrap(target, dump, directory.metadata(dump), Copier(storages), loading, stop)
        directory.finish_load(dump)
    ending.observe(ProcessStep.FINISHED)


if __name__ == "__main__":
    _main(sys.argv[1], json.loads(sys.argv[2]))
