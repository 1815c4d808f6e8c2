"""The formats of the log: every format has all fields of an event, and one line per event."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
import structlog

from ingestd.daemon import log
from ingestd.errors import RecordError, TransactionAborted
from ingestd.ingest.monitoring import events

FIELD = re.compile(r'([\w.]+)=("(?:[^"\\]|\\.)*"|\S*)(?: |$)')


@pytest.fixture(autouse=True)
def _default_log() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def _line(capsys: pytest.CaptureFixture[str]) -> str:
    [line] = capsys.readouterr().err.splitlines()
    return line


def _logfmt(line: str) -> dict[str, str]:
    """Parse a line of logfmt, and check that it consists of nothing but fields."""
    assert FIELD.sub("", line) == ""
    return {
        key: re.sub(r"\\(.)", lambda c: "\n" if c[1] == "n" else c[1], value[1:-1]) if value[:1] == '"' else value
        for key, value in FIELD.findall(line)
    }


def _rejected(txn: int | None) -> RecordError:
    error = RecordError('"x=1" is not a\nnumber', where="clicks[0] offset 7", hint=r"look at C:\tmp")
    error.txn = txn
    return error


def test_logfmt_when_values_contain_quotes_line_feeds_and_control_characters_then_they_are_escaped(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log.configure("logfmt", "info")
    events.failed("clicks", _rejected(12))
    fields = _logfmt(_line(capsys))
    assert list(fields)[:5] == ["timestamp", "level", "event", "mapping", "txn"]
    assert (fields["level"], fields["event"], fields["mapping"], fields["txn"]) == ("error", "failed", "clicks", "12")
    assert fields["reason"] == "RecordError"
    assert fields["error"] == str(_rejected(12))
    events.changed("clicks", 3, "a\rb\tc\x1b[0m\u2028", "")
    fields = _logfmt(_line(capsys))
    assert (fields["change"], fields["by"]) == (r"a\x0db\x09c\x1b[0m\x2028", "")


def test_logfmt_when_values_are_lists_or_objects_then_they_are_json_and_durations_are_fields(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log.configure("logfmt", "info")
    events.left_open("clicks", [4, 5], TransactionAborted("no answer"))
    fields = _logfmt(_line(capsys))
    assert json.loads(fields["transactions"]) == [4, 5]
    structlog.get_logger().info(
        "committed", mapping="clicks", ms={"opened": 3, "staged": 14}, hidden_by={"dt=a b": "base_1"}
    )
    fields = _logfmt(_line(capsys))
    assert (fields["ms.opened"], fields["ms.staged"]) == ("3", "14")
    assert json.loads(fields["hidden_by"]) == {"dt=a b": "base_1"}


@pytest.mark.parametrize("form", ["json", "logfmt", "text"])
def test_log_when_a_level_is_set_then_lower_levels_are_omitted_in_every_format(
    form: log.Form, capsys: pytest.CaptureFixture[str]
) -> None:
    log.configure(form, "warning")
    events.stopped("clicks")
    events.mirror_failed("clicks", 5, TransactionAborted("no answer"))
    assert "mirror_failed" in _line(capsys)


@pytest.mark.parametrize("form", ["json", "logfmt", "text"])
def test_log_when_a_transaction_fails_then_its_events_contain_it_in_every_format(
    form: log.Form, capsys: pytest.CaptureFixture[str]
) -> None:
    log.configure(form, "info")
    try:
        raise TransactionAborted("a worker was lost five times") from _rejected(77)
    except TransactionAborted as error:
        events.waiting("clicks", error, 0.2)
    assert re.search(r"txn\W+(\x1b\[\d+m)*77\b", _line(capsys))
    events.waiting("clicks", TransactionAborted("before a transaction was opened"), 0.2)
    assert "txn" not in _line(capsys)
