"""Measurements that anybody can repeat: `python -m bench.ingest`."""
