"""Configuration: YAML files into validated options; the only door to YAML and pydantic.

Invariant: what leaves this package is complete and checked; no unknown key, no unfilled reference, no bad unit.
"""
