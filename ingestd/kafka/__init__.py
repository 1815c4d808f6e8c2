"""The Kafka clients. Only this package imports confluent_kafka.

Invariant: every position that this package returns or commits is a *next* offset, one after the last record read.
"""
