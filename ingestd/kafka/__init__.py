"""Kafka: the only door to confluent_kafka.

Invariant: every offset that leaves this package is a *next* offset, the one after the last record that was read.
"""
