"""Log lines: text for a person at a terminal, one JSON object a line for everything else; always on stderr."""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, Literal

import structlog

Form = Literal["auto", "text", "json"]
Level = Literal["debug", "info", "warning", "error"]
# A metastore may put its whole stack trace into a message that is told every ten seconds.
_LONGEST = 2_000


def configure(form: Form, level: Level) -> None:
    """Set the form of all log lines and the lowest level; `auto` looks at whether stderr is a terminal."""
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
            _shorten,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    # py4j and thrift report through logging what their doors translate anyway; our own modules have no other way.
    logging.basicConfig(level=logging.CRITICAL, handlers=[_Lines()])
    logging.getLogger("ingestd").setLevel(level.upper())


class _Lines(logging.Handler):
    """Writes what a module says through `logging` as a line like all others."""

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        log: Any = structlog.get_logger("ingestd")
        log.log(record.levelno, "note", source=record.name, text=record.getMessage())


def shortened(text: str) -> str:
    """The text, or its beginning and its length when it is longer than 2,000 characters."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text):,} characters)"


def _shorten(_logger: Any, _method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Cut long texts of a line; lists stay whole, since offsets may be among them that somebody needs."""
    for key, value in line.items():
        if isinstance(value, str):
            line[key] = shortened(value)
    return line
