"""Keeps a database on another cluster up to date: policies, dumps of a source, and loads into a target.

Invariant: the two sides meet only in the dump directory, so each needs only its own metastore. A table on the target
has the write ids, the files and the rows that its source has had at one event.
"""
