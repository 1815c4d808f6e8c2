"""Policies as scheduled queries of the metastore (`policies.py`), and the daemon's worker (`worker.py`)."""
