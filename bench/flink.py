"""`FLINK_PYTHON bench/flink.py SERVERS TOPIC FOLDER` drains a topic of flat records with Flink SQL into ORC files.

It runs with the Python of an environment with apache-flink, and imports nothing else. FLINK_JARS names the folder of
the connectors: flink-sql-connector-kafka, flink-orc, and what the latter needs (orc-core, orc-shims, hive-storage-api,
aircompressor, commons-lang, protobuf-java 2.5, hadoop-client-api, hadoop-client-runtime).

Invariant: Flink has two slots, as ingestd has two cores. Like `bench.spark`, the program prints one JSON line with the
seconds of a first (cold) and a second (warm) drain in one session.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from pyflink.table import EnvironmentSettings, TableEnvironment  # type: ignore[import-not-found]

_COLUMNS = "id BIGINT, ts TIMESTAMP(3), user_name STRING, amount DOUBLE, flag BOOLEAN, note STRING"
_SETTINGS = {
    "parallelism.default": "2",
    "taskmanager.numberOfTaskSlots": "2",
    "taskmanager.memory.process.size": "3g",
    "pipeline.object-reuse": "true",
    "table.exec.source.idle-timeout": "1s",
}


def main() -> None:
    """Drain twice, and print the seconds of each drain."""
    servers, topic, folder = sys.argv[1:]
    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    jars = sorted(Path(os.environ["FLINK_JARS"]).glob("*.jar"))
    tables.get_config().set("pipeline.jars", ";".join(jar.as_uri() for jar in jars))
    for key, value in _SETTINGS.items():
        tables.get_config().set(key, value)
    tables.execute_sql(
        f"CREATE TABLE source ({_COLUMNS}) WITH ('connector' = 'kafka', 'topic' = '{topic}',"
        f" 'properties.bootstrap.servers' = '{servers}', 'scan.startup.mode' = 'earliest-offset',"
        " 'scan.bounded.mode' = 'latest-offset', 'format' = 'json', 'json.timestamp-format.standard' = 'SQL')"
    )
    seconds = {}
    for name in ("cold", "warm"):
        path = (Path(folder) / name).as_uri()
        tables.execute_sql(
            f"CREATE TABLE {name} ({_COLUMNS}) WITH ('connector' = 'filesystem', 'path' = '{path}', 'format' = 'orc')"
        )
        began = time.monotonic()
        tables.execute_sql(f"INSERT INTO {name} SELECT * FROM source").wait()
        seconds[name] = time.monotonic() - began
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()
