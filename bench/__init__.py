"""Benchmarks that run on one machine: `python -m bench.ingest` and `python -m bench.streaming`."""
