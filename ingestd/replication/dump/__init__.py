"""What a source does in a cycle: `bootstrap.py` lists a snapshot, and `incremental.py` reads the event log."""
