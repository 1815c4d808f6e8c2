"""Questions about a mapping. The answers come from Kafka and Hive, need no daemon, and change nothing.

- `stored.py`: what is committed, by whom, and what is left to read
- `positions.py`: what a new position would skip or read again
- `preview.py`: which rows its records would become; `excerpt.py` reads the records
- `sample.py`: which format and columns fit the records of a topic
- `checks.py`: whether the mapping can work; `permissions.py` predicts this for directories that two users write
"""
