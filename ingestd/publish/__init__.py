"""Turns staged files into visible rows, exactly once. The daemon and streaming share this write protocol.

Read `protocol.py` first: it lists the steps of one transaction over any number of tables. `staging.py` manages the
directories of staged files, `deltas.py` places the files, `outcome.py` commits, and `row_counts.py` keeps `count(*)`
correct.
"""
