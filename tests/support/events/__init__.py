"""A metastore that writes notification events, and the list of its jars."""
