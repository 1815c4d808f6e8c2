"""Mappings: `records` and their `rejects`, `tables` and `partitions`, what is `beside_hive`, `running` and `outages`.

Most tests run a daemon against Kafka, a metastore and HiveServer2. Some examine a part of a mapping without services.
"""
