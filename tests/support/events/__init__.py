"""A metastore that keeps an event log, and the list of its jars."""
