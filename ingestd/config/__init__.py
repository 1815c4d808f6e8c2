"""Configuration: turns YAML files into validated options. Only this package imports yaml and pydantic.

Invariant: a `Document` is complete and valid: no unknown key, no unresolved reference, no malformed value.
"""
