"""Hive with Kerberos on HDFS with Kerberos for tests: a metastore and HiveServer2, which log in as `hive`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ingestd.sandbox import HIVESERVER2, Addresses
from ingestd.sandbox.probe import hiveserver2_answers
from tests.support.kerberos import NAME, Realm, secured
from tests.support.metastore import Home, Process
from tests.support.secured_hdfs import SecuredCluster
from tests.support.stack import eventually

ROOT = "hdfs://secured"


@contextmanager
def secured_hive(folder: Path, realm: Realm, cluster: SecuredCluster, kafka: str) -> Iterator[Addresses]:
    """Run both services, and stop them at the end of the `with` block. Yields their addresses with those of `kafka`.

    Clients of HiveServer2 need no login.
    """
    cluster.make_directory("/warehouse", "hive", 0o775)
    cluster.make_directory("/tmp", "hive", 0o777)
    cluster.make_directory("/user", "hive", 0o775)
    properties, jvm = secured(realm)
    properties |= cluster.client()
    properties |= {
        "fs.defaultFS": ROOT,
        "hive.metastore.warehouse.dir": f"{ROOT}/warehouse",
        "hive.metastore.warehouse.external.dir": f"{ROOT}/warehouse",
        "hive.exec.scratchdir": "/tmp/scratch",
        "hive.user.install.directory": "/user",
        "tez.staging-dir": "/tmp/tez",
    }
    home = Home(folder)
    metastore = Process(home, "metastore", properties, jvm)
    login = {
        "hive.metastore.uris": metastore.uri,
        "hive.server2.authentication.kerberos.principal": properties["metastore.kerberos.principal"],
        "hive.server2.authentication.kerberos.keytab": properties["metastore.kerberos.keytab.file"],
        # The user for whom Tez requests tokens of HDFS.
        "yarn.resourcemanager.principal": f"hive/localhost@{NAME}",
    }
    server = Process(home, "hiveserver2", properties | login, jvm, HIVESERVER2)
    try:
        metastore.start().wait()
        server.start().wait()
        eventually("HiveServer2 to answer", lambda: hiveserver2_answers(server.port))
        yield Addresses(kafka, metastore.uri, f"127.0.0.1:{server.port}", f"{ROOT}/warehouse", str(folder))
    finally:
        server.stop()
        metastore.stop()
