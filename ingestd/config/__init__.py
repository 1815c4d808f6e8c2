"""Configuration: converts YAML files to validated options. Only this package imports yaml and pydantic.

Invariant: a `Document` is complete and valid. It has no unknown key, unresolved reference or malformed value.
"""
