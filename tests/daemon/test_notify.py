"""The notify protocol of systemd, on a real datagram socket."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

from ingestd.daemon.notify import Notifier, status_line
from ingestd.errors import MetastoreUnavailable
from ingestd.hive.tables import TableName
from ingestd.ingest.control import Signals
from ingestd.ingest.monitoring.monitor import CommitRecord, Monitor, Problem, Snapshot
from ingestd.ingest.options import MappingOptions
from ingestd.kafka.ranges import TopicPartition
from tests.support.stack import Stack, eventually

ORDERS = Snapshot("orders", "shop.orders", ("orders",), "running", 0.0)


class Mappings:
    """The mappings of a daemon, in the states that a test chooses."""

    def __init__(self, *names: str) -> None:
        self.monitors = {name: Monitor(MappingOptions(name, (name,), TableName("shop", name))) for name in names}
        self.hanging: list[str] = []

    def stuck(self) -> list[str]:
        return self.hanging


class Manager:
    """The socket of a service manager, and the messages that it received."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.settimeout(0)
        self._messages: list[str] = []

    def messages(self) -> list[str]:
        """Return the lines of all messages so far."""
        while True:
            try:
                self._messages += self._socket.recv(65536).decode().splitlines()
            except BlockingIOError:  # noqa: PERF203 - the loop ends here
                return list(self._messages)

    def has(self, start: str) -> bool:
        """Return whether a line that begins with `start` was received."""
        return any(line.startswith(start) for line in self.messages())

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def notifier(manager: Manager) -> Iterator[Notifier]:
    notifier = Notifier()
    yield notifier
    notifier.close()


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Manager]:
    path = tmp_path / "notify"
    monkeypatch.setenv("NOTIFY_SOCKET", str(path))
    monkeypatch.setenv("WATCHDOG_USEC", "1")  # each call reports
    manager = Manager(path)
    yield manager
    manager.close()


def test_check_when_a_mapping_still_starts_then_the_daemon_is_not_ready(manager: Manager, notifier: Notifier) -> None:
    mappings = Mappings("orders", "clicks")
    mappings.monitors["orders"].entered("running")
    notifier.check(mappings, Signals())
    assert "READY=1" not in manager.messages()
    mappings.monitors["clicks"].entered("standby")
    for _ in range(2):
        notifier.check(mappings, Signals())
    assert manager.messages().count("READY=1") == 1


def test_check_when_a_mapping_is_stuck_then_feeds_no_watchdog(manager: Manager, notifier: Notifier) -> None:
    mappings = Mappings("orders")
    mappings.hanging = ["orders"]
    notifier.check(mappings, Signals())
    assert manager.has("STATUS=1 starting; lag 0 offsets; stuck: orders")
    assert "WATCHDOG=1" not in manager.messages()
    mappings.hanging = []
    notifier.check(mappings, Signals())
    assert "WATCHDOG=1" in manager.messages()


def test_check_when_the_watchdog_is_short_then_reports_several_times_per_period(
    manager: Manager, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    usual_path = tmp_path / "usual"
    with closing(Manager(usual_path)) as usual_manager, ExitStack() as ends:
        monkeypatch.setenv("WATCHDOG_USEC", "400000")
        short = ends.enter_context(closing(Notifier()))
        monkeypatch.delenv("WATCHDOG_USEC")  # then the interval is 2 s
        monkeypatch.setenv("NOTIFY_SOCKET", str(usual_path))
        usual = ends.enter_context(closing(Notifier()))
        while manager.messages().count("WATCHDOG=1") < 5:
            short.check(Mappings("orders"), Signals())
            usual.check(Mappings("orders"), Signals())
        assert 1 <= usual_manager.messages().count("WATCHDOG=1") < 5


def test_check_when_the_manager_reads_nothing_then_does_not_block(manager: Manager, notifier: Notifier) -> None:
    for _ in range(2_000):
        notifier.check(Mappings("orders"), Signals())
    assert len(manager.messages()) < 4_000


def test_check_when_the_manager_read_nothing_for_a_while_then_ready_is_sent_again(
    manager: Manager, notifier: Notifier
) -> None:
    mappings = Mappings("orders")

    def fill_queue() -> None:
        for _ in range(2_000):
            notifier.check(mappings, Signals())

    fill_queue()
    mappings.monitors["orders"].entered("running")
    notifier.check(mappings, Signals())
    assert "READY=1" not in manager.messages()
    notifier.check(mappings, Signals())
    assert manager.messages().count("READY=1") == 1
    fill_queue()
    with notifier.reloading():
        manager.messages()
        fill_queue()
    assert manager.messages().count("READY=1") == 1
    notifier.check(mappings, Signals())
    assert manager.messages().count("READY=1") == 2


def test_check_when_the_daemon_stops_then_says_so_once(manager: Manager, notifier: Notifier) -> None:
    signals = Signals()
    signals.stop.set()
    for _ in range(2):
        notifier.check(Mappings("orders"), signals)
    assert manager.messages().count("STOPPING=1") == 1
    assert manager.has("STATUS=stopping: 1 starting")


def test_reload_then_is_announced_with_the_time_and_ends_with_ready(manager: Manager, notifier: Notifier) -> None:
    mappings = Mappings("orders")
    mappings.monitors["orders"].entered("running")
    notifier.check(mappings, Signals())
    before = len(manager.messages())
    with notifier.reloading():
        pass
    [reloading, time, ready] = manager.messages()[before:]
    assert (reloading, ready) == ("RELOADING=1", "READY=1")
    assert int(time.removeprefix("MONOTONIC_USEC=")) > 0


def test_reload_when_the_daemon_still_starts_or_stops_then_is_not_announced(
    manager: Manager, notifier: Notifier
) -> None:
    with notifier.reloading():
        pass
    assert manager.messages() == []
    notifier.check(Mappings(), Signals())
    notifier.stopping()
    before = manager.messages()
    with notifier.reloading():
        pass
    assert manager.messages() == before


def test_notifier_when_systemd_did_not_start_the_process_then_opens_no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    Notifier().check(Mappings("orders"), Signals())  # an open socket would fail the test with a ResourceWarning


def test_status_line_then_names_states_lag_commit_and_problems() -> None:
    commit = CommitRecord(1, 1, 1_700_000_000.0, 5, 5, 0, 50, 1, (), 1, 5, (), 1, {})
    partition = TopicPartition("orders", 0)
    running = replace(ORDERS, position={partition: 10}, ends={partition: 1_250}, polled_at=1.0, commits=(commit,))
    waiting = [
        replace(ORDERS, name=f"m{n}", state="waiting", problem=Problem.of(MetastoreUnavailable("no answer"), 1.0))
        for n in range(4)
    ]
    assert status_line([running, *waiting], []) == (
        "4 waiting, 1 running; lag 1,240 offsets; last commit 2023-11-14T22:13:20Z; problems: "
        "m0 (MetastoreUnavailable), m1 (MetastoreUnavailable), m2 (MetastoreUnavailable) and 1 more"
    )


def test_daemon_when_started_by_a_service_manager_then_reports_from_start_to_stop(
    stack: Stack, manager: Manager
) -> None:
    stack.topic(1)
    stack.table("id bigint")
    stack.produce({"id": n} for n in range(10))
    daemon = stack.start_process(stack.config(), WATCHDOG_USEC="1000000")
    eventually("READY", lambda: manager.has("READY=1"))
    eventually("progress", lambda: manager.has("WATCHDOG=1"))
    eventually("the status after a commit", lambda: manager.has("STATUS=1 running; lag 0 offsets; last commit "))
    assert manager.messages()[0] == "STATUS=starting Spark"
    daemon.terminate()
    assert daemon.wait() == 0
    assert "STOPPING=1" in manager.messages()
