"""A metastore that keeps an event log, and what it needs beside the sandbox's."""
