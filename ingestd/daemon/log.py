"""The format of the log on stderr: text on a terminal, otherwise one line per event, as a JSON object or as logfmt.

Invariant: each string in a log line has a bounded length. All formats have the same fields. Messages that
modules write through `logging` have the same format as events.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import MutableMapping, Sequence
from typing import Any, Literal

import structlog

Form = Literal["auto", "text", "json", "logfmt"]
Level = Literal["debug", "info", "warning", "error"]
# A metastore may put a whole stack trace into the message of an error that is logged every ten seconds.
_LONGEST = 2_000
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029]")


def configure(form: Form, level: Level) -> None:
    """Set the format and the minimum level of this process's log. `auto` means text if stderr is a terminal."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.EventRenamer("event"),
            _shorten,
            *_renderers(form),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    # Log only the messages of our own modules. Those of py4j and thrift repeat errors that our packages translate.
    logging.basicConfig(level=logging.CRITICAL, handlers=[_Notes()])
    logging.getLogger("ingestd").setLevel(level.upper())


def _renderers(form: Form) -> Sequence[structlog.typing.Processor]:
    """Return the processors that turn an event into a line."""
    if form == "text" or (form == "auto" and sys.stderr.isatty()):
        return [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), sort_keys=False)]
    if form == "logfmt":
        order = ["timestamp", "level", "event", "mapping", "txn"]
        return [_flatten, structlog.processors.LogfmtRenderer(key_order=order, drop_missing=True, bool_as_flag=False)]
    return [structlog.processors.JSONRenderer()]


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


def _flatten(_logger: Any, _method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Replace values that logfmt does not have: each step of `ms` becomes a field, and lists and objects JSON texts."""
    flat = {f"ms.{step}": value for step, value in line.pop("ms", {}).items()}
    for key, value in line.items():
        text = json.dumps(value, ensure_ascii=False) if isinstance(value, (list, dict)) else value
        # LogfmtRenderer escapes line feeds, but no other control character.
        flat[key] = _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text) if isinstance(text, str) else text
    return flat
