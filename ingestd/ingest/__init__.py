"""One mapping's life: plan, stage, commit, and what happens when a step fails.

Invariant: rows and the offsets that produced them travel in one value, from the plan to the commit.
"""
