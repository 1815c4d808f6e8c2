"""The HTTP server of the daemon: health, metrics, status, control, and the status page.

Invariant: the server only reads monitors and submits requests. Nothing that a client does slows or ends a mapping.
"""
