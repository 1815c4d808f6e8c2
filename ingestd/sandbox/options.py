"""The options and results of the sandbox as plain values. This module accesses no file, port or process."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from ingestd.java import cache_folder

KAFKA = "kafka"
BROKERS = (KAFKA, "kafka-2", "kafka-3")  # in the order of their node ids, which begin with 1
METASTORE = "metastore"
METASTORE_EVENTS = "metastore-events"  # not a service: the jars of the metastore with an event log
HIVESERVER2 = "hiveserver2"
TARGET = "target-"  # the prefix of the second cluster's services
TARGET_METASTORE = f"{TARGET}{METASTORE}"
TARGET_HIVESERVER2 = f"{TARGET}{HIVESERVER2}"
NAMENODE = "namenode"
DATANODE = "datanode"
DATANODES = (DATANODE, "datanode-2", "datanode-3")
S3_SERVER = "s3"
SPARK_MASTER = "spark-master"
SPARK_WORKER = "spark-worker"
SPARK_WORKERS = tuple(f"{SPARK_WORKER}-{number}" for number in range(1, 9))

LOCAL = "local"
HDFS = "hdfs"
S3 = "s3"
# The services that store the warehouse.
STORAGE_SERVICES: dict[str, tuple[str, ...]] = {LOCAL: (), HDFS: (NAMENODE, *DATANODES), S3: (S3_SERVER,)}
STORAGES = tuple(STORAGE_SERVICES)
# In start order; they stop in reverse order.
SERVICES = (
    *(name for names in STORAGE_SERVICES.values() for name in names),
    *BROKERS,
    *(SPARK_MASTER, *SPARK_WORKERS),
    *(METASTORE, TARGET_METASTORE, HIVESERVER2, TARGET_HIVESERVER2),
)

# Of a master or a worker, which run no tasks.
_SPARK_HEAP_MB = 256

Progress = Callable[[str, int, int], None]
"""Called with `(step, done, total)`, in bytes while jars are fetched. Both numbers are 0 for all other steps."""


def no_progress(step: str, done: int, total: int) -> None:
    """Ignore the progress."""


def program(service: str) -> str:
    """Return the name of the program of `service`: services such as the brokers run the same program."""
    if service in SPARK_WORKERS:
        return SPARK_WORKER
    if service in DATANODES:
        return DATANODE
    return KAFKA if service in BROKERS else service.removeprefix(TARGET)


@dataclass(frozen=True, slots=True)
class SandboxOptions:
    """The options of `up`. Heaps are in MiB. A port that is None is chosen once and then stored in the state folder.

    `brokers` is the number of Kafka brokers, at most `len(BROKERS)`; `kafka_heap_mb` applies to each of them.
    `storage` is a name of STORAGES. If it is None, it is that of the state folder, or LOCAL in a new one.
    `datanodes` is the number of DataNodes of HDFS, at most `len(DATANODES)`, which all store every block.
    `spark_workers` is the number of workers of a standalone Spark cluster, at most `len(SPARK_WORKERS)`; 0 starts none.
    Each has `spark_worker_cores`, and `spark_worker_memory_mb` for its executors. `versitygw` is the program of an S3
    server that runs instead of moto's: it is faster, and it checks signatures. With `replica` there is a second Hive,
    the target of replication. Then both metastores log events, and each heap applies to both sides. HiveServer2 runs at
    most `compactor_threads` compactions at the same time.
    """

    state_dir: Path | None = None
    brokers: int = 1
    hiveserver2: bool = False
    replica: bool = False
    storage: str | None = None
    datanodes: int = 1
    versitygw: Path | None = None
    spark_workers: int = 0
    spark_worker_cores: int = 1
    spark_worker_memory_mb: int = 1024
    metastore_db: str | None = None
    kafka_port: int | None = None
    metastore_port: int | None = None
    hiveserver2_port: int | None = None
    kafka_heap_mb: int = 512
    metastore_heap_mb: int = 512
    hiveserver2_heap_mb: int = 1024
    namenode_heap_mb: int = 256
    datanode_heap_mb: int = 256
    txn_timeout_seconds: int = 300
    housekeeper_seconds: int = 5
    compactor_check_seconds: int = 2
    compactor_threads: int = 1

    @property
    def folder(self) -> Path:
        """The absolute path of the state folder."""
        return (self.state_dir or cache_folder() / "sandbox" / "default").expanduser().absolute()

    def services(self, storage: str) -> tuple[str, ...]:
        """Return the services that `up` starts on `storage`, in order."""
        possible = self.possible_services(storage)
        return tuple(name for name in possible if self.hiveserver2 or program(name) != HIVESERVER2)

    def possible_services(self, storage: str) -> tuple[str, ...]:
        """Return the services that have ports, in start order, whether `up` starts HiveServer2 or not."""
        spark = (SPARK_MASTER, *SPARK_WORKERS[: self.spark_workers]) if self.spark_workers else ()
        hive = (METASTORE, TARGET_METASTORE, HIVESERVER2, TARGET_HIVESERVER2)
        sides = hive if self.replica else (METASTORE, HIVESERVER2)
        return (*self.storage_services(storage), *BROKERS[: self.brokers], *spark, *sides)

    def storage_services(self, storage: str) -> tuple[str, ...]:
        """Return the services of `storage`, in start order."""
        return tuple(name for name in STORAGE_SERVICES[storage] if name not in DATANODES[self.datanodes :])

    def heap_mb(self, service: str) -> int:
        """Return the maximum heap of `service` in MiB; 0 for a service without JVM."""
        heaps = {
            KAFKA: self.kafka_heap_mb,
            METASTORE: self.metastore_heap_mb,
            HIVESERVER2: self.hiveserver2_heap_mb,
            NAMENODE: self.namenode_heap_mb,
            DATANODE: self.datanode_heap_mb,
            SPARK_MASTER: _SPARK_HEAP_MB,
            SPARK_WORKER: _SPARK_HEAP_MB,
        }
        return heaps.get(program(service), 0)

    def asked_port(self, service: str) -> int | None:
        """Return the port that the caller chose for `service`, or None."""
        asked = {KAFKA: self.kafka_port, METASTORE: self.metastore_port, HIVESERVER2: self.hiveserver2_port}
        return asked.get(service)


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses of a running sandbox. `hiveserver2` is None when HiveServer2 was not started.

    `kafka` contains the addresses of all brokers, separated by commas. `warehouse` is the URI of the managed tables.
    `hadoop_conf_dir` is a folder with the `core-site.xml` and `hdfs-site.xml` that clients of the warehouse need, or
    None if it is on the local file system. `spark` is the URL of the Spark master, or None without `spark_workers`.
    With `replica`, the fields `target_…` are those of the target, and the others are those of the source.
    """

    kafka: str
    metastore: str
    hiveserver2: str | None
    warehouse: str
    state_dir: str
    storage: str = LOCAL
    hadoop_conf_dir: str | None = None
    spark: str | None = None
    target_metastore: str | None = None
    target_hiveserver2: str | None = None
    target_warehouse: str | None = None

    def as_json(self) -> str:
        """Return the addresses as one JSON object on one line."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class ServiceState:
    """The state of one service. `answers` is True if it answered a request. `memory_mb` is its resident memory."""

    name: str
    address: str
    pid: int | None
    answers: bool
    memory_mb: int
    log: str

    @property
    def word(self) -> str:
        """The state in one word: `running`, `silent` (alive but not answering) or `stopped`."""
        if self.pid is None:
            return "stopped"
        return "running" if self.answers else "silent"
