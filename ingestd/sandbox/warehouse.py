"""Where the warehouse of the sandbox is, and what the processes of Hadoop and Hive need to access it.

Invariant: the storages differ only in the values of a `Warehouse`, in their services, and in how these are prepared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ingestd.sandbox.options import DATANODES, HDFS, LOCAL, NAMENODE, S3, S3_SERVER
from ingestd.sandbox.ports import HOST
from ingestd.sandbox.state import Layout

BUCKET = "warehouse"
ACCESS_KEY, SECRET_KEY = "sandbox", "sandbox"
REGION = "us-east-1"


@dataclass(frozen=True, slots=True)
class Warehouse:
    """A warehouse on one storage.

    `warehouse` and `external` are the URIs of managed and external tables. `scratch` is the folder of Hive's and Tez's
    temporary files on the file system `default_fs`. `files` contains the properties of the configuration files of
    Hadoop, by name; Hive's services and clients of the warehouse read them. `environment` is added to the environment
    of Hive's services, and the jars of `groups` precede Hive's in their class path. `replicated` contains properties of
    Hive's services that are set if the warehouse may be replicated.
    """

    warehouse: str
    external: str
    default_fs: str
    scratch: str
    files: dict[str, dict[str, str]] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    groups: tuple[str, ...] = ()
    replicated: dict[str, str] = field(default_factory=dict)


def find(storage: str, layout: Layout, ports: Mapping[str, int]) -> Warehouse:
    """Return the warehouse on `storage`, which is a name of STORAGES. `ports` contains the ports of its services."""
    return _FINDERS[storage](layout, ports)


def replication(ports: Mapping[str, int]) -> int:
    """Return how often HDFS stores each block: once on each DataNode that has a port."""
    return sum(name in ports for name in DATANODES)


def _local(layout: Layout, ports: Mapping[str, int]) -> Warehouse:
    return Warehouse(
        warehouse=layout.warehouse.as_uri(),
        external=(layout.data / "external").as_uri(),
        default_fs="file:///",
        scratch=f"{layout.data}/tmp",  # noqa: S108
    )


def _hdfs(layout: Layout, ports: Mapping[str, int]) -> Warehouse:
    root = f"hdfs://{HOST}:{ports[NAMENODE]}"
    client = {
        "dfs.replication": str(replication(ports)),
        # No other DataNode could replace one that fails, because each has every block.
        "dfs.client.block.write.replace-datanode-on-failure.policy": "NEVER",
    }
    return Warehouse(
        warehouse=f"{root}/{layout.prefix}warehouse",
        external=f"{root}/{layout.prefix}external",
        default_fs=root,
        scratch=f"/{layout.prefix}tmp",  # in HDFS
        files={"core-site.xml": {"fs.defaultFS": root}, "hdfs-site.xml": client},
        # Only HDFS has the checksums by which the change manager names files.
        replicated={"hive.repl.cm.enabled": "true", "hive.repl.cmrootdir": f"{root}/{layout.prefix}cmroot"},
    )


def _s3(layout: Layout, ports: Mapping[str, int]) -> Warehouse:
    client = {
        "fs.s3a.endpoint": f"{HOST}:{ports[S3_SERVER]}",
        "fs.s3a.endpoint.region": REGION,
        "fs.s3a.connection.ssl.enabled": "false",
        "fs.s3a.path.style.access": "true",
        "fs.s3a.access.key": ACCESS_KEY,
        "fs.s3a.secret.key": SECRET_KEY,
        "fs.s3a.bucket.probe": "0",
        # Otherwise each new directory or file deletes the markers of its parents, which versitygw refuses.
        "fs.s3a.directory.marker.retention": "keep",
    }
    return Warehouse(
        warehouse=f"s3a://{BUCKET}/{layout.prefix}managed",
        external=f"s3a://{BUCKET}/{layout.prefix}external",
        default_fs="file:///",
        scratch=f"{layout.data}/tmp",  # noqa: S108
        files={"core-site.xml": client},
        # HiveServer2 hides the keys of the configuration from the jobs that it runs.
        environment={"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY},
        groups=(S3,),
    )


_FINDERS: dict[str, Callable[[Layout, Mapping[str, int]], Warehouse]] = {LOCAL: _local, HDFS: _hdfs, S3: _s3}
