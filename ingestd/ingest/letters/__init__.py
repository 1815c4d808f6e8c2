"""Rejects and dead letters: the records that cannot become rows, and what is kept of them.

A *reject* is such a record in its transaction: `rejects.py` counts them and decides whether there are too many. With
`on_error: dead_letter`, each becomes a *dead letter*, which is stored in a Kafka topic, in a Hive table, or in both.
Read `rejects.py`, `table.py` (what a letter is), and `writer.py`. `reader.py` and `groups.py` serve the commands that
show letters, and `offline/replay.py` makes rows of them.
"""
