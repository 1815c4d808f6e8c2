"""Examines an installation for common faults, with evidence and a fix for each finding.

Invariant: an examination changes nothing. It removes each lock, transaction and directory that it creates.
"""
