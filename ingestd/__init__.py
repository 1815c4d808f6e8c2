"""ingestd moves records from Kafka topics into Apache Hive ACID tables, exactly once."""

__version__ = "0.1.0"
