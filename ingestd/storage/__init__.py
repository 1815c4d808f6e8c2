"""The file system of the warehouse.

Invariant: what readers may see appears by one rename, complete.
"""
