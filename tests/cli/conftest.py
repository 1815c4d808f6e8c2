"""Resets the global state that a command changes in the test process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def _default_logging() -> Iterator[None]:
    """Reset the log configuration after a test, because it refers to the stderr of that test, which is then closed."""
    yield
    structlog.reset_defaults()
