"""Which daemon runs a mapping: one owns it, and the others are standbys.

This decides liveness only. A transaction itself makes sure that two daemons never commit the same records
(`commit.py`). Read `owner.py`, then `claims.py`, which finds out whether other daemons are alive, and `liveness.py`,
which shows them that this one is.
"""
