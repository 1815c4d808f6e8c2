"""The write protocol, shared by the daemon and streaming: how staged files become visible rows, exactly once.

Read `protocol.py` first: it has the steps of one transaction over any number of tables. `deltas.py` places files,
`outcome.py` commits, `row_counts.py` keeps `count(*)` correct, and `staging.py` holds files before all of that.
"""
