"""Hive's full-ACID storage: directories, ORC files, partitions; no metastore, no network, local paths only."""

from ingestd.acid.layout import (
    ORC_ACID_VERSION,
    ORC_ACID_VERSION_FILE,
    Base,
    DeleteDelta,
    Delta,
    ValidWriteIds,
    VisibleDirectories,
    bucket_name,
    bucket_property,
    delta_name,
    parse_directory,
    visible_directories,
)
from ingestd.acid.partitions import (
    DEFAULT_PARTITION,
    Routed,
    odd_partition_names,
    partition_name,
    partition_value,
    route,
    static_partition_value,
)
from ingestd.acid.pyarrow_writer import FastWriter
from ingestd.acid.pyorc_writer import ExactWriter
from ingestd.acid.visible_rows import visible_rows
from ingestd.acid.writer import AcidWriter, Finished, exact_rows
from ingestd.acid.writer_pool import WriterPool, WrittenFile

__all__ = [
    "DEFAULT_PARTITION",
    "ORC_ACID_VERSION",
    "ORC_ACID_VERSION_FILE",
    "AcidWriter",
    "Base",
    "DeleteDelta",
    "Delta",
    "ExactWriter",
    "FastWriter",
    "Finished",
    "Routed",
    "ValidWriteIds",
    "VisibleDirectories",
    "WriterPool",
    "WrittenFile",
    "bucket_name",
    "bucket_property",
    "delta_name",
    "exact_rows",
    "odd_partition_names",
    "parse_directory",
    "partition_name",
    "partition_value",
    "route",
    "static_partition_value",
    "visible_directories",
    "visible_rows",
]
