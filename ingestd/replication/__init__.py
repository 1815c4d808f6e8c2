"""Keeps a database on another cluster up to date: policies, dumps of a source, and loads into a target.

Invariant: the two sides meet only in the dump directory, so each needs only its own metastore. A table on the target
has the write ids, the files and the rows that its source has had at one event.

Read `cycle.py` first: one step of a policy, a dump or a load, from the claim of the directory to its mark. Then
`cluster.py` (one side), `marks.py` (what a load stores in the properties of its database), `external.py` (the
directories of external tables) and `cycle_plan.py` (what becomes of each table in one cycle).

Each package is one idea that they use. It imports only the packages that are listed after it:

- `policies/`    policies as scheduled queries of the metastore, and the worker that runs them in the daemon
- `verify/`      the comparison of a source and its copy
- `load/`        what a target does: a bootstrap, or the replay of events
- `dump/`        what a source does: a bootstrap, or the reading of events
- `directory/`   the directory where the two sides meet, and the format of its files
- `copying/`     copies of files between any two storages, in threads or with Spark
- `statements/`  REPL DUMP, REPL LOAD and the statements of policies: grammar, schedule, scope, settings
"""
