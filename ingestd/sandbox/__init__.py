"""A real Kafka, Hive Metastore and HiveServer2 on loopback, for trying ingestd out and for its tests.

Invariant: nothing outside the state folder and the user's cache folder is written, and nothing listens beyond
127.0.0.1. HiveServer2 keeps its default settings where it judges results, its query result cache included.
"""

from ingestd.sandbox.options import HIVESERVER2, KAFKA, METASTORE, SERVICES, Addresses, SandboxOptions, ServiceState
from ingestd.sandbox.sandbox import Sandbox

__all__ = [
    "HIVESERVER2",
    "KAFKA",
    "METASTORE",
    "SERVICES",
    "Addresses",
    "Sandbox",
    "SandboxOptions",
    "ServiceState",
]
