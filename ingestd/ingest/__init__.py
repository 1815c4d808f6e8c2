"""The lifecycle of one mapping: ownership, recovery, and a pipeline of plan, stage and commit.

Invariant: from the plan to the commit, one value contains both the rows and the offset ranges they came from.

Read the modules of this folder in this order:

- `commit.py` is the central page: the ten steps of a transaction, and why its records are stored exactly once.
- `mapping.py` is the main loop: it recovers (`recovery.py`), carries out requests (`requests.py`), runs the pipeline.
- `pipeline.py` plans transactions (`plan.py`), opens them (`ledger.py`), stages them (`stage/`) and commits them.
- `state.py` is what a commit stores. `services.py` is what all of them share.

Each package is one idea that they use. It imports only the packages that are listed after it:

- `offline/`     the same changes without a daemon, and replays of dead letters
- `inspection/`  questions about a mapping, whose answers change nothing
- `stage/`       the Spark job of a transaction, from offset ranges to hidden files
- `ownership/`   which daemon runs a mapping
- `table/`       the tables of a mapping: checks, creation, and changes of their columns
- `monitoring/`  what a mapping reports: log events, status, lag
- `rows/`        from records to rows, in memory
- `letters/`     rejects and dead letters
"""
