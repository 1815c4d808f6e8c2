"""JSON records become Arrow batches."""
