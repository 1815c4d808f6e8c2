"""Spark: the only door to pyspark.

Invariant: only values cross to the executors, a plain function and its frozen argument, and a value comes back.
"""
