"""The systemd units: they are valid, they restrict the daemon, and their limits match those of the daemon."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ingestd.config.document import ShutdownOptions

UNITS = Path(__file__).parents[2] / "systemd"
# `systemd-analyze security` rates a unit from 0 (fully restricted) to 10. The service needs the network (1.0), /proc of
# other processes (0.3) and the users of the warehouse (0.2).
_HIGHEST_EXPOSURE = 2.0
# The daemon ends at most this long after shutdown.timeout: 10 s for the abort of transactions, 10 s to stop Spark.
_END_SECONDS = 20.0

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="needs systemd-analyze: apt-get install systemd"
)
each_unit = pytest.mark.parametrize("name", ["ingestd.service", "ingestd@.service"])


def _installed(name: str, directory: Path) -> Path:
    """Return a copy of the unit that starts this environment's ingestd, which exists."""
    text = (UNITS / name).read_text(encoding="utf-8")
    unit = directory / name
    unit.write_text(text.replace("/opt/ingestd/bin", str(Path(sys.executable).parent)), encoding="utf-8")
    return unit


def _setting(name: str) -> str:
    [value] = re.findall(rf"^{name}=(.*)$", (UNITS / "ingestd.service").read_text(encoding="utf-8"), re.MULTILINE)
    return str(value)


def _analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, check=False)


@needs_systemd
@each_unit
def test_unit_when_verified_then_has_no_fault(name: str, tmp_path: Path) -> None:
    said = _analyze("verify", "--man=no", _installed(name, tmp_path))
    assert (said.returncode, said.stdout + said.stderr) == (0, "")


@needs_systemd
@each_unit
def test_unit_when_its_exposure_is_rated_then_is_below_the_bound(name: str, tmp_path: Path) -> None:
    unit = _installed(name, tmp_path)
    said = _analyze("security", "--offline=true", f"--threshold={_HIGHEST_EXPOSURE * 10:.0f}", unit)
    assert said.returncode == 0, said.stdout + said.stderr


def test_template_then_differs_from_the_service_only_in_its_configuration() -> None:
    service, template = (
        (UNITS / name).read_text(encoding="utf-8").partition("\n[Unit]\n")[2]
        for name in ("ingestd.service", "ingestd@.service")
    )
    assert template == service.replace("ingestd:", "ingestd %i:").replace("ingestd.yaml", "%i.yaml")


def test_stop_limit_then_is_above_the_time_that_the_daemon_needs() -> None:
    assert float(_setting("TimeoutStopSec").removesuffix("s")) >= ShutdownOptions().timeout + _END_SECONDS


def test_restart_then_excludes_errors_that_a_restart_cannot_fix() -> None:
    assert _setting("Restart") == "on-failure"
    assert set(_setting("RestartPreventExitStatus").split()) == {"65", "77", "78"}
    assert _setting("KillMode") == "mixed"


def test_hardening_then_allows_what_the_daemon_needs() -> None:
    text = (UNITS / "ingestd.service").read_text(encoding="utf-8")
    # Ownership reads /proc of other processes, and the JVM writes executable memory.
    assert not re.search(r"^(ProtectProc|ProcSubset|MemoryDenyWriteExecute|PrivateUsers)=", text, re.MULTILINE)


@needs_systemd
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can create directories of another user")
def test_user_and_directories_when_created_below_a_root_then_belong_to_the_daemon(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    for command, file in (
        ("systemd-sysusers", "sysusers.d/ingestd.conf"),
        ("systemd-tmpfiles", "tmpfiles.d/ingestd.conf"),
    ):
        create = ["--create"] if command == "systemd-tmpfiles" else []
        said = subprocess.run(
            [command, f"--root={tmp_path}", *create, UNITS / file], capture_output=True, text=True, check=False
        )
        assert said.returncode == 0, said.stderr
    user = (tmp_path / "etc" / "passwd").read_text(encoding="utf-8")
    assert re.search(r"^ingestd:x:\d+:\d+:ingestd daemon:/var/cache/ingestd:/usr/sbin/nologin$", user, re.MULTILINE)
    uid = int(user.split("ingestd:x:")[1].split(":")[0])
    for name, owner, mode in (("etc/ingestd", 0, 0o750), ("var/cache/ingestd", uid, 0o755)):
        found = (tmp_path / name).stat()
        assert (found.st_uid, found.st_mode & 0o777) == (owner, mode), name
