"""The comparison of a source and its copy: definitions, write ids, files, rows and checksums (`tables.py`)."""
