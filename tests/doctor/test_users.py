"""The daemon and the metastore are different users of one group: what their umasks prevent is predicted and happens."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hive_metastore import ttypes

from ingestd.errors import IngestdError
from ingestd.hive.client import Metastore
from ingestd.hive.tables import TableName, load_acid_table
from ingestd.storage.local import local_path
from tests.support.metastore import Home, Process
from tests.support.stack import Stack
from tests.support.tables import make_table
from tests.support.users import User, needs_root

pytestmark = needs_root
_GROUP = 20001
# Hadoop requires that the user of a JVM has a name.
HIVE = User(pwd.getpwnam("nobody").pw_uid, _GROUP)
DAEMON = User(10001, 10001, (_GROUP,))
_WRITE = """
import sys
import pyarrow as pa
from ingestd.streaming import ArrowWriter, HiveStreamingConnection
with HiveStreamingConnection(table=sys.argv[2], metastore_uri=sys.argv[1], record_writer=ArrowWriter()) as connection:
    with connection.transaction():
        connection.write(pa.table({"id": pa.array([1], pa.int32()), "note": ["a"], "day": [sys.argv[3]]}))
"""


@pytest.fixture(scope="module")
def hive(processes: None) -> Iterator[Process]:
    """Yield a metastore of the user HIVE with umask 022."""
    with TemporaryDirectory(prefix="ingestd-users-") as folder:  # pytest's directories are only for their owner
        Path(folder).chmod(0o755)
        home = Home(Path(folder) / "home")
        (home.folder / "run" / "hive").mkdir(parents=True)
        HIVE.give(home.folder)
        process = Process(home, "hive", {}, starter=HIVE.command(0o022))
        try:
            yield process.start().wait()
        finally:
            process.stop()


class _Daemon:
    """Runs programs as the user DAEMON."""

    def __init__(self, stack: Stack, hive: Process, umask: int) -> None:
        self._stack, self._uri, self._readable = stack, hive.uri, hive.log.parent
        self._start = DAEMON.command(umask)

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "LOGNAME": "ingestd", "HOME": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1"}
        command = [*self._start, sys.executable, *arguments]
        return subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, check=False)

    def _document(self, *arguments: str) -> Any:
        *command, config = arguments
        ended = self._run("-m", "ingestd", *command, "--config", config, "--output", "json")
        assert ended.stdout, ended.stderr
        return json.loads(ended.stdout)

    def predict(self, table: TableName, **keys: Any) -> tuple[str, str]:
        """Return what `check --online` and `doctor` say about the permissions of a table, which must agree."""
        config = self._config(table, **keys)
        [one] = [one for one in self._document("check", "--online", config) if one["subject"].endswith("permissions")]
        [two] = [two for two in self._document("doctor", config)["findings"] if two["check"] == "table.permissions"]
        assert one["warning"] == (two["status"] == "warning"), (one, two)
        problem = one["problem"] or {"error": one["detail"], "hint": ""}
        assert problem["error"] in two["evidence"]
        assert problem["hint"] == two["fix"]
        return problem["error"], problem["hint"]

    def storage_problem(self, table: TableName) -> dict[str, str]:
        """Return what `check --online` says about the storage of a table."""
        found = self._document("check", "--online", self._config(table))
        [problem] = [check["problem"] for check in found if check["subject"].endswith(", storage")]
        return dict(problem)

    def _config(self, table: TableName, **keys: Any) -> str:
        written = self._stack.config({"table": str(table), **keys}, metastore={"uri": self._uri})
        return str(shutil.copy(written, self._readable))

    def write(self, table: TableName, day: str) -> subprocess.CompletedProcess[str]:
        """Write a row to a partition."""
        return self._run("-c", _WRITE, self._uri, table.table, day)


def _shared(client: Metastore, name: str) -> Path:
    """Create a table whose directory the group may write, and return the directory."""
    table = TableName("default", name)
    make_table(client, table, partitioned=True)
    location = local_path(load_acid_table(client, table).location)
    assert (location.stat().st_uid, location.stat().st_mode & 0o777) == (HIVE.number, 0o755)
    location.chmod(0o2775)
    return location


def test_umask_when_hive_is_another_user_then_what_it_cannot_remove_is_predicted(hive: Process, stack: Stack) -> None:
    stack.topic(1)
    client = Metastore(hive.uri)
    table, location = TableName("default", "clicks"), _shared(client, "clicks")
    strict, shared = (_Daemon(stack, hive, umask) for umask in (0o022, 0o002))
    what, hint = strict.predict(table)
    assert "cannot change the directories that this process creates (drwxr-sr-x" in what
    assert "umask 0002" in hint
    assert "setfacl" in hint
    assert "Hive can change new directories" in shared.predict(table)[0]
    for daemon, day in ((strict, "1"), (shared, "2")):
        written = daemon.write(table, day)
        assert written.returncode == 0, written.stderr
        left = location / f"day={day}"
        assert list(left.glob("delta_*"))
        with suppress(IngestdError):  # the metastore says that it could not remove the directory
            client.call("drop_partition", "default", "clicks", [day], True)
        assert left.exists() == (daemon is strict)


def test_umask_when_hive_creates_directories_that_the_daemon_cannot_write_then_is_predicted(
    hive: Process, stack: Stack
) -> None:
    stack.topic(1)
    stack.produce([{"id": 1}])
    client, daemon = Metastore(hive.uri), _Daemon(stack, hive, 0o002)
    # The metastore will create the directory of a new table.
    client.call("create_database", ttypes.Database(name="web"))
    new = {"create_table": {"columns": {"id": "int"}}}
    what, hint = daemon.predict(TableName("web", "later"), **new)
    assert "the metastore will create the table's directory" in what
    assert "umask 0002" in hint
    make_table(client, TableName("web", "other"))
    other = local_path(load_acid_table(client, TableName("web", "other")).location)
    for directory in (other, other.parent):
        directory.chmod(0o2775)
    assert "writable" in daemon.predict(TableName("web", "later"), **new)[0]
    # It has created the directory of a partition.
    location = _shared(client, "visits")
    client.call("append_partition_by_name", "default", "visits", "day=1")
    problem = daemon.storage_problem(TableName("default", "visits"))
    assert problem["reason"] == "PermissionDenied"
    assert problem["where"].endswith(str(location / "day=1"))
    assert "Permission denied: drwxr-sr-x" in problem["error"]
    assert "umask 0002" in problem["hint"]
