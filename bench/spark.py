"""`python -m bench.spark JOB` drains a topic with Spark's Kafka source and its own functions into ORC files.

JOB is a `SparkJob` as JSON. Spark reads each format with the function that its documentation recommends: `from_json`,
`from_avro` and `from_protobuf` after the header of the registry, and `from_csv`. `from_csv` has no nested types, so
nested delimited records are split by expressions.

Invariant: Spark runs with the same `local[2]` and the same compression as ingestd. The program prints one JSON line
with the number of rows and the seconds of a first (cold) and a second (warm) drain in one session.
"""

from __future__ import annotations

import base64
import json
import os
import sys

import pyspark
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.protobuf.functions import from_protobuf

from bench.formats import DELIMITERS, MESSAGE, SparkJob
from bench.records import SHAPES, Shape
from ingestd.clock import monotonic
from ingestd.java import find_java
from ingestd.schema import HiveType

_IS_4 = pyspark.__version__.startswith("4")
# Versions whose token provider is on Maven Central as well. 4.0.0 runs with every PySpark 4.
_KAFKA = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0" if _IS_4 else "org.apache.spark:spark-sql-kafka-0-10_2.12:3.5.7"
)
_FORMATS = {
    "avro": "org.apache.spark:spark-avro_2.13:4.2.0" if _IS_4 else "org.apache.spark:spark-avro_2.12:3.5.7",
    "protobuf": "org.apache.spark:spark-protobuf_2.13:4.0.0" if _IS_4 else "org.apache.spark:spark-protobuf_2.12:3.5.7",
}
# The number of bytes before the data: of the registry's header, and of the index path of the first message.
_HEADERS = {"avro": 5, "protobuf": 6}


def drain(spark: SparkSession, job: SparkJob, shape: Shape) -> float:
    """Drain the topic into ORC files and return the seconds that it took."""
    began = monotonic()
    source = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", job.servers)
        .option("subscribe", shape.name)
        .option("startingOffsets", "earliest")
        .load()
    )
    rows = _rows(source, job, shape)
    if shape.has_rejects:
        rows = rows.where("id IS NOT NULL")
    by = [shape.partition.split(" ")[0]] if shape.partition else []
    rows.write.mode("overwrite").option("compression", "zstd").partitionBy(*by).orc(job.folder)
    return monotonic() - began


def _rows(source: DataFrame, job: SparkJob, shape: Shape) -> DataFrame:
    columns = ", ".join(filter(None, [shape.columns, shape.partition]))
    text = f.col("value").cast("string")
    if shape.format == "delimited":
        return _delimited(source, shape, text)
    if shape.format == "json":
        row: Column = f.from_json(text, columns)
    else:
        data = f.expr(f"substring(value, {1 + _HEADERS[shape.format]})")
        if shape.format == "avro":
            row = from_avro(data, job.schema)
        else:
            row = from_protobuf(data, MESSAGE, binaryDescriptorSet=base64.b64decode(job.schema))
    return source.select(row.alias("row")).select("row.*")


def _delimited(source: DataFrame, shape: Shape, text: Column) -> DataFrame:
    columns = shape.all_columns()
    kinds = ", ".join(f"{c.name} {'string' if c.type.is_complex else c.type}" for c in columns)
    row = f.from_csv(text, kinds, {"sep": DELIMITERS[0], "nullValue": r"\N", "quote": ""})
    rows = source.select(row.alias("row")).select("row.*")
    return rows.select(*(f.expr(_value(c.name, c.type, 1)).alias(c.name) for c in columns))


def _value(text: str, kind: HiveType, level: int) -> str:
    """Return the SQL expression of a value from the expression of its text."""
    if not kind.is_complex:
        return text if kind.kind == "string" or level == 1 else f"CAST({text} AS {kind})"
    if kind.kind == "map":
        return f"str_to_map({text}, '{DELIMITERS[level]}', '{DELIMITERS[level + 1]}')"
    parts = f"split({text}, '{DELIMITERS[level]}')"
    if kind.kind == "array":
        return f"transform({parts}, x{level} -> {_value(f'x{level}', kind.children[0], level + 1)})"
    fields = enumerate(zip(kind.names, kind.children, strict=True))
    values = (f"'{name}', {_value(f'{parts}[{index}]', child, level + 1)}" for index, (name, child) in fields)
    return f"named_struct({', '.join(values)})"


def main() -> None:
    """Drain twice, and print the seconds of each drain and the number of rows."""
    job = SparkJob(**json.loads(sys.argv[1]))
    shape = next(shape for shape in SHAPES if shape.name == job.shape)
    packages = filter(None, (_KAFKA, _FORMATS.get(shape.format)))
    os.environ["JAVA_HOME"] = str(find_java())
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("bench")
        .config("spark.jars.packages", ",".join(packages))
        .config("spark.jars.excludes", "org.slf4j:slf4j-api")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    cold = drain(spark, job, shape)
    warm = drain(spark, job, shape)
    rows = spark.read.orc(job.folder).count()
    print(json.dumps({"cold": cold, "warm": warm, "rows": rows}))
    spark.stop()


if __name__ == "__main__":
    main()
