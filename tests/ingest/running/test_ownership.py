"""A mapping has only one owner: standby, takeover, and two processes that both consider themselves the owner."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest
from hive_metastore import ttypes

from ingestd.clock import monotonic, pause
from ingestd.errors import MetastoreUnavailable
from ingestd.hive import leases, transactions
from ingestd.hive.client import Metastore
from ingestd.hive.leases import Claim
from ingestd.hive.tables import TableName, load_acid_table
from ingestd.ingest.monitoring.monitor import Monitor
from ingestd.ingest.options import MappingOptions
from ingestd.ingest.ownership.claims import daemon_lease
from ingestd.ingest.ownership.liveness import Liveness
from ingestd.ingest.ownership.owner import Ownership
from ingestd.storage.local import local_path
from tests.support.patience import LIMIT
from tests.support.proxy import proxy
from tests.support.stack import Stack, eventually


def _rows(first: int, last: int) -> list[dict[str, int]]:
    return [{"id": i} for i in range(first, last)]


def test_second_daemon_when_the_first_runs_then_is_standby_and_takes_over_when_it_dies(stack: Stack) -> None:
    stack.topic(2)
    stack.table("id bigint")
    config = stack.config()
    first = stack.start_process(config)
    eventually("the first daemon to become owner", lambda: first.events("owner"))
    second = stack.start(config)
    eventually("the second daemon to become standby", lambda: second.events("standby"))
    assert second.events("standby")[0]["owner"] == _claims(stack)[0].agent
    killed = daemon_lease("ingestd", _claims(stack)[0].agent)
    # Simulate a daemon that died on another machine.
    elsewhere = daemon_lease("ingestd", f"-{stack.name[-12:]}")
    assert leases.try_acquire(stack.metastore, elsewhere, f"ingestd/ingestd/elsewhere:1:1-{stack.name[-12:]}")
    # Simulate a standby that died after requesting the lock and before releasing it.
    _leave_waiting(stack)
    stack.produce(_rows(0, 100))
    eventually("the rows", lambda: stack.count() == 100)
    eventually("the dead claim to be released", lambda: len(_claims(stack)) == 1)
    assert not second.events("owner")
    _leave_waiting(stack)
    first.kill()
    stack.produce(_rows(100, 200))
    eventually("the second daemon to take over", lambda: second.events("owner"))
    eventually("all rows", lambda: stack.ids() == list(range(200)))
    for dead in (killed, elsewhere):
        eventually("its lease to be released", lambda dead=dead: not leases.claims(stack.metastore, dead))  # type: ignore[misc]
    assert leases.claims(stack.metastore, daemon_lease("ingestd", _claims(stack)[0].agent))
    second.terminate()
    assert second.wait() == 0


def _enters(liveness: Liveness) -> bool:
    """Request the lease of a daemon. Return False if the metastore does not answer in time."""
    try:
        liveness.enter()
    except MetastoreUnavailable:
        return False
    return True


def _acquires(owner: Ownership) -> bool:
    """Become the owner, although other claims exist for a moment."""
    owner.begin()
    return bool(eventually("the lease", lambda: owner.try_acquire(lambda _claim: None) is None))


def _lease(stack: Stack) -> TableName:
    return TableName("ingestd", f"owner_{stack.name[-40:]}")


def _claims(stack: Stack) -> list[Claim]:
    return leases.claims(stack.metastore, _lease(stack))


def _leave_waiting(stack: Stack) -> None:
    """Request the owner's lock and never release it, as if a process on another machine had died while waiting."""
    agent = f"ingestd/ingestd/{stack.name[-40:]}/elsewhere:1:1-abcdef"
    request = ttypes.LockRequest(
        component=[leases.lease_component(_lease(stack))], user="nobody", hostname="elsewhere", agentInfo=agent
    )
    assert stack.metastore.call("lock", request).state == ttypes.LockState.WAITING


def test_answers_when_lost_then_no_claim_of_this_process_blocks_the_lease(stack: Stack) -> None:
    options = MappingOptions(stack.name[-40:], (stack.name,), TableName("default", stack.name))
    lost: list[Exception] = []
    with proxy(stack.addresses.metastore) as between:
        metastore = Metastore(between.uri)
        liveness = Liveness(metastore, "ingestd", patience_seconds=600.0)
        liveness.enter()
        mine = Ownership(metastore, options, Monitor(options), liveness, on_lost=lost.append)
        between.lose_answer("lock")
        with pytest.raises(MetastoreUnavailable):
            _acquires(mine)
        assert len(_claims(stack)) == 1
        assert _acquires(mine)
        assert len(_claims(stack)) == 1
        between.lose_answer("unlock")
        mine.release()
        assert _claims(stack) == []
        assert _acquires(mine)
        assert mine.held
        between.garble_answer("heartbeat")
        eventually("the heartbeats to end", lambda: not mine.held)
        assert [type(error) for error in lost] == [UnicodeDecodeError]
        mine.release()
        liveness.close()
        metastore.close()
    assert _claims(stack) == []


def test_mappings_when_many_then_share_heartbeats_and_each_lease_ends_alone(stack: Stack) -> None:
    names = [f"{stack.name[-37:]}_{number:02d}" for number in range(12)]
    lost: list[Exception] = []
    with proxy(stack.addresses.metastore) as between:
        metastore = Metastore(between.uri)
        liveness = Liveness(metastore, "ingestd")
        mappings = [MappingOptions(name, (name,), TableName("default", name)) for name in names]
        owners = [
            Ownership(metastore, options, Monitor(options), liveness, on_lost=lost.append) for options in mappings
        ]
        assert all(_acquires(owner) for owner in owners)
        began, beats, reads = monotonic(), between.calls["heartbeat"], between.calls["show_locks"]
        taken, *others = owners
        (claim,) = leases.claims(stack.metastore, mappings[0].owner_lease)
        leases.release(stack.metastore, claim.lock_id)
        daemon = daemon_lease("ingestd", claim.agent)
        (entered,) = leases.claims(stack.metastore, daemon)
        leases.release(stack.metastore, entered.lock_id)
        eventually("the lost lease to be noticed", lambda: not taken.held)
        eventually("the daemon to acquire its own lease again", lambda: leases.claims(stack.metastore, daemon))
        assert all(owner.held and owner.confirm() for owner in others)
        assert not taken.confirm()
        # One for each owner, one every 2 s for the daemon, and the others rarely; not one every 2 s for each owner.
        assert between.calls["heartbeat"] - beats < 2 * len(owners) + (monotonic() - began)
        assert between.calls["show_locks"] - reads < len(owners) + (monotonic() - began)
        for owner in owners:
            owner.release()
        liveness.close()
        metastore.close()
    assert lost == []
    assert not [claim for claim in leases.all_claims(stack.metastore, "ingestd") if stack.name[-37:] in claim.agent]
    assert leases.claims(stack.metastore, daemon) == []


def test_heartbeats_when_other_calls_hang_then_are_not_delayed(stack: Stack) -> None:
    options = MappingOptions(stack.name[-40:], (stack.name,), TableName("default", stack.name))
    with proxy(stack.addresses.metastore) as between, closing(Metastore(between.uri, connections=2)) as metastore:
        liveness = Liveness(metastore, "ingestd")
        mine = Ownership(metastore, options, Monitor(options), liveness, on_lost=lambda _error: None)
        assert _acquires(mine)
        reads = between.calls["show_locks"]
        between.hold("show_locks")
        eventually("a check of the leases", lambda: between.calls["show_locks"] > reads)
        beats = between.calls["heartbeat"]
        eventually("a heartbeat", lambda: between.calls["heartbeat"] > beats + 1)
        between.shut()
        liveness.close()


def test_standby_when_its_answers_are_late_then_the_living_owner_keeps_the_mapping(stack: Stack) -> None:
    options = MappingOptions(stack.name[-40:], (stack.name,), TableName("default", stack.name))
    stop, lost = threading.Event(), list[Exception]()
    with (
        proxy(stack.addresses.metastore) as between,
        closing(Metastore(between.uri, timeout_seconds=LIMIT)) as metastore,
    ):
        living, late = Liveness(stack.metastore, "ingestd"), Liveness(metastore, "ingestd", patience_seconds=20.0)
        owner, standby = (
            Ownership(client, options, Monitor(options), liveness, on_lost=lost.append)
            for client, liveness in ((stack.metastore, living), (metastore, late))
        )
        assert _acquires(owner)
        waiting = threading.Event()

        def stand_by() -> None:
            standby.begin()
            while not stop.is_set() and standby.try_acquire(lambda _claim: waiting.set()) is not None:
                pause(0.1, stop)

        thread = threading.Thread(target=stand_by)
        thread.start()
        assert waiting.wait(LIMIT)
        between.answering.clear()
        (claim,) = _claims(stack)
        daemon = daemon_lease("ingestd", claim.agent)

        def beat() -> tuple[int, int]:
            return leases.claims(stack.metastore, daemon)[0].beat

        for _ in range(12):  # longer than the patience of the standby
            before = beat()
            eventually("a heartbeat of the owner", lambda before=before: beat() != before)  # type: ignore[misc]
        calls = between.calls["show_locks"]
        between.answering.set()
        eventually("the standby to read the claims again", lambda: between.calls["show_locks"] >= calls + 2)
        assert [claimed.lock_id for claimed in _claims(stack)] == [claim.lock_id]
        assert owner.confirm()
        assert not standby.held
        stop.set()
        thread.join()
        for ownership, liveness in ((owner, living), (standby, late)):
            ownership.release()
            liveness.close()


@pytest.mark.parametrize("has_entered", [False, True])
def test_mappings_when_the_metastore_hangs_then_they_share_a_request(stack: Stack, has_entered: bool) -> None:
    options = MappingOptions(stack.name[-40:], (stack.name,), TableName("default", stack.name))
    with (
        proxy(stack.addresses.metastore) as between,
        closing(Metastore(between.uri, timeout_seconds=1.0)) as metastore,
    ):
        liveness = Liveness(metastore, "ingestd")
        if has_entered:
            eventually("the daemon to enter", lambda: _enters(liveness))

        def acquire() -> None:
            mine = Ownership(metastore, options, Monitor(options), liveness, on_lost=lambda _error: None)
            with pytest.raises(MetastoreUnavailable):
                _acquires(mine)

        between.flowing.clear()
        before = between.calls.copy()
        with ThreadPoolExecutor(32) as mappings:
            for done in [mappings.submit(acquire) for _ in range(32)]:
                done.result()
        # One request is sent twice, and the mappings that come late share another one.
        sent = between.calls - before
        del sent["heartbeat"]  # of the daemon
        assert 1 <= sent.total() < 32
        between.flowing.set()
        liveness.close()


def test_transactions_when_kept_alive_then_adjacent_ones_share_a_call_and_ended_ones_are_returned(stack: Stack) -> None:
    with proxy(stack.addresses.metastore) as between, closing(Metastore(between.uri)) as metastore:
        ids = [transactions.begin(metastore, stack.name).id for _ in range(4)]
        transactions.abort(metastore, ids[1])
        assert leases.heartbeat_transactions(metastore, ids) == {ids[1]}
        runs = 1 + sum(after - before != 1 for before, after in pairwise(ids))
        assert between.calls["heartbeat_txn_range"] == runs
        transactions.abort_all(metastore, ids)


def test_frozen_owner_when_resumed_after_a_takeover_then_no_row_is_duplicated(stack: Stack) -> None:
    stack.topic(1)
    stack.table("id bigint")
    config = stack.config()
    gate = stack.directory / "gate"
    frozen = stack.start_process(config, INGESTD_TESTING="1", INGESTD_FAILPOINT=f"staged@1=hold:{gate}")
    eventually("the first daemon to become owner", lambda: frozen.events("owner"))
    stack.produce(_rows(0, 100))
    eventually("the stage to be blocked", lambda: os.path.exists(f"{gate}.held"))
    # Freeze the daemon between stage and lock, including its heartbeats, as in a long pause of the machine.
    os.kill(frozen.process.pid, signal.SIGSTOP)
    (staged,) = _staged(stack)
    owned = len(frozen.events("owner"))
    rival = stack.start(config)
    eventually("the rival to take over", lambda: rival.events("owner"))
    assert not staged.exists()
    eventually("the rival's rows", lambda: stack.count() == 100)
    gate.touch()
    os.kill(frozen.process.pid, signal.SIGCONT)
    eventually("the frozen daemon to become standby", lambda: frozen.events("standby"))
    stack.produce(_rows(100, 200))
    eventually("all rows", lambda: stack.ids() == list(range(200)))
    assert len(frozen.events("owner")) == owned
    for daemon in (rival, frozen):
        daemon.terminate()
    assert rival.wait() == 0
    assert frozen.wait() == 0
    assert _staged(stack) == []


def _staged(stack: Stack) -> list[Path]:
    table = load_acid_table(stack.metastore, TableName("default", stack.name))
    return list((local_path(table.location) / ".ingestd-staging").glob("*"))


def test_sigterm_when_running_then_offsets_are_mirrored_and_exit_is_0(stack: Stack) -> None:
    stack.topic(2)
    stack.produce(_rows(0, 50))
    stack.table("id bigint")
    daemon = stack.start(stack.config({"group": f"group-{stack.name}"}))
    eventually("the rows", lambda: stack.count() == 50)
    eventually("the mirror", lambda: sum(stack.group_offsets(f"group-{stack.name}", stack.name, 2)) == 50)
    daemon.terminate()
    assert daemon.wait() == 0
    assert daemon.events("stopped")
