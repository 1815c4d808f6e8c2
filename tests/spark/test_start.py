"""A Spark that does not start: the daemon prints one line with the cause, and nothing of what Java prints."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from ingestd.java import failure_cause
from ingestd.spark.standalone import connection_fault
from tests.support.daemon import SPARK_MASTER, DaemonProcess
from tests.support.stack import eventually

# Nothing listens there: until Spark has started, the daemon needs no service.
_NOWHERE = "127.0.0.1:1"


def _config(folder: Path, **spark: Any) -> Path:
    document = {
        "http": {"listen": "off"},
        "metastore": {"uri": f"thrift://{_NOWHERE}"},
        "kafka": {"bootstrap.servers": _NOWHERE},
        "spark": {"master": SPARK_MASTER} | spark,
        "mappings": [{"name": "clicks", "topics": ["clicks"], "table": "web.clicks"}],
    }
    path = folder / "ingestd.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("spark", "environment", "code", "cause", "hint"),
    [
        ({"conf": {"spark.driver.memory": "much"}}, {}, 70, "Invalid maximum heap size", "spark.driver.memory"),
        ({"conf": {"spark.driver.memory": "100m"}}, {}, 70, "Insufficient driver memory", "spark.conf"),
        ({}, {"SPARK_LAUNCHER_OPTS": "-Xwrong"}, 70, "Unrecognized option: -Xwrong", "JAVA_TOOL_OPTIONS"),
        ({}, {"JAVA_TOOL_OPTIONS": "-Xwrong"}, 78, "Unrecognized option: -Xwrong", "JAVA_HOME"),
        ({"master": f"k8s://https://{_NOWHERE}"}, {}, 69, "java.net.ConnectException", "is reachable"),
    ],
)
def test_daemon_when_spark_does_not_start_then_one_line_names_the_cause(
    processes: None,
    tmp_path: Path,
    spark: dict[str, Any],
    environment: dict[str, str],
    code: int,
    cause: str,
    hint: str,
) -> None:
    image = {"spark.kubernetes.container.image": "none"} if "k8s" in spark.get("master", "") else {}
    config = _config(tmp_path, **spark | {"conf": spark.get("conf", {}) | image})
    command = [sys.executable, "-m", "ingestd", "run", "--config", str(config), "--log-format", "json"]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    *events, message = done.stderr.splitlines()
    assert cause in message
    assert hint in message.rpartition("→")[2]
    assert done.stdout == ""
    lost = [event for event in map(json.loads, events) if event["event"] == "engine_lost"]
    assert [event["reason"] for event in lost] == {78: [], 70: ["EngineLost"], 69: ["EngineUnavailable"]}[code]


def test_daemon_when_no_spark_master_answers_then_logs_it_before_it_gives_up(processes: None, tmp_path: Path) -> None:
    config = _config(tmp_path, master=f"spark://{_NOWHERE}")
    daemon = DaemonProcess(config, tmp_path / "log", [], {})
    try:
        delayed, *_ = eventually("the event", lambda: daemon.events("engine_delayed"))
        assert delayed["reason"] == "EngineUnavailable"
        assert f"cannot connect to the Spark master {_NOWHERE}: Connection refused" in delayed["error"]
        daemon.terminate()
        assert daemon.wait() == 0
    finally:
        daemon.kill()


def test_connection_fault_when_one_of_two_masters_accepts_connections_then_is_empty() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert connection_fault(f"spark://{_NOWHERE},127.0.0.1:{server.getsockname()[1]}") == ""
    assert connection_fault(f"spark://{_NOWHERE},localhost:x").count("cannot connect") == 2
    assert connection_fault("yarn") == ""


_OUTPUTS = {
    "Invalid maximum heap size: -Xmxx\nError: Could not create the Java Virtual Machine.\n": "Invalid maximum heap",
    "Error occurred during initialization of VM\nCould not reserve enough space for 8388608KB": "Could not reserve",
    "NOTE: Picked up JDK_JAVA_OPTIONS: -Xb\nError: Unrecognized option: -Xb\n": "Unrecognized option: -Xb",
    "OpenJDK 64-Bit Server VM warning: INFO: os::commit_memory failed; error='Cannot allocate memory'\n#\n"
    "# There is insufficient memory for the Java Runtime Environment to continue.\n": "There is insufficient memory",
    ":: loading settings :: url\nIvy Default Cache set to: x\na#b added\n"
    'Exception in thread "main" java.lang.RuntimeException: [unresolved]\n\tat x\n': "java.lang.RuntimeException: [un",
    "Error: Not allowed to specify max heap(Xmx)\n\nUsage: spark-submit [options]\n": "Not allowed to specify",
    "2026-11-23T13:10:00,173 ERROR DiskBlockManager: Failed to create local dir in /x.\n": "Failed to create local dir",
}


@pytest.mark.parametrize("output", _OUTPUTS)
def test_failure_cause_when_java_has_printed_it_then_is_one_line(output: str) -> None:
    found = failure_cause(output)
    assert found.startswith(_OUTPUTS[output])
    assert "\n" not in found


def test_failure_cause_when_java_has_printed_none_then_is_empty() -> None:
    assert failure_cause("Picked up _JAVA_OPTIONS: -Xmx1g\n\n") == ""
