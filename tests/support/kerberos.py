"""A Kerberos realm for tests: an MIT KDC on a loopback port, with principals, keytabs and tickets."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.metastore import free_port
from tests.support.patience import LIMIT
from tests.support.stack import eventually

NAME = "INGESTD.TEST"
SHORT_SECONDS = 6
# Debian installs the servers in folders that are only in root's PATH.
_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
_PACKAGES = {
    "krb5kdc": "krb5-kdc",
    "kdb5_util": "krb5-kdc",
    "kadmin.local": "krb5-admin-server",
    "kinit": "krb5-user",
}
# The realm is not in DNS, so lookups are disabled.
_KRB5_CONF = """[libdefaults]
 default_realm = {name}
 dns_lookup_realm = false
 dns_lookup_kdc = false
 dns_canonicalize_hostname = false
 rdns = false
 udp_preference_limit = 1
[realms]
 {name} = {{
  kdc = 127.0.0.1:{port}
 }}
"""
_KDC_CONF = """[kdcdefaults]
 kdc_listen = 127.0.0.1:{port}
 kdc_tcp_listen = 127.0.0.1:{port}
[realms]
 {name} = {{
  database_name = {folder}/principal
  key_stash_file = {folder}/stash
  max_life = 1h
 }}
"""


def _require() -> None:
    """Skip the test when packages of the KDC are missing, or fail it if INGESTD_TEST_KERBEROS is set, as in CI."""
    missing = [package for program, package in _PACKAGES.items() if shutil.which(program, path=_PATH) is None]
    missing += [] if find_spec("gssapi") else ["libkrb5-dev", "and pip's ingestd[kerberos]"]
    if missing:
        what = f"Kerberos tests need {', '.join(dict.fromkeys(missing))} (apt-get install …)"
        (pytest.fail if os.environ.get("INGESTD_TEST_KERBEROS") else pytest.skip)(what)


class Realm:
    """The KDC and the principals of the realm. A program uses the realm if it runs with `environment`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.conf = folder / "krb5.conf"
        self.environment = {
            "KRB5_CONFIG": str(self.conf),
            "KRB5_KDC_PROFILE": str(folder / "kdc.conf"),
            "KRB5CCNAME": f"FILE:{folder / 'nobody.ccache'}",
        }
        self._kdc: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the KDC. The first call creates the realm."""
        if not self.conf.exists():
            values = {"name": NAME, "port": self.port, "folder": self.folder}
            (self.folder / "kdc.conf").write_text(_KDC_CONF.format(**values))
            self.conf.write_text(_KRB5_CONF.format(**values))
            self.run("kdb5_util", "create", "-s", "-P", "master")
        with (self.folder / "kdc.log").open("ab") as log:
            command = [_tool("krb5kdc"), "-n"]
            self._kdc = subprocess.Popen(command, env=self._everything(), stdout=log, stderr=log)
        eventually("the KDC to listen", self._listens)

    def stop(self) -> None:
        """Stop the KDC. Its principals are preserved."""
        if self._kdc:
            self._kdc.send_signal(signal.SIGTERM)
            self._kdc.wait(LIMIT)
            self._kdc = None

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the KDC for the `with` block."""
        self.stop()
        try:
            yield
        finally:
            self.start()

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Suspend the KDC for the `with` block: it accepts connections but does not answer."""
        assert self._kdc
        self._kdc.send_signal(signal.SIGSTOP)
        # The parent is notified when the process has stopped.
        os.waitid(os.P_PID, self._kdc.pid, os.WSTOPPED)
        try:
            yield
        finally:
            self._kdc.send_signal(signal.SIGCONT)

    def add(self, principal: str, *options: str) -> None:
        """Create a principal, such as `hive/localhost`, with a random key. `-maxlife 6s` limits its tickets."""
        self.run("kadmin.local", "-q", f"addprinc -randkey {' '.join(options)} {principal}")

    def keytab(self, name: str, *principals: str, new_key: bool = False) -> Path:
        """Write a keytab for `principals` and return its path. With `new_key`, earlier keytabs become invalid."""
        file = self.folder / f"{name}.keytab"
        keep = "" if new_key else "-norandkey "
        for principal in principals:
            self.run("kadmin.local", "-q", f"ktadd {keep}-k {file} {principal}")
        assert file.exists()
        return file

    def ticket(self, principal: str, keytab: Path) -> str:
        """Log in with kinit. Return the value of KRB5CCNAME for the ticket."""
        cache = f"FILE:{self.folder / principal.replace('/', '_')}.ccache"
        self.run("kinit", "-c", cache, "-k", "-t", str(keytab), principal)
        return cache

    def run(self, tool: str, *arguments: str) -> str:
        """Run a Kerberos program and return its output. If the program fails, its output is in the AssertionError."""
        command = [_tool(tool), *arguments]
        done = subprocess.run(command, env=self._everything(), capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def _everything(self) -> dict[str, str]:
        return os.environ | self.environment

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


@contextmanager
def realm(folder: Path) -> Iterator[Realm]:
    """Run a realm that this process uses. Its KDC stops at the end of the `with` block.

    Its principals are `hive/localhost` for the metastore, `ingestd`, and `brief`, whose tickets expire after
    SHORT_SECONDS. Without the programs of a KDC the test is skipped or fails (`_require`).
    """
    _require()
    made = Realm(folder)
    made.start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            for key, value in made.environment.items():
                patch.setenv(key, value)
            made.add("hive/localhost")
            made.add("ingestd")
            made.add("brief", f"-maxlife {SHORT_SECONDS}s")
            yield made
    finally:
        made.stop()


def secured(of: Realm, protections: str = "authentication,integrity,privacy") -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the properties and JVM options of a metastore that accepts only logins of the realm."""
    properties = {
        "hadoop.security.authentication": "kerberos",
        "hadoop.rpc.protection": protections,
        # Some of Hive's code only reads the older name.
        "metastore.sasl.enabled": "true",
        "hive.metastore.sasl.enabled": "true",
        "metastore.kerberos.principal": f"hive/localhost@{NAME}",
        "metastore.kerberos.keytab.file": str(of.keytab("hive", "hive/localhost")),
    }
    return properties, (f"-Djava.security.krb5.conf={of.conf}",)


def _tool(name: str) -> str:
    found = shutil.which(name, path=_PATH)
    assert found, f"the test needs a KDC and {name} is missing: apt-get install {_PACKAGES[name]}"
    return found
