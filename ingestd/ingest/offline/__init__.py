"""Changes of a mapping that no daemon runs: a command owns it, recovers it and commits, as a daemon would.

Read `change.py` (pause, resume, another position, removal), then `replay.py`, which turns dead letters into rows in one
transaction, and `replay_stage.py`, its stage.
"""
