"""Hive Streaming (V2) for Python programs, without Kafka or Spark. `ingestd.streaming.v1` contains the V1 API."""

from ingestd.hive.partitions import PartitionInfo
from ingestd.retry import retry
from ingestd.streaming.arrow import ArrowWriter
from ingestd.streaming.batch import TxnState
from ingestd.streaming.connection import HiveStreamingConnection
from ingestd.streaming.errors import (
    CommitOutcomeUnknown,
    ConnectionError,  # noqa: A004
    InvalidConnection,
    InvalidTable,
    InvalidTransactionState,
    PartitionCreationFailed,
    SerializationError,
    StreamingException,
    StreamingIOFailure,
    TableChanged,
    TransactionError,
)
from ingestd.streaming.options import ConnectionOptions
from ingestd.streaming.stats import ConnectionStats
from ingestd.streaming.writers import RecordWriter, StrictDelimitedInputWriter, StrictJsonWriter, StrictRegexWriter

__all__ = [
    "ArrowWriter",
    "CommitOutcomeUnknown",
    "ConnectionError",
    "ConnectionOptions",
    "ConnectionStats",
    "HiveStreamingConnection",
    "InvalidConnection",
    "InvalidTable",
    "InvalidTransactionState",
    "PartitionCreationFailed",
    "PartitionInfo",
    "RecordWriter",
    "SerializationError",
    "StreamingException",
    "StreamingIOFailure",
    "StrictDelimitedInputWriter",
    "StrictJsonWriter",
    "StrictRegexWriter",
    "TableChanged",
    "TransactionError",
    "TxnState",
    "retry",
]
