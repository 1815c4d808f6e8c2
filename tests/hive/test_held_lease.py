"""A lease that is held for a long task belongs to one process at a time, whatever happens to the process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from ingestd.errors import MetastoreUnavailable, OwnershipLost, ReplicationError
from ingestd.hive.client import Metastore
from ingestd.hive.held_lease import HeldLease
from ingestd.hive.leases import claims, release
from ingestd.hive.tables import TableName
from tests.support.replica import Replica
from tests.support.stack import eventually

# A holder on a busy machine sends its heartbeats in time.
PATIENCE = 15.0
_HOLDER = f"""
import sys
from ingestd.hive.client import Metastore
from ingestd.hive.held_lease import HeldLease
from ingestd.hive.tables import TableName
with HeldLease(Metastore(sys.argv[1]), TableName(sys.argv[2], "load"), "load", {PATIENCE}) as lease:
    print("held", flush=True)
    for line in sys.stdin:
        try:
            lease.check()
            print("kept", flush=True)
        except Exception as error:
            print(type(error).__name__, flush=True)
"""


class Holder:
    """Another process that holds the lease."""

    def __init__(self, uri: str, name: TableName) -> None:
        command = [sys.executable, "-c", _HOLDER, uri, name.database]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._read() == "held"

    def check(self) -> str:
        """Return `kept`, or the name of the error."""
        assert self._process.stdin
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._read()

    def send(self, number: int) -> None:
        os.kill(self._process.pid, number)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _read(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline().strip()


@pytest.fixture
def metastore(replica: Replica) -> Metastore:
    return replica.target.metastore


@pytest.fixture
def name(replica: Replica) -> TableName:
    return TableName(replica.name("leased"), "load")


@pytest.fixture
def holder(replica: Replica, name: TableName) -> Iterator[Holder]:
    made = Holder(replica.target.uri, name)
    yield made
    made.close()


def _acquire(metastore: Metastore, name: TableName) -> HeldLease:
    return HeldLease(metastore, name, "load into the database x", PATIENCE)


def test_lease_when_another_process_holds_it_then_is_refused(
    metastore: Metastore, name: TableName, holder: Holder
) -> None:
    with pytest.raises(OwnershipLost, match="only one process at a time may load into the database x"):
        _acquire(metastore, name)
    assert holder.check() == "kept"


def test_lease_when_its_holder_was_killed_then_is_acquired(
    metastore: Metastore, name: TableName, holder: Holder
) -> None:
    holder.close()
    with _acquire(metastore, name) as lease:
        lease.check()
    assert claims(metastore, name) == []


def test_lease_when_its_holder_is_suspended_then_is_taken_over_and_the_holder_notices(
    metastore: Metastore, name: TableName, holder: Holder
) -> None:
    holder.send(signal.SIGSTOP)
    with _acquire(metastore, name) as lease:
        holder.send(signal.SIGCONT)
        assert holder.check() == "OwnershipLost"
        lease.check()


def test_lease_when_an_administrator_releases_it_then_its_holder_notices(metastore: Metastore, name: TableName) -> None:
    with _acquire(metastore, name) as lease:
        (claim,) = claims(metastore, name)
        release(metastore, claim.lock_id)
        eventually("the holder notices", lambda: _is_lost(lease))


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (ReplicationError("x"), OwnershipLost),
        (MetastoreUnavailable("x"), MetastoreUnavailable),
        (KeyError(), OwnershipLost),
    ],
)
def test_lease_when_lost_then_replaces_errors_that_are_not_retriable(
    metastore: Metastore, name: TableName, error: Exception, raised: type[Exception]
) -> None:
    with pytest.raises(raised), _acquire(metastore, name) as lease:  # noqa: PT012
        release(metastore, claims(metastore, name)[0].lock_id)
        eventually("the holder notices", lambda: _is_lost(lease))
        raise error


def test_guarded_metastore_when_the_lease_is_lost_then_sends_no_call(metastore: Metastore, name: TableName) -> None:
    with _acquire(metastore, name) as lease:
        guarded = metastore.guarded(lease.check)
        assert guarded.call("get_metastore_db_uuid")
        release(metastore, claims(metastore, name)[0].lock_id)
        eventually("the holder notices", lambda: _is_lost(lease))
        before = guarded.calls
        with pytest.raises(OwnershipLost):
            guarded.call("get_metastore_db_uuid")
        assert guarded.calls == before


def _is_lost(lease: HeldLease) -> bool:
    try:
        lease.check()
    except OwnershipLost:
        return True
    return False
