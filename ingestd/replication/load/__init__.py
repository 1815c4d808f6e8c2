"""What a target does in a cycle: `bootstrap.py` creates the copy, and `incremental.py` replays events."""
