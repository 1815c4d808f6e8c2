"""The format of the log on stderr: text on a terminal, one JSON object per line otherwise.

Invariant: each string in a log line has a bounded length. Messages that modules write through `logging` have the same
format as events.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, Literal

import structlog

Form = Literal["auto", "text", "json"]
Level = Literal["debug", "info", "warning", "error"]
# A metastore may put a whole stack trace into the message of an error that is logged every ten seconds.
_LONGEST = 2_000


def configure(form: Form, level: Level) -> None:
    """Set the format and the minimum level of this process's log. `auto` means text if stderr is a terminal."""
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
    # Log only the messages of our own modules. Those of py4j and thrift repeat errors that our packages translate.
    logging.basicConfig(level=logging.CRITICAL, handlers=[_Notes()])
    logging.getLogger("ingestd").setLevel(level.upper())


class _Notes(logging.Handler):
    """Converts messages that modules write through `logging` to events named `note`."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log the message of `record` as an event `note`."""
        log: Any = structlog.get_logger("ingestd")
        log.log(record.levelno, "note", source=record.name, text=record.getMessage())


def shortened(text: str) -> str:
    """Return the text, or its beginning and its length if it has more than 2,000 characters."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text):,} characters)"


def _shorten(_logger: Any, _method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Shorten the long strings of an event. Lists stay complete: they may contain offsets that an operator needs."""
    for key, value in line.items():
        if isinstance(value, str):
            line[key] = shortened(value)
    return line
