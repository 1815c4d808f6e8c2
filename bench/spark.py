"""`python -m bench.spark SERVERS TOPIC FOLDER` drains a topic with Spark's Kafka source and `from_json` into ORC files.

Invariant: Spark runs with the same `local[2]` and the same compression as ingestd. The program prints one JSON line
with the number of rows and the seconds of a first (cold) and a second (warm) drain in one session.
"""

from __future__ import annotations

import json
import os
import sys

import pyspark
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from ingestd.clock import monotonic
from ingestd.java import find_java

_SCHEMA = "id bigint, ts timestamp, user_name string, amount double, flag boolean, note string"
# Versions whose token provider is on Maven Central as well. 4.0.0 runs with every PySpark 4.
_PACKAGE = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"
    if pyspark.__version__.startswith("4")
    else "org.apache.spark:spark-sql-kafka-0-10_2.12:3.5.7"
)


def drain(spark: SparkSession, servers: str, topic: str, folder: str) -> float:
    """Drain the topic into ORC files and return the seconds that it took."""
    began = monotonic()
    source = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
    )
    rows = source.select(f.from_json(f.col("value").cast("string"), _SCHEMA).alias("row")).select("row.*")
    rows.write.mode("overwrite").option("compression", "zstd").orc(folder)
    return monotonic() - began


def main() -> None:
    """Drain twice, and print the seconds of each drain and the number of rows."""
    servers, topic, folder = sys.argv[1:]
    os.environ["JAVA_HOME"] = str(find_java())
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("bench")
        .config("spark.jars.packages", _PACKAGE)
        .config("spark.jars.excludes", "org.slf4j:slf4j-api")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    cold = drain(spark, servers, topic, folder)
    warm = drain(spark, servers, topic, folder)
    rows = spark.read.orc(folder).count()
    print(json.dumps({"cold": cold, "warm": warm, "rows": rows}))
    spark.stop()


if __name__ == "__main__":
    main()
