"""The services that tests use, the `unit` marker, and the number of worker processes."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import settings

from ingestd.java import cache_folder
from ingestd.sandbox import Addresses, Sandbox, SandboxOptions
from ingestd.sandbox.state import locked
from tests.support.daemon import stop_engine
from tests.support.distribution import Distribution
from tests.support.kerberos import Realm, realm
from tests.support.postgres import postgres
from tests.support.replica import Replica, Running
from tests.support.replica_policies import Pair, new_pair
from tests.support.sandbox import running
from tests.support.stack import Stack

# The folder of one run, which its worker processes share.
_RUN_FOLDER = "INGESTD_TEST_RUN"
_MOST_WORKERS = 4
# Tests wait for services during half of their time or more, so two cores serve four workers.
_WORKERS_PER_CORE = 2
# These files need no services, and a minute or two. Other workers run them while one starts the services for all.
_MEANWHILE = ("test_tools.py", "test_house.py", "test_gate.py", "test_json.py", "test_json_faults.py")
# For the daemons of one worker, and the services that its tests start in addition to the shared ones.
_MEMORY_PER_WORKER = 5 << 30
# The shared services keep their data in memory if they can. A metastore on Derby writes to the disk, and waits for it,
# about three times in each of the many calls of a transaction.
_MEMORY = Path("/dev/shm")
_DATA_BYTES = 4 << 30
# Program names that a unit test may not start.
_SERVICE_PROGRAMS = ("java", "postgres", "krb5kdc")
_PREPARE_SECONDS = 300.0
# The clusters for replication that run in this process, and the test files that need them.
_replica = Running()
_replica_files = pytest.StashKey[set[Path]]()
_run_folder = pytest.StashKey[Path]()
_keep_logs = pytest.StashKey[bool]()
_running_unit_test = ""
# An example may take any time: other processes can have the cores meanwhile.
settings.register_profile("patient", settings(deadline=None))
settings.load_profile("patient")


def pytest_configure(config: pytest.Config) -> None:
    """Create the folder of the run, whose path workers read from their environment."""
    if _is_main_process(config):
        place = _MEMORY if _has_room(_MEMORY) else None
        config.stash[_run_folder] = Path(tempfile.mkdtemp(prefix="ingestd-tests-", dir=place))
        os.environ[_RUN_FOLDER] = str(config.stash[_run_folder])
    sys.addaudithook(_refuse_services_in_unit_tests)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Keep the logs of the services in the run's folder if a test failed."""
    _replica.stop()
    session.config.stash[_keep_logs] = session.testsfailed > 0


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the shared services after the last worker has ended."""
    folder = config.stash.get(_run_folder, None)
    if folder is None:
        return
    Sandbox(_shared_options(folder)).down()
    if config.stash.get(_keep_logs, False) and any(folder.iterdir()):
        for data in folder.glob("*/data"):
            shutil.rmtree(data, ignore_errors=True)
        sys.stderr.write(f"logs of the services: {folder}\n")
    else:
        shutil.rmtree(folder)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return the number of workers of `-n auto`, or 0 if only files or tests are named, to show output directly."""
    if all(".py" in argument for argument in config.args):
        return 0
    fitting = int(psutil.virtual_memory().available // _MEMORY_PER_WORKER)
    return max(1, min(_MOST_WORKERS, _WORKERS_PER_CORE * (os.cpu_count() or 1), fitting))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Distribution | None:
    """Return what distributes the files to the workers, unless the command line says how."""
    return Distribution(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests without services as `unit`, and run most of them last. They are short, so all workers end together.

    The tests of replication are before them, because half of the workers begin with those (`Distribution`).
    """
    for item in items:
        if "processes" not in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.unit)
    replicated = {item.path for item in items if "replica" in getattr(item, "fixturenames", ())}
    if items:
        items[0].config.stash[_replica_files] = replicated
    starting = next((item.path for item in items if "addresses" in getattr(item, "fixturenames", ())), None)

    def place(item: pytest.Item) -> tuple[bool, bool, bool, bool]:
        is_unit = item.get_closest_marker("unit") is not None
        return item.path != starting, item.path.name not in _MEANWHILE, is_unit, item.path in replicated

    items.sort(key=place)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Stop the clusters for replication unless the next test file needs them."""
    try:
        return (yield)
    finally:
        if nextitem is None or nextitem.path not in item.config.stash[_replica_files]:
            _replica.stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Enforce that unit tests start no service."""
    global _running_unit_test  # noqa: PLW0603  # audit hooks cannot be removed, so there is one with state
    _running_unit_test = item.nodeid if item.get_closest_marker("unit") else ""
    try:
        return (yield)
    finally:
        _running_unit_test = ""


def _refuse_services_in_unit_tests(event: str, arguments: tuple[object, ...]) -> None:
    if event == "subprocess.Popen" and _running_unit_test:
        program, words = arguments[0], arguments[1]
        named = [program, *(words if isinstance(words, list | tuple) else [words])]
        if any(Path(os.fsdecode(name)).name in _SERVICE_PROGRAMS for name in named if isinstance(name, str | bytes)):
            raise RuntimeError(f"{_running_unit_test} starts a service, so it must request the fixture `processes`")


def _has_room(place: Path) -> bool:
    """Return whether the services can use a file system. Java loads libraries from its temporary directory."""
    if not os.access(place, os.W_OK):
        return False
    found = os.statvfs(place)
    return not found.f_flag & os.ST_NOEXEC and found.f_bavail * found.f_frsize >= _DATA_BYTES


def _is_main_process(config: pytest.Config) -> bool:
    return not hasattr(config, "workerinput")


def _shared_options(folder: Path) -> SandboxOptions:
    # Several workers request compactions, each of which would wait for those of the others.
    return SandboxOptions(folder / "sandbox", hiveserver2=True, hiveserver2_heap_mb=1536, compactor_threads=4)


@pytest.fixture(scope="module")
def kdc(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    """Yield a running KDC."""
    with realm(tmp_path_factory.mktemp("realm")) as running_kdc:
        yield running_kdc


@pytest.fixture
def pair(replica: Replica, tmp_path: Path) -> Pair:
    """Return a new source database with an empty table `t`, and the policies that copy it."""
    return new_pair(replica, tmp_path)


@pytest.fixture(autouse=True)
def _log_level() -> Iterator[None]:
    """Restore the level of the log, which every command sets that a test runs in this process."""
    logger = logging.getLogger("ingestd")
    level = logger.level
    yield
    logger.setLevel(level)


@pytest.fixture(scope="session")
def processes() -> Iterator[None]:
    """Write the archive of Spark's classes before the run, and stop the Spark session after it.

    Every test or fixture that uses services requests this fixture. A test without it is marked `unit`.
    """
    with locked(cache_folder() / "spark.lock", "the archive of Spark's classes", _PREPARE_SECONDS):
        # Many daemons follow, each of which starts with half the CPU time.
        subprocess.run([sys.executable, "-m", "ingestd", "prepare"], check=True)
    yield
    stop_engine()


@pytest.fixture(scope="session")
def addresses(processes: None) -> Addresses:
    """Return the addresses of the services that all tests share. If they cannot start, tests fail and are not skipped.

    INGESTD_TEST_STACK names a file with the JSON of a running sandbox, which is then used instead.
    """
    running = os.environ.get("INGESTD_TEST_STACK")
    if running:
        return Addresses(**json.loads(Path(running).read_text(encoding="utf-8")))
    # Only one worker at a time runs `up`, so the first starts the services and the others find them running.
    return Sandbox(_shared_options(Path(os.environ[_RUN_FOLDER]))).up()


@pytest.fixture
def stack(addresses: Addresses, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stack]:
    """Yield the topics, tables and daemons of one test, with unique names. The daemons end with the test.

    A module whose tests use other services overrides `addresses`.
    """
    with Stack(addresses, request.node.name, tmp_path) as made:
        yield made


@pytest.fixture
def source_stack(
    addresses: Addresses, replica: Replica, request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[Stack]:
    """Yield the same as `stack`, but with the metastore of the source of `replica`, and without HiveServer2."""
    with Stack(replace(addresses, metastore=replica.source.uri, hiveserver2=None), request.node.name, tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def postgres_box(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """Yield a sandbox whose metastore uses PostgreSQL."""
    state_dir = tmp_path_factory.mktemp("postgres-sandbox")
    with postgres() as url, running(SandboxOptions(state_dir, hiveserver2=True, metastore_db=url)) as made:
        yield made


@pytest.fixture
def on_postgres(postgres_box: Sandbox, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stack]:
    """Yield the same as `stack`, but with a metastore that uses PostgreSQL."""
    with Stack(postgres_box.addresses(), request.node.name, tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def replica(processes: None) -> Replica:
    """Return a source and a target cluster for replication, which the test files of this process share."""
    return _replica.start(Path(os.environ[_RUN_FOLDER]))
