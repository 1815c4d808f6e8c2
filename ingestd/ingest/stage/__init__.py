"""The stage of a transaction: one Spark job that reads offset ranges and writes hidden ORC files.

The driver calls `jobs.py`, which decides how the job runs, and the executors run `task.py`. If rows are distributed,
two tasks take its place: one sends rows, the other receives and writes them (`exchange.py`). No module here opens or
commits a transaction, so a stage can be repeated.
"""
