"""Spark: the only package that imports pyspark and py4j.

Invariant: a job is a plain function over frozen values; only values and results cross to the executors and back.
"""
