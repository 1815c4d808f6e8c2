"""Commands that run in the test process leave no trace in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def _default_logging() -> Iterator[None]:
    """Reset the log configuration of a command: it refers to the stderr of its test, which is closed afterwards."""
    yield
    structlog.reset_defaults()
