"""The daemon: puts the parts together, runs the mappings side by side, ends on signals.

Invariant: one broken mapping never stops the others.
"""
