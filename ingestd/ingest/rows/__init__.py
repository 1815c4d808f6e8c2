"""From records to rows, in memory: no module here asks Kafka, Hive or Spark for anything.

Read `partitioning.py` (where the values of partition columns come from), `decoding.py` (a batch of records becomes rows
and rejects), and `transform.py` (the query that `where` and `transform` put between these rows and those of the table).
"""
