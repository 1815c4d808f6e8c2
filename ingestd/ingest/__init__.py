"""The life of one mapping: ownership, recovery, and a pipeline of plan, stage and commit.

Invariant: rows and the offset ranges they came from travel in one value, from the plan to the commit.
"""
