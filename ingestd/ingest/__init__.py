"""The lifecycle of one mapping: ownership, recovery, and a pipeline of plan, stage and commit.

Invariant: from the plan to the commit, one value contains both the rows and the offset ranges they came from.
"""
