"""The metastore: the only door to Thrift, hmsclient and the Hive 4 bindings.

Invariant: no Thrift exception leaves this package; each is translated once, in `client.py`.
"""
