"""Copies of files between any two storages, in threads or with Spark: single files, and whole directories."""
