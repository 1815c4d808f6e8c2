"""What a mapping reports about itself. No decision of a mapping depends on it.

The other modules call `reporter.py`, which logs an event (`events.py`) and notes it in the monitor (`monitor.py`). The
HTTP server and the metrics answer from monitors. `oldest.py` and `lag_watch.py` find the lag in seconds, and
`histograms.py` counts how long the steps take.
"""
