"""S3 servers for tests: moto, which accepts every key, and versitygw, which checks signatures."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config

from ingestd.storage.options import S3Options, StorageOptions
from tests.support.metastore import free_port
from tests.support.stack import eventually

BUCKET = "warehouse"
KEY, SECRET = "test-key", "test-secret"
VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"


def find_versitygw() -> Path | None:
    """Return the path of versitygw; None if it is not installed."""
    found = shutil.which("versitygw")
    return Path(found) if found else None


class Server:
    """A running S3 server with an empty bucket; with `ca_file`, it accepts only TLS connections."""

    def __init__(self, port: int, process: subprocess.Popen[bytes], ca_file: Path | None = None) -> None:
        self.port = port
        self.process = process
        self.ca_file = ca_file
        self.endpoint = f"https://localhost:{port}" if ca_file else f"http://127.0.0.1:{port}"

    @property
    def options(self) -> StorageOptions:
        """The options of a client."""
        s3 = S3Options(endpoint=self.endpoint, access_key=KEY, secret_key=SECRET, ca_file=self.ca_file)
        return StorageOptions(s3=s3)

    def options_at(self, endpoint: str, timeout: float = 4.0) -> StorageOptions:
        """The options of a client that reaches the server at another address, and whose requests end early.

        It repeats a request if there is no answer for a quarter of `timeout`, in seconds.
        """
        return replace(self.options, timeout=timeout, s3=replace(self.options.s3, endpoint=endpoint))

    def client(self) -> Any:
        """Return a client of boto3 with these keys."""
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
            region_name="us-east-1",
            verify=str(self.ca_file) if self.ca_file else None,
            config=Config(s3={"addressing_style": "path"}, request_checksum_calculation="when_required"),
        )

    def suspend(self) -> None:
        """Freeze the server."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a frozen server continue."""
        self.process.send_signal(signal.SIGCONT)

    def create_bucket(self, name: str = BUCKET) -> None:
        """Create a bucket."""
        self.client().create_bucket(Bucket=name)

    def objects(self, prefix: str = "") -> list[str]:
        """Return the keys of the objects below a prefix."""
        found = self.client().list_objects_v2(Bucket=BUCKET, Prefix=prefix)
        return [entry["Key"] for entry in found.get("Contents", ())]

    def uploads(self) -> list[str]:
        """Return the keys of the unfinished uploads."""
        found = self.client().list_multipart_uploads(Bucket=BUCKET)
        return [upload["Key"] for upload in found.get("Uploads", ())]


@contextmanager
def moto(certificates: Path | None = None) -> Iterator[Server]:
    """Run moto, with TLS if `certificates` contains `s3.pem`, `s3.key` and `ca.pem`."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    if certificates:
        command += ["--ssl-cert", str(certificates / "s3.pem"), "--ssl-key", str(certificates / "s3.key")]
    with _running(command, port, certificates / "ca.pem" if certificates else None) as server:
        yield server


@contextmanager
def versitygw(folder: Path) -> Iterator[Server]:
    """Run versitygw on a folder. Skips the test if it is not installed."""
    program = find_versitygw()
    if program is None:
        pytest.skip(f"needs versitygw: go install {VERSITYGW}")
    for name in ("metadata", "objects"):
        (folder / name).mkdir()
    port = free_port()
    listen = ["--port", f"127.0.0.1:{port}", "--region", "us-east-1", "--keep-alive"]
    command = [str(program), *listen, "posix", "--sidecar", str(folder / "metadata"), str(folder / "objects")]
    with _running(command, port) as server:
        yield server


@contextmanager
def _running(command: list[str], port: int, ca_file: Path | None = None) -> Iterator[Server]:
    environment = os.environ | {"ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        eventually("the S3 server to listen", lambda: _listens(port))
        server = Server(port, process, ca_file)
        server.create_bucket()
        yield server
    finally:
        process.kill()
        process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
