"""Stores the files of a task in the background: writers create them on this machine, and threads upload them.

Invariant: a file is removed from this machine once it is stored, and only a bounded number of finished files waits for
a thread. The spool directory of a process that was killed is removed by the next process that creates one.
"""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from ingestd.storage.contract import child
from ingestd.storage.parallel import results
from ingestd.storage.system_errors import guarded

_PREFIX = "ingestd-spool-"
_LOCK = ".lock"
_WAITING_PER_THREAD = 2


class SpoolOutbox:
    """See `Outbox`. Files are uploaded to the directory `target`, which no other outbox uses.

    `upload(file, uri)` stores a file durably at `uri`, and raises StorageUnavailable. `discard(target)` removes the
    directory as far as possible, and never raises. `threads` is the number of parallel uploads.
    """

    def __init__(
        self, target: str, upload: Callable[[Path, str], None], discard: Callable[[str], None], *, threads: int
    ) -> None:
        self._target = target
        self._upload = upload
        self._discard = discard
        self._spool = Spool()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="upload")
        self._free = threading.Semaphore(threads * (1 + _WAITING_PER_THREAD))
        self._uploads: list[Future[None]] = []
        self._failed = threading.Event()

    @property
    def directory(self) -> Path:
        """See `Outbox`."""
        return self._spool.directory

    def send(self, file: Path) -> str:
        """See `Outbox`. Blocks while too many files wait, and raises the error of an earlier upload."""
        self._free.acquire()
        if self._failed.is_set():
            self._free.release()
            self.finish()
        uri = child(self._target, file.name)
        self._uploads.append(self._pool.submit(self._store, file, uri))
        return uri

    def finish(self) -> None:
        """See `Outbox`."""
        results(self._uploads)
        self._pool.shutdown()
        self._spool.remove()

    def abandon(self) -> None:
        """See `Outbox`. Waits for the running uploads, which could otherwise create files after the removal."""
        self._pool.shutdown(cancel_futures=True)
        self._discard(self._target)
        self._spool.remove()

    def _store(self, file: Path, uri: str) -> None:
        try:
            self._upload(file, uri)
            with guarded(file):
                file.unlink()
        except BaseException:
            self._failed.set()
            raise
        finally:
            self._free.release()


class Spool:
    """A new directory for temporary files on this machine; a lock file shows that its process is alive.

    It is created in one of Spark's local directories or, outside of Spark, in the directory of `tempfile`. Raises
    StorageUnavailable if that is not possible.
    """

    def __init__(self) -> None:
        base = _base()
        with guarded(base):
            _remove_abandoned(base)
            new = Path(tempfile.mkdtemp(prefix="ingestd-new-", dir=base))
            self._lock = os.open(new / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            # Only now does the name show that the lock file decides whether the directory is in use.
            self.directory = new.rename(base / new.name.replace("ingestd-new-", _PREFIX))
        self._is_open = True

    def remove(self) -> None:
        """Remove the directory as far as possible; never raises. Further calls do nothing."""
        if self._is_open:
            self._is_open = False
            shutil.rmtree(self.directory, ignore_errors=True)
            os.close(self._lock)


def _base() -> Path:
    """Return the directory in which spool directories are created.

    Spark sets the variable for its Python workers. It removes these directories when the executor ends, and they are
    where the operator of a cluster provides space for temporary files (spark.local.dir).
    """
    local = [Path(name) for name in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if name]
    existing = [path for path in local if path.is_dir()]
    return random.choice(existing) if existing else Path(tempfile.gettempdir())


def _remove_abandoned(base: Path) -> None:
    """Remove the spool directories of processes that were killed, as far as possible.

    Each executor has a new local directory. Those of killed executors of the application are next to it and, if a
    standalone worker was killed as well, in the directory `spark-*/executor-*` of this worker. No other worker ever
    removes them.
    """
    others = base.parent.glob(f"blockmgr-*/{_PREFIX}*")
    workers = base.parents[2].glob(f"spark-*/executor-*/blockmgr-*/{_PREFIX}*") if _is_of_worker(base) else ()
    for spool in (*base.glob(f"{_PREFIX}*"), *others, *workers):
        with suppress(OSError):
            lock = os.open(spool / _LOCK, os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(spool, ignore_errors=True)
            finally:
                os.close(lock)


def _is_of_worker(base: Path) -> bool:
    """Return whether a standalone worker has created this local directory of an executor."""
    return base.parent.name.startswith("executor-") and base.parents[1].name.startswith("spark-")
