"""Prepares the S3 server of the sandbox, which is moto's or versitygw.

Invariant: the objects are lost when the server stops. A sandbox whose server has stopped is never started again.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from ingestd.errors import SandboxError, StorageUnavailable
from ingestd.sandbox.guard import TOKEN
from ingestd.sandbox.ports import HOST
from ingestd.sandbox.warehouse import ACCESS_KEY, BUCKET, REGION, SECRET_KEY
from ingestd.storage.options import S3Options, StorageOptions

ENVIRONMENT = {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
"""The variables from which versitygw reads the keys of its only user."""


def require_server(versitygw: Path | None) -> None:
    """Raise SandboxError if the server is not installed."""
    if find_spec("boto3") is None or (versitygw is None and find_spec("moto") is None):
        raise SandboxError("the S3 server is not installed", hint="install it: pip install 'ingestd[sandbox-s3]'")


def command(versitygw: Path | None, port: int, data: Path) -> list[str]:
    """Return the command line of the server. Creates the folders of versitygw in `data`."""
    if versitygw is None:
        return [sys.executable, "-m", "moto.server", "-H", HOST, "-p", str(port)]
    folders = [data / "s3-metadata", data / "s3-objects"]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    # Without the URL of a Kafka server, its topic has no effect.
    settings = ["--port", f"{HOST}:{port}", "--region", REGION, "--keep-alive", "--quiet", "--event-kafka-topic", TOKEN]
    return [str(versitygw), *settings, "posix", "--sidecar", *map(str, folders)]


def create_bucket(port: int) -> None:
    """Create the bucket of the warehouse. Raises SandboxError if the server refuses."""
    from ingestd.storage.s3 import S3Storage  # noqa: PLC0415  # boto3 is optional, and slow to import

    s3 = S3Options(f"http://{HOST}:{port}", REGION, ACCESS_KEY, SECRET_KEY)
    try:
        S3Storage(BUCKET, StorageOptions(s3=s3, properties={})).create_bucket()
    except StorageUnavailable as error:
        raise SandboxError(f"the S3 server did not create a bucket: {error}", where=f"{HOST}:{port}") from error
