"""Files that are uploaded in the background, and the spool directories of killed processes."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from ingestd.errors import StorageUnavailable
from ingestd.storage.parallel import run_all
from ingestd.storage.spool import Spool, SpoolOutbox
from tests.support.patience import LIMIT


@pytest.fixture(autouse=True)
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only local directory of Spark."""
    path = tmp_path / "blockmgr-1"
    path.mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(path))
    return path


class _Uploads:
    """Stores files in memory. `upload` waits until `flowing` is set, and fails for the file `failing`."""

    def __init__(self, failing: str = "") -> None:
        self.failing = failing
        self.stored: dict[str, bytes] = {}
        self.started = threading.Semaphore(0)
        self.flowing = threading.Event()
        self.flowing.set()

    def upload(self, file: Path, uri: str) -> None:
        self.started.release()
        self.flowing.wait()
        if file.name == self.failing:
            raise StorageUnavailable("no space", where=uri)
        self.stored[uri] = file.read_bytes()

    def discard(self, directory: str) -> None:
        for uri in [uri for uri in self.stored if uri.startswith(f"{directory}/")]:
            del self.stored[uri]

    @contextmanager
    def outbox(self, threads: int = 2) -> Iterator[SpoolOutbox]:
        outbox = SpoolOutbox("x://b/t/1/task", self.upload, self.discard, threads=threads)
        try:
            yield outbox
        finally:
            self.flowing.set()
            outbox.abandon()


def _file(outbox: SpoolOutbox, name: str) -> Path:
    path = outbox.directory / name
    path.write_bytes(name.encode())
    return path


def test_outbox_when_files_are_sent_then_all_are_stored_and_nothing_stays_here(base: Path) -> None:
    uploads = _Uploads()
    with uploads.outbox() as outbox:
        uris = [outbox.send(_file(outbox, f"f{number}")) for number in range(20)]
        outbox.finish()
        assert uploads.stored == {uri: uri.rpartition("/")[2].encode() for uri in uris}
        assert uris[0] == "x://b/t/1/task/f0"
        assert not list(base.iterdir())


def test_outbox_when_an_upload_fails_then_send_and_finish_raise_its_error(base: Path) -> None:
    uploads = _Uploads(failing="f0")
    with uploads.outbox() as outbox:
        outbox.send(_file(outbox, "f0"))
        with pytest.raises(StorageUnavailable, match="no space"):
            outbox.finish()
        with pytest.raises(StorageUnavailable, match="no space"):
            outbox.send(_file(outbox, "f1"))
    assert not uploads.stored
    assert not list(base.iterdir())


def test_outbox_when_uploads_are_slow_then_the_number_of_waiting_files_is_bounded(base: Path) -> None:
    uploads = _Uploads()
    uploads.flowing.clear()
    sent = threading.Semaphore(0)
    with uploads.outbox(threads=1) as outbox:

        def send() -> None:
            for number in range(5):
                outbox.send(_file(outbox, f"f{number}"))
                sent.release()

        thread = threading.Thread(target=send)
        thread.start()
        assert all(sent.acquire(timeout=LIMIT) for _ in range(3))
        assert not sent.acquire(timeout=0.1)
        uploads.flowing.set()
        thread.join()
        outbox.finish()
        assert len(uploads.stored) == 5


def test_outbox_when_abandoned_during_an_upload_then_nothing_is_stored_later(base: Path) -> None:
    uploads = _Uploads()
    uploads.flowing.clear()
    with uploads.outbox(threads=1) as outbox:
        outbox.send(_file(outbox, "f0"))
        outbox.send(_file(outbox, "f1"))
        assert uploads.started.acquire(timeout=LIMIT)
        abandon = threading.Thread(target=outbox.abandon)
        abandon.start()
        uploads.flowing.set()
        abandon.join()
    assert not uploads.stored
    assert not list(base.iterdir())


def test_spool_when_a_process_was_killed_then_only_its_directory_is_removed(base: Path) -> None:
    code = (
        "import os\nfrom ingestd.storage.spool import Spool\nspool = Spool()\n"
        "(spool.directory / 'f').write_bytes(b'1')\nos.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code], check=False)
    (left,) = base.iterdir()
    assert [path.name for path in left.iterdir() if path.name == "f"]
    used = Spool()
    assert not left.exists()
    other = Spool()
    assert used.directory.is_dir()
    for spool in (used, other):
        spool.remove()
        spool.remove()
    assert not list(base.iterdir())


def test_spool_when_the_killed_session_had_another_local_directory_then_it_is_cleaned(base: Path) -> None:
    abandoned = base.parent / "blockmgr-0" / "ingestd-spool-1"
    abandoned.mkdir(parents=True)
    (abandoned / ".lock").touch()
    Spool().remove()
    assert not abandoned.exists()


def test_spool_when_a_worker_was_killed_then_the_directories_of_its_executors_are_cleaned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, lost = (tmp_path / f"spark-{n}" / f"executor-{n}" / f"blockmgr-{n}" for n in (1, 2))
    abandoned = lost / "ingestd-spool-1"
    for folder in (mine, abandoned):
        folder.mkdir(parents=True)
    (abandoned / ".lock").touch()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(lost))
    alive = Spool()
    abandoned.mkdir()
    (abandoned / ".lock").touch()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(mine))
    Spool().remove()
    assert not abandoned.exists()
    assert alive.directory.is_dir()
    alive.remove()


def test_spool_when_the_base_is_not_writable_then_the_error_names_it(tmp_path: Path, base: Path) -> None:
    base.rmdir()
    base.symlink_to("/proc")
    with pytest.raises(StorageUnavailable, match=str(base)):
        Spool()


def test_run_all_when_calls_succeed_then_their_results_are_in_order() -> None:
    assert run_all([partial(abs, -n) for n in range(50)], threads=8) == list(range(50))
    assert run_all([], threads=8) == []


def test_run_all_when_a_call_fails_then_no_call_runs_afterwards() -> None:
    running: set[int] = set()
    ended = threading.Event()

    def call(number: int) -> None:
        running.add(number)
        if number == 0:
            raise StorageUnavailable("gone")
        ended.wait(0.05)
        running.discard(number)

    with pytest.raises(StorageUnavailable, match="gone"):
        run_all([partial(call, n) for n in range(100)], threads=4)
    assert running == {0}


def test_run_all_when_its_thread_is_a_daemon_thread_and_a_call_never_ends_then_the_process_ends() -> None:
    """As on a mount whose server is gone, which the caller does not wait for."""
    script = """
import threading
from ingestd.storage.parallel import run_all

begun, never = threading.Barrier(3), threading.Event()

def call():
    begun.wait()
    never.wait()

threading.Thread(target=run_all, args=([call, call], 2), daemon=True).start()
begun.wait()
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=LIMIT)
