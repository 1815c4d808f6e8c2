"""Accesses the file system of the warehouse.

Invariant: a directory that readers may see appears complete, by one rename.
"""
