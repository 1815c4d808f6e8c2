"""The limit of everything that tests wait for. It only ends a test that would wait forever."""

from __future__ import annotations

import os

# Seconds. No assertion depends on it.
LIMIT = 60.0 * float(os.environ.get("INGESTD_TEST_PATIENCE", "3"))
