"""A real Kafka, Hive Metastore and HiveServer2 on the loopback interface, for trials of ingestd and for its tests.

Invariant: only the state folder and the user's cache folder are written, and services listen on 127.0.0.1 only.
HiveServer2 keeps its default settings wherever they affect query results, including its query result cache.
"""

from ingestd.sandbox.options import (
    DATANODE,
    HDFS,
    HIVESERVER2,
    KAFKA,
    LOCAL,
    METASTORE,
    NAMENODE,
    SERVICES,
    STORAGES,
    TARGET_HIVESERVER2,
    TARGET_METASTORE,
    Addresses,
    SandboxOptions,
    ServiceState,
)
from ingestd.sandbox.sandbox import Sandbox

__all__ = [
    "DATANODE",
    "HDFS",
    "HIVESERVER2",
    "KAFKA",
    "LOCAL",
    "METASTORE",
    "NAMENODE",
    "SERVICES",
    "STORAGES",
    "TARGET_HIVESERVER2",
    "TARGET_METASTORE",
    "Addresses",
    "Sandbox",
    "SandboxOptions",
    "ServiceState",
]
