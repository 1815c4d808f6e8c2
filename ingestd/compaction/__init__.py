"""Compaction of the tables that ingestd writes: counts their deltas, requests compactions, and paces commits.

Invariant: nothing here delays or fails a commit. Hive compacts; ingestd only counts, requests and reports.
"""
