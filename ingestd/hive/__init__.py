"""The metastore client. Only this package imports Thrift and hmsclient.

Invariant: no Thrift exception leaves this package; `client.py` translates each of them. The package opens no files.
"""
