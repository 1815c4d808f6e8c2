"""The tables of a mapping, which belong to Hive and can change at any time.

Read `target.py` first: it loads a table and decides whether the mapping can write it. `creation.py` creates a missing
table. `columns.py` finds what a table can no longer store, `evolution.py` which columns records need in addition, and
`refused.py` which partitions the metastore does not accept.
"""
