"""Log lines: text for a person at a terminal, one JSON object a line for everything else; always on stderr."""

from __future__ import annotations

import logging
import sys
from typing import Literal

import structlog


def configure(form: Literal["auto", "text", "json"]) -> None:
    """Set the form of all log lines; `auto` looks at whether stderr is a terminal."""
    text = form == "text" or (form == "auto" and sys.stderr.isatty())
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), sort_keys=False)
        if text
        else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.EventRenamer("event"),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    # py4j and thrift report through logging what their doors translate anyway.
    logging.basicConfig(stream=sys.stderr, level=logging.CRITICAL)
