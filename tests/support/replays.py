"""A process that replays the dead letters of several mappings at once; each replay waits after a step of its own.

`python -m tests.support.replays CONFIG DIRECTORY MAPPING=STEP...` creates `DIRECTORY/STEP.held` when a replay waits,
and lets it continue when `DIRECTORY/STEP` exists. It prints the mapping and the error of each replay that failed. At
most one of the mappings may have `where` or `transform`.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Mapping
from os import environ
from pathlib import Path

from ingestd.config.document import Document, load
from ingestd.daemon.failpoints import Failpoint
from ingestd.errors import IngestdError
from ingestd.ingest.letters.reader import Selection
from ingestd.ingest.offline.replay import replay
from ingestd.publish.warehouse import Warehouse
from ingestd.spark.local import LocalEngine
from ingestd.storage.storages import Storages


def start(config: Path, directory: Path, steps: Mapping[str, str]) -> subprocess.Popen[str]:
    """Start the process. `steps` contains the step of each mapping by its name."""
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            __name__,
            str(config),
            str(directory),
            *(f"{name}={step}" for name, step in steps.items()),
        ],
        cwd=Path(__file__).resolve().parents[2],
        env=environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        stdout=subprocess.PIPE,
        text=True,
    )


def _replay(document: Document, name: str, engine: LocalEngine, failpoint: Failpoint) -> None:
    [options] = [mapping for mapping in document.mappings if mapping.name == name]
    metastore = document.metastore.connect()
    try:
        replay(Warehouse(metastore, Storages(document.storage)), options, Selection(), engine, failpoint)
    except IngestdError as error:
        sys.stdout.write(f"{name}: {type(error).__name__}\n")
    finally:
        metastore.close()


def _main(config: str, directory: str, *steps: str) -> None:
    document = load([Path(config)])
    threads = []
    with LocalEngine() as engine:
        for name, step in (pair.split("=") for pair in steps):
            failpoint = Failpoint(f"{step}=hold:{Path(directory, step)}")
            threads.append(threading.Thread(target=_replay, args=(document, name, engine, failpoint)))
            threads[-1].start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    _main(*sys.argv[1:])
