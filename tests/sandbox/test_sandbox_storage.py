"""Sandboxes whose warehouse is in HDFS or in S3: their services, their addresses, and services that were killed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ingestd.hive.client import Metastore
from ingestd.sandbox import DATANODE, NAMENODE, Sandbox, SandboxOptions
from ingestd.sandbox.options import DATANODES
from ingestd.storage.contract import child
from ingestd.storage.options import StorageOptions
from ingestd.storage.storages import Storages

from .conftest import Cli


@pytest.mark.soak
def test_sandbox_when_on_hdfs_then_serves_the_warehouse_and_a_killed_namenode_starts_again(cli: Cli) -> None:
    first = json.loads(cli.run("up", "--storage", "hdfs", "--datanodes", "2", "--spark-workers", "1", "--json").stdout)
    assert first["storage"] == "hdfs"
    assert first["spark"].startswith("spark://127.0.0.1:")
    assert first["warehouse"].startswith("hdfs://127.0.0.1:")
    assert first["warehouse"].removesuffix("/warehouse") in Path(first["hadoop_conf_dir"], "core-site.xml").read_text()
    storages = Storages(StorageOptions(hadoop_conf_dir=Path(first["hadoop_conf_dir"])))
    storage = storages.at(first["warehouse"])
    storage.make_directories(first["warehouse"])
    storage.write(child(first["warehouse"], "f"), b"1")
    blocks = [list((cli.state_dir / "data" / name).rglob("finalized/**/blk_*[0-9]")) for name in DATANODES[:2]]
    assert [len(found) for found in blocks] == [1, 1]
    metastore = Metastore(first["metastore"])
    external = first["warehouse"].replace("/warehouse", "/external")
    assert metastore.call("get_database", "default").locationUri == external
    metastore.close()

    box = Sandbox(SandboxOptions(cli.state_dir, datanodes=2, spark_workers=1))
    box.stop_service(NAMENODE, kill=True)
    box.start_service(NAMENODE)
    box.pause_service(DATANODE)
    words = {state.name: state.word for state in box.status()}
    assert (words[NAMENODE], words[DATANODE]) == ("running", "silent")

    stopped = ("metastore", "spark-worker-1", "spark-master", "kafka", "datanode-2", "datanode", "namenode")
    assert f"stopped {', '.join(stopped)}" in " ".join(cli.run("down").stdout.split())  # in one line


def test_sandbox_when_on_s3_then_serves_the_warehouse_until_its_server_stops(cli: Cli) -> None:
    first = json.loads(cli.run("up", "--storage", "s3", "--json").stdout)
    assert (first["storage"], first["warehouse"]) == ("s3", "s3a://warehouse/managed")
    metastore = Metastore(first["metastore"])
    assert metastore.call("get_database", "default").locationUri == "s3a://warehouse/external"
    metastore.close()
    storages = Storages(StorageOptions(hadoop_conf_dir=Path(first["hadoop_conf_dir"])))
    location = storages.location(f"{first['warehouse']}/t")
    storages.at(location.uri).write(child(location.uri, "f"), b"1")
    assert location.names() == ["f"]
    refused = cli.run("up", "--storage", "local")
    assert refused.returncode == 69
    assert "the warehouse of this state folder is on the storage s3" in refused.stderr
    assert "stopped metastore, kafka, s3" in cli.run("down").stdout
    again = cli.run("up")
    assert again.returncode == 69
    assert "its S3 server has stopped" in again.stderr
