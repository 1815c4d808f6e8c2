"""`pip install ingestd` without extras installs the streaming API, and a command that names the missing extra."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.stack import Stack

_HEAVY = (
    "pyspark",
    "py4j",
    "confluent_kafka",
    "click",
    "rich",
    "pydantic",
    "yaml",
    "structlog",
    "starlette",
    "uvicorn",
)
_IMPORT = f"""
import sys
import ingestd.streaming, ingestd.streaming.v1
print([name for name in {_HEAVY} if name in sys.modules])
"""
# None in sys.modules makes an import fail, as if the package were not installed.
_WITHOUT = "import sys, runpy; sys.modules['{}'] = None; runpy.run_module('ingestd', run_name='__main__')"
_WRITE = """
import sys
from ingestd.streaming import HiveStreamingConnection, StrictJsonWriter

with HiveStreamingConnection(
    database="default", table=sys.argv[1], record_writer=StrictJsonWriter(), metastore_uri=sys.argv[2]
) as connection:
    with connection.transaction():
        connection.write([b'{"id": 1}', b'{"id": 2}'])
"""


def test_streaming_when_imported_then_imports_no_package_of_the_daemon() -> None:
    said = subprocess.run([sys.executable, "-c", _IMPORT], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


def test_command_when_the_machine_has_no_time_zones_then_starts() -> None:
    environment = os.environ | {"PYTHONTZPATH": ""}
    said = subprocess.run(
        [sys.executable, "-m", "ingestd", "--version"], capture_output=True, text=True, check=False, env=environment
    )
    assert said.returncode == 0, said.stderr


def test_command_when_the_daemon_is_not_installed_then_says_what_to_install() -> None:
    said = _run_without("structlog")
    assert said.returncode == 78
    assert said.stderr == (
        "ingestd: the packages of the daemon are not installed (structlog is missing)"
        " → run: pip install 'ingestd[daemon]'\n"
    )


@pytest.mark.parametrize(("storage", "package"), [("hdfs", "hdfs_native"), ("s3", "moto")])
def test_demo_when_the_package_of_a_storage_is_missing_then_says_so_before_it_starts_services(
    storage: str, package: str
) -> None:
    said = _run_without(package, "demo", "--storage", storage)
    assert said.returncode in {69, 78}
    assert f"pip install 'ingestd[{'hdfs' if storage == 'hdfs' else 'sandbox-s3'}]'" in said.stderr
    assert "Traceback" not in said.stderr
    assert "starting" not in said.stdout + said.stderr


def _run_without(package: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command as if a package were not installed."""
    command = [sys.executable, "-c", _WITHOUT.format(package), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.soak
def test_install_when_without_extras_then_streams_without_spark(stack: Stack, tmp_path: Path) -> None:
    stack.table("id int")
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    scripts = tmp_path / "venv" / "bin"
    subprocess.run([scripts / "pip", "install", "--quiet", Path(__file__).parents[1]], check=True)
    (packages,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")

    assert not (packages / "pyspark").exists()
    assert not (packages / "confluent_kafka").exists()
    assert sum(file.stat().st_size for file in packages.rglob("*") if file.is_file()) < 450e6

    write: list[str | Path] = [scripts / "python", "-I", "-c", _WRITE, stack.name, stack.addresses.metastore]
    subprocess.run(write, check=True, cwd=tmp_path)
    assert stack.ids() == [1, 2]
    said = subprocess.run([scripts / "ingestd", "run"], capture_output=True, text=True, check=False, env={})
    assert (said.returncode, said.stderr.count("pip install 'ingestd[daemon]'")) == (78, 1)
