"""The service under a real systemd, installed as docs/deploy.md describes, in the file system of the image."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.container import buildah
from tests.support.machine import Machine
from tests.support.stack import Stack, eventually

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(shutil.which("buildah") is None or os.geteuid() != 0, reason="needs buildah and root"),
]
UNITS = Path(__file__).parents[2] / "systemd"


@pytest.fixture
def root(image: tuple[str, Path, dict[str, Any]]) -> Path:
    """Return the file system of the image, with systemd and with the units."""
    container, root, _config = image
    install = "apt-get update -qq && apt-get install -qq --yes --no-install-recommends systemd dbus && userdel ingestd"
    buildah("run", "--isolation", "chroot", "--user", "root", container, "--", "sh", "-c", install)
    for name in ("ingestd.service", "ingestd@.service"):
        shutil.copy(UNITS / name, root / "etc/systemd/system")
    for name in ("sysusers.d", "tmpfiles.d"):
        (root / "etc" / name).mkdir(exist_ok=True)
        shutil.copy(UNITS / name / "ingestd.conf", root / "etc" / name)
    (root / "etc/hosts").write_bytes(Path("/etc/hosts").read_bytes())
    return root


@pytest.fixture
def machine(root: Path, stack: Stack, table: tuple[str, Path]) -> Iterator[Machine]:
    """Boot a machine with the service enabled, which may write the table of the test."""
    stack.topic(2)
    name, directory = table
    drop_in = root / "etc/systemd/system/ingestd.service.d"
    drop_in.mkdir()
    # The watchdog of the test is short, and a suspended daemon does not end by its first signal.
    settings = f"[Service]\nReadWritePaths={directory}\nWatchdogSec=6\nTimeoutAbortSec=2\n"
    (drop_in / "site.conf").write_text(settings, encoding="utf-8")
    (root / "etc/ingestd").mkdir(exist_ok=True)
    shutil.copy(stack.config({"table": name}), root / "etc/ingestd/ingestd.yaml")
    (root / "etc/ingestd/ingestd.yaml").chmod(0o644)
    subprocess.run(["systemctl", f"--root={root}", "enable", "ingestd"], check=True, capture_output=True)
    machine = Machine(root, directory)
    yield machine
    machine.power_off()


def _add_mapping(root: Path, topic: str) -> None:
    """Add a mapping of another topic into the same table to the configuration."""
    file = root / "etc/ingestd/ingestd.yaml"
    document = yaml.safe_load(file.read_text(encoding="utf-8"))
    [first] = document["mappings"]
    document["mappings"].append(first | {"name": f"{first['name'][:30]}_more", "topics": [topic]})
    file.write_text(yaml.safe_dump(document), encoding="utf-8")


class Records:
    """The records of a test, whose ids are 0, 1, 2 and so on, and which the daemon stores in `table`."""

    def __init__(self, stack: Stack, table: str) -> None:
        self._stack = stack
        self._table = table
        self.total = 0

    def produce(self, topic: str | None = None) -> None:
        """Produce 500 records."""
        self.total += self._stack.produce(({"id": n} for n in range(self.total, self.total + 500)), topic)

    def are_stored(self) -> bool:
        """Return whether the table has as many rows."""
        return self._stack.count(name=self._table) == self.total


def test_service_when_killed_suspended_rebooted_and_reloaded_then_loses_and_duplicates_nothing(
    stack: Stack, machine: Machine, root: Path, table: tuple[str, Path]
) -> None:
    records = Records(stack, table[0])

    def is_active() -> bool:
        return machine.is_running() and machine.show("ingestd", "ActiveState") == "active"

    def has_restarted(times: int) -> bool:
        return machine.show("ingestd", "NRestarts") == str(times) and is_active()

    records.produce()
    eventually("the start at boot", is_active)
    eventually("the records", records.are_stored)
    eventually("the status", lambda: "last commit" in machine.show("ingestd", "StatusText"))

    for times, name in enumerate(("KILL", "STOP"), 1):  # the watchdog ends a suspended daemon
        machine.run("systemctl", "kill", f"--signal={name}", "--kill-who=main", "ingestd")
        records.produce()
        eventually(f"the restart after SIG{name}", partial(has_restarted, times))
        eventually("the records", records.are_stored)

    machine.power_off()
    records.produce()
    machine.boot()
    eventually("the start after the loss of power", is_active)
    eventually("the records", records.are_stored)

    _add_mapping(root, stack.topic(1, f"{stack.name}_more"))
    machine.run("systemctl", "reload", "ingestd")
    records.produce(f"{stack.name}_more")
    eventually("the records of the new mapping", records.are_stored)
    assert machine.show("ingestd", "NRestarts") == "0"

    machine.run("systemctl", "stop", "ingestd")
    assert machine.show("ingestd", "ExecMainStatus") == "0"
    assert stack.ids(table[0]) == list(range(records.total))


def test_service_when_the_configuration_is_invalid_then_is_not_restarted(machine: Machine, root: Path) -> None:
    with (root / "etc/ingestd/ingestd.yaml").open("a", encoding="utf-8") as file:
        file.write("unknown: 1\n")
    eventually("the boot", machine.is_running)
    machine.run("systemctl", "restart", "--no-block", "ingestd")
    eventually("the failure", lambda: machine.show("ingestd", "ActiveState") == "failed")
    assert machine.show("ingestd", "ExecMainStatus") == "78"
    assert machine.show("ingestd", "NRestarts") == "0"
