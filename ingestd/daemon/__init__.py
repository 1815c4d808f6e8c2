"""The daemon: assembles the mappings of a configuration, runs them concurrently, and stops on signals.

Invariant: a mapping that fails never stops the others.
"""
