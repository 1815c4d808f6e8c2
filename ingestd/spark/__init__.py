"""Spark: the only package that imports pyspark and py4j.

Invariant: a job applies a plain function to frozen values. Executors receive only values and return only results.
"""
