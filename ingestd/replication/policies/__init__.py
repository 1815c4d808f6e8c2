"""Policies as scheduled queries of the metastore (`store.py`), and the daemon's worker (`worker.py`)."""
